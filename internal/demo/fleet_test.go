package demo

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

func amount(q []cluster.Quantity, name string) int64 {
	for _, q := range q {
		if q.Name == name {
			return q.Value
		}
	}
	return 0
}

func TestFleetHasThePublishedShape(t *testing.T) {
	nodes, err := manifest.Parse([]byte(strings.Join(NodeManifests(), "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	pods, err := manifest.Parse([]byte(strings.Join(PodManifests(1), "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != Nodes || len(pods) != Pods {
		t.Fatalf("%d nodes and %d pods, want %d and %d", len(nodes), len(pods), Nodes, Pods)
	}
	have, want := map[string]int64{}, map[string]int64{}
	for _, o := range nodes {
		for _, name := range []string{"cpu", "memory", GPU} {
			have[name] += amount(source.ReduceNode(o.Node).Allocatable, name)
		}
	}
	for _, o := range pods {
		for _, name := range []string{"cpu", "memory", GPU} {
			want[name] += amount(source.ReducePod(o.Pod).Class.Requests, name)
		}
	}
	if have[GPU] != GPUs*1000 {
		t.Errorf("%d milli-GPUs, want %d", have[GPU], GPUs*1000)
	}
	near := func(what string, got, want, within float64) {
		if math.Abs(got-want) > within {
			t.Errorf("%s is %v, want %v to within %v", what, got, want, within)
		}
	}
	near("number of cores", float64(have["cpu"])/1000, 125_514, 1_255)
	near("memory in TiB", float64(have["memory"])/(1<<40), 584, 5.84)
	near("share of GPUs asked", float64(want[GPU])/float64(have[GPU]), 0.98, 0.01)
	near("share of cores asked", float64(want["cpu"])/float64(have["cpu"]), 0.68, 0.02)
	near("share of memory asked", float64(want["memory"])/float64(have["memory"]), 0.50, 0.02)
}

func TestSeedDecidesThePods(t *testing.T) {
	if !slices.Equal(PodManifests(7), PodManifests(7)) {
		t.Error("the same seed made different pods")
	}
	if slices.Equal(PodManifests(7), PodManifests(8)) {
		t.Error("another seed made the same pods")
	}
}
