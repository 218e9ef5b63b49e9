package engine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// A pod may have some 20,000 containers, and its class is compiled while others wait.
// It takes about as long as to put the images into a map and to sort them, which a busy machine and a small cache make longer as well.
func TestAClassOfVeryManyImagesIsCompiledInTimeThatGrowsWithThem(t *testing.T) {
	const images, most = 32_000, 40 // with a search through all the images for each, it is more than 400 times as long
	spec := cluster.ClassSpec{SchedulerName: "s", ImageContainers: images}
	for k := range images {
		spec.Images = append(spec.Images, fmt.Sprint("registry.example.com/team/app:", k))
	}
	st := cluster.New(cluster.Version{Epoch: 1})
	apply(t, st, cluster.NodeSet{Node: cluster.Node{Name: "n", Images: []cluster.Image{{Names: spec.Images[images/2:], Size: 1}}}})
	whole, part := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for try := 0; try < 10 && (try == 0 || whole > most*part); try++ { // others may use the machine, which only makes it take longer
		from := time.Now()
		p := compile(st, &spec, nil)
		whole = min(whole, time.Since(from))
		if p.images.count != images || len(p.images.images) != images-images/2 {
			t.Fatalf("%d images, %d of them known, want %d and %d", p.images.count, len(p.images.images), images, images-images/2)
		}
		from = time.Now()
		places := make(map[string]int, images)
		for place, name := range spec.Images {
			places[name] = place
		}
		slices.Sort(slices.Collect(maps.Keys(places)))
		part = min(part, time.Since(from))
	}
	if whole > most*part {
		t.Errorf("%v for %d images, want at most %d times the %v that a map and a sort of them take", whole, images, most, part)
	}
}

func TestAClassThatIsNotPlacedCompilesNoImages(t *testing.T) {
	spec := cluster.ClassSpec{SchedulerName: "s", Images: []string{"a", "b"}, ImageContainers: 2, Unsupported: "too large"}
	if p := compile(cluster.New(cluster.Version{Epoch: 1}), &spec, nil); p.images.count != 0 {
		t.Errorf("%d images, want none", p.images.count)
	}
}

// What comes from the wire may be anything.
func TestASetOfImagesThatMakesNoSenseCountsNothing(t *testing.T) {
	for _, places := range []int{0, 1, 8, 9, 300} {
		w := imageScores{max: imageMaxContainer, bytes: make([]int64, places)}
		for k := range w.bytes {
			w.bytes[k] = imageMaxContainer
		}
		for what, set := range map[string]string{
			"none": "", "zero": "\x00", "unfinished": "\x00\x80", "too long": "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
			"far": "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "further than an int": "\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
			"one too far": string(binary.AppendUvarint([]byte{0}, uint64(max(places-imageBits, 0)))),
		} {
			if got := w.score(set); got != 0 {
				t.Errorf("%d places, %s: %d, want 0", places, what, got)
			}
		}
	}
	w := imageScores{max: imageMaxContainer, bytes: make([]int64, 300)}
	w.bytes[0], w.bytes[8], w.bytes[299] = imageMaxContainer/10, imageMaxContainer/5, imageMaxContainer/2
	for want, places := range map[int64][]int{79: {299, 0, 8}, 28: {8, 0}, 18: {8}, 48: {299}, 7: {0}} {
		if got := w.score(imageSet(places)); got != want {
			t.Errorf("places %v: %d, want %d", places, got, want)
		}
	}
	if got := w.score(imageSet([]int{0, 8}) + "\xff"); got != 28 {
		t.Errorf("with a byte that makes no sense behind: %d, want 28", got)
	}
}

// A tenant chooses where in a class's spec an image stands, and which images nodes have in the course of time.
func TestWhatNodesHaveOfTheImagesOfAClassTakesRoomForWhatTheyHave(t *testing.T) {
	spec := cluster.ClassSpec{SchedulerName: "default", ImageContainers: 1}
	for k := range 20_000 {
		spec.Images = append(spec.Images, fmt.Sprint("junk:", k))
	}
	spec.Images = append(spec.Images, "app:1", "app:2")
	w := newWorld(t, 1, 0, 0)
	apply(t, w.st, cluster.NodeSet{Node: cluster.Node{Name: "n", Images: []cluster.Image{{Names: []string{"app:1"}}, {Names: []string{"app:2"}}}}})
	p := compile(w.st, &spec, nil)
	if got := p.images.on(&w.st.Nodes, 0); len(got) > 8 {
		t.Errorf("%d bytes for two images", len(got))
	}
	spec.Images = []string{"app:1", "app:2"}
	few := compile(w.st, &spec, nil)
	if got := testing.AllocsPerRun(100, func() { few.images.on(&w.st.Nodes, 0) }); got != 0 {
		t.Errorf("%v allocations for images among the first eight, want none", got)
	}
}

func TestSetsOfImagesThatNodesHadAreForgotten(t *testing.T) {
	const nodes, images = 4, 13
	spec := cluster.ClassSpec{SchedulerName: "default", ImageContainers: images}
	for k := range images {
		spec.Images = append(spec.Images, fmt.Sprint("app:", k))
	}
	w := newWorld(t, 1, 0, 0)
	apply(t, w.st, cluster.ClassDefined{ID: 10, Spec: spec})
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	most, last, again := 0, 0, false
	for step := range 1 << images {
		node := cluster.Node{Name: fmt.Sprint("n", step%nodes), Allocatable: []cluster.Quantity{{Name: "pods", Value: 10}}}
		for k := range images {
			if step>>k&1 != 0 {
				node.Images = append(node.Images, cluster.Image{Names: []string{fmt.Sprint("app:", k)}, Size: int64(k+1) * 90 * mib})
			}
		}
		apply(t, w.st, cluster.NodeSet{Index: cluster.NodeIndex(step % nodes), Node: node})
		_, got := evaluate(t, e, w, 10, 5)
		for _, c := range e.evaluations {
			again = again || len(c.raws.raws) < last
			last = len(c.raws.raws)
			most = max(most, last)
		}
		if step%97 == 0 || again && step%nodes == 0 {
			if _, want := evaluate(t, NewEvaluator(EvaluatorConfig{Parallelism: 1}), w, 10, 5); !cmp.Equal(want, got) {
				t.Fatalf("step %d (-want +got):\n%s", step, cmp.Diff(want, got))
			}
		}
	}
	if most > 1024+8*nodes || !again {
		t.Errorf("up to %d sets kept of %d nodes; begun anew: %v", most, nodes, again)
	}
}
