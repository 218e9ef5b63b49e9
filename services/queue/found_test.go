package queue_test

import (
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
)

func TestReaderOtherPodsReason(t *testing.T) {
	for _, claims := range []bool{true, false} {
		t.Run(map[bool]string{true: "B has a claim of its own", false: "B has no volume"}[claims], func(t *testing.T) {
			w := newWorld(t, 1)
			filters, _ := w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 8000)
			set := func(ns, claim string) cluster.LabelsID {
				w.ledger.mu.Lock()
				defer w.ledger.mu.Unlock()
				w.ledger.sets++
				w.ledger.applyLocked(
					cluster.LabelsDefined{ID: w.ledger.sets, Set: cluster.LabelSet{Namespace: ns, Claims: []cluster.PodClaim{{Name: claim}}}},
					cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-" + claim}},
					cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: ns, Name: claim, Volume: "pv-" + claim, Bound: true}},
				)
				return w.ledger.sets
			}
			a := set("default", "claim-of-a")
			var b special
			if claims {
				b = labelled(set("default", "claim-of-b"))
			}
			w.ledger.pod("a", 100, labelled(a))
			w.ledger.pod("b", 100, b)
			var once sync.Once
			filters.refuse = func(*filterv1.FilterRequest) error {
				once.Do(func() {
					w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "default", Name: "claim-of-a"}})
				})
				return nil
			}
			q, _ := w.queueMember("q1")
			time.Sleep(4 * time.Second)
			p := pending(t, q)["b"]
			if p != nil {
				t.Errorf("b is %v after %d attempts: %q", p.GetState(), p.GetAttempts(), p.GetMessage())
			}
			if got := w.ledger.nodeOf("b"); got != "n1" {
				t.Errorf("b is on %q, want n1", got)
			}
		})
	}
}
