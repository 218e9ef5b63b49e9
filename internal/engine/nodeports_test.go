package engine

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestAHostPortIsTakenIfSomePodThatStaysOrComesConflictsWithIt(t *testing.T) {
	outcomes := make(map[bool]int)
	port := rapid.Custom(func(t *rapid.T) cluster.HostPort {
		return cluster.HostPort{
			IP:       rapid.SampledFrom([]string{allIPs, "10.0.0.1", "10.0.0.2"}).Draw(t, "ip"),
			Protocol: rapid.SampledFrom([]string{"TCP", "UDP"}).Draw(t, "protocol"), Port: rapid.Int32Range(1, 3).Draw(t, "port"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a"}})
		o := newOverlay(st)
		stay := make(map[cluster.HostPort]bool)
		for k := range rapid.IntRange(0, 4).Draw(t, "pods") {
			spec := cluster.ClassSpec{HostPorts: rapid.SliceOfN(port, 0, 3).Draw(t, "ports")}
			apply(t, st, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec},
				cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k)}})
			fate := rapid.SampledFrom([]string{"stays", "goes", "comes", "is elsewhere"}).Draw(t, "fate")
			if fate == "stays" || fate == "goes" {
				apply(t, st, cluster.PodAssumed{ID: cluster.PodID(k), Node: 0, Attempt: 1})
			}
			if fate == "goes" {
				o.add(st, &spec, -1)
			}
			if fate == "comes" {
				o.add(st, &spec, 1)
			}
			for _, p := range spec.HostPorts {
				stay[p] = stay[p] || fate == "stays" || fate == "comes"
			}
		}
		wanted := port.Draw(t, "wanted")
		want := false
		for p, there := range stay {
			want = want || there && conflict(&wanted, &p)
		}
		if got := taken(&st.Nodes, 0, wanted, o); got != want {
			t.Errorf("%+v is taken: %v, want %v: on the node %+v, besides %+v", wanted, got, want, st.Nodes.Ports[0], o.ports)
		}
		outcomes[want]++
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}
