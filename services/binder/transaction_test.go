package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// errRefused is why a transaction of a test is given up.
var errRefused = errors.New("the test says so")

func TestNobodySeesATransactionBeforeItsEnd(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
	l := term.ledger
	head, told := term.feed.Head(), false
	err := l.update(func(tx *tx) error {
		tx.tell(func() { told = true })
		for _, uid := range []string{"p", "q"} {
			id, _ := tx.state.PodByUID(uid)
			if err := tx.apply(cluster.PodAssumed{ID: id, Node: 0, Attempt: 1}); err != nil {
				return err
			}
			if row := tx.state.Pod(id); row.Phase != cluster.Assumed {
				t.Errorf("%s is %v behind its delta: what is judged next must see it", uid, row.Phase)
			}
			if now := term.feed.Head(); now != head || told {
				t.Errorf("behind %s the log is at %v, told %v; want %v and nothing", uid, now, told, head)
			}
		}
		return nil
	})
	if want := (cluster.Version{Epoch: head.Epoch, Seq: head.Seq + 2}); err != nil || term.feed.Head() != want || !told {
		t.Errorf("in the end the log is at %v, want %v; told %v, %v", term.feed.Head(), want, told, err)
	}
}

func TestATransactionThatFailsIsToldToNobodyAndEndsTheLedger(t *testing.T) {
	twice := func(tx *tx) error { // what the state refuses, and the caller does not mind
		id, _ := tx.state.PodByUID("p")
		_ = tx.apply(cluster.PodBound{ID: id})
		return nil
	}
	for name, fails := range map[string]func(*tx) error{
		"the state refuses a delta":      func(tx *tx) error { return tx.apply(cluster.PodForgotten{ID: 99}) },
		"and nobody minds":               twice,
		"its function says so":           func(*tx) error { return errRefused },
		"followers cannot be told of it": func(tx *tx) error { return tx.apply(cluster.NamespaceSet{Name: "\xff"}) },
		"it is larger than a message":    func(tx *tx) error { return tx.apply(cluster.NamespaceSet{Name: strings.Repeat("x", 17<<20)}) },
		"its function ends by a panic":   func(*tx) error { panic(errRefused) },
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			term.ledger.abandoned = func(error) {}
			observe(t, term, node("a", 1000), pod("p", 100))
			l := term.ledger
			before := term.mark()
			told := false
			err := func() (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("panic: %v", p)
					}
				}()
				return l.update(func(tx *tx) error {
					tx.tell(func() { told = true })
					if err := tx.apply(cluster.NamespaceSet{Name: "applied"}); err != nil {
						t.Error(err)
					}
					return fails(tx)
				})
			}()
			if err == nil || told {
				t.Errorf("error %v, told %v", err, told)
			}
			if head := term.feed.Head(); head != before.version {
				t.Errorf("the log is at %v, want %v as before", head, before.version)
			}
			// Nothing comes behind it, and nobody can get what it has left behind.
			again := l.update(func(*tx) error { t.Error("a broken ledger was changed"); return nil })
			if again == nil {
				t.Error("the ledger goes on")
			}
			if err := l.tx.apply(cluster.NamespaceSet{Name: "later"}); err == nil {
				t.Error("a delta was applied behind the transaction")
			}
			l.Snapshot(func(*cluster.State) { t.Error("a snapshot was taken") })
			if l.stillSo(source.Report{UID: "p"}) {
				t.Error("reports are still written")
			}
		})
	}
}

func TestADeltaOutsideOfATransactionIsRefused(t *testing.T) {
	l := pureTerm(t, newFakeSource()).ledger
	before := l.version()
	if err := l.tx.apply(cluster.NamespaceSet{Name: "x"}); !errors.Is(err, errNoTransaction) || l.version() != before {
		t.Errorf("error %v, the ledger is at %v, before at %v", err, l.version(), before)
	}
}

// runs collects how many deltas each message has.
type runs struct {
	grpc.ServerStream
	ctx   context.Context
	until cluster.Version
	end   context.CancelFunc
	got   []int
}

func (s *runs) Context() context.Context { return s.ctx }

func (s *runs) Send(m *logv1.FollowResponse) error {
	if n := len(m.GetDeltas()); n > 0 && m.GetKind() == logv1.FollowResponse_KIND_DELTAS {
		s.got = append(s.got, n)
	}
	if wire.Version(m.GetVersion()) == s.until {
		s.end()
	}
	return nil
}

// More pods than a message has deltas otherwise.
func TestFollowersAreToldOfACommitInOneMessage(t *testing.T) {
	const pods = 5000
	term := pureTerm(t, newFakeSource())
	term.unbound.limit = pods
	for i := range pods / 100 { // of which each takes 110 pods
		observe(t, term, node(fmt.Sprint("n", i), 1_000_000))
	}
	names := make([]string, pods)
	for i := range names {
		names[i] = fmt.Sprint("p", i)
		observe(t, term, pod(names[i], 1))
	}
	before := term.mark()
	st := term.ledger.state
	resp, err := term.commit(requestOf(st, evaluate(st, pods), 1, names...))
	if err != nil || int(resp.GetVersion().GetSeq()-int64(before.version.Seq)) != pods || len(term.recorder.waiting) != pods {
		t.Fatalf("from %v to %v, %d wait for the record: %v", before.version, resp.GetVersion(), len(term.recorder.waiting), err)
	}
	s := &runs{until: term.ledger.version()}
	s.ctx, s.end = context.WithCancel(t.Context())
	defer s.end()
	err = term.feed.Follow(&logv1.FollowRequest{From: wire.ToVersion(before.version), Digest: before.digest}, s, term.ledger)
	if s.ctx.Err() == nil || len(s.got) != 1 || s.got[0] != pods {
		t.Errorf("messages of %v deltas, want one of %d: %v", s.got, pods, err)
	}
}

func TestACommitThatFailsPlacesNothing(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	var failed error
	term.fail = func(err error) { failed = err }
	observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
	st := term.ledger.state
	req := requestOf(st, evaluate(st, 10), 1, "p", "q")
	term.feed.Close()
	resp, err := term.commit(req)
	if err == nil || failed == nil {
		t.Errorf("answered %v, %v; the term fails by %v", resp, err, failed)
	}
	if n, waiting := term.unbound.count(), len(term.recorder.waiting); n != 0 || waiting != 0 {
		t.Errorf("%d count as unbound, %d wait for the record", n, waiting)
	}
}
