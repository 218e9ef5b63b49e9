package binder

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
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
						if _, _, err := term.ledger.forget(bindings[i].binding(), "", noNode); err != nil {
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

// posting is a source whose binds are requests to a server, each with an object there and back, as with an API server. All of them are done.
type posting struct {
	single
	post func(context.Context) error
}

func (p posting) Bind(ctx context.Context, _ coord.Cond, _ []source.Binding) []source.Outcome {
	if err := p.post(ctx); err != nil {
		return []source.Outcome{{Result: source.BindUnknown, Err: err}}
	}
	return []source.Outcome{{Result: source.BindDone}}
}

// startHTTPS returns a request to a server of this process, by HTTP/2 and TLS.
func startHTTPS(b *testing.B) func(context.Context) error {
	b.Helper()
	answer := []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}`)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Write(answer)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	b.Cleanup(server.Close)
	client := server.Client()
	return func(ctx context.Context) error {
		body, err := json.Marshal(map[string]any{
			"kind": "Binding", "apiVersion": "v1", "metadata": map[string]any{"name": "p", "namespace": "default", "uid": "u"},
			"target": map[string]any{"kind": "Node", "name": "a"},
		})
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var status map[string]any
		return json.NewDecoder(resp.Body).Decode(&status)
	}
}

// BenchmarkCall is what a call of a lane costs, the server's part included. With -cpu 1 nothing is idle, and the time is that of the processor.
func BenchmarkCall(b *testing.B) {
	const batch = 256
	b.Run("bind", func(b *testing.B) {
		term := pureTerm(b, posting{single{newFakeSource()}, startHTTPS(b)}, inPlaces(places(slowWorkers)))
		observe(b, term, node("a", 1_000_000))
		stop := runBinds(b, term, slowWorkers)
		defer stop()
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			placements := make([]*placement, batch)
			for i := range placements {
				uid := fmt.Sprint("p", i)
				observe(b, term, pod(uid, 1))
				placements[i] = assume(b, term, uid, "a")
			}
			b.StartTimer()
			for _, p := range placements {
				term.binds <- p
			}
			term.unbound.awaitIdle(b.Context(), time.Hour)
			b.StopTimer()
			record(b, term)
			for _, p := range placements {
				observe(b, term, gone(p.UID))
			}
			b.StartTimer()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/call")
	})
	b.Run("event", func(b *testing.B) {
		post := startHTTPS(b)
		term := pureTerm(b, newFakeSource(), func(c *termConfig) { c.EventLimit = 2 * batch })
		ctx, cancel := context.WithCancel(b.Context())
		var running, calls sync.WaitGroup
		for range eventWorkers {
			running.Go(func() { term.events.run(ctx) })
		}
		b.ReportAllocs()
		for b.Loop() {
			calls.Add(batch)
			for range batch {
				term.events.add("default", func(ctx context.Context) error {
					defer calls.Done()
					return post(ctx)
				})
			}
			calls.Wait()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/call")
		cancel()
		running.Wait()
	})
}
