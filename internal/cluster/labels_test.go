package cluster_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Members of the last release know neither claims nor disks, and hash what has none so.
func TestTheDigestOfPodsWithoutVolumesStaysWhatItIs(t *testing.T) {
	for _, tt := range []struct {
		of   cluster.Delta
		want uint64
	}{
		{cluster.LabelsDefined{ID: 3, Set: cluster.LabelSet{Namespace: "shop"}}, 0x90c0a435b46ae231},
		{cluster.LabelsDefined{ID: 3, Set: cluster.LabelSet{
			Namespace: "shop", Labels: []cluster.Label{{Key: "app", Value: "web"}}, Controller: cluster.Controller{Kind: cluster.KindStatefulSet, Name: "web"},
		}}, 0x187e48fdeb035946},
		{cluster.ClassDefined{ID: 3, Spec: cluster.ClassSpec{SchedulerName: "berth", Features: []string{"a"}}}, 0x170e9188cdcd45db},
		{cluster.ClassDefined{ID: 3, Spec: cluster.ClassSpec{Unsupported: "why", UnsupportedPlugin: "VolumeBinding"}}, 0x4b970db54aaf89bf},
	} {
		st := cluster.New(start)
		if err := st.Apply(tt.of); err != nil {
			t.Fatal(err)
		}
		if got := st.Digest(); got != tt.want {
			t.Errorf("the digest of %+v is %#x, want %#x", tt.of, got, tt.want)
		}
	}
}
