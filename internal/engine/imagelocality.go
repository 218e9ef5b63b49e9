package engine

import (
	"encoding/binary"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// ImageLocality prefers nodes that have the pod's images already.
//
// Each image of the pod that the node has, repetitions included, adds int64(size · nodesWithIt / nodes), where size is
// that of the node that showed the image first. The sum s is held between 23 MiB and 1000 MiB per container; the score
// is 100·(s-min)/(max-min). It is not normalised.
//
// What an image adds changes with every node that gets or loses it, joins or leaves; which of the class's images a node has, only
// with the node. So the latter is kept (Raw.Images) and the former counted when nodes are compared (imageScores): a fleet whose
// images change all the time moves no score that is kept.
const ImageLocality = "ImageLocality"

var imageLocality = Descriptor{
	Name: ImageLocality, Points: []string{"score"},
	Priorities: []string{"ImageLocalityPriority"},
	scale:      imageScale,
	compile: func(c *compiler) compiled {
		if c.scores() {
			c.program.images = c.wantedImages()
		}
		return compiled{}
	},
}

const (
	mebibyte          int64 = 1 << 20
	imageMin                = 23 * mebibyte
	imageMaxContainer       = 1000 * mebibyte
)

// wantedImages are those of a class. The zero value is of a class that is not scored by them.
type wantedImages struct {
	images []wantedImage // by symbol, without those that no node has ever had
	count  int           // of the class's different images
	max    int64
}

// wantedImage is an image of a class.
type wantedImage struct {
	name  cluster.Symbol
	place int   // among the class's different images, in the order of its spec: the same in every replica
	times int64 // that the class names it
}

func (c *compiler) wantedImages() wantedImages {
	spec := c.spec
	p := wantedImages{max: imageMaxContainer * int64(spec.ImageContainers)}
	if spec.Unsupported != "" {
		return p // no node is scored
	}
	places := make(map[string]int, len(spec.Images))
	names, times := make([]string, 0, len(spec.Images)), make([]int64, 0, len(spec.Images)) // by place
	for _, name := range spec.Images {
		place, known := places[name]
		if !known {
			place = len(names)
			places[name] = place
			names, times = append(names, name), append(times, 0)
		}
		times[place]++
	}
	p.count = len(names)
	for place, name := range names {
		if sym := c.symbol(name); sym != cluster.NoSymbol {
			p.images = append(p.images, wantedImage{sym, place, times[place]})
		}
	}
	slices.SortFunc(p.images, func(a, b wantedImage) int { return int(a.name - b.name) })
	return p
}

// on returns which of the class's images a node has, as Raw.Images. If they are all among the first eight, it allocates nothing.
func (p *wantedImages) on(n *cluster.Nodes, i cluster.NodeIndex) string {
	var room [16]int
	places := room[:0]
	has := n.Images(i) // by symbol too
	for k := 0; k < len(p.images) && len(has) > 0; k++ {
		at, found := slices.BinarySearch(has, p.images[k].name)
		if found {
			places = append(places, p.images[k].place)
		}
		has = has[at:]
	}
	return imageSet(places)
}

// imageBits is how many of the first places have a bit of their own in Raw.Images.
const imageBits = 8

// imageSet returns the text of Raw.Images for places, each once. It sorts them.
func imageSet(places []int) string {
	if len(places) == 0 {
		return ""
	}
	slices.Sort(places)
	var room [32]byte
	set, last := room[:1], imageBits-1
	for _, place := range places {
		if place < imageBits {
			set[0] |= 1 << place
			continue
		}
		set = binary.AppendUvarint(set, uint64(place-last-1))
		last = place
	}
	return string(set)
}

// imageScores is what the images of a class add where they are, on the state as it is.
type imageScores struct {
	program *program
	asOf    cluster.Seq // ImagesModified
	max     int64
	bytes   []int64 // by place
}

// sync counts again if the images of nodes, or how many nodes there are, have changed.
func (w *imageScores) sync(st *cluster.State, p *program) {
	if w.program == p && w.asOf == st.ImagesModified {
		return
	}
	images := &p.images
	w.program, w.asOf, w.max = p, st.ImagesModified, images.max
	w.bytes = append(w.bytes[:0], make([]int64, images.count)...)
	for _, image := range images.images {
		state := st.Image(image.name)
		if state.Nodes == 0 {
			continue
		}
		spread := float64(state.Nodes) / float64(st.Nodes.Count())
		w.bytes[image.place] = image.times * int64(float64(state.Size)*spread)
	}
}

// score returns the score of nodes that have a set of the class's images; places that the class does not have count nothing, nor
// does what follows when a set makes no sense.
func (w *imageScores) score(set string) int64 {
	sum := int64(0)
	if set != "" {
		for place, bytes := range w.bytes[:min(len(w.bytes), imageBits)] {
			if set[0]&(1<<place) != 0 {
				sum += bytes
			}
		}
		set = set[1:]
	}
	for place := imageBits; set != ""; place++ {
		gap, n := uvarint(set)
		if n <= 0 || place >= len(w.bytes) || gap >= uint64(len(w.bytes)-place) {
			break
		}
		place += int(gap)
		sum += w.bytes[place]
		set = set[n:]
	}
	if sum < imageMin {
		sum = imageMin
	} else if sum > w.max {
		sum = w.max
	}
	return int64(inRange(maxScore * (sum - imageMin) / (w.max - imageMin)))
}

// uvarint is binary.Uvarint of a text.
func uvarint(text string) (value uint64, n int) {
	var room [binary.MaxVarintLen64]byte
	return binary.Uvarint(room[:copy(room[:], text)])
}
