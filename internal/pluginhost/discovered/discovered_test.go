package discovered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/plugin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is for hangs only.
const patient = 5 * time.Minute

const serverName = "gpu.internal"

// pki makes an authority, and files of a plugin that is known by some host name, and of a binder.
func pki(t *testing.T, host string) func(role string) certs.Files {
	t.Helper()
	dir := t.TempDir()
	if _, err := certs.Make(certs.Request{
		Dir: dir, Roles: []string{"plugin", "binder"}, Hosts: []string{host}, Known: []string{"plugin"}, Callers: []string{"plugin"}, CALife: time.Hour, Life: time.Hour, Now: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	return func(role string) certs.Files {
		return certs.Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"), CA: filepath.Join(dir, "ca.crt")}
	}
}

// process serves a plugin of a name until it is ended.
func process(t *testing.T, name string, tls certs.Files) (address string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Serve(ctx, plugin.Config{Listener: l, TLS: plugin.TLSFiles(tls), Plugins: []plugin.Plugin{{
			Name: name, Filter: func(context.Context, *plugin.Kind, *plugin.Node) (*plugin.Refusal, error) { return nil, nil },
		}}})
	}()
	over := false
	end = func() {
		if over {
			return
		}
		over = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve %s: %v", name, err)
		}
	}
	t.Cleanup(end)
	return l.Addr().String(), end
}

// harness is a service, and what tells it who is announced.
type harness struct {
	*Service
	t   *testing.T
	all chan coord.Announced
}

// found returns a service that is known by serverName to those of an authority, or is reached in plaintext.
func found(t *testing.T, tls *certs.Files) *harness {
	t.Helper()
	h := &harness{New("gpu", slog.New(slog.NewTextHandler(t.Output(), nil))), t, make(chan coord.Announced)}
	cfg := rpc.Config{Net: rpc.OutsideBy(serverName, h.Dial), Outside: true}
	if tls != nil {
		source, err := certs.Open(*tls, "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLS = &rpc.TLS{Client: source.Credentials()}
	}
	clients := rpc.NewClients(cfg)
	if err := h.Connect(clients); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Follow(ctx, h.all) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, clients.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// announce says who is announced, and returns when that is known.
func (h *harness) announce(now coord.Announced) {
	h.all <- now
	h.all <- now // the first has been taken in
}

// who returns the plugin of the process that answers, which it waits for.
func (h *harness) who() string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patient)
	defer cancel()
	d, err := pluginv1.NewPluginServiceClient(h).Describe(ctx, &pluginv1.DescribeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		h.t.Fatal(err)
	}
	h.awaitReady(ctx)
	return d.GetPlugins()[0].GetName()
}

// awaitReady waits until the connection says what calls have found out already.
func (h *harness) awaitReady(ctx context.Context) {
	h.t.Helper()
	for st := h.conn.GetState(); st != connectivity.Ready; st = h.conn.GetState() {
		if !h.conn.WaitForStateChange(ctx, st) {
			h.t.Fatalf("the connection is %v", st)
		}
	}
}

// stream begins a stream, and returns what waits for its end.
func (h *harness) stream() (ended func() error, open func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	h.t.Cleanup(cancel)
	stream, err := pluginv1.NewPluginServiceClient(h).Judge(ctx, grpc.WaitForReady(true))
	if err != nil {
		h.t.Fatal(err)
	}
	h.awaitReady(ctx)
	ended = func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
	last := int64(0)
	open = func() bool {
		last++
		if err := stream.Send(&pluginv1.JudgeRequest{Id: last}); err != nil {
			return false
		}
		_, err := stream.Recv()
		return err == nil
	}
	if !open() { // one that the server has not heard of would be begun anew by gRPC
		h.t.Fatal("the stream has ended at once")
	}
	return ended, open
}

func TestWhereNobodyIsAnnouncedCallsFailAtOnceAndSayWhatIsMissing(t *testing.T) {
	h := found(t, nil)
	for _, tt := range []struct {
		now  *coord.Announced
		want string
	}{
		{nil, "what is announced in etcd is not known yet"},
		{&coord.Announced{}, "no process of the service is announced in etcd"},
		{&coord.Announced{Ignored: errors.New("it is nonsense")}, "no process of the service is announced in etcd, but for what makes no sense: it is nonsense"},
	} {
		if tt.now != nil {
			h.announce(*tt.now)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		_, err := pluginv1.NewPluginServiceClient(h).Describe(ctx, &pluginv1.DescribeRequest{}, grpc.WaitForReady(true))
		_, err2 := pluginv1.NewPluginServiceClient(h).Judge(ctx, grpc.WaitForReady(true))
		for _, err := range []error{err, err2} {
			if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != tt.want {
				t.Errorf("%v, want UNAVAILABLE, %s", err, tt.want)
			}
		}
	}
}

func TestAnotherProcessIsGoneOnWithWhenOneEnds(t *testing.T) {
	of := pki(t, serverName)
	h, binder := found(t, new(of("binder"))), of("plugin")
	a, endA := process(t, "A", binder)
	h.announce(coord.Announced{Addresses: []string{a}})
	if got := h.who(); got != "A" {
		t.Fatalf("%s answers, want A", got)
	}
	b, _ := process(t, "B", binder)
	h.announce(coord.Announced{Addresses: sorted(a, b)})
	ended, _ := h.stream()
	if got := h.who(); got != "A" {
		t.Errorf("%s answers, want A: it is there still", got)
	}
	endA()
	if err := ended(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream: %v, want UNAVAILABLE", err)
	}
	if got := h.who(); got != "B" { // though A is announced still
		t.Errorf("%s answers, want B", got)
	}
}

func sorted(addresses ...string) []string {
	slices.Sort(addresses)
	return addresses
}

// Whoever may announce can have Berth knock at any door, and no more.
func TestWhoIsNotTheServiceIsPassedOver(t *testing.T) {
	of, others, alike := pki(t, serverName), pki(t, serverName), pki(t, "price.internal")
	stranger, _ := process(t, "Stranger", others("plugin"))
	price, _ := process(t, "Price", alike("plugin"))
	plaintext, _ := process(t, "Plaintext", certs.Files{})
	silent := listener(t, func(conn net.Conn) { _, _ = io.CopyN(io.Discard, conn, 1) }) // and hangs up
	liars := []string{stranger, price, plaintext, silent}
	for _, liar := range liars {
		h := found(t, new(of("binder")))
		h.announce(coord.Announced{Addresses: []string{liar}})
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		_, err := pluginv1.NewPluginServiceClient(h).Describe(ctx, &pluginv1.DescribeRequest{})
		cancel()
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "handshake failed") {
			t.Errorf("%s: %v, want that the handshake fails", liar, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	good, _ := process(t, "A", of("plugin"))
	all := append(liars, l.Addr().String(), "no-such-host.invalid:1", good)
	h := found(t, new(of("binder")))
	h.announce(coord.Announced{Addresses: sorted(all...)})
	if got := h.who(); got != "A" {
		t.Errorf("%s answers, want A", got)
	}
}

// listener has each connection handled, and closed then.
func listener(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handle(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-over
	})
	return l.Addr().String()
}

func TestAConnectionThatIsGoodStaysWhateverIsAnnounced(t *testing.T) {
	h := found(t, nil)
	a, _ := process(t, "A", certs.Files{})
	h.announce(coord.Announced{Addresses: []string{a}})
	_, open := h.stream()
	h.announce(coord.Announced{}) // its lease has ended, say, since etcd was away
	if !open() {
		t.Error("the stream has ended with the announcement")
	}
	if got := h.who(); got != "A" {
		t.Errorf("%s answers", got)
	}
	h.Leave(h.Connected())
	if h.conn.GetState() != connectivity.Ready || !open() {
		t.Error("it has left where nobody else is announced")
	}
	h.announce(coord.Announced{Addresses: []string{a}})
	h.Leave(h.Connected())
	if h.conn.GetState() != connectivity.Ready || !open() {
		t.Error("it has left for the same process")
	}
}

func TestLeavingEndsAllStreamsAndGoesOnWithAnotherProcess(t *testing.T) {
	h := found(t, nil)
	a, _ := process(t, "A", certs.Files{})
	b, _ := process(t, "B", certs.Files{})
	h.announce(coord.Announced{Addresses: sorted(a, b)})
	first := h.who()
	ended, _ := h.stream()
	for range 4 {
		h.Leave(h.Connected())
		if err := ended(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream: %v, want UNAVAILABLE", err)
		}
		second := h.who()
		if second == first {
			t.Errorf("it is with %s again", first)
		}
		first = second
		ended, _ = h.stream()
	}
	h.announce(coord.Announced{Addresses: []string{map[string]string{"A": b, "B": a}[first]}}) // the one that it is with is not announced any more
	h.Leave(h.Connected())
	if got := h.who(); got == first {
		t.Errorf("it is with %s again", first)
	}
}

// A process that lets streams end by themselves, and takes no new ones, has a part of them no longer than there is none with another.
func TestNoStreamStaysBehindWithAProcessThatAnotherOneIsGoneOnFrom(t *testing.T) {
	h := found(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if err := plugin.Register(server, nil, plugin.Plugin{Name: "A", Filter: func(context.Context, *plugin.Kind, *plugin.Node) (*plugin.Refusal, error) { return nil, nil }}); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	h.announce(coord.Announced{Addresses: []string{l.Addr().String()}})
	ended, _ := h.stream()
	b, _ := process(t, "B", certs.Files{})
	h.announce(coord.Announced{Addresses: sorted(l.Addr().String(), b)})
	stopped := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(stopped)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if !h.conn.WaitForStateChange(ctx, connectivity.Ready) { // the process has said that it ends
		t.Fatal("the connection is ready still")
	}
	if got := h.who(); got != "B" {
		t.Errorf("%s answers, want B", got)
	}
	if err := ended(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream with A: %v, want UNAVAILABLE", err)
	}
	<-stopped
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Addresses at which nobody answers do not take all the time there is each time anew.
func TestWhoWasTriedInVainIsTriedLastNextTime(t *testing.T) {
	s := New("gpu", slog.New(slog.DiscardHandler))
	s.now.Addresses = []string{"127.0.0.1:1", "127.0.0.1:2"}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, want := range []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"} {
		if _, err := s.Dial(over); err == nil || s.last != want {
			t.Errorf("tried %s, %v, want %s", s.last, err, want)
		}
	}
}

func TestAddressesAreTriedInTurn(t *testing.T) {
	s := New("gpu", slog.New(slog.DiscardHandler))
	s.now.Addresses = []string{"b", "d", "f"}
	for last, want := range map[string]string{"": "[b d f]", "a": "[b d f]", "b": "[d f b]", "c": "[d f b]", "d": "[f b d]", "f": "[b d f]", "g": "[b d f]"} {
		s.last = last
		if got := fmt.Sprint(s.inTurn()); got != want {
			t.Errorf("behind %q: %s, want %s", last, got, want)
		}
	}
}
