package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// alike is what the journal tells of a pod: where it is, and its class and label set.
type alike struct {
	node   cluster.NodeIndex
	class  cluster.ClassID
	labels cluster.LabelsID
}

// crowd is the pods on nodes, as texts of what others may count them by.
func crowd(st *cluster.State) map[alike][]string {
	out := make(map[alike][]string)
	for id, p := range st.Pods() {
		if p.Node != cluster.NoNode {
			a := alike{p.Node, p.Class, p.Labels}
			out[a] = append(out[a], fmt.Sprint(id, p.UID, p.Deleting))
		}
	}
	return out
}

func TestTheJournalNamesEachNodeThatChangedAndThePodsThatCameOrWent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		crowds := []map[alike][]string{{}} // by seq
		walk(t, nothing, func(st *cluster.State, d cluster.Delta, _ struct{}) {
			crowds = append(crowds, crowd(st))
			since := cluster.Seq(rapid.IntRange(0, int(st.Version().Seq)).Draw(t, "since"))
			told, other := make(map[alike]bool), make(map[cluster.NodeIndex]bool)
			var nodes, again, want []cluster.NodeIndex
			if !st.Changes(since, func(c *cluster.NodeChange) {
				nodes = append(nodes, c.Node)
				told[alike{c.Node, c.Class, c.Labels}] = true
				other[c.Node] = other[c.Node] || c.Other
			}) {
				t.Fatalf("changes since %d are not known at %v", since, st.Version())
			}
			st.ChangedSince(since, func(i cluster.NodeIndex) { again = append(again, i) })
			st.Nodes.ChangedSince(since, cluster.Range{End: cluster.MaxIndex}, func(i cluster.NodeIndex) { want = append(want, i) })
			for _, got := range [][]cluster.NodeIndex{nodes, again} {
				slices.Sort(got)
				if got = slices.Compact(got); !slices.Equal(got, want) {
					t.Fatalf("after %+v, changed since %d: %v, want %v", d, since, got, want)
				}
			}
			was, is := crowds[since-start.Seq], crowds[len(crowds)-1]
			for _, pods := range []map[alike][]string{was, is} {
				for a := range pods {
					if !slices.Equal(was[a], is[a]) && !told[a] && !other[a.node] {
						t.Fatalf("after %+v, pods since %d: %v, now %v; nothing is told of %+v", d, since, was[a], is[a], a)
					}
				}
			}
		})
	})
}

func TestTheJournalSaysWhenItHasForgotten(t *testing.T) {
	const nodes, changes = 100_000, 20_000
	st := cluster.New(start)
	for i := range nodes {
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprint(i)}})
	}
	before := st.Version().Seq
	for i := range changes {
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprint(i)}})
	}
	known := 0
	for since := before; since <= st.Version().Seq; since += 100 {
		var told, found []cluster.NodeIndex
		complete := st.Changes(since, func(c *cluster.NodeChange) { told = append(told, c.Node) })
		st.ChangedSince(since, func(i cluster.NodeIndex) { found = append(found, i) })
		var want []cluster.NodeIndex
		for i := cluster.NodeIndex(since - before); i < changes; i++ {
			want = append(want, i)
		}
		if complete {
			known++
		} else if known > 0 || told != nil {
			t.Fatalf("changes since %d are not known, those of earlier are; told %d", since, len(told))
		}
		if complete && !slices.Equal(told, want) || !slices.Equal(found, want) {
			t.Fatalf("since %d: told %d (%v), found %d, want %d", since, len(told), complete, len(found), len(want))
		}
	}
	if known == 0 || known == changes/100+1 {
		t.Errorf("changes are known since %d of %d versions, want some and not all", known, changes/100+1)
	}
}
