package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// ImageLocality prefers nodes that have the pod's images already.
//
// Each image of the pod that the node has, repetitions included, adds int64(size · nodesWithIt / nodes), where size is
// that of the node that showed the image first. The sum s is held between 23 MiB and 1000 MiB per container; the score
// is 100·(s-min)/(max-min). It is not normalised.
const ImageLocality = "ImageLocality"

const (
	mebibyte          int64 = 1 << 20
	imageMin                = 23 * mebibyte
	imageMaxContainer       = 1000 * mebibyte
)

type imageLocality struct {
	images []imageScore // by symbol, without those no node has
	max    int64
}

// imageScore is what an image adds on a node that has it.
type imageScore struct {
	name  cluster.Symbol
	bytes int64
}

func (c *compiler) imageLocality(spec *cluster.ClassSpec) imageLocality {
	p := imageLocality{max: imageMaxContainer * int64(spec.ImageContainers)}
	for _, name := range spec.Images {
		sym := c.symbol(name)
		if sym == cluster.NoSymbol {
			continue
		}
		image := c.st.Image(sym)
		if image.Nodes == 0 {
			continue
		}
		spread := float64(image.Nodes) / float64(c.st.Nodes.Count())
		bytes := int64(float64(image.Size) * spread)
		k, found := slices.BinarySearchFunc(p.images, sym, func(s imageScore, t cluster.Symbol) int { return int(s.name - t) })
		if found {
			p.images[k].bytes += bytes
		} else {
			p.images = slices.Insert(p.images, k, imageScore{sym, bytes})
		}
	}
	return p
}

func (p *imageLocality) score(n *cluster.Nodes, i cluster.NodeIndex) int64 {
	sum := int64(0)
	has := n.Images(i) // by symbol too
	for k := 0; k < len(p.images) && len(has) > 0; k++ {
		at, found := slices.BinarySearch(has, p.images[k].name)
		if found {
			sum += p.images[k].bytes
		}
		has = has[at:]
	}
	if sum < imageMin {
		sum = imageMin
	} else if sum > p.max {
		sum = p.max
	}
	return maxScore * (sum - imageMin) / (p.max - imageMin)
}
