package pending

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// sharedClaim returns a world in which a pod with the claim "data" is assumed on n1, with what has been chosen for the claim.
func sharedClaim(t *testing.T, class *cluster.StorageClass, volume *cluster.PersistentVolume, choice string, before ...cluster.Object) (w *volumeWorld, id cluster.PodID) {
	w = newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{})})
	w.node("n1", "a", 250) // room for one
	w.node("n2", "a", 250)
	w.set(class)
	if volume != nil {
		w.set(volume)
	}
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", UID: "u", Class: class.Name, Mode: "Filesystem", HasRequest: true, Request: 5})
	for _, o := range before {
		w.set(o)
	}
	id = w.pod("a", 0, 5, "", "data")
	at := w.queue.Pop(w.now, 1)
	if len(at) != 1 {
		t.Fatal("nothing popped")
	}
	w.apply(cluster.PodAssumed{ID: id, Node: 0, Attempt: 1, Volumes: []cluster.VolumeChoice{{Claim: "data", UID: "u", Volume: choice}}})
	return w, id
}

// sleeps has the pods that are there be rejected, one of them among them.
func (w *volumeWorld) sleeps(t *testing.T, id cluster.PodID) {
	t.Helper()
	for _, a := range w.queue.Pop(w.now, 10) {
		e := engine.NewEvaluator(engine.EvaluatorConfig{})
		if e.Possible(w.st, a.Subject, cluster.NoNode) {
			t.Fatalf("pod %d fits", a.ID)
		}
		_, why := e.AnswersOf(w.st, a.ID).Unschedulable()
		w.queue.Reject(w.now, w.st, a, Diagnosis{Version: w.st.Version(), Verdicts: why})
	}
	if w.placeOf(id) != Unschedulable {
		t.Fatal(w.placeOf(id))
	}
}

// isAwakeIfItFits checks that a pod sleeps exactly if it fits nowhere.
func (w *volumeWorld) isAwakeIfItFits(t *testing.T, id cluster.PodID, what string) {
	t.Helper()
	fits := engine.NewEvaluator(engine.EvaluatorConfig{}).Possible(w.st, engine.SubjectOf(&w.st.Pod(id).Pod), cluster.NoNode)
	if fits != (w.placeOf(id) != Unschedulable) {
		t.Errorf("%s: the pod fits: %v, and is %v", what, fits, w.placeOf(id))
	}
}

func TestAPodWakesWhenItsClaimIsPromisedNothingAnyMoreThoughTheNodeIsGone(t *testing.T) {
	late := &cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}
	for name, end := range map[string]func(cluster.PodID) cluster.Delta{
		"forgotten": func(id cluster.PodID) cluster.Delta { return cluster.PodForgotten{ID: id} },
		"removed":   func(id cluster.PodID) cluster.Delta { return cluster.PodRemoved{ID: id} },
	} {
		w, a := sharedClaim(t, late, nil, "")
		b := w.pod("b", 0, 5, "", "data")
		w.sleeps(t, b)
		w.apply(cluster.NodeRemoved{Index: 0})
		w.isAwakeIfItFits(t, b, name+": node gone")
		w.apply(end(a))
		w.isAwakeIfItFits(t, b, name)
	}
}

func TestAPodWakesWhenTheVolumeThatIsKeptForItsClaimIsPromisedToNobodyElse(t *testing.T) {
	static := &cluster.StorageClass{Name: "static", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}
	v := &cluster.PersistentVolume{Name: "v", Class: "static", Capacity: 5, Mode: "Filesystem", Available: true}
	w, a := sharedClaim(t, static, v, "v", &cluster.PersistentVolumeClaim{Namespace: "default", Name: "other", UID: "u2", Class: "static", Mode: "Filesystem", HasRequest: true, Request: 5})
	kept := *v
	kept.HasClaim, kept.Claim = true, cluster.ClaimReference{Namespace: "default", Name: "other"}
	w.node("n2", "a", 700)
	b := w.pod("b", 1, 5, "", "other")
	w.set(&kept)
	w.sleeps(t, b)
	w.apply(cluster.PodForgotten{ID: a})
	w.isAwakeIfItFits(t, b, "forgotten")
}

func TestAPodWakesWhenTheVolumeThatItsClaimIsPromisedChanges(t *testing.T) {
	static := &cluster.StorageClass{Name: "static", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}
	on := func(node string, available bool) *cluster.PersistentVolume {
		return &cluster.PersistentVolume{Name: "v", Class: "static", Capacity: 5, Mode: "Filesystem", Available: available, HasAffinity: true,
			Affinity: []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: topologyZone, Operator: "In", Values: []string{node}}}}}}
	}
	w, _ := sharedClaim(t, static, on("b", true), "v")
	b := w.pod("b", 0, 5, "", "data")
	w.sleeps(t, b)
	w.set(on("a", false))
	w.isAwakeIfItFits(t, b, "affinity")
}

func TestAPodWakesWhenAnotherIsBoundBeforeTheirClaim(t *testing.T) {
	late := &cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}
	for _, set := range []bool{false, true} {
		w, a := sharedClaim(t, late, nil, "")
		b := w.pod("b", 0, 5, "", "data")
		w.sleeps(t, b)
		if set {
			pod := w.st.Pod(a).Pod
			w.apply(cluster.PodSet{ID: a, Pod: pod})
		} else {
			w.apply(cluster.PodBound{ID: a})
		}
		w.isAwakeIfItFits(t, b, "bound")
	}
}
