package explain

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

func TestAPodWhoseClaimsAreBeingBoundIsExplained(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default")}}},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n0", Allocatable: []cluster.Quantity{{Name: "pods", Value: 10}}}},
		cluster.ObjectSet{Object: &cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}},
		cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: "d", Name: "c", UID: "u", Class: "late", Mode: "Filesystem"}},
		cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: "default"}},
		cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Namespace: "d", Claims: []cluster.PodClaim{{Name: "c"}}}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "p", Namespace: "d", Name: "p", Class: 1, Labels: 1}},
		cluster.PodAssumed{ID: 0, Node: 0, Attempt: 1, Volumes: []cluster.VolumeChoice{{Claim: "c", UID: "u"}}},
	)
	s := whatif.New(st, engine.EvaluatorConfig{})
	_, err := Explain(t.Context(), s, 0)
	if err != nil {
		t.Fatal(err)
	}
}
