package pending

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// driverWorld has a pod wait that a node has no CSI driver for: its claim "data" is bound to a volume of the driver "driver", or is to be.
func driverWorld(t *testing.T, bound bool, edit func(*cluster.Profile)) (*volumeWorld, cluster.PodID) {
	w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
	s := settings(1)
	edit(&s.Settings.Profiles[0])
	w.apply(s)
	w.node("n1", "a", 1000)
	w.set(&cluster.CSIDriver{Name: "driver", PreventPodSchedulingIfMissing: true, StorageCapacity: true})
	w.set(&cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "other"}}})
	w.set(&cluster.StorageClass{Name: "late", Provisioner: "driver", Mode: cluster.BindToFirstConsumer})
	claim := &cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", Class: "late"}
	if bound {
		claim.Volume, claim.Bound = "pv", true
		w.set(&cluster.PersistentVolume{Name: "pv", Driver: "driver", Handle: "h"})
	}
	w.set(claim)
	id := w.pod("waits", 0, 5, "", "data")
	w.rejectFor(engine.NodeVolumeLimits)
	if got := w.placeOf(id); got != Unschedulable || w.helped(id) {
		t.Fatalf("at first: %v, feasible is %v", got, w.helped(id))
	}
	return w, id
}

// rejectFor has a plugin reject all pods that are ready.
func (w *volumeWorld) rejectFor(plugin string) {
	for _, a := range w.queue.Pop(w.now, 1000) {
		w.reject(a, w.st.Version(), plugin)
	}
	w.now = w.now.Add(time.Minute)
}

func TestPodWithoutADriverWakesWhenThatMayHaveCome(t *testing.T) {
	scaling := func(p *cluster.Profile) { p.VolumeLimitScaling = true }
	requiring := func(p *cluster.Profile) { p.RequireCSIDrivers = true }
	csiNode := func(drivers ...cluster.NodeDriver) func(*volumeWorld) {
		return func(w *volumeWorld) { w.set(&cluster.CSINode{Name: "n1", Drivers: drivers}) }
	}
	csiDriver := func(d cluster.CSIDriver) func(*volumeWorld) {
		return func(w *volumeWorld) { d.Name = "driver"; w.set(&d) }
	}
	driverGoes := func(w *volumeWorld) {
		w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSIDriverKind, Name: "driver"}})
	}
	for name, c := range map[string]struct {
		edit    func(*cluster.Profile)
		unbound bool
		by      func(*volumeWorld)
		want    Place
	}{
		"its driver comes to the CSINode":                      {scaling, false, csiNode(cluster.NodeDriver{Name: "driver"}), Active},
		"another driver does":                                  {scaling, false, csiNode(cluster.NodeDriver{Name: "third"}), Unschedulable},
		"its driver comes to the CSINode, required":            {requiring, false, csiNode(cluster.NodeDriver{Name: "driver"}), Active},
		"another driver does, required":                        {requiring, false, csiNode(cluster.NodeDriver{Name: "third"}), Unschedulable},
		"the CSIDriver does not ask any more":                  {scaling, false, csiDriver(cluster.CSIDriver{StorageCapacity: true}), Active},
		"the CSIDriver asks still":                             {scaling, false, csiDriver(cluster.CSIDriver{PreventPodSchedulingIfMissing: true}), Unschedulable},
		"the CSIDriver goes":                                   {scaling, false, driverGoes, Active},
		"the CSIDriver does not ask, but drivers are required": {requiring, false, csiDriver(cluster.CSIDriver{StorageCapacity: true}), Unschedulable},
		"the CSIDriver goes, required and unbound": {requiring, true, func(w *volumeWorld) {
			csiDriver(cluster.CSIDriver{})(w) // without what other hints are about
			w.rejectFor(engine.NodeVolumeLimits)
			driverGoes(w)
		}, Active},
		"a node comes with its driver": {scaling, false, func(w *volumeWorld) {
			w.set(&cluster.CSINode{Name: "n2", Drivers: []cluster.NodeDriver{{Name: "driver"}}})
			w.rejectFor(engine.NodeVolumeLimits) // a new CSINode is a reason to try again
			w.node("n2", "a", 1000)
		}, Active},
		"a node comes before its CSINode": {requiring, false, func(w *volumeWorld) { w.node("n2", "a", 1000) }, Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := driverWorld(t, !c.unbound, c.edit)
			c.by(w)
			if got := w.placeOf(id); got != c.want {
				t.Errorf("%v, want %v; feasible is %v", got, c.want, w.helped(id))
			}
		})
	}
}

// A node that is too full for the pod, so that it does not fit even then: only the hint brings the pod back.
func TestPodWithoutADriverHearsOfTheCSIDriverWhereItWouldNotFit(t *testing.T) {
	w, id := driverWorld(t, true, func(p *cluster.Profile) { p.VolumeLimitScaling = true })
	w.node("n1", "a", 100)
	plain := w.pod("plain", 1, 5, "")
	w.rejectFor(engine.NodeResourcesFit)
	w.set(&cluster.CSIDriver{Name: "driver"})
	if got := w.placeOf(id); got != Active {
		t.Errorf("%v, want %v", got, Active)
	}
	if got := w.placeOf(plain); got != Unschedulable {
		t.Errorf("a pod that another plugin has rejected: %v", got)
	}
}

func TestNobodyHearsOfCSIDriversWithTheGateOff(t *testing.T) {
	w, id := driverWorld(t, true, func(p *cluster.Profile) { p.VolumeLimitScaling = true })
	w.apply(settings(1))
	w.node("n1", "a", 100)
	w.rejectFor(engine.NodeVolumeLimits)
	w.set(&cluster.CSIDriver{Name: "driver", StorageCapacity: true})
	if got := w.placeOf(id); got != Unschedulable {
		t.Errorf("%v, want %v", got, Unschedulable)
	}
}
