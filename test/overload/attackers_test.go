package overload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

const (
	attackers   = 4                    // addresses, 127.0.0.2 and so on; the honest caller has another one
	attackEvery = 2 * time.Millisecond // one attempt of all attackers together
	dialTimeout = time.Minute
	attackEnv   = "BERTH_ATTACK" // has an order, in JSON, where the test binary is to attack and not to test
)

// TestMain lets the test binary be the attackers: a process of their own, so that neither their garbage nor their turns at the
// scheduler of goroutines are taken for the gateway's.
func TestMain(m *testing.M) {
	if said := os.Getenv(attackEnv); said != "" {
		if err := attack(said); err != nil {
			fmt.Fprintln(os.Stderr, "attack:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// order is what attackers are told.
type order struct {
	Attack string
	Target target
}

// attack attacks as ordered until standard input ends. It prints a line when it begins, and then how many attempts were made.
func attack(said string) error {
	var o order
	if err := json.Unmarshal([]byte(said), &o); err != nil {
		return fmt.Errorf("read %s: %w", attackEnv, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends, too, if whoever started this is gone
		stop()
	}()
	for _, a := range o.Target.attacks() {
		if a.name == o.Attack {
			fmt.Println("attacking")
			a.run(ctx)
			fmt.Println(attempts.Load())
			return nil
		}
	}
	return fmt.Errorf("there is no attack %q", o.Attack)
}

// attempts counts those of this process.
var attempts atomic.Int64

// attacking is a process of attackers.
type attacking struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	began time.Time
}

// startAttack has attackers attack, with the time of the processor that nobody else wants: in earnest they have machines of their own.
// It returns when they have begun.
func startAttack(o order) (*attacking, error) {
	said, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	a := &attacking{cmd: exec.Command("nice", "-n", "19", os.Args[0])}
	a.cmd.Env = append(os.Environ(), attackEnv+"="+string(said))
	a.cmd.Stderr = os.Stderr
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	a.out = bufio.NewReader(out)
	if _, err := a.out.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("attackers do not begin: %w", err), a.cmd.Wait())
	}
	a.began = time.Now()
	return a, nil
}

// end ends the attack and returns how many attempts were made per second.
func (a *attacking) end() (float64, error) {
	took := time.Since(a.began).Seconds()
	_ = a.stdin.Close()
	said, err := io.ReadAll(a.out)
	n, failed := strconv.Atoi(strings.TrimSpace(string(said)))
	return float64(n) / took, errors.Join(err, failed, a.cmd.Wait())
}

// target is a gateway that is called, and attacked.
type target struct {
	GRPC, JSON string
	Heavy      string // manifests of a question that takes long
}

// from returns a dialer of an address of this machine.
func from(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: dialTimeout}
}

// hog is the token of a known caller at that address.
func hog(i int) string { return fmt.Sprint("hog-", i%attackers) }

func attacker(i int) string { return fmt.Sprintf("127.0.0.%d", 2+i%attackers) }

// conn is a gRPC connection from an address.
func (v target) conn(address string, opts ...grpc.DialOption) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+v.GRPC, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return from(address).DialContext(ctx, "tcp", to)
		}))...)
	if err != nil {
		panic(err) // of the options above
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

// each runs n goroutines that do something again and again until ctx ends, one after the other and one each attackEvery, and waits for
// them.
func each(ctx context.Context, n int, do func(i int)) {
	every(ctx, n, attackEvery, do)
}

// every is each for goroutines that begin that long after one another; 0: all at once, again and again.
func every(ctx context.Context, n int, apart time.Duration, do func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			select {
			case <-time.After(apart * time.Duration(i)):
			case <-ctx.Done():
			}
			tick := time.NewTicker(attackEvery * time.Duration(n))
			defer tick.Stop()
			for ctx.Err() == nil {
				attempts.Add(1)
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
func (v target) held(ctx context.Context, write func(net.Conn)) {
	var mu sync.Mutex
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	each(ctx, 2*attackers, func(i int) {
		to := v.GRPC
		if i >= attackers {
			to = v.JSON
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
func (v target) post(ctx context.Context, client *http.Client, token, path, body string, headers ...string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+v.JSON+path, strings.NewReader(body))
	if err != nil {
		panic(err) // of the address
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
func (v target) attacks() []struct {
	name string
	run  func(ctx context.Context)
} {
	conns, clients := make([]*grpc.ClientConn, 4*attackers), make([]*http.Client, attackers)
	for i := range conns {
		conns[i] = v.conn(attacker(i), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	}
	for i := range clients {
		clients[i] = browser(attacker(i))
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
					v.post(ctx, clients[i%attackers], hog(i), "/v1/whatif", fmt.Sprintf(`{"manifests":%q,"times":300,"summaryOnly":true}`, v.Heavy))
					return
				}
				_, _ = api(i).WhatIf(bearing(ctx, hog(i)), &schedulingv1.WhatIfRequest{Manifests: v.Heavy, Times: 300, SummaryOnly: true})
			})
		}},
		{"JSON requests", func(ctx context.Context) {
			each(ctx, 400, func(i int) { v.post(ctx, clients[i%attackers], hog(i), "/v1/capacity", `{"name":"pod-000000"}`) })
		}},
		{"JSON requests, 400 at once", func(ctx context.Context) {
			every(ctx, 400, 0, func(i int) { v.post(ctx, clients[i%attackers], hog(i), "/v1/capacity", `{"name":"pod-000000"}`) })
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
