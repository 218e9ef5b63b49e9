package engine

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestANodeHasToDeclareEveryFeatureThatAPodNeeds(t *testing.T) {
	for _, tt := range []struct {
		name               string
		required, declared []string
		want               bool
	}{
		{"nothing needed, nothing declared", nil, nil, true},
		{"nothing needed", nil, []string{"A"}, true},
		{"nothing declared", []string{"A"}, nil, false},
		{"the same", []string{"A", "C"}, []string{"A", "C"}, true},
		{"more is declared, before, between and behind", []string{"B", "D"}, []string{"A", "B", "C", "D", "E"}, true},
		{"the first is missing", []string{"A", "C"}, []string{"B", "C"}, false},
		{"one between is missing", []string{"A", "B", "C"}, []string{"A", "C"}, false},
		{"the last is missing", []string{"A", "C"}, []string{"A", "B"}, false},
		{"a longer name is another feature", []string{"A"}, []string{"AB"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := func(n *cluster.Nodes) bool { return declares(n.Spec[1].Features, tt.required) }
			shape := func(features ...string) cluster.NodeSpec {
				return cluster.NodeSpec{NodeShape: &cluster.NodeShape{Features: features}}
			}
			n := &cluster.Nodes{Spec: []cluster.NodeSpec{shape("other"), shape(tt.declared...)}}
			if got := got(n); got != tt.want {
				t.Errorf("pod that needs %q on node with %q: %t, want %t", tt.required, tt.declared, got, tt.want)
			}
		})
	}
}
