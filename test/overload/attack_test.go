package overload

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var attackCalls = flag.Int("attack-calls", 60, "how many calls an honest caller makes of each kind during each attack")

const (
	attackers    = 4                     // addresses, 127.0.0.2 and so on; the honest caller has another one
	attackEvery  = 2 * time.Millisecond  // one attempt of all attackers together
	honestEvery  = 25 * time.Millisecond // one call: less often than --caller-qps lets a caller
	attackMemory = 768 << 20             // what the gateway may have had at most, whatever is done to it: below the limit of the manifests
	dialTimeout  = time.Minute
)

// victim is a gateway that is attacked.
type victim struct {
	t          *testing.T
	grpc, json string
	heavy      string // manifests of a question that takes long
}

// from returns a dialer of an address of this machine.
func from(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: dialTimeout}
}

// hog is the token of a known caller at that address.
func hog(i int) string { return fmt.Sprint("hog-", i%attackers) }

func attacker(i int) string { return fmt.Sprintf("127.0.0.%d", 2+i%attackers) }

// conn is a gRPC connection from an address.
func (v *victim) conn(address string, opts ...grpc.DialOption) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+v.grpc, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return from(address).DialContext(ctx, "tcp", to)
		}))...)
	if err != nil {
		v.t.Fatal(err)
	}
	return conn
}

// browser is an HTTP client at an address.
func browser(address string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: from(address).DialContext, MaxConnsPerHost: 300}, Timeout: 2 * time.Minute}
}

func bearing(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// each runs n goroutines that do something again and again until ctx ends, and waits for them.
func each(ctx context.Context, n int, do func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			tick := time.NewTicker(attackEvery * time.Duration(n))
			defer tick.Stop()
			for ctx.Err() == nil {
				do(i)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	running.Wait()
}

// held connects again and again, writes to each connection, and keeps them open: so many at a time.
func (v *victim) held(ctx context.Context, write func(net.Conn)) {
	var mu sync.Mutex
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	each(ctx, 2*attackers, func(i int) {
		to := v.grpc
		if i >= attackers {
			to = v.json
		}
		c, err := from(attacker(i)).DialContext(ctx, "tcp", to)
		if err != nil {
			return
		}
		write(c)
		mu.Lock()
		defer mu.Unlock()
		if open = append(open, c); len(open) > 3000 {
			_ = open[0].Close()
			open = open[1:]
		}
	})
}

// post sends a request to the JSON API and throws its answer away.
func (v *victim) post(ctx context.Context, client *http.Client, token, path, body string, headers ...string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+v.json+path, strings.NewReader(body))
	if err != nil {
		v.t.Error(err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	if response, err := client.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// attacks are what strangers, and known callers who want all there is, do until ctx ends.
func (v *victim) attacks() []struct {
	name string
	run  func(ctx context.Context)
} {
	conns, clients := make([]*grpc.ClientConn, 4*attackers), make([]*http.Client, attackers)
	for i := range conns {
		conns[i] = v.conn(attacker(i), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		v.t.Cleanup(func() { _ = conns[i].Close() })
	}
	for i := range clients {
		clients[i] = browser(attacker(i))
		v.t.Cleanup(clients[i].CloseIdleConnections)
	}
	api := func(i int) schedulingv1.SchedulingServiceClient {
		return schedulingv1.NewSchedulingServiceClient(conns[i%len(conns)])
	}
	large := strings.Repeat("x", 3<<20)
	header := strings.Repeat("h", 30<<10)
	return []struct {
		name string
		run  func(ctx context.Context)
	}{
		{"connections that say nothing", func(ctx context.Context) { v.held(ctx, func(net.Conn) {}) }},
		{"headers that never end", func(ctx context.Context) {
			v.held(ctx, func(c net.Conn) { _, _ = io.WriteString(c, "POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nX-") })
		}},
		{"large headers", func(ctx context.Context) {
			each(ctx, 32, func(i int) {
				if i%2 == 0 {
					v.post(ctx, clients[i%attackers], "", "/v1/apply", "{}", "X-Large", header)
					return
				}
				_, _ = api(i).GetStatus(metadata.AppendToOutgoingContext(ctx, "x-large", header), &schedulingv1.GetStatusRequest{})
			})
		}},
		{"large bodies without a token", func(ctx context.Context) {
			each(ctx, 64, func(i int) {
				if i%2 == 0 {
					v.post(ctx, clients[i%attackers], "", "/v1/apply", large)
					return
				}
				_, _ = api(i).Apply(ctx, &schedulingv1.ApplyRequest{Manifests: large, DryRun: true})
			})
		}},
		{"guessed tokens", func(ctx context.Context) {
			each(ctx, 128, func(i int) {
				guess := fmt.Sprintf("guess-%d-%d", i, time.Now().UnixNano())
				if i%2 == 0 {
					v.post(ctx, clients[i%attackers], guess, "/v1/whatif", `{"pending":true}`)
					return
				}
				_, _ = api(i).GetStatus(bearing(ctx, guess), &schedulingv1.GetStatusRequest{})
			})
		}},
		{"watches", func(ctx context.Context) {
			each(ctx, 64, func(i int) {
				stream, err := api(i).WatchPlacements(bearing(ctx, hog(i)), &schedulingv1.WatchPlacementsRequest{})
				if err == nil {
					_, _ = stream.Recv() // and no more
				}
			})
		}},
		{"heavy questions", func(ctx context.Context) {
			each(ctx, 64, func(i int) {
				if i%2 == 0 {
					v.post(ctx, clients[i%attackers], hog(i), "/v1/whatif", fmt.Sprintf(`{"manifests":%q,"times":300,"summaryOnly":true}`, v.heavy))
					return
				}
				_, _ = api(i).WhatIf(bearing(ctx, hog(i)), &schedulingv1.WhatIfRequest{Manifests: v.heavy, Times: 300, SummaryOnly: true})
			})
		}},
		{"JSON requests", func(ctx context.Context) {
			each(ctx, 400, func(i int) { v.post(ctx, clients[i%attackers], hog(i), "/v1/capacity", `{"name":"pod-000000"}`) })
		}},
		{"requests that do not come", func(ctx context.Context) {
			each(ctx, 64, func(i int) {
				stream, err := conns[i%len(conns)].NewStream(bearing(ctx, hog(i)), &grpc.StreamDesc{ClientStreams: true}, schedulingv1.SchedulingService_Apply_FullMethodName)
				if err == nil && i%2 == 0 {
					_ = stream.RecvMsg(&schedulingv1.ApplyResponse{})
				}
			})
		}},
		{"answers that nobody reads", func(ctx context.Context) {
			each(ctx, 64, func(i int) {
				stream, err := conns[i%len(conns)].NewStream(bearing(ctx, hog(i)), &grpc.StreamDesc{ServerStreams: true}, schedulingv1.SchedulingService_ListPods_FullMethodName)
				if err == nil {
					_ = errors.Join(stream.SendMsg(&schedulingv1.ListPodsRequest{PageSize: 1000}), stream.CloseSend())
				}
			})
		}},
	}
}

// honest makes calls of each kind, one after the other, and returns how long they took. Each must be answered.
func (v *victim) honest(n int, when string) map[string][]time.Duration {
	v.t.Helper()
	conn, client := v.conn("127.0.0.100"), browser("127.0.0.100")
	defer conn.Close()
	defer client.CloseIdleConnections()
	api := schedulingv1.NewSchedulingServiceClient(conn)
	took := map[string][]time.Duration{}
	tick := time.NewTicker(honestEvery)
	defer tick.Stop()
	for i := range n {
		for _, call := range []struct {
			kind string
			make func(ctx context.Context) error
		}{
			{"gRPC", func(ctx context.Context) error {
				_, err := api.ListPods(ctx, &schedulingv1.ListPodsRequest{PageSize: 20})
				return err
			}},
			{"JSON", func(ctx context.Context) error {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.json+"/v1/pods?page_size=20", nil)
				if err != nil {
					return err
				}
				request.Header.Set("Authorization", "Bearer honest")
				response, err := client.Do(request)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
					return fmt.Errorf("%d %s", response.StatusCode, body)
				}
				return nil
			}},
			{"why", func(ctx context.Context) error {
				_, err := api.ExplainPod(ctx, &schedulingv1.ExplainPodRequest{Name: podName(i % 100)})
				return err
			}},
			{"new connection", func(ctx context.Context) error {
				fresh := v.conn("127.0.0.100")
				defer fresh.Close()
				_, err := schedulingv1.NewSchedulingServiceClient(fresh).GetPod(ctx, &schedulingv1.GetPodRequest{Name: podName(i % 100)})
				return err
			}},
		} {
			<-tick.C
			ctx, cancel := context.WithTimeout(bearing(context.Background(), "honest"), 5*time.Minute)
			began := time.Now()
			err := call.make(ctx)
			cancel()
			if err != nil && !(call.kind == "why" && status.Code(err) == codes.NotFound) {
				v.t.Errorf("%s: an honest caller's %s: %v", when, call.kind, err)
			}
			took[call.kind] = append(took[call.kind], time.Since(began))
		}
	}
	return took
}

// share returns the value below which a share of them is.
func share(took []time.Duration, of float64) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(int(float64(len(sorted))*of), len(sorted)-1)]
}

func TestHonestCallersAreAnsweredWhileTheGatewayIsAttacked(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1, LeaseTTL: 10 * time.Second})
	r := &run{Processes: p, t: t, client: p.SchedulingServiceClient}
	r.apply(nodes("node", 20, perNode))
	var pods []string
	for i := range 1000 {
		pods = append(pods, pod(i, 0))
	}
	r.apply(pods)

	// The gateway that is attacked asks for tokens.
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{t: t, grpc: "127.0.0.1:" + ports[0], json: "127.0.0.1:" + ports[1], heavy: pod(1_000_000, 0)}
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("honest, honest, write\nhog-0, hog-0, write\nhog-1, hog-1, write\nhog-2, hog-2, write\nhog-3, hog-3, write\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway, err := kubetest.StartProcess("attacked gateway", filepath.Join(dir, "log"), berthtest.Binary(t), "gateway", "--id", "attacked",
		"--etcd-endpoints", strings.Join(p.Etcd.Endpoints(), ","), "--lease-ttl", "10s", "--listen", v.grpc, "--http-listen", v.json,
		"--authenticate", "tokens", "--token-file", tokens)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Stop)
	first := v.conn("127.0.0.100")
	t.Cleanup(func() { _ = first.Close() })
	berthtest.Await(t, *within, "the gateway to answer", func(ctx context.Context) error {
		s, err := schedulingv1.NewSchedulingServiceClient(first).GetStatus(bearing(ctx, "honest"), &schedulingv1.GetStatusRequest{})
		if err == nil && s.GetPods().GetBound() != 1000 {
			err = fmt.Errorf("%v", s.GetPods())
		}
		return err
	})

	v.honest(max(*attackCalls/4, 1), "warming up")
	say := func(name string, quiet, took map[string][]time.Duration) {
		var line strings.Builder
		for _, kind := range []string{"gRPC", "JSON", "why", "new connection"} {
			fmt.Fprintf(&line, "  %s %.1f/%.1f then %.1f/%.1f ms (%.1fx)", kind, ms(share(quiet[kind], 0.5)), ms(share(quiet[kind], 0.99)),
				ms(share(took[kind], 0.5)), ms(share(took[kind], 0.99)), ms(share(took[kind], 0.99))/ms(share(quiet[kind], 0.99)))
		}
		u, err := gateway.Usage()
		if err != nil {
			t.Fatalf("after %s the gateway is gone: %v", name, err)
		}
		t.Logf("%-30s p50/p99 quiet, then attacked:%s  peak memory %.0f MiB", name, line.String(), mib(u.PeakRSS))
		if u.PeakRSS > attackMemory {
			t.Errorf("after %s the gateway has had %.0f MiB, %.0f MiB are its bound", name, mib(u.PeakRSS), mib(attackMemory))
		}
	}
	for _, attack := range v.attacks() {
		quiet := v.honest(*attackCalls, "before "+attack.name) // each time anew: the machine has other things to do
		ctx, end := context.WithCancel(context.Background())
		var attacking sync.WaitGroup
		attacking.Go(func() { attack.run(ctx) })
		v.honest(max(*attackCalls/4, 1), attack.name) // it needs a moment to be in full swing
		took := v.honest(*attackCalls, attack.name)
		end()
		attacking.Wait()
		say(attack.name, quiet, took)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
