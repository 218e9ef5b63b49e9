package engine

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// withNamespaces is a cluster of zones with so many namespaces, in which the web pod wants to be away from the pods of all teams, with so
// many terms, each of another selector; and with a pod of namespace "space-0" on node-0.
func withNamespaces(t *testing.T, terms, namespaces int) *zones {
	var spec cluster.ClassSpec
	for k := range terms {
		spec.AntiAffinity = append(spec.AntiAffinity, cluster.PodTerm{
			TopologyKey: hostname, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Requirements: []cluster.Requirement{
				{Key: "team", Operator: "Exists"}, {Key: "team", Operator: "NotIn", Values: []string{fmt.Sprint("never-", k)}},
			}},
		})
	}
	z := newZones(t, 3, 3, spec)
	for k := range namespaces {
		z.namespace(k, false)
	}
	apply(t, z.st, cluster.LabelsDefined{ID: 900, Set: cluster.LabelSet{Namespace: "space-0"}})
	z.pod(otherClass, 900, "node-0")
	z.pod(testClass, webLabels, "")
	return z
}

func (z *zones) namespace(k int, team bool) {
	d := cluster.NamespaceSet{Name: fmt.Sprint("space-", k), Labels: []cluster.Label{{Key: "a", Value: "b"}}}
	if team {
		d.Labels = append(d.Labels, cluster.Label{Key: "team", Value: "x"})
	}
	apply(z.t, z.st, d)
}

func TestTermsFollowTheLabelsOfNamespacesHoweverManyTheyAre(t *testing.T) {
	for _, terms := range []int{1, resolvedTerms, resolvedTerms + 1, 100} {
		t.Run(fmt.Sprint(terms), func(t *testing.T) {
			z := withNamespaces(t, terms, 5)
			s := Subject{Class: testClass, Labels: webLabels}
			prefixes := make(map[string]bool)
			for round, c := range []struct {
				change func()
				want   int32
			}{
				{func() {}, 3},
				{func() { z.namespace(0, true) }, 2},
				{func() { z.namespace(1, true) }, 2},
				{func() { apply(t, z.st, cluster.NamespaceRemoved{Name: "space-0"}) }, 3}, // its labels are not known any more
				{func() { z.namespace(7, true) }, 3},
			} {
				c.change()
				f, _ := z.e.Filter(z.st, s, everything(z.st))
				if f.FeasibleCount != c.want {
					t.Errorf("round %d: %+v, want %d feasible nodes", round, f, c.want)
				}
				prefixes[z.e.evaluations[z.e.Signature(z.st, s)].topology.prefix] = true
				fresh := NewEvaluator(EvaluatorConfig{})
				fresh.Filter(z.st, s, everything(z.st))
				prefixes[fresh.evaluations[fresh.Signature(z.st, s)].topology.prefix] = true
			}
			if len(prefixes) != 5 {
				t.Errorf("topology profiles begin in %d ways, want one for each of 5 sets of namespaces", len(prefixes))
			}
		})
	}
}

func TestNamespacesAreNotWrittenForEachOfManyTerms(t *testing.T) {
	const namespaces = 1000
	written := func(terms int) int {
		z := withNamespaces(t, terms, namespaces)
		for k := range namespaces {
			z.namespace(k, true)
		}
		c := evaluationOf(z.e, z.st, Subject{Class: testClass, Labels: webLabels})
		var key signatureKey
		for _, p := range c.topology.plugins {
			p.fingerprint(z.st, &key)
		}
		return len(key.b)
	}
	if one, many := written(1), written(200); one < namespaces || many > one {
		t.Errorf("%d bytes tell the namespaces of one term, %d those of 200", one, many)
	}
}
