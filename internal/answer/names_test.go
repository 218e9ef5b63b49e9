package answer_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/whatif"
)

func TestAComparisonNamesPendingPodsOnlyToThoseWhoMayListThem(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	cpu := []cluster.Quantity{{Name: "cpu", Value: 100}}
	for _, d := range []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
		cluster.ClassDefined{Spec: cluster.ClassSpec{SchedulerName: "berth", Requests: cpu, ScoreRequests: cpu, NonZeroCPU: 100, NonZeroMemory: 1}},
		cluster.NodeSet{Node: cluster.Node{Name: "node", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 1000}, {Name: "memory", Value: 1 << 30}, {Name: "pods", Value: 10}}}},
		cluster.PodSet{Pod: cluster.Pod{UID: "uid", Namespace: "secret", Name: "pending"}},
	} {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	box := whatif.New(st, engine.EvaluatorConfig{Parallelism: 1})
	other := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: other}]\n"
	for names, want := range map[bool]string{true: "secret/pending", false: "/(withheld)"} {
		got, err := answer.Compare(t.Context(), box, &schedulingv1.CompareRequest{Other: other, Manifests: " \n"}, names)
		if err != nil {
			t.Fatal(err)
		}
		if moves := got.GetMoves(); len(moves) != 1 || moves[0].GetNamespace()+"/"+moves[0].GetName() != want {
			t.Errorf("to one who may list pods, %v: %v, want %s", names, moves, want)
		}
	}
}
