package engine

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// withTerms is a cluster of zones in which the web pod has so many equal terms that prefer to be away from all pods.
func withTerms(t *testing.T, terms, others int) *zones {
	var spec cluster.ClassSpec
	for range terms {
		spec.PreferredAntiAffinity = append(spec.PreferredAntiAffinity, cluster.WeightedPodTerm{Weight: 1, Term: cluster.PodTerm{TopologyKey: hostname}})
		spec.AntiAffinity = append(spec.AntiAffinity, cluster.PodTerm{
			TopologyKey: hostname, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "job", Operator: "In", Values: []string{"0"}}}},
		})
	}
	z := newZones(t, 3, 3, spec)
	for k := range others {
		labels := cluster.LabelsID(1000 + k)
		apply(t, z.st, cluster.LabelsDefined{ID: labels, Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "job", Value: fmt.Sprint(k)}}}})
		z.pod(otherClass, labels, fmt.Sprint("node-", k%3))
	}
	z.pod(testClass, webLabels, "")
	return z
}

func TestWhatAPodAddsToASlotIsOneIncrementHoweverManyTermsMatchIt(t *testing.T) {
	const terms, others = 50, 6
	z := withTerms(t, terms, others)
	s := Subject{Class: testClass, Labels: webLabels}
	f, _ := z.e.Filter(z.st, s, everything(z.st))
	if f.FeasibleCount != 2 {
		t.Errorf("%+v, want all nodes but that of job 0", f)
	}
	c := evaluationOf(z.e, z.st, s)
	for id, a := range c.topology.labeled {
		for _, list := range [][]increment{a.placed, a.moved} {
			if len(list) > len(c.topology.slots) {
				t.Errorf("label set %d has %d increments of %d slots", id, len(list), len(c.topology.slots))
			}
		}
		if sum := int64(0); id >= 1000 {
			for _, inc := range a.placed {
				sum += inc.by
			}
			if want := map[bool]int64{true: 0, false: -terms}[id == 1000]; sum != want {
				t.Errorf("label set %d adds %d, want %d", id, sum, want)
			}
		}
	}
}

func TestWhatAPodCarriesToASlotIsOneIncrementHoweverManyOfItsTermsMatch(t *testing.T) {
	const terms = 50
	z := withTerms(t, terms, 0)
	c := evaluationOf(z.e, z.st, Subject{Class: otherClass, Labels: webLabels})
	if got := c.topology.carried[testClass]; len(got) != 1 || got[0].by != -terms {
		t.Errorf("%d equal terms of another pod are %+v, want one increment of %d", terms, got, -terms)
	}
}

func TestASignatureIsShortHoweverManyTermsOfOthersMatch(t *testing.T) {
	keys, labels := manyKeys(20)
	w := newTerms(t, 3, labels...)
	none := w.e.Signature(w.st, w.subject)
	seen := map[Signature]int{none: -1}
	for id := range 300 {
		w.other(id, keys, id%2 == 0, "")
		s := w.e.Signature(w.st, w.subject)
		if before, ok := seen[s]; ok {
			t.Fatalf("beside %d pods with terms the signature is that beside %d", id+1, before+1)
		}
		if seen[s] = id; len(s.matches) > 64 {
			t.Fatalf("beside %d pods with terms the signature has %d bytes", id+1, len(s.matches))
		}
	}
}

// Score-workers and binders of two releases read each other's.
func TestTopologyProfilesBeginAsThoseOfTheLastRelease(t *testing.T) {
	keys, labels := manyKeys(20)
	w := newTerms(t, 3, labels...)
	w.other(0, keys, true, "")
	w.other(1, keys[:3], false, "node-1")
	var key, matches signatureKey
	for class, n := range []int{len(keys), 3} { // its signature was the class and the number of each term
		for k := range n {
			matches.int(int(termClass) + class)
			matches.int(k)
		}
	}
	key.text(string(matches.b))
	h := fnv.New64a()
	h.Write(key.b)
	c := evaluationOf(w.e, w.st, w.subject)
	if want := string(binary.BigEndian.AppendUint64(nil, cluster.Mix(h.Sum64()))); c.topology.prefix != want {
		t.Errorf("they begin with %x, want %x", c.topology.prefix, want)
	}
}

func TestWhatWasKnownOfOthersBeforeIsNotKept(t *testing.T) {
	w := newTerms(t, 3)
	w.feasible()
	c := w.e.evaluations[w.e.Signature(w.st, w.subject)]
	counts := c.topology
	for id := range 3 { // of topology keys that no node has, and of no pod here
		apply(t, w.st, cluster.NamespaceSet{Name: fmt.Sprint("more-", id)})
		w.feasible()
		if c.relation != w.e.relations[subjectKey{w.subject.Class, w.subject.Labels}] || c.topology != counts {
			t.Fatalf("after namespace %d an evaluation keeps the relations before, or counts anew", id)
		}
	}
}
