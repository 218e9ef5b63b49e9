package binder

import (
	"fmt"
	"testing"
	"time"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

// BenchmarkCommit places batches on the ledger, without etcd and source. As in a cycle, candidates are found per batch
// and class, which does not count here.
func BenchmarkCommit(b *testing.B) {
	const batch = 256
	for _, nodes := range []int{5000} {
		for _, classes := range []int{1, 8} {
			b.Run(fmt.Sprintf("nodes=%d/classes=%d", nodes, classes), func(b *testing.B) {
				term := pureTerm(b, newFakeSource())
				for i := range nodes {
					observe(b, term, node(fmt.Sprintf("n%d", i), int64(16_000+1000*(i%48))))
				}
				var uids []string
				for i := range batch {
					uids = append(uids, fmt.Sprintf("p%d", i))
					observe(b, term, pod(uids[i], int64(100+100*(i%classes))))
				}
				st := term.ledger.state
				attempt, placed := int32(1), 0
				req := requestOf(st, evaluate(st, batch+16), attempt, uids...)
				b.ReportAllocs()
				for b.Loop() {
					candidates, err := term.validate(req)
					if err != nil {
						b.Fatal(err)
					}
					resp, bindings, err := term.place(req, candidates, make([]bool, len(uids)))
					if err != nil {
						b.Fatal(err)
					}
					placed += len(bindings)
					b.StopTimer()
					for i, o := range resp.Outcomes {
						if o.Result != binderv1.Outcome_RESULT_ASSUMED {
							b.Fatalf("%s: %v", uids[i], o.Result)
						}
						if _, err := term.ledger.forget(bindings[i].binding(), ""); err != nil {
							b.Fatal(err)
						}
					}
					attempt++
					req = requestOf(st, evaluate(st, batch+16), attempt, uids...)
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(placed), "ns/pod")
			})
		}
	}
}

// BenchmarkGive is what a bind that is done costs while binds of many slow namespaces wait for a place.
func BenchmarkGive(b *testing.B) {
	for _, namespaces := range []int{0, 9_000} {
		b.Run(fmt.Sprintf("waiting=%d", namespaces), func(b *testing.B) {
			term := pureTerm(b, newFakeSource(), inPlaces(256))
			now := time.Now()
			term.windows.done("quick", time.Millisecond, now)
			for i := range namespaces {
				namespace := fmt.Sprint("slow", i)
				term.windows.shut(namespace, 1, now)
				term.flights.take(&placement{Namespace: namespace}, now)
			}
			b.ReportAllocs()
			for b.Loop() {
				p := &placement{Namespace: "quick"}
				if !term.flights.take(p, now) {
					b.Fatal("it waits")
				}
				if next := term.flights.give(p.place, now); len(next) > 0 {
					b.Fatalf("%d begin", len(next))
				}
			}
		})
	}
}
