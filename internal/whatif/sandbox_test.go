package whatif

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
)

var start = cluster.Version{Epoch: 7}

// draws makes rapid the source of randomness, so that it can shrink what fails.
func draws(t *rapid.T) clustertest.Intn {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
}

func randomState(t *rapid.T, steps int) *cluster.State {
	st, intn := cluster.New(start), draws(t)
	if err := st.Apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{cluster.DefaultProfile("default-scheduler")}}}); err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(0, steps).Draw(t, "steps") {
		d := clustertest.Delta(intn, st)
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%+v): %v", d, err)
		}
	}
	return st
}

func TestWhatIsTriedIsUndone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := randomState(t, 60)
		before, digest := clustertest.Dump(st), st.Digest()
		s := New(st, engine.EvaluatorConfig{})
		intn := draws(t)
		for range rapid.IntRange(1, 3).Draw(t, "tries") {
			var applied []cluster.Delta
			err := s.Try(t.Context(), func(w *World) error {
				for range rapid.IntRange(0, 40).Draw(t, "changes") {
					d := clustertest.Delta(intn, w.State())
					if err := w.Apply(d); err != nil {
						return err
					}
					applied = append(applied, d)
				}
				return nil
			})
			if err != nil || s.Spoiled() != nil {
				t.Fatalf("Try: %v; spoiled: %v; after %+v", err, s.Spoiled(), applied)
			}
			if diff := cmp.Diff(before, clustertest.Dump(s.state)); diff != "" {
				t.Fatalf("the sandbox after %+v (-before +after):\n%s", applied, diff)
			}
			if err := clustertest.Recompute(s.state); err != nil {
				t.Fatal(err)
			}
		}
		if st.Digest() != digest || s.Version() != st.Version() {
			t.Fatal("the state that the sandbox was cloned from has changed")
		}
	})
}

func TestWhatIsTriedWithinATryIsUndoneBeforeTheRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(randomState(t, 40), engine.EvaluatorConfig{})
		intn := draws(t)
		change := func(w *World) error {
			for range rapid.IntRange(0, 20).Draw(t, "changes") {
				if err := w.Apply(clustertest.Delta(intn, w.State())); err != nil {
					return err
				}
			}
			return nil
		}
		err := s.Try(t.Context(), func(w *World) error {
			if err := change(w); err != nil {
				return err
			}
			before, digest := clustertest.Dump(w.State()), w.State().Digest()
			if err := w.Try(func() error { return change(w) }); err != nil {
				return err
			}
			if diff := cmp.Diff(before, clustertest.Dump(w.State())); diff != "" || w.State().Digest() != digest {
				t.Fatalf("after the inner try (-before +after):\n%s", diff)
			}
			return change(w)
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// What the sandbox's Evaluator has kept over a Try is what one that knows nothing finds.
func TestAnswersAfterATryAreThoseBeforeIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := randomState(t, 60)
		s := New(st, engine.EvaluatorConfig{})
		intn := draws(t)
		everything := cluster.Range{End: cluster.MaxIndex}
		judge := func(e *engine.Evaluator, st *cluster.State) map[engine.Subject]engine.Feasibility {
			out := make(map[engine.Subject]engine.Feasibility)
			for _, row := range st.Pods() {
				subject := engine.SubjectOf(&row.Pod)
				out[subject], _ = e.Filter(st, subject, everything)
			}
			return out
		}
		for range 2 {
			err := s.Try(t.Context(), func(w *World) error {
				for range rapid.IntRange(0, 20).Draw(t, "changes") {
					if err := w.Apply(clustertest.Delta(intn, w.State())); err != nil {
						return err
					}
					judge(w.Evaluator(), w.State())
				}
				fresh := judge(engine.NewEvaluator(engine.EvaluatorConfig{}), w.State())
				if diff := cmp.Diff(fresh, judge(w.Evaluator(), w.State())); diff != "" {
					t.Fatalf("within Try (-fresh +kept):\n%s", diff)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			fresh := judge(engine.NewEvaluator(engine.EvaluatorConfig{}), s.state)
			if diff := cmp.Diff(fresh, judge(s.evaluator, s.state)); diff != "" {
				t.Fatalf("after Try (-fresh +kept):\n%s", diff)
			}
		}
	})
}

func TestTryThatDoesNotEndSpoilsTheSandbox(t *testing.T) {
	s := New(cluster.New(start), engine.EvaluatorConfig{})
	func() {
		defer func() { _ = recover() }()
		_ = s.Try(t.Context(), func(*World) error { panic("a mistake") })
	}()
	if !errors.Is(s.Spoiled(), ErrSpoiled) {
		t.Errorf("spoiled: %v", s.Spoiled())
	}
	if err := s.Try(t.Context(), func(*World) error { return nil }); err == nil {
		t.Error("a spoiled sandbox is tried")
	}
}

func TestWorldChangesNoMoreWhenItsContextOrItsTryHasEnded(t *testing.T) {
	s := New(cluster.New(start), engine.EvaluatorConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	var kept *World
	err := s.Try(ctx, func(w *World) error {
		kept = w
		if err := w.SetNode(cluster.Node{Name: "a"}); err != nil {
			return err
		}
		cancel()
		return w.SetNode(cluster.Node{Name: "b"})
	})
	if !errors.Is(err, context.Canceled) || s.Spoiled() != nil || s.state.Nodes.Count() != 0 {
		t.Errorf("error %v, spoiled %v, %d nodes", err, s.Spoiled(), s.state.Nodes.Count())
	}
	if err := kept.SetNode(cluster.Node{Name: "c"}); err == nil {
		t.Error("a World changes after its Try")
	}
}

func TestSandboxIsFreshUntilCloningAgainIsCheap(t *testing.T) {
	cloned := time.Unix(1000, 0)
	v := func(epoch cluster.Epoch, seq cluster.Seq) cluster.Version {
		return cluster.Version{Epoch: epoch, Seq: seq}
	}
	f := NewFreshness(v(3, 10), cloned, 50*time.Millisecond)
	for _, c := range []struct {
		after  time.Duration
		newest cluster.Version
		want   bool
	}{
		{time.Hour, v(3, 10), true},
		{999 * time.Millisecond, v(3, 11), true},
		{time.Second, v(3, 11), false},
		{0, v(4, 1), false},
	} {
		if got := f.Fresh(cloned.Add(c.after), c.newest); got != c.want {
			t.Errorf("%v after it was cloned, newest %v: fresh is %v, want %v", c.after, c.newest, got, c.want)
		}
	}
	if (Freshness{}).Fresh(cloned, v(3, 10)) {
		t.Error("no sandbox is fresh")
	}
}

func TestAnAttemptThatWasTriedIsForgotten(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setPod(aPod("p", 100)))
	digest := s.state.Digest()
	try(t, s, func(w *World) error {
		pod := w.State().Pod(0).Pod
		pod.Attempt = 3
		return w.Apply(cluster.PodSet{ID: 0, Pod: pod})
	})
	if s.state.Digest() != digest || s.state.Pod(0).Attempt != 0 {
		t.Errorf("the attempt is %d", s.state.Pod(0).Attempt)
	}
}
