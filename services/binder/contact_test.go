package binder

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// way is one binder's way to a cluster that other binders reach too.
type way struct {
	*fakeSource
	cut atomic.Bool
}

func (w *way) Lookup(ctx context.Context, namespace, name string) (uid, node string, found bool, err error) {
	if w.cut.Load() {
		return "", "", false, errCut
	}
	return w.fakeSource.Lookup(ctx, namespace, name)
}

func (w *way) Bind(ctx context.Context, fence coord.Cond, bindings []source.Binding) []source.Outcome {
	if !w.cut.Load() {
		return w.fakeSource.Bind(ctx, fence, bindings)
	}
	out := make([]source.Outcome, len(bindings))
	for i := range out {
		out[i] = source.Outcome{Result: source.BindUnknown, Err: errCut}
	}
	return out
}

func (w *way) Withdraw(ctx context.Context, fence coord.Cond, b source.Binding, why source.Report) source.Outcome {
	if w.cut.Load() {
		return source.Outcome{Result: source.BindUnknown, Err: errCut}
	}
	return w.fakeSource.Withdraw(ctx, fence, b, why)
}

var errCut = errors.New("no way to the cluster")

// by makes a binder reach the cluster that way, and have short leases.
func by(w *way) func(*Config) {
	return func(c *Config) { c.Source, c.LeaseTTL = w, 3*time.Second }
}

func standsBy(b *running) func() bool {
	return func() bool { return b.Ready() != nil && b.Available() == nil }
}

func TestABinderThatIsCutOffHandsItsTermToOneThatIsNot(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	wayOfOne, wayOfTwo := &way{fakeSource: src}, &way{fakeSource: src}
	one := start(t, etcd, src, named("one"), by(wayOfOne))
	first := one.active()
	two := start(t, etcd, src, named("two"), by(wayOfTwo))
	eventually(t, "two stands by", standsBy(two))

	wayOfOne.cut.Store(true)
	one.commit(one.request(1, "p"))
	if second := two.active(); second <= first {
		t.Errorf("epoch %d is not after %d", second, first)
	}
	two.awaitPhase("p", "bound on a") // what one has recorded and could not bind
	eventually(t, "one says what it waits for", func() bool {
		err := one.Available()
		return err != nil && strings.Contains(err.Error(), errCut.Error())
	})
	wayOfOne.cut.Store(false)
	eventually(t, "one stands by again", standsBy(one))

	// And the other way round.
	wayOfTwo.cut.Store(true)
	one.active()
}

func TestWhoCannotReachTheSourceIsNotElected(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	wayOfOne := &way{fakeSource: src}
	wayOfOne.cut.Store(true)
	one := start(t, etcd, src, named("one"), by(wayOfOne))
	eventually(t, "one waits for its source", func() bool { return strings.Contains(one.Ready().Error(), errCut.Error()) })
	two := start(t, etcd, src, named("two"), by(&way{fakeSource: src}))
	two.active()
	two.stop()
	never(t, "one is elected", func() bool { return one.Ready() == nil })
	wayOfOne.cut.Store(false)
	one.active()
}

func TestACandidateThatIsCutOffStandsNoMore(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	one := start(t, etcd, src, named("one"), by(&way{fakeSource: src}), func(c *Config) { c.LeaseTTL = time.Minute })
	epoch := one.active()
	wayOfTwo := &way{fakeSource: src}
	two := start(t, etcd, src, named("two"), by(wayOfTwo))
	eventually(t, "two stands by", standsBy(two))
	wayOfTwo.cut.Store(true)
	eventually(t, "two does not", func() bool { return two.Available() != nil })
	wayOfTwo.cut.Store(false)
	eventually(t, "two stands by again", standsBy(two))
	if now := one.active(); now != epoch {
		t.Errorf("the epoch went from %d to %d", epoch, now)
	}
}

// lookups answers probes with what it is told, after the time that takes.
type lookups struct {
	source.Source
	answer func(context.Context) error
}

func (l lookups) Lookup(ctx context.Context, _, _ string) (uid, node string, found bool, err error) {
	return "", "", false, l.answer(ctx)
}

// The two ways in which there is no answer.
func refused(context.Context) error { return errCut }
func silence(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func probing(answer func(context.Context) error) *Service {
	return &Service{cfg: Config{LeaseTTL: 5 * time.Second, Source: lookups{answer: answer}}}
}

func TestTheTermStaysWhereItIsWhileTheSourceAnswersNobody(t *testing.T) {
	for _, answer := range []func(context.Context) error{refused, silence} {
		bubble.Test(t, func(t *testing.T) {
			s := probing(answer)
			var standing atomic.Bool
			standing.Store(true)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { // a candidate
				if s.keepContact(ctx, withdrawAfter, func(context.Context) bool { return true }) == nil {
					t.Error("the candidate stands for ever")
				}
				elapse(s.cfg.LeaseTTL / 2) // until etcd has taken its key away
				standing.Store(false)
			})
			running.Go(func() {
				if err := s.keepContact(ctx, resignAfter, func(context.Context) bool { return standing.Load() }); err != nil {
					t.Errorf("the term is given up: %v", err)
				}
			})
			elapse(time.Hour)
			stop()
			running.Wait()
		})
	}
}

func TestATermIsGivenUpOnlyToWhoStoodWhileTheSourceWasStillAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var back, asked atomic.Bool
		s := probing(func(context.Context) error {
			if back.Load() {
				return nil
			}
			return errCut
		})
		ctx, stop := context.WithCancel(t.Context())
		contact := make(chan error)
		go func() {
			contact <- s.keepContact(ctx, resignAfter, func(context.Context) bool {
				asked.Store(true)
				back.Store(true) // and the candidate has heard it first
				return true
			})
		}()
		elapse(time.Hour)
		stop()
		if err := <-contact; err != nil || !asked.Load() {
			t.Errorf("asked: %v; error: %v", asked.Load(), err)
		}
	})
}

func TestASourceThatAnswersNowAndThenKeepsTheTerm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		s := probing(func(context.Context) error {
			if time.Since(began)%(12*time.Second) < 2*time.Second {
				return nil
			}
			return errCut
		})
		ctx, stop := context.WithCancel(t.Context())
		contact := make(chan error)
		go func() { contact <- s.keepContact(ctx, resignAfter, func(context.Context) bool { return true }) }()
		elapse(time.Hour)
		stop()
		if err := <-contact; err != nil {
			t.Errorf("the term is given up: %v", err)
		}
	})
}
