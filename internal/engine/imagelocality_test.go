package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// A pod may have some 20,000 containers, and its class is compiled while others wait.
func TestAClassOfVeryManyImagesIsCompiledInTimeThatGrowsWithThem(t *testing.T) {
	took := func(images int) time.Duration {
		spec := cluster.ClassSpec{SchedulerName: "s", ImageContainers: int32(images)}
		for k := range images {
			spec.Images = append(spec.Images, fmt.Sprint("registry.example.com/team/app:", k))
		}
		st := cluster.New(cluster.Version{Epoch: 1})
		apply(t, st, cluster.NodeSet{Node: cluster.Node{Name: "n", Images: []cluster.Image{{Names: spec.Images[images/2:], Size: 1}}}})
		least := time.Duration(1 << 62)
		for range 5 { // others may use the machine
			from := time.Now()
			p := compile(st, &spec)
			least = min(least, time.Since(from))
			if p.images.count != images || len(p.images.images) != images-images/2 {
				t.Fatalf("%d images, %d of them known, want %d and %d", p.images.count, len(p.images.images), images, images-images/2)
			}
		}
		return least
	}
	few, many := took(1000), took(32_000)
	if many > 200*few { // 32 times the images; by pairs it would be 1,024 times as much
		t.Errorf("%v for 1,000 images and %v for 32,000", few, many)
	}
}
