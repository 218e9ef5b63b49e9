package cluster_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestAnImageOfAnotherSizeCountsAsAChangeOfImages(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	set := func(size int64, unschedulable bool) {
		t.Helper()
		n := cluster.Node{Name: "n", Unschedulable: unschedulable, Images: []cluster.Image{{Names: []string{"app:1"}, Size: size}}}
		if err := st.Apply(cluster.NodeSet{Index: 0, Node: n}); err != nil {
			t.Fatal(err)
		}
	}
	set(300, false)
	first := st.ImagesModified
	set(300, true)
	if st.ImagesModified != first {
		t.Error("a cordon counts as a change of images")
	}
	set(900, true)
	if st.ImagesModified != st.Version().Seq {
		t.Errorf("the image has grown at %d, and images count as changed at %d", st.Version().Seq, st.ImagesModified)
	}
}
