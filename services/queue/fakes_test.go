package queue_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

const epoch = 5

// ledger is a state with followers: every role of a test shares it, so that none is ever behind, unless the test
// holds one back.
type ledger struct {
	mu   sync.RWMutex
	st   *cluster.State
	subs []replica.Subscriber
	keep int              // number of the next class
	sets cluster.LabelsID // how many label sets there are

	reading  atomic.Pointer[func()] // called before each read; nil: nothing
	unloaded atomic.Bool            // there is no state to read
}

func newLedger(shards int32) *ledger {
	l := &ledger{st: cluster.New(cluster.Version{Epoch: epoch})}
	l.apply(cluster.SettingsSet{Settings: cluster.Settings{
		Shards: shards, Seed: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")},
	}})
	return l
}

func (l *ledger) apply(deltas ...cluster.Delta) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applyLocked(deltas...)
}

func (l *ledger) applyLocked(deltas ...cluster.Delta) {
	for _, d := range deltas {
		if err := l.st.Apply(d); err != nil {
			panic(err) // a broken test
		}
		for _, s := range l.subs {
			s.Applied(l.st, d)
		}
	}
}

func (l *ledger) Read(_ context.Context, least cluster.Version, fn func(*cluster.State) error) error {
	if reading := l.reading.Load(); reading != nil {
		(*reading)()
	}
	if l.unloaded.Load() {
		return replica.ErrNotLoaded
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if have := l.st.Version(); !least.IsZero() && (have.Epoch != least.Epoch || have.Seq < least.Seq) {
		return &replica.BehindError{Have: have, Want: least}
	}
	return fn(l.st)
}

func (l *ledger) Subscribe(s replica.Subscriber) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs = append(l.subs, s)
	s.Reset(l.st)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.subs = slices.DeleteFunc(l.subs, func(other replica.Subscriber) bool { return other == s })
	}
}

func (l *ledger) Ready() error { return nil }

func quantities(milli int64) []cluster.Quantity {
	return []cluster.Quantity{{Name: "cpu", Value: milli}, {Name: "pods", Value: 110}}
}

// node adds or changes a node.
func (l *ledger) node(name string, milli int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.st.Nodes.ByName(name)
	if at == cluster.NoNode {
		at = l.st.Nodes.Free()
	}
	l.applyLocked(cluster.NodeSet{Index: at, Node: cluster.Node{Name: name, Allocatable: quantities(milli)}})
}

// labels defines a set with one label.
func (l *ledger) labels(key, value string) cluster.LabelsID {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sets++
	l.applyLocked(cluster.LabelsDefined{ID: l.sets, Set: cluster.LabelSet{
		Namespace: "default", Labels: []cluster.Label{{Key: key, Value: value}},
	}})
	return l.sets
}

// pod adds a pod that asks for CPU; change may make it special.
func (l *ledger) pod(name string, milli int64, change func(*cluster.Pod, *cluster.ClassSpec)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks := []cluster.Quantity{{Name: "cpu", Value: milli}}
	spec := cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks, NonZeroCPU: milli}
	pod := cluster.Pod{UID: "uid-" + name, Namespace: "default", Name: name, Created: time.Now().UnixNano()}
	if change != nil {
		change(&pod, &spec)
	}
	pod.Class = -1
	for _, c := range l.st.Classes() {
		if c.Key == spec.Key() {
			pod.Class = c.ID
		}
	}
	if pod.Class < 0 {
		pod.Class = cluster.ClassID(l.keep)
		l.keep++
		l.applyLocked(cluster.ClassDefined{ID: pod.Class, Spec: spec})
	}
	l.applyLocked(cluster.PodSet{ID: l.st.FreePod(), Pod: pod})
}

// nodeOf returns where a pod is, "" if it is pending or not known.
func (l *ledger) nodeOf(name string) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	id, ok := l.st.PodByUID("uid-" + name)
	if !ok {
		return ""
	}
	return l.st.Pod(id).NodeName
}

// etcd is what the service sees of it: members, the leader, and shards with their owners.
type etcd struct {
	mu       sync.Mutex
	members  []coord.Member
	leader   coord.Leader
	owners   map[int]*session
	revision int64
	changed  chan struct{}
}

func newEtcd() *etcd {
	return &etcd{owners: make(map[int]*session), revision: 100, changed: make(chan struct{})}
}

func (e *etcd) change(fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fn()
	e.announce()
}

func (e *etcd) announce() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func watch[T any](ctx context.Context, e *etcd, get func() T) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		for {
			e.mu.Lock()
			v, changed := get(), e.changed
			e.mu.Unlock()
			select {
			case out <- v:
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (e *etcd) WatchMembers(ctx context.Context) <-chan []coord.Member {
	return watch(ctx, e, func() []coord.Member { return slices.Clone(e.members) })
}

func (e *etcd) WatchLeader(ctx context.Context) <-chan coord.Leader {
	return watch(ctx, e, func() coord.Leader { return e.leader })
}

func (e *etcd) WatchShards(ctx context.Context) <-chan []coord.ShardOwner {
	return watch(ctx, e, func() []coord.ShardOwner { return nil }) // the service reads no more than that it has changed
}

func (e *etcd) join(role coord.Role, id string) {
	e.change(func() { e.members = append(e.members, coord.Member{Role: role, ID: id, Address: id}) })
}

func (e *etcd) leave(id string) {
	e.change(func() {
		e.members = slices.DeleteFunc(e.members, func(m coord.Member) bool { return m.ID == id })
	})
}

func (e *etcd) ownersOf() map[int]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	owners := make(map[int]string)
	for shard, s := range e.owners {
		owners[shard] = s.owner
	}
	return owners
}

// session is a lease of one member.
type session struct {
	etcd  *etcd
	owner string
	once  sync.Once
	done  chan struct{}
}

// ClaimShard, if it fails, changes nothing that somebody watches.
func (s *session) ClaimShard(_ context.Context, shard int, owner string) (int64, error) {
	s.etcd.mu.Lock()
	defer s.etcd.mu.Unlock()
	select {
	case <-s.done:
		return 0, coord.ErrSessionLost
	default:
	}
	if holder := s.etcd.owners[shard]; holder != nil && holder != s {
		return 0, fmt.Errorf("shard %d: %w", shard, coord.ErrTaken)
	}
	s.etcd.revision++
	s.owner, s.etcd.owners[shard] = owner, s
	s.etcd.announce()
	return s.etcd.revision, nil
}

func (s *session) ReleaseShard(_ context.Context, shard int) error {
	s.etcd.change(func() {
		if s.etcd.owners[shard] == s {
			delete(s.etcd.owners, shard)
		}
	})
	return nil
}

func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Close(context.Context) error { s.lose(); return nil }

// lose ends the lease.
func (s *session) lose() {
	s.once.Do(func() { close(s.done) })
	s.etcd.change(func() { maps.DeleteFunc(s.etcd.owners, func(_ int, holder *session) bool { return holder == s }) })
}

// binder places pods on the shared ledger, as the real one does, without any API server behind it.
type binder struct {
	binderv1.UnimplementedBinderServiceServer
	ledger    *ledger
	evaluator *engine.Evaluator

	mu       sync.Mutex
	commits  []*binderv1.CommitRequest
	preempts []*binderv1.PreemptRequest
	asked    []string          // what preempts say
	reports  map[string]string // message by uid
	cleared  map[string]bool   // whose nomination is to be cleared; by uid
	meant    map[string]string // which nomination: "n1 of attempt 1 under 101"; by uid
	placed   []string          // names in the order they were placed
	// before and after let a test interfere with the n-th commit, from 1.
	before  func(n int, request *binderv1.CommitRequest) error
	after   func(n int, response *binderv1.CommitResponse) error
	refuses bool // reports
	// leaves says which reports the binder takes not, though it takes others; nil: none.
	leaves func(*binderv1.PodReport) bool
	// instead lets a test say what becomes of a pod whatever its candidates: RESULT_RETRY, and so of those behind it, or RESULT_NO_FIT;
	// RESULT_UNSPECIFIED, and nil: as the ledger has it.
	instead func(name string) binderv1.Outcome_Result
	// asking answers what extenders say of a pod by which instead says that they are to be asked; turn says whose turn it is, 1 if it is nil.
	asking func(ctx context.Context, name string, request *binderv1.AskRequest) (*binderv1.AskResponse, error)
	turn   func(name string) uint64
	pods   int32 // that one Ask may be about
	// preempting lets a test answer the n-th preemption, from 1; nil: as the ledger has it.
	preempting func(n int, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error)
	// agreeing answers what extenders say of a preemption by which preempting says that they are to be asked.
	agreeing func(ctx context.Context, name string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error)
	// looking answers what plugins have done that look for a way.
	looking func(ctx context.Context, name string, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error)
	// grouping answers for the pods of a PodGroup, of which it may place some.
	grouping func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error)
	// letting answers what plugins say of pods that are to be tried.
	letting func(ctx context.Context, names []string, request *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error)
}

func (b *binder) Commit(_ context.Context, request *binderv1.CommitRequest) (*binderv1.CommitResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commits = append(b.commits, request)
	if b.before != nil {
		if err := b.before(len(b.commits), request); err != nil {
			return nil, err
		}
	}
	response, err := b.place(request)
	if err == nil && b.after != nil {
		err = b.after(len(b.commits), response)
	}
	return response, err
}

// PlaceGroup assumes those pods that grouping says are.
func (b *binder) PlaceGroup(_ context.Context, request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
	b.mu.Lock()
	grouping := b.grouping
	b.mu.Unlock()
	response, err := grouping(request)
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	for k, is := range response.GetPods() {
		if is.GetOutcome().GetResult() == binderv1.Outcome_RESULT_ASSUMED {
			p := request.GetPods()[k]
			b.ledger.applyLocked(cluster.PodAssumed{ID: cluster.PodID(p.GetId()), Node: cluster.NodeIndex(is.GetOutcome().GetNode()), Attempt: p.GetAttempt()})
		}
	}
	if response != nil {
		response.Version = wire.ToVersion(b.ledger.st.Version())
	}
	return response, err
}

func (b *binder) place(request *binderv1.CommitRequest) (*binderv1.CommitResponse, error) {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	st := b.ledger.st
	if wire.Version(request.GetVersion()).Epoch != st.Version().Epoch {
		return nil, rpc.Error(codes.Aborted, "OTHER_EPOCH", "epoch %d", st.Version().Epoch)
	}
	var candidates []engine.Candidates
	for _, c := range request.GetSubjects() {
		groups, err := wire.Groups(c.GetGroups())
		if err != nil {
			return nil, err
		}
		candidates = append(candidates, engine.Candidates{Subject: wire.Subject(c.GetSubject()), Groups: groups})
	}
	placer := engine.NewPlacer(b.evaluator, st, wire.Version(request.GetVersion()).Seq, candidates)
	response := &binderv1.CommitResponse{ByImages: true}
	ended := false
	for _, p := range request.GetPods() {
		outcome := &binderv1.Outcome{Result: binderv1.Outcome_RESULT_GONE}
		response.Outcomes = append(response.Outcomes, outcome)
		id := cluster.PodID(p.GetId())
		row := st.Pod(id)
		if row == nil || row.UID != p.GetUid() {
			continue
		}
		if row.Placed() {
			outcome.Result = binderv1.Outcome_RESULT_PLACED
			continue
		}
		instead := binderv1.Outcome_RESULT_UNSPECIFIED
		if b.instead != nil && !ended {
			instead = b.instead(row.Name)
		}
		if ended = ended || instead == binderv1.Outcome_RESULT_RETRY; ended {
			outcome.Result = binderv1.Outcome_RESULT_RETRY
			continue
		}
		if instead != binderv1.Outcome_RESULT_UNSPECIFIED {
			outcome.Result = instead
			if instead == binderv1.Outcome_RESULT_ASK {
				outcome.Turn, outcome.AskMilliseconds, outcome.AskPods = 1, patience.Milliseconds(), b.pods
				if b.turn != nil {
					outcome.Turn = b.turn(row.Name)
				}
			}
			continue
		}
		// Unlike the real one it tries a nominated pod nowhere else.
		node, placement := st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated)), engine.NoFit
		if row.RequiredNode != "" || row.Nominated != "" {
			placement = placer.PlaceOn(engine.SubjectOf(&row.Pod), id, node)
		} else {
			node, placement = placer.Choose(id, int(p.GetSubjectIndex()))
		}
		switch placement {
		case engine.Placed:
			b.ledger.applyLocked(cluster.PodAssumed{ID: id, Node: node, Attempt: p.GetAttempt()})
			b.placed = append(b.placed, row.Name)
			outcome.Result, outcome.Node = binderv1.Outcome_RESULT_ASSUMED, int32(node)
		case engine.NoFit:
			outcome.Result = binderv1.Outcome_RESULT_NO_FIT
		default:
			outcome.Result = binderv1.Outcome_RESULT_RETRY
		}
	}
	response.Version = wire.ToVersion(st.Version())
	return response, nil
}

func (b *binder) Report(_ context.Context, request *binderv1.ReportRequest) (*binderv1.ReportResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuses {
		return nil, rpc.WithRetry(rpc.Error(codes.ResourceExhausted, "REPORTS_FULL", "later"), 10*time.Millisecond)
	}
	response := &binderv1.ReportResponse{}
	for i, r := range request.GetReports() {
		if b.leaves != nil && b.leaves(r) {
			response.Left = append(response.Left, int32(i))
			continue
		}
		b.reports[r.GetUid()] = r.GetMessage()
		b.cleared[r.GetUid()] = r.GetClearNomination()
		b.meant[r.GetUid()] = fmt.Sprintf("%s of attempt %d under %d", r.GetNominated(), r.GetAttempt(), request.GetShardRevision())
	}
	return response, nil
}

// Ask has the test answer, without a lock.
func (b *binder) Ask(ctx context.Context, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
	b.mu.Lock()
	asking := b.asking
	b.mu.Unlock()
	response, err := asking(ctx, strings.TrimPrefix(request.GetUid(), "uid-"), request)
	if err == nil && response.GetVersion() == nil {
		b.ledger.mu.RLock()
		defer b.ledger.mu.RUnlock()
		response.Version = wire.ToVersion(b.ledger.st.Version())
	}
	return response, err
}

// assume places a pod as an answer to Ask does.
func (b *binder) assume(request *binderv1.AskRequest, node string) *binderv1.AskResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	id, at := cluster.PodID(request.GetId()), b.ledger.st.Nodes.ByName(node)
	b.placed = append(b.placed, b.ledger.st.Pod(id).Name)
	b.ledger.applyLocked(cluster.PodAssumed{ID: id, Node: at, Attempt: request.GetAttempt()})
	return &binderv1.AskResponse{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_ASSUMED, Node: int32(at)}}
}

// AskPreempt has the test answer, without a lock.
func (b *binder) AskPreempt(ctx context.Context, request *binderv1.AskPreemptRequest) (*binderv1.AskPreemptResponse, error) {
	b.mu.Lock()
	agreeing := b.agreeing
	b.mu.Unlock()
	response, err := agreeing(ctx, strings.TrimPrefix(request.GetPreemption().GetPod().GetUid(), "uid-"), request.GetPreemption())
	if err != nil {
		return nil, err
	}
	b.ledger.mu.RLock()
	defer b.ledger.mu.RUnlock()
	response.Version = wire.ToVersion(b.ledger.st.Version())
	return &binderv1.AskPreemptResponse{Preemption: response}, nil
}

// AskPostFilter has the test answer, without a lock.
func (b *binder) AskPostFilter(ctx context.Context, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
	b.mu.Lock()
	looking := b.looking
	b.mu.Unlock()
	response, err := looking(ctx, strings.TrimPrefix(request.GetPod().GetUid(), "uid-"), request)
	if err != nil {
		return nil, err
	}
	b.ledger.mu.RLock()
	defer b.ledger.mu.RUnlock()
	response.Version = wire.ToVersion(b.ledger.st.Version())
	return response, nil
}

// AskPreEnqueue has the test answer, without a lock.
func (b *binder) AskPreEnqueue(ctx context.Context, request *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
	b.mu.Lock()
	letting := b.letting
	b.mu.Unlock()
	var names []string
	for _, p := range request.GetPods() {
		names = append(names, strings.TrimPrefix(p.GetUid(), "uid-"))
	}
	return letting(ctx, names, request)
}

// Preempt marks the victims, which stay until the test has them evicted.
func (b *binder) Preempt(_ context.Context, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.preempts, b.asked = append(b.preempts, request), append(b.asked, b.ledger.describe(request))
	if b.preempting != nil {
		if response, err := b.preempting(len(b.preempts), request); response != nil || err != nil {
			return response, err
		}
	}
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	st := b.ledger.st
	response := &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_GONE}
	id, node := cluster.PodID(request.GetPod().GetId()), cluster.NodeIndex(request.GetCandidate().GetNode())
	if row := st.Pod(id); row != nil && row.UID == request.GetPod().GetUid() && !row.Placed() && !row.Preempting {
		response.Result = binderv1.PreemptResponse_RESULT_RETRY
		now, ok := b.evaluator.DryRunNode(st, id, node)
		if ok && slices.Equal(wire.FromPodIDs(now.Victims), request.GetCandidate().GetVictims()) {
			response.Result = binderv1.PreemptResponse_RESULT_STARTED
			b.reports[row.UID] = request.GetPod().GetMessage()
			b.ledger.applyLocked(cluster.PreemptionStarted{ID: id, Node: node, Victims: now.Victims})
		}
	}
	response.Version = wire.ToVersion(st.Version())
	return response, nil
}

// evict ends the n-th preemption, from 1: its victims are gone.
func (b *binder) evict(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	request := b.preempts[n-1]
	b.ledger.apply(cluster.PreemptionEnded{ID: cluster.PodID(request.GetPod().GetId())})
	for _, victim := range request.GetCandidate().GetVictims() {
		b.ledger.apply(cluster.PodRemoved{ID: cluster.PodID(victim)})
	}
}

// preempted returns what was asked for so far: "high/1 on n1: low".
func (b *binder) preempted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

func (l *ledger) describe(r *binderv1.PreemptRequest) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := fmt.Sprintf("%s/%d on %s:", r.GetPod().GetUid()[len("uid-"):], r.GetAttempt(), l.st.Nodes.Spec[r.GetCandidate().GetNode()].Name)
	for _, victim := range r.GetCandidate().GetVictims() {
		s += " " + l.st.Pod(cluster.PodID(victim)).Name
	}
	return s
}

// order returns the names of pods in the order they were placed.
func (b *binder) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.placed)
}

func (b *binder) report(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reports["uid-"+name]
}

// handedIn reports whether a report of a pod has come by itself, not with a preemption.
func (b *binder) handedIn(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.cleared["uid-"+name]
	return ok
}

// refuseReports makes the binder take no reports, or take them again.
func (b *binder) refuseReports(refuse bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuses = refuse
}

// clears reports whether the last report of a pod clears its nomination.
func (b *binder) clears(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cleared["uid-"+name]
}

// sent returns what every commit so far was of: pod and attempt.
func (b *binder) sent() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all [][]string
	for _, request := range b.commits {
		var pods []string
		for _, p := range request.GetPods() {
			pods = append(pods, fmt.Sprintf("%s/%d", p.GetUid()[len("uid-"):], p.GetAttempt()))
		}
		all = append(all, pods)
	}
	return all
}
