package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// TestRankingsThatAreKeptAreThoseMadeAnew changes nodes, and which of them are asked for, between calls that keep short
// lists, so that nodes move over their ends.
func TestRankingsThatAreKeptAreThoseMadeAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const nodes = 400
		y := newYard(t, nodes, 1, cluster.ClassSpec{})
		y.worker.reserve = 1
		eligible := append(cluster.Bitmap(nil), y.st.Nodes.Live...)
		pod := y.st.FreePod()
		for round := range 30 {
			for range rapid.IntRange(0, 20).Draw(t, "changes") {
				i := cluster.NodeIndex(rapid.IntRange(0, nodes-1).Draw(t, "node"))
				switch rapid.IntRange(0, 3).Draw(t, "change") {
				case 0:
					eligible.Put(i, !eligible.Has(i))
				case 1:
					if id := cluster.PodID(rapid.IntRange(1, int(pod)).Draw(t, "pod")); y.st.Pod(id) != nil {
						apply(t, y.st, cluster.PodRemoved{ID: id})
					}
				default:
					apply(t, y.st, cluster.PodSet{ID: pod, Pod: cluster.Pod{UID: fmt.Sprint(pod), Class: testClass, NodeName: y.st.Nodes.Spec[i].Name}})
					pod++
				}
			}
			if rapid.Bool().Draw(t, "totals") { // they are scored, and not ranked
				some := append(cluster.Bitmap(nil), eligible...)
				some[0] &= rapid.Uint64().Draw(t, "some")
				got, _, _ := y.worker.TotalsAmong(y.st, y.subject, some, nil)
				want, _, _ := NewEvaluator(EvaluatorConfig{Parallelism: 1}).TotalsAmong(y.st, y.subject, some, nil)
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("round %d: totals (-want +got):\n%s", round, diff)
				}
				if rapid.Bool().Draw(t, "and no more") {
					continue
				}
			}
			limit := rapid.IntRange(1, 20).Draw(t, "limit")
			got, _ := y.worker.Score(y.st, y.subject, everything(y.st), eligible, limit)
			want, _ := NewEvaluator(EvaluatorConfig{Parallelism: 1}).Score(y.st, y.subject, everything(y.st), eligible, limit)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("round %d (-want +got):\n%s", round, diff)
			}
		}
	})
}
