package whatif

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	if err := st.Apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}}); err != nil {
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

// judge returns what an Evaluator says of the pods of every signature.
func judge(e *engine.Evaluator, st *cluster.State) map[engine.Subject]engine.Feasibility {
	out := make(map[engine.Subject]engine.Feasibility)
	for _, row := range st.Pods() {
		subject := engine.SubjectOf(&row.Pod)
		found, _ := e.Filter(st, subject, cluster.Range{End: cluster.MaxIndex})
		for n := len(found.Eligible); n > 0 && found.Eligible[n-1] == 0; n-- {
			found.Eligible = found.Eligible[:n-1] // of nodes that were tried, and are gone
		}
		out[subject] = found
	}
	return out
}

// A sandbox that follows the log is the copy that one made anew would be, and so are its answers, whatever was tried in between.
func TestSandboxFollowsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st, intn := randomState(t, 40), draws(t)
		s := New(st, engine.EvaluatorConfig{})
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			err := s.Try(t.Context(), func(w *World) error {
				for range rapid.IntRange(0, 20).Draw(t, "changes") {
					d := clustertest.Delta(intn, w.State())
					switch defined := d.(type) { // as the World's fold would
					case cluster.ClassDefined:
						defined.ID += 1 << 30
						d = defined
					case cluster.LabelsDefined:
						defined.ID += 1 << 30
						d = defined
					}
					if err := w.Apply(d); err != nil {
						return err
					}
				}
				judge(w.Evaluator(), w.State())
				if diff := cmp.Diff(UsageOf(w.State()), w.Usage()); diff != "" {
					t.Fatalf("usage (-fresh +kept):\n%s", diff)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var log []cluster.Delta
			for range rapid.IntRange(0, 20).Draw(t, "deltas") {
				d := clustertest.Delta(intn, st)
				if err := st.Apply(d); err != nil {
					t.Fatal(err)
				}
				log = append(log, d)
			}
			if err := s.Follow(log, st.Version(), st.Digest()); err != nil || s.Version() != st.Version() {
				t.Fatalf("Follow(%+v): %v; at %v, want %v", log, err, s.Version(), st.Version())
			}
			if diff := cmp.Diff(clustertest.Dump(st), clustertest.Dump(s.state)); diff != "" {
				t.Fatalf("the sandbox after %+v (-ledger +sandbox):\n%s", log, diff)
			}
			if diff := cmp.Diff(judge(engine.NewEvaluator(engine.EvaluatorConfig{}), st), judge(s.evaluator, s.state)); diff != "" {
				t.Fatalf("its answers after %+v (-fresh +kept):\n%s", log, diff)
			}
		}
	})
}

func TestSandboxThatCannotFollowIsSpoiled(t *testing.T) {
	for name, follow := range map[string]func(*Sandbox) error{
		"a delta that does not apply": func(s *Sandbox) error {
			return s.Follow([]cluster.Delta{cluster.PodRemoved{ID: 5}}, s.Version(), s.state.Digest())
		},
		"another digest": func(s *Sandbox) error { return s.Follow(nil, s.Version(), s.state.Digest()+1) },
	} {
		s := New(cluster.New(start), engine.EvaluatorConfig{})
		if err := follow(s); !errors.Is(err, ErrSpoiled) || !errors.Is(s.Spoiled(), ErrSpoiled) {
			t.Errorf("%s: %v; spoiled: %v", name, err, s.Spoiled())
		}
	}
}

// A class that was tried and is gone must not have the id of one that the ledger defines later.
func TestWhatIsTriedHasIDsOfItsOwn(t *testing.T) {
	s := sandbox(t, setPod(aPod("p", 100)))
	try(t, s, func(w *World) error {
		id, err := w.AddPod(aPod("q", 200))
		if err != nil {
			return err
		}
		if row := w.State().Pod(id); row.Class < 1<<30 {
			t.Errorf("the class has id %d, which the ledger may give to another", row.Class)
		}
		return nil
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

func TestUsageIsOfTheZonesThatNodesAreInNow(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z1", 1000)), setNode(aNode("b", "z2", 1000)))
	zones := func(w *World) (names []string) {
		for _, z := range w.Usage().Zones {
			names = append(names, fmt.Sprintf("%s: %d", z.Zone, z.Nodes))
		}
		return names
	}
	for range 2 {
		try(t, s, func(w *World) error {
			for _, step := range []struct {
				change func() error
				want   []string
			}{
				{func() error { return nil }, []string{"z1: 1", "z2: 1"}},
				{func() error { return w.Label("a", zoneLabel, "z3") }, []string{"z2: 1", "z3: 1"}},
				{func() error { return w.Unlabel("b", zoneLabel) }, []string{": 1", "z3: 1"}},
				{func() error { return w.RemoveNode("a") }, []string{": 1"}},
				{func() error { return w.SetNode(aNode("c", "z2", 1000)) }, []string{": 1", "z2: 1"}},
			} {
				if err := step.change(); err != nil {
					return err
				}
				if diff := cmp.Diff(step.want, zones(w)); diff != "" {
					t.Errorf("nodes by zone (-want +got):\n%s", diff)
				}
			}
			return nil
		})
	}
}

func TestAQuestionPausesBetweenItsParts(t *testing.T) {
	s := sandbox(t, setNode(aNode("n", "a", 1000)))
	paused, added := 0, 0
	var ended error
	ask := func() error {
		paused = 0
		return s.Try(WithPause(t.Context(), func() error { paused++; return ended }), func(w *World) error {
			var pods []cluster.PodID
			for _, name := range []string{"a", "b", "c"} {
				id, err := w.AddPod(aPod(name, 1))
				if err != nil {
					return err
				}
				pods = append(pods, id)
			}
			added = paused
			_, err := Place(w, pods, PlaceOptions{})
			return err
		})
	}
	if err := ask(); err != nil || added < 3 || paused < added+6 { // each is chosen for, and assumed
		t.Errorf("of three pods: %v, after %d pauses, %d of them while they were added", err, paused, added)
	}
	paused = 0
	if err := eachDocument(WithPause(t.Context(), func() error { paused++; return nil }), []byte("a: 1\n---\nb: 1\n"), own, func([]byte) error { return nil }); err != nil || paused < 2 {
		t.Errorf("of two documents: %v, after %d pauses", err, paused)
	}
	ended = errors.New("no more")
	if err := ask(); !errors.Is(err, ended) || s.Spoiled() != nil {
		t.Errorf("a pause that ends it: %v; spoiled: %v", err, s.Spoiled())
	}
	ended = nil
	if err := ask(); err != nil {
		t.Errorf("the next question: %v", err)
	}
}
