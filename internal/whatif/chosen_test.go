package whatif

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

// preparingPod returns a pod that is assumed on node a, with a volume that has been chosen for its claim.
func preparingPod(t *testing.T) (*Sandbox, cluster.PodID) {
	st := cluster.New(start)
	if err := st.Apply(cluster.SettingsSet{Settings: settings()}); err != nil {
		t.Fatal(err)
	}
	fold := ingest.New(st, st.Apply)
	object := func(o cluster.Object) source.Event { return source.Event{Kind: source.ObjectSet, Object: o} }
	pod := aPod("p", 100)
	pod.Labels.Claims = []cluster.PodClaim{{Name: "c"}}
	for _, e := range []source.Event{
		setNode(aNode("a", "z", 300)), setNode(aNode("b", "z", 300)),
		object(&cluster.StorageClass{Name: "late", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}),
		object(&cluster.PersistentVolume{Name: "v", Class: "late", Capacity: 5, Mode: "Filesystem", Available: true}),
		object(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "c", UID: "u", Class: "late", HasRequest: true, Request: 5, Mode: "Filesystem"}),
		setPod(pod),
	} {
		if err := fold.Observe(e); err != nil {
			t.Fatal(err)
		}
	}
	id, _ := st.PodByUID("p")
	e := engine.NewEvaluator(engine.EvaluatorConfig{})
	row := st.Pod(id)
	choices, ok := e.ChooseVolumes(st, engine.SubjectOf(&row.Pod), 0, nil)
	if !ok || len(choices) != 1 {
		t.Fatal(choices, ok)
	}
	if err := st.Apply(cluster.PodAssumed{ID: id, Node: 0, Attempt: 1, Volumes: choices}); err != nil {
		t.Fatal(err)
	}
	return New(st, engine.EvaluatorConfig{}), id
}

// TestWhatHasBeenChosenForClaimsComesBack: a question undoes what it has changed of a pod whose claims are being bound.
func TestWhatHasBeenChosenForClaimsComesBack(t *testing.T) {
	for name, change := range map[string]func(w *World, id cluster.PodID) error{
		"forgotten": func(w *World, id cluster.PodID) error { return w.Apply(cluster.PodForgotten{ID: id}) },
		"stopping": func(w *World, id cluster.PodID) error {
			pod := w.State().Pod(id).Pod
			pod.Deleting = true
			return w.Apply(cluster.PodSet{ID: id, Pod: pod, Assumed: true})
		},
		"bound":            func(w *World, id cluster.PodID) error { return w.Apply(cluster.PodBound{ID: id}) },
		"drained":          func(w *World, _ cluster.PodID) error { _, err := Drain(w, []string{"a"}, PlaceOptions{}); return err },
		"without its node": func(w *World, _ cluster.PodID) error { return w.RemoveNode("a") },
	} {
		s, id := preparingPod(t)
		want := s.state.Chosen(id)
		if err := s.Try(t.Context(), func(w *World) error { return change(w, id) }); err != nil || len(want) != 1 || !slices.Equal(s.state.Chosen(id), want) {
			t.Errorf("%s: %v, %v", name, s.state.Chosen(id), err)
		}
	}
}

// TestAPodWhoseClaimsAreBeingBoundIsPreemptedInAQuestionToo: the ledger is about to evict it for another one, and a question does so for a third.
func TestAPodWhoseClaimsAreBeingBoundIsPreemptedInAQuestionToo(t *testing.T) {
	s, id := preparingPod(t)
	st := s.state
	fold := ingest.New(st, st.Apply)
	large := aPod("large", 300)
	large.Priority = 5
	if err := fold.Observe(setPod(large)); err != nil {
		t.Fatal(err)
	}
	other, _ := st.PodByUID("large")
	if err := st.Apply(cluster.PreemptionStarted{ID: other, Node: 0, Victims: []cluster.PodID{id}}); err != nil {
		t.Fatal(err)
	}
	s = New(st, engine.EvaluatorConfig{})
	want, before := s.state.Chosen(id), s.state.Digest()
	for range 2 {
		err := s.Try(t.Context(), func(w *World) error {
			if err := w.RemoveNode("b"); err != nil {
				return err
			}
			larger := aPod("larger", 300)
			larger.Priority = 10
			third, err := w.AddPod(larger)
			if err != nil {
				return err
			}
			outcomes, err := Place(w, []cluster.PodID{third}, PlaceOptions{Preempt: true})
			if err != nil {
				return err
			}
			if o := outcomes[0]; o.Outcome != Preempts || len(o.Victims) != 1 || o.Victims[0].UID != "p" || w.State().Pod(id) != nil {
				t.Errorf("%+v, want that it evicts p", o)
			}
			return nil
		})
		if err != nil || s.Spoiled() != nil {
			t.Fatalf("%v, spoiled: %v", err, s.Spoiled())
		}
		if row := s.state.Pod(id); len(want) != 1 || !slices.Equal(s.state.Chosen(id), want) || row.Phase != cluster.Assumed || !row.Victim || s.state.Digest() != before {
			t.Errorf("afterwards it is %+v with %v, want that it is a victim with %v", row, s.state.Chosen(id), want)
		}
	}
}
