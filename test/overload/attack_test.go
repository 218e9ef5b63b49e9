package overload

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var (
	attackCalls = flag.Int("attack-calls", 60, "how many calls an honest caller makes of each kind during each attack")
	attackOnly  = flag.String("attack-only", "", "a regular expression of the attacks that are made; by default all are")
	attackOther = flag.Bool("attack-other", false, "attack another gateway on the same machine: what remains is what the attackers and the machine do")
)

const (
	honestEvery  = 25 * time.Millisecond // one call: less often than --caller-qps lets a caller
	attackMemory = 768 << 20             // what the gateway may have had at most, whatever is done to it: below the limit of the manifests
)

// victim is a gateway that is attacked.
type victim struct {
	target
	t       *testing.T
	gateway *kubetest.Process
}

// usage returns what the gateway has consumed.
func (v *victim) usage(when string) kubetest.Usage {
	v.t.Helper()
	u, err := v.gateway.Usage()
	if err != nil {
		v.t.Fatalf("%s: the gateway is gone: %v", when, err)
	}
	return u
}

// took is what calls took of a kind, call by call.
type took struct {
	time []time.Duration
	work []time.Duration // that the gateway did meanwhile, on all cores, for whomever: unlike the time, it is much the same on a busy machine
}

// honest makes calls of each kind, one after the other, and returns what they took. Each must be answered.
func (v *victim) honest(n int, when string) map[string]*took {
	v.t.Helper()
	conn, client := v.conn("127.0.0.100"), browser("127.0.0.100")
	defer conn.Close()
	defer client.CloseIdleConnections()
	api := schedulingv1.NewSchedulingServiceClient(conn)
	all := map[string]*took{}
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
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.JSON+"/v1/pods?page_size=20", nil)
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
			before := v.usage(when).CPU
			began := time.Now()
			err := call.make(ctx)
			cancel()
			if err != nil && !(call.kind == "why" && status.Code(err) == codes.NotFound) {
				v.t.Errorf("%s: an honest caller's %s: %v", when, call.kind, err)
			}
			elapsed := time.Since(began)
			if all[call.kind] == nil {
				all[call.kind] = &took{}
			}
			all[call.kind].time = append(all[call.kind].time, elapsed)
			all[call.kind].work = append(all[call.kind].work, v.usage(when).CPU-before)
		}
	}
	return all
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
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("honest, honest, write\nhog-0, hog-0, write\nhog-1, hog-1, write\nhog-2, hog-2, write\nhog-3, hog-3, write\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(id string) *victim {
		ports, err := kubetest.FreePorts(2)
		if err != nil {
			t.Fatal(err)
		}
		v := &victim{t: t, target: target{GRPC: "127.0.0.1:" + ports[0], JSON: "127.0.0.1:" + ports[1], Heavy: pod(1_000_000, 0)}}
		v.gateway, err = kubetest.StartProcess(id+" gateway", filepath.Join(dir, id+".log"), berthtest.Binary(t), "gateway", "--id", id,
			"--etcd-endpoints", strings.Join(p.Etcd.Endpoints(), ","), "--lease-ttl", "10s", "--listen", v.GRPC, "--http-listen", v.JSON,
			"--authenticate", "tokens", "--token-file", tokens)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.gateway.Stop)
		return v
	}
	v := start("attacked")
	attacked := v.target
	if *attackOther {
		attacked = start("other").target
	}
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
	say := func(name string, quiet, attacked map[string]*took, perSecond float64) {
		line := func(of func(*took) []time.Duration) string {
			var line strings.Builder
			for _, kind := range []string{"gRPC", "JSON", "why", "new connection"} {
				was, is := of(quiet[kind]), of(attacked[kind])
				fmt.Fprintf(&line, "  %s %.1f/%.1f then %.1f/%.1f ms (%.1fx)", kind, ms(share(was, 0.5)), ms(share(was, 0.99)),
					ms(share(is, 0.5)), ms(share(is, 0.99)), ms(share(is, 0.99))/ms(share(was, 0.99)))
			}
			return line.String()
		}
		u := v.usage("after " + name)
		t.Logf("%-30s p50/p99 quiet, then attacked:%s  peak memory %.0f MiB  %.0f attempts/s", name,
			line(func(c *took) []time.Duration { return c.time }), mib(u.PeakRSS), perSecond)
		t.Logf("%-30s of which the gateway worked: %s", name, line(func(c *took) []time.Duration { return c.work }))
		if u.PeakRSS > attackMemory {
			t.Errorf("after %s the gateway has had %.0f MiB, %.0f MiB are its bound", name, mib(u.PeakRSS), mib(attackMemory))
		}
	}
	only, err := regexp.Compile(*attackOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range v.attacks() {
		if !only.MatchString(a.name) {
			continue
		}
		quiet := v.honest(*attackCalls, "before "+a.name) // each time anew: the machine has other things to do
		attack, err := startAttack(order{a.name, attacked})
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		v.honest(max(*attackCalls/4, 1), a.name) // it needs a moment to be in full swing
		meanwhile := v.honest(*attackCalls, a.name)
		perSecond, err := attack.end()
		if err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		say(a.name, quiet, meanwhile, perSecond)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
