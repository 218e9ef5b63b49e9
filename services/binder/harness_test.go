package binder

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

const (
	// patience bounds every wait for something that must happen.
	patience = 5 * time.Minute
	// quiet is how long something that must not happen is given to happen.
	quiet = 300 * time.Millisecond

	scheduler = "default-scheduler"
)

func testLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func settings() cluster.Settings {
	return cluster.Settings{Shards: 4, Seed: 1, Profiles: []cluster.Profile{engine.DefaultProfile(scheduler)}}
}

// poll asks until ok or for so long, and returns what it was told last.
func poll(long time.Duration, ok func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(long); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return true
		}
	}
	return ok()
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !poll(patience, ok) {
		t.Fatalf("not after %v: %s", patience, what)
	}
}

func never(t testing.TB, what string, bad func() bool) {
	t.Helper()
	if poll(quiet, bad) {
		t.Fatalf("it happened: %s", what)
	}
}

// startEtcd starts an etcd that stops with the test and returns its endpoints.
func startEtcd(t testing.TB) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := coord.StartEmbedded(ctx, coord.EmbeddedConfig{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close etcd: %v", err)
		}
	})
	return e.Endpoints()
}

// The keys of a binder begin with prefix. To a client whose prefix is above it they are ordinary keys, so that a test
// can reach behind the binder's back.
const (
	above  = "/test/"
	prefix = "/test/kv/"
)

func connect(t testing.TB, endpoints []string, prefix string) *coord.Client {
	t.Helper()
	c, err := coord.Connect(coord.Config{Endpoints: endpoints, Prefix: prefix, Log: testLog(t), RequestTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

// depose takes the election from whoever has it, without its lease being lost.
func depose(t testing.TB, endpoints []string) {
	t.Helper()
	if _, _, err := connect(t, endpoints, above).Txn(t.Context(), nil, []coord.Op{coord.Delete("coord/leader")}); err != nil {
		t.Fatal(err)
	}
}

// intents returns the recorded intents by pod uid.
func intents(t testing.TB, c *coord.Client) map[string]string {
	t.Helper()
	record, err := c.ReadRecord(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, b := range record.Batches {
		for _, in := range b.Batch.Intents {
			out[in.PodUID] = in.Node
		}
	}
	return out
}

// running is a binder that runs.
type running struct {
	*Service
	t    testing.TB
	stop func() // waits
}

// start runs a binder until the test ends or stop. Its config may be changed first.
func start(t testing.TB, endpoints []string, src *fakeSource, change ...func(*Config)) *running {
	t.Helper()
	cfg := Config{
		ID: "binder", Address: "binder", Source: src, Settings: settings(), LeaseTTL: time.Minute, Log: testLog(t),
	}
	for _, c := range change {
		c(&cfg)
	}
	if cfg.Coord == nil {
		cfg.Coord = connect(t, endpoints, prefix)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.extenders != nil {
		s.extenders.askFor = patience // how fast this machine is has no say in how many pods an Ask is about
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	b := &running{Service: s, t: t, stop: func() { cancel(); <-done }}
	t.Cleanup(b.stop)
	return b
}

func named(id string) func(*Config) {
	return func(c *Config) { c.ID, c.Address = id, id }
}

// active waits until the binder's epoch is open, and returns it.
func (b *running) active() cluster.Epoch {
	b.t.Helper()
	eventually(b.t, "the epoch is open", func() bool { return b.Ready() == nil })
	return b.Version().Epoch
}

// look reads the ledger.
func (b *running) look(fn func(*cluster.State)) {
	b.t.Helper()
	t := b.term.Load()
	if t == nil {
		b.t.Fatal("no epoch is open")
		return
	}
	t.ledger.Snapshot(fn)
}

// phase returns where a pod is according to the ledger: "pending", "assumed on n", "bound on n" or "gone".
func (b *running) phase(uid string) (phase string) {
	b.t.Helper()
	b.look(func(st *cluster.State) { phase = phaseOf(st, uid) })
	return phase
}

func phaseOf(st *cluster.State, uid string) string {
	id, ok := st.PodByUID(uid)
	if !ok {
		return "gone"
	}
	row := st.Pod(id)
	if !row.Placed() {
		return row.Phase.String()
	}
	return row.Phase.String() + " on " + row.NodeName
}

func (b *running) awaitPhase(uid, want string) {
	b.t.Helper()
	eventually(b.t, uid+" is "+want, func() bool { return b.phase(uid) == want })
}

// request asks for an attempt of pods, with candidates as workers offer them now.
func (b *running) request(attempt int32, uids ...string) (req *binderv1.CommitRequest) {
	b.t.Helper()
	for _, uid := range uids {
		eventually(b.t, uid+" is known", func() bool { return b.phase(uid) != "gone" })
	}
	b.look(func(st *cluster.State) { req = requestOf(st, evaluate(st, len(uids)+1), attempt, uids...) })
	return req
}

// offer is what workers say at a version.
type offer struct {
	version cluster.Version
	first   map[engine.Subject]engine.Subject // of its signature
	groups  map[engine.Subject][]engine.Group // of the first of a signature
}

// evaluate offers at most limit nodes of each group.
func evaluate(st *cluster.State, limit int) offer {
	o := offer{version: st.Version(), first: make(map[engine.Subject]engine.Subject), groups: make(map[engine.Subject][]engine.Group)}
	e := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})
	all := cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
	bySignature := make(map[engine.Signature]engine.Subject)
	for _, row := range st.Pods() {
		s := engine.SubjectOf(&row.Pod)
		first, ok := bySignature[e.Signature(st, s)]
		if !ok {
			first = s
			bySignature[e.Signature(st, s)] = s
			f, _ := e.Filter(st, s, all)
			o.groups[s], _ = e.Score(st, s, all, f.Eligible, limit)
		}
		o.first[s] = first
	}
	return o
}

// requestOf asks for pods that the state knows.
func requestOf(st *cluster.State, o offer, attempt int32, uids ...string) *binderv1.CommitRequest {
	req := &binderv1.CommitRequest{ShardRevision: 1, Version: wire.ToVersion(o.version)}
	index := make(map[engine.Subject]int32)
	for _, uid := range uids {
		id, ok := st.PodByUID(uid)
		p := &binderv1.PodAttempt{Id: int32(id), Uid: uid, Attempt: attempt, SubjectIndex: -1}
		if row := st.Pod(id); ok && row.RequiredNode == "" {
			s := engine.SubjectOf(&row.Pod)
			if first, offered := o.first[s]; offered {
				s = first
			}
			at, seen := index[s]
			if !seen {
				at = int32(len(req.Subjects))
				index[s] = at
				req.Subjects = append(req.Subjects, &binderv1.SubjectCandidates{Subject: wire.ToSubject(s), Groups: wire.ToGroups(o.groups[s])})
			}
			p.SubjectIndex = at
		}
		req.Pods = append(req.Pods, p)
	}
	return req
}

// commit must succeed; it returns the outcomes.
func (b *running) commit(req *binderv1.CommitRequest) []string {
	b.t.Helper()
	resp, err := b.Commit(b.t.Context(), req)
	if err != nil {
		b.t.Fatalf("Commit: %v", err)
	}
	out := make([]string, len(resp.GetOutcomes()))
	for i, o := range resp.GetOutcomes() {
		out[i] = resultText(o.GetResult())
	}
	return out
}

func resultText(r binderv1.Outcome_Result) string {
	switch r {
	case binderv1.Outcome_RESULT_ASSUMED:
		return "assumed"
	case binderv1.Outcome_RESULT_PLACED:
		return "already placed"
	case binderv1.Outcome_RESULT_RETRY:
		return "retry"
	case binderv1.Outcome_RESULT_NO_FIT:
		return "no fit"
	case binderv1.Outcome_RESULT_GONE:
		return "gone"
	case binderv1.Outcome_RESULT_BUSY:
		return "busy"
	}
	return fmt.Sprintf("result %d", r)
}

// wantError checks what a call was refused with.
func wantError(t testing.TB, err error, code codes.Code, reason rpc.Reason) {
	t.Helper()
	if status.Code(err) != code || rpc.ReasonOf(err) != reason {
		t.Fatalf("error is %v (%v), want %v %s", err, rpc.ReasonOf(err), code, reason)
	}
}

func clone(req *binderv1.CommitRequest) *binderv1.CommitRequest {
	return proto.Clone(req).(*binderv1.CommitRequest)
}

// elapse lets fake time pass. Its callers run under testing/synctest, where a sleep takes no real time, and ends when all
// other goroutines of the test have nothing left to do before that moment.
func elapse(d time.Duration) { time.Sleep(d) }
