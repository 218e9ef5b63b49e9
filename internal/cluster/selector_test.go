package cluster_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// operators are those of label selectors, and what Kubernetes calls them.
var operators = map[string]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
}

// kubernetes returns the selector as Kubernetes has it.
func kubernetes(t interface{ Fatal(...any) }, s cluster.LabelSelector) labels.Selector {
	if s.Nothing {
		return labels.Nothing()
	}
	out := labels.NewSelector()
	for _, r := range s.Requirements {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil {
			t.Fatal(err)
		}
		out = out.Add(*requirement)
	}
	return out
}

func TestSelectorsMatchWhatTheyMatchInKubernetes(t *testing.T) {
	matched := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		s, set := clustertest.Selector(draws(t)), clustertest.LabelSet(draws(t))
		asMap := labels.Set{}
		for _, l := range set.Labels {
			asMap[l.Key] = l.Value
		}
		want := kubernetes(t, s)
		if s.Matches(set.Labels) != want.Matches(asMap) {
			t.Fatalf("%+v matches %v: %v, want %v", s, set.Labels, s.Matches(set.Labels), want.Matches(asMap))
		}
		if s.Empty() != (want.Empty() && !s.Nothing) {
			t.Fatalf("%+v is empty: %v", s, s.Empty())
		}
		matched[s.Matches(set.Labels)]++
	})
	if matched[true] == 0 || matched[false] == 0 {
		t.Errorf("%d selectors matched and %d did not: the test compares too little", matched[true], matched[false])
	}
}

func TestSelectorsAtTheEdges(t *testing.T) {
	labels := []cluster.Label{{Key: "app", Value: "web"}, {Key: "none", Value: ""}, {Key: "tier", Value: "front"}}
	of := func(key, operator string, values ...string) cluster.LabelSelector {
		return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key, Operator: operator, Values: values}}}
	}
	both := of("app", "In", "web")
	both.Requirements = append(both.Requirements, of("tier", "NotIn", "front").Requirements...)
	for _, c := range []struct {
		name      string
		selector  cluster.LabelSelector
		want      bool
		unlabeled bool // the same for a pod without labels
	}{
		{"the empty selector", cluster.LabelSelector{}, true, true},
		{"nothing", cluster.LabelSelector{Nothing: true}, false, false},
		{"nothing with a requirement that is met", cluster.LabelSelector{Nothing: true, Requirements: both.Requirements[:1]}, false, false},
		{"In", of("app", "In", "api", "web"), true, false},
		{"In other values", of("app", "In", "api"), false, false},
		{"In without values", of("app", "In"), false, false},
		{"In the empty value", of("none", "In", ""), true, false},
		{"In the empty value, key missing", of("zone", "In", ""), false, false},
		{"NotIn", of("app", "NotIn", "web"), false, true},
		{"NotIn other values", of("app", "NotIn", "api"), true, true},
		{"NotIn, key missing", of("zone", "NotIn", "a"), true, true},
		{"Exists", of("app", "Exists"), true, false},
		{"Exists with an empty value", of("none", "Exists"), true, false},
		{"Exists, key missing", of("zone", "Exists"), false, false},
		{"DoesNotExist", of("app", "DoesNotExist"), false, true},
		{"DoesNotExist, key missing", of("zone", "DoesNotExist"), true, true},
		{"an operator that is none of labels", of("app", "Gt", "1"), false, false},
		{"one requirement met and one not", both, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.selector.Matches(labels); got != c.want {
				t.Errorf("matches %v: %v, want %v", labels, got, c.want)
			}
			if got := c.selector.Matches(nil); got != c.unlabeled {
				t.Errorf("matches no labels: %v, want %v", got, c.unlabeled)
			}
		})
	}
	if value, ok := cluster.ValueOf(labels, "none"); value != "" || !ok {
		t.Errorf("the value of none is %q, %v", value, ok)
	}
}
