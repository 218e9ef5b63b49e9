package binder

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestADeposedBinderBindsNothingAndCanWinALaterTerm(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	one := start(t, etcd, src, named("one"))
	first := one.active()
	two := start(t, etcd, src, named("two"))
	eventually(t, "two stands by", func() bool { return strings.Contains(two.Ready().Error(), "standing by") })

	// One does not know that it is deposed: its lease is alive.
	depose(t, etcd)
	second := two.active()
	if second <= first {
		t.Errorf("epoch %d is not after %d", second, first)
	}
	if resp, err := one.Commit(t.Context(), one.request(1, "p")); err != nil {
		wantError(t, err, codes.Unavailable, "NOT_ACTIVE") // the record was refused before the answer
	} else if got := resp.GetOutcomes()[0].GetResult(); got != binderv1.Outcome_RESULT_ASSUMED {
		t.Fatalf("p is %s", resultText(got))
	}
	eventually(t, "one has noticed", func() bool { return one.Ready() != nil })
	_, err := one.Commit(t.Context(), two.request(1, "p"))
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	if got := src.tried("p"); len(got) > 0 {
		t.Errorf("bound by a deposed binder: %v", got)
	}
	if got := two.phase("p"); got != "pending" {
		t.Errorf("to the binder that leads, p is %s", got)
	}

	two.stop()
	third := one.active()
	if third <= second {
		t.Errorf("epoch %d is not after %d", third, second)
	}
	one.commit(one.request(1, "p"))
	one.awaitPhase("p", "bound on a")
}

func TestATermThatEndedTakesNoMoreCommits(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	b := start(t, etcd, src)
	b.active()
	req := b.request(1, "p")
	ended := b.term.Load() // as a call that is under way has it
	b.stop()
	_, err := ended.commit(req)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	_, err = b.Commit(t.Context(), req)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	if b.Ready() == nil || !b.Version().IsZero() || b.Digest() != 0 {
		t.Errorf("stopped: ready %v, version %v, digest %x", b.Ready(), b.Version(), b.Digest())
	}
	if got := src.tried(""); len(got) > 0 {
		t.Errorf("bound: %v", got)
	}
	if got := intents(t, connect(t, etcd, prefix)); len(got) > 0 {
		t.Errorf("recorded: %v", got)
	}
	if src.watches != 0 {
		t.Errorf("%d watches run", src.watches)
	}
}

func TestABinderIsNotActiveFromTheMomentItsLeaseMayHaveExpired(t *testing.T) {
	s, err := New(Config{
		ID: "b", Address: "b", Coord: connect(t, []string{"127.0.0.1:1"}, prefix), Source: newFakeSource(),
		Settings: settings(), Log: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	term := pureTerm(t, newFakeSource())
	lease := make(chan struct{})
	term.lease = lease
	s.term.Store(term)
	if err := s.Ready(); err != nil {
		t.Errorf("while the lease holds: %v", err)
	}
	close(lease) // and nobody has ended the term yet
	if s.Ready() == nil || !s.Version().IsZero() {
		t.Errorf("ready: %v, version %v", s.Ready(), s.Version())
	}
	_, err = s.Commit(t.Context(), nil)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	_, err = s.Report(t.Context(), nil)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	wantError(t, s.Follow(nil, nil), codes.Unavailable, "NOT_ACTIVE")
}

func TestABinderGivesItsTermUpWhenItStops(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	long := func(c *Config) { c.LeaseTTL = time.Hour }
	one := start(t, etcd, src, named("one"), long)
	one.active()
	two := start(t, etcd, src, named("two"), long)
	one.stop()
	two.active()
}

func TestReadinessSaysWhatIsWaitedFor(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.goAway(errors.New("no answer from the cluster"))
	b := start(t, etcd, src)
	eventually(t, "it waits for the source and says why", func() bool {
		err := b.Ready()
		return err != nil && strings.Contains(err.Error(), "no answer from the cluster")
	})
	_, err := b.Commit(t.Context(), nil)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	src.goAway(nil)
	epoch := b.active()
	src.goAway(errors.New("away again"))
	eventually(t, "it is not ready while the source is away", func() bool {
		err := b.Ready()
		return err != nil && strings.Contains(err.Error(), "away again")
	})
	src.goAway(nil)
	if again := b.active(); again != epoch {
		t.Errorf("the epoch was lost: %d, then %d", epoch, again)
	}

	nowhere := start(t, []string{"127.0.0.1:1"}, src)
	eventually(t, "it waits for etcd", func() bool {
		err := nowhere.Ready()
		return err != nil && strings.Contains(err.Error(), "waiting for etcd")
	})
}

func TestABrokenLedgerEndsTheTermAndTheNextOneIsWhole(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	b := start(t, etcd, src)
	first := b.active()
	b.term.Load().feed.Close() // the log cannot carry what comes now
	src.setNode(node("b", 10))
	eventually(t, "the term ends", func() bool { return b.Ready() != nil })
	if second := b.active(); second <= first {
		t.Errorf("epoch %d is not after %d", second, first)
	}
	b.commit(b.request(1, "p"))
	b.awaitPhase("p", "bound on a")
}

func TestNothingIsPlacedWhileEtcdIsAwayForLongerThanTheLease(t *testing.T) {
	etcd := etcdtest.Start(t)
	src := newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("before", 100))
	src.setPod(pod("p", 100))
	src.setPod(pod("q", 100))
	const lease = 9 * time.Second // the commit after the pause has that long
	b := start(t, etcd.Endpoints(), src, func(c *Config) { c.LeaseTTL = lease })

	// 1. A binder that has nothing to do loses its term too.
	idle := b.active()
	etcd.Pause()
	eventually(t, "the idle term ends", func() bool { return b.term.Load() == nil })
	etcd.Continue()
	first := b.active()
	if first <= idle {
		t.Errorf("epoch %d is not after %d", first, idle)
	}

	// 2. One that is busy places no more.
	b.commit(b.request(1, "before"))
	b.awaitPhase("before", "bound on a")
	early, late := b.request(1, "p"), b.request(1, "q")

	etcd.Pause()
	if got := b.commit(early); got[0] != "assumed" { // the lease still holds; the record waits
		t.Errorf("p is %s", got[0])
	}
	paused := time.Now()
	eventually(t, "the term ends", func() bool { return b.Ready() != nil })
	if took := time.Since(paused); took > 2*lease { // but for a busy machine it is less than the lease
		t.Errorf("the term ended %v after the pause; the lease is %v", took, lease)
	}
	_, err := b.Commit(t.Context(), late)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
	never(t, "a bind while nothing can be recorded", func() bool { return len(src.tried("p"))+len(src.tried("q")) > 0 })

	// 3. When etcd is back, so is the binder.
	etcd.Continue()
	if second := b.active(); second <= first {
		t.Errorf("epoch %d is not after %d", second, first)
	}
	_, err = b.Commit(t.Context(), late)
	wantError(t, err, codes.Aborted, "OTHER_EPOCH")
	for _, uid := range []string{"p", "q"} {
		// What was recorded at the last moment is taken over; what was not is pending.
		if b.phase(uid) == "pending" {
			b.commit(b.request(1, uid))
		}
		b.awaitPhase(uid, "bound on a")
		if n := len(src.tried(uid)); n != 1 {
			t.Errorf("%d binds of %s, want 1", n, uid)
		}
	}
}

func TestSettingsThatMakeNoSenseAreRefused(t *testing.T) {
	good := Config{ID: "b", Address: "b", Coord: connect(t, []string{"127.0.0.1:1"}, prefix), Source: newFakeSource(), Settings: settings(), Log: testLog(t)}
	for want, change := range map[string]func(*Config){
		"ID":             func(c *Config) { c.ID = "" },
		"Address":        func(c *Config) { c.Address = "" },
		"Coord":          func(c *Config) { c.Coord = nil },
		"Source":         func(c *Config) { c.Source = source.Source(nil) },
		"Shards":         func(c *Config) { c.Settings.Shards = 0 },
		"Profiles":       func(c *Config) { c.Settings.Profiles = nil },
		"LeaseTTL":       func(c *Config) { c.LeaseTTL = time.Millisecond },
		"negative":       func(c *Config) { c.MaxUnbound = -1 },
		"Preemptions -1": func(c *Config) { c.Preemptions = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v", want, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Errorf("good settings: %v", err)
	}
}
