package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/test/bubble"
)

// house is where the processes of peers find each other, in memory.
type house struct {
	t     *testing.T
	files certs.Files
	dir   string

	mu   sync.Mutex
	open map[string]chan net.Conn // by peer and name
}

func newHouse(t *testing.T) *house {
	h := &house{t: t, dir: t.TempDir(), open: make(map[string]chan net.Conn)}
	if _, err := certs.Make(certs.Request{
		Dir: h.dir, Roles: []string{PeerRole}, Known: []string{PeerRole}, Hosts: []string{"127.0.0.1"}, Now: time.Now(), CALife: time.Hour, Life: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	h.files = certs.Files{Cert: filepath.Join(h.dir, "peer.crt"), Key: filepath.Join(h.dir, "peer.key"), CA: filepath.Join(h.dir, "ca.crt")}
	return h
}

// peers returns addresses on which nobody listens.
func (h *house) peers(n int) []string {
	h.t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			h.t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

func (h *house) config(self string, all []string, log *logtest.Buffer) EmbeddedConfig {
	cfg := EmbeddedConfig{
		Dir: filepath.Join(h.dir, self), UnsafeNoFsync: true, Log: testLog(h.t),
		Peers: &Peers{
			Self: self, All: all, Cert: h.files.Cert, Key: h.files.Key, CA: h.files.CA,
			Listen: func(name string) (net.Listener, error) { return h.listen(self + "/" + name) },
			Connect: func(ctx context.Context, peer, name string) (net.Conn, error) {
				return h.connect(ctx, peer+"/"+name)
			},
		},
	}
	if log != nil {
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	return cfg
}

// start starts the etcd of a peer; it has started, or failed to, when there is something in the channel.
func (h *house) start(ctx context.Context, cfg EmbeddedConfig) <-chan started {
	out := make(chan started, 1)
	go func() {
		e, err := StartEmbedded(ctx, cfg)
		out <- started{e, err}
	}()
	return out
}

type started struct {
	*Embedded
	err error
}

// up waits for those that start.
func (h *house) up(starting ...<-chan started) []*Embedded {
	h.t.Helper()
	var out []*Embedded
	for _, c := range starting {
		s := <-c
		if s.err != nil {
			h.t.Fatal(s.err)
		}
		h.t.Cleanup(func() { closeEmbedded(h.t, s.Embedded) })
		out = append(out, s.Embedded)
	}
	return out
}

type pipes struct {
	h    *house
	name string
	in   chan net.Conn
	done chan struct{}
}

func (h *house) listen(name string) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[name] != nil {
		return nil, fmt.Errorf("%s is in use", name)
	}
	p := &pipes{h, name, make(chan net.Conn), make(chan struct{})}
	h.open[name] = p.in
	return p, nil
}

func (h *house) connect(ctx context.Context, name string) (net.Conn, error) {
	h.mu.Lock()
	in := h.open[name]
	h.mu.Unlock()
	if in == nil {
		return nil, fmt.Errorf("%s: nobody listens", name)
	}
	here, there := net.Pipe()
	select {
	case in <- there:
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.in:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	delete(p.h.open, p.name)
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: p.name, Net: "pipe"} }

// says waits until a log has a text.
func (h *house) says(log *logtest.Buffer, text string) {
	h.t.Helper()
	deadline := time.Now().Add(patient)
	for !strings.Contains(log.String(), text) {
		if time.Now().After(deadline) {
			h.t.Fatalf("%q does not come to say %q", log, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// client returns a client of one etcd.
func (h *house) client(e *Embedded) *Client {
	h.t.Helper()
	c, err := Connect(Config{Embedded: e, Log: testLog(h.t)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// holds reports what a key has at one etcd.
func (h *house) holds(e *Embedded, key string) string {
	h.t.Helper()
	kv, _, err := h.client(e).Get(within(h.t), key)
	if err != nil || kv == nil {
		h.t.Fatalf("read %s: %v, %v", key, kv, err)
	}
	return string(kv.Value)
}

func (h *house) put(e *Embedded, key, value string) {
	h.t.Helper()
	if _, _, err := h.client(e).Txn(within(h.t), nil, []Op{Put(key, []byte(value))}); err != nil {
		h.t.Fatal(err)
	}
}

// members returns the ids of an etcd's members, by address.
func (h *house) members(e *Embedded) map[string]uint64 {
	h.t.Helper()
	list, err := pb.NewClusterClient(h.client(e).etcd.ActiveConnection()).MemberList(within(h.t), &pb.MemberListRequest{Linearizable: true})
	if err != nil {
		h.t.Fatal(err)
	}
	out := make(map[string]uint64)
	for _, m := range list.Members {
		out[strings.TrimPrefix(m.PeerURLs[0], "https://")] = m.ID
	}
	return out
}

func TestPeersAreOneEtcd(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)

	// 1. Two do not begin, and say why; nor three that are told otherwise.
	log := &logtest.Buffer{}
	ctx, cancel := context.WithCancel(within(t))
	first, second := h.start(ctx, h.config(all[0], all, log)), h.start(ctx, h.config(all[1], all, nil))
	h.says(log, "has to know of all peers")
	otherwise := h.start(ctx, h.config(all[2], append(h.peers(1), all[1:]...), nil))
	h.says(log, all[2]+" has other peers than these")
	cancel()
	for _, c := range []<-chan started{first, second, otherwise} {
		if s := <-c; s.err == nil || !errors.Is(s.err, context.Canceled) {
			t.Fatalf("it has started: %v", s.err)
		}
	}

	// 2. Three begin.
	both := h.up(h.start(within(t), h.config(all[0], all, nil)), h.start(within(t), h.config(all[1], all, nil)), h.start(within(t), h.config(all[2], all, nil)))
	third := both[2]
	h.put(both[0], "a", "1")
	if got := h.holds(third, "a"); got != "1" {
		t.Errorf("the third etcd has %q, want what was written to the first", got)
	}
	before := h.members(both[0])
	if len(before) != 3 {
		t.Fatalf("members %v", before)
	}

	// 3. One that has lost its data takes its place, as another member.
	closeEmbedded(t, third)
	if err := os.RemoveAll(filepath.Join(h.dir, all[2])); err != nil {
		t.Fatal(err)
	}
	h.put(both[1], "b", "2")
	third = h.up(h.start(within(t), h.config(all[2], all, nil)))[0]
	after := h.members(both[0])
	if got := h.holds(third, "b"); got != "2" || len(after) != 3 || after[all[2]] == before[all[2]] || after[all[0]] != before[all[0]] {
		t.Errorf("it has %q; members %v, before %v: want another in the third's place", got, after, before)
	}

	// 4. One that comes back with its data is what it was.
	closeEmbedded(t, third)
	third = h.up(h.start(within(t), h.config(all[2], all, nil)))[0]
	if got := h.members(both[0]); got[all[2]] != after[all[2]] {
		t.Errorf("members %v, before %v: the third has become another", got, after)
	}

	// 5. Not what another was.
	closeEmbedded(t, third)
	if err := os.Rename(filepath.Join(h.dir, all[2]), filepath.Join(h.dir, "moved")); err != nil {
		t.Fatal(err)
	}
	moved := append(h.peers(1), all[0], all[1])
	cfg := h.config(moved[0], moved, nil)
	cfg.Dir = filepath.Join(h.dir, "moved")
	if s := <-h.start(within(t), cfg); s.err == nil || !strings.Contains(s.err.Error(), "its data are of "+all[2]) {
		t.Fatalf("it has started with another's data: %v", s.err)
	}
	if err := os.Rename(cfg.Dir, filepath.Join(h.dir, all[2])); err != nil {
		t.Fatal(err)
	}
	third = h.up(h.start(within(t), h.config(all[2], all, nil)))[0]

	// 6. A machine takes the place of one that is gone, and not of one that is there.
	anew := append(h.peers(1), all[0], all[1])
	log = &logtest.Buffer{}
	ctx, cancel = context.WithCancel(within(t))
	fourth := h.start(ctx, h.config(anew[0], anew, log))
	h.says(log, "that one has other peers than")
	for i := range 2 { // which are told, one after the other
		closeEmbedded(t, both[i])
		both[i] = h.up(h.start(within(t), h.config(all[i], anew, nil)))[0]
	}
	h.says(log, "is not among the peers")
	cancel()
	if s := <-fourth; s.err == nil {
		t.Fatal("a fourth has taken the place of one that is there")
	}
	closeEmbedded(t, third)
	cfg = h.config(anew[0], anew, nil)
	cfg.Peers.goneAfter = time.Nanosecond // and yet asked three times
	h.up(h.start(within(t), cfg))
	if got := h.members(both[0]); len(got) != 3 || got[all[2]] != 0 || got[anew[0]] == 0 {
		t.Errorf("members %v: want %s in the place of %s", got, anew[0], all[2])
	}
}

// TestPeerWithoutDataDoesNotBeginWithOneThatHasSome is about the worst: two of three would agree to begin, and write what the third knows otherwise.
func TestPeerWithoutDataDoesNotBeginWithOneThatHasSome(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)
	three := h.up(h.start(within(t), h.config(all[0], all, nil)), h.start(within(t), h.config(all[1], all, nil)), h.start(within(t), h.config(all[2], all, nil)))
	h.put(three[0], "a", "1")
	for _, e := range three {
		closeEmbedded(t, e)
	}
	if err := os.RemoveAll(filepath.Join(h.dir, all[2])); err != nil {
		t.Fatal(err)
	}
	log := &logtest.Buffer{}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	first, lost := h.start(ctx, h.config(all[0], all, nil)), h.start(ctx, h.config(all[2], all, log))
	h.says(log, "take a place, by way of "+all[0])
	select {
	case s := <-lost:
		t.Fatalf("it has started: %v", s.err)
	case s := <-first:
		t.Fatalf("the first has started: %v", s.err)
	default:
	}
	second := h.start(ctx, h.config(all[1], all, nil)) // with which there are two that know
	for _, e := range h.up(first, second, lost) {
		if got := h.holds(e, "a"); got != "1" {
			t.Errorf("one has %q", got)
		}
	}
}

// TestAPeerThatWaitsForTheOthersEnds is about one that has its data, and no majority: etcd waits for that without end when it is to stop.
func TestAPeerThatWaitsForTheOthersEnds(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)
	for _, e := range h.up(h.start(within(t), h.config(all[0], all, nil)), h.start(within(t), h.config(all[1], all, nil)), h.start(within(t), h.config(all[2], all, nil))) {
		closeEmbedded(t, e)
	}
	log := &logtest.Buffer{}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	alone := h.start(ctx, h.config(all[0], all, log))
	h.says(log, "prober detected unhealthy status") // it serves, and finds nobody
	cancel()
	if s := <-alone; s.err == nil || !errors.Is(s.err, context.Canceled) {
		t.Errorf("it has started: %v", s.err)
	}
}

func TestPeersThatMakeNoSenseAreRefused(t *testing.T) {
	h := newHouse(t)
	for name, c := range map[string]struct {
		self string
		all  []string
		want string
	}{
		"two":     {"10.0.0.1:1", []string{"10.0.0.1:1", "10.0.0.2:1"}, "want 3, or 5"},
		"other":   {"10.0.0.9:1", []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}, "is not among them"},
		"name":    {"10.0.0.1:1", []string{"10.0.0.1:1", "node-b:1", "10.0.0.3:1"}, "want the IP address"},
		"all":     {"10.0.0.1:1", []string{"10.0.0.1:1", "0.0.0.0:1", "10.0.0.3:1"}, "want the IP address of one machine"},
		"no port": {"10.0.0.1:1", []string{"10.0.0.1:1", "10.0.0.2", "10.0.0.3:1"}, "want the IP address"},
		"spelled": {"10.0.0.1:1", []string{"10.0.0.1:1", "10.0.0.2:1", "[::ffff:10.0.0.3]:1"}, "want them as"},
		"zone":    {"10.0.0.1:1", []string{"10.0.0.1:1", "10.0.0.2:1", "[fe80::1%eth0]:1"}, "want the IP address"},
		"twice":   {"10.0.0.1:1", []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:1"}, "named twice"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := StartEmbedded(within(t), h.config(c.self, c.all, nil))
			if err == nil {
				closeEmbedded(t, e)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not say %q", err, c.want)
			}
		})
	}
}

// three returns the etcds of three peers that are one cluster.
func (h *house) three(all []string) []*Embedded {
	h.t.Helper()
	return h.up(h.start(within(h.t), h.config(all[0], all, nil)), h.start(within(h.t), h.config(all[1], all, nil)), h.start(within(h.t), h.config(all[2], all, nil)))
}

// inTheWay has nobody write a file of that name in a peer's folder, which it makes anew.
func (h *house) inTheWay(peer, name string) (path string) {
	h.t.Helper()
	path = filepath.Join(h.dir, peer, name)
	if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.MkdirAll(path, 0o700)); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// TestAPeerThatCannotWriteTakesNoPlaceAgainAndAgain is about a full disk: each place that it takes is one that another has lost.
func TestAPeerThatCannotWriteTakesNoPlaceAgainAndAgain(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)
	three := h.three(all)
	before := h.members(three[0])
	closeEmbedded(t, three[2])

	// 1. Not even who it is: it asks nobody.
	h.inTheWay(all[2], begunName+soon)
	if s := <-h.start(within(t), h.config(all[2], all, nil)); s.err == nil || !strings.Contains(s.err.Error(), begunName) {
		t.Fatalf("it has started: %v", s.err)
	}
	if got := h.members(three[0]); got[all[2]] != before[all[2]] {
		t.Errorf("members %v, before %v: the third has become another", got, before)
	}

	// 2. Not that it has a place: it keeps that one until it can.
	path, log := h.inTheWay(all[2], formedName+soon), &logtest.Buffer{}
	third := h.start(within(t), h.config(all[2], all, log))
	h.says(log, formedName)
	taken := h.members(three[0])
	if taken[all[2]] == 0 || taken[all[2]] == before[all[2]] {
		t.Fatalf("members %v, before %v: the third has taken no place", taken, before)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.up(third)
	if got := h.members(three[0]); got[all[2]] != taken[all[2]] {
		t.Errorf("members %v: the third has taken another place than %v", got, taken[all[2]])
	}
}

func TestAPeerFindsOutWhoseItsDataAre(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)
	for _, e := range h.three(all) {
		closeEmbedded(t, e)
	}
	file := func(name string) string { return filepath.Join(h.dir, all[0], name) }
	wants := func(text string) {
		t.Helper()
		if s := <-h.start(within(t), h.config(all[0], all, nil)); s.err == nil || !strings.Contains(s.err.Error(), text) {
			t.Errorf("it has started, or does not say %q: %v", text, s.err)
		}
	}
	said, err := os.ReadFile(file(begunName))
	if err != nil {
		t.Fatal(err)
	}

	// 1. Nothing says so, and it has been part of a cluster: its data do, and it says so again.
	if err := os.Remove(file(begunName)); err != nil {
		t.Fatal(err)
	}
	for _, e := range h.three(all) {
		closeEmbedded(t, e)
	}
	if again, err := os.ReadFile(file(begunName)); err != nil || string(again) != string(said) {
		t.Errorf("it says %q, %v; want %q", again, err, said)
	}

	// 2. What does cannot be read: that is no reason to take anything away.
	if err := errors.Join(os.Remove(file(begunName)), os.Mkdir(file(begunName), 0o700)); err != nil {
		t.Fatal(err)
	}
	if s := <-h.start(within(t), h.config(all[0], all, nil)); s.err == nil || strings.Contains(s.err.Error(), "take the folder away") {
		t.Errorf("it has started, or wants the folder away: %v", s.err)
	}

	// 3. It has never been part of a cluster, and nothing says who was to be in that, or others were.
	if err := errors.Join(os.Remove(file(begunName)), os.Remove(file(formedName))); err != nil {
		t.Fatal(err)
	}
	wants("nothing says whose: take the folder away")
	if err := os.WriteFile(file(begunName), []byte(all[0]+" another"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants("take the folder away, this one's alone")
}

// TestAPeerThatIsNewIsToldTheSameAsTheMembers though there is a place for it: it may be one of others.
func TestAPeerThatIsNewIsToldTheSameAsTheMembers(t *testing.T) {
	h := newHouse(t)
	all := h.peers(3)
	three := h.three(all)
	closeEmbedded(t, three[2])
	members := pb.NewClusterClient(h.client(three[0]).etcd.ActiveConnection())
	if _, err := members.MemberRemove(within(t), &pb.MemberRemoveRequest{ID: h.members(three[0])[all[2]]}); err != nil {
		t.Fatal(err)
	}
	log := &logtest.Buffer{}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	anew := append(h.peers(1), all[0], all[1])
	other := h.start(ctx, h.config(anew[0], anew, log))
	h.says(log, "that one has other peers than")
	cancel()
	if s := <-other; s.err == nil {
		closeEmbedded(t, s.Embedded)
		t.Fatal("one of others has taken a place")
	}
	if got := h.members(three[0]); len(got) != 2 {
		t.Errorf("members %v: want two", got)
	}
}

// TestSilenceIsCountedOnlyWhileItIsAskedAbout: a process that stands still has heard nothing of others, whose fault that is not. All sleeps are of the bubble's clock, and take no time.
func TestSilenceIsCountedOnlyWhileItIsAskedAbout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nobody := errors.New("nobody is there")
		a := &peerage{
			Peers:  &Peers{All: []string{"10.0.0.1:1"}, Connect: func(context.Context, string, string) (net.Conn, error) { return nil, nobody }},
			silent: make(map[string]unanswered),
		}
		gone := func() bool {
			_, err := a.unwanted(t.Context(), []*pb.Member{{PeerURLs: []string{"https://10.0.0.2:1"}}})
			return err == nil
		}
		asked := func(every time.Duration) (silent time.Duration) {
			for began := time.Now(); !gone(); time.Sleep(every) {
				if silent = time.Since(began); silent > time.Hour {
					break
				}
			}
			return silent
		}
		if got := asked(3 * peerWithin); got < peerGone-3*peerWithin || got > peerGone {
			t.Errorf("it is gone after more than %v, want about %v", got, peerGone)
		}
		if time.Sleep(time.Hour); gone() {
			t.Error("it is gone because this one was")
		}
		if got := asked(peerAgain); got < peerGone-2*peerAgain {
			t.Errorf("it is gone after no more than %v", got)
		}
		if time.Sleep(time.Hour); asked(time.Minute) < time.Hour {
			t.Error("it is gone, and was asked now and then")
		}
	})
}
