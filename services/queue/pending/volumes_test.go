package pending

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// volumeJudge is cpuJudge, but a pod also needs its claims. One that is bound needs its volume, on nodes of the volume's zone if it has one; one
// that is not needs a class that binds late, and a volume that it may be bound to, or room for one to be made; one that only one pod may
// use needs that nobody does. A node has no place for claims if as much is attached to it as may be.
type volumeJudge struct{ cpuJudge }

func (volumeJudge) claimed(st *cluster.State, s engine.Subject, n cluster.NodeIndex, goes func(*cluster.PodRow) bool) bool {
	set := st.Labels(s.Labels)
	if set == nil || len(set.Claims) == 0 {
		return true
	}
	if limit := st.CSINode(st.Nodes.Spec[n].Name); limit != nil && len(limit.Drivers) > 0 && len(st.AttachedOf(n, "driver")) >= int(limit.Drivers[0].Limit) {
		return false
	}
	return !slices.ContainsFunc(set.Claims, func(by cluster.PodClaim) bool {
		c := st.PersistentVolumeClaim(set.Namespace, by.Name)
		if c == nil || c.Deleting {
			return true
		}
		if slices.Contains(c.AccessModes, "ReadWriteOncePod") {
			for id := range st.ClaimUserIDs(set.Namespace, by.Name) {
				if !goes(st.Pod(id)) {
					return true
				}
			}
		}
		if c.Volume != "" {
			v := st.PersistentVolume(c.Volume)
			if v == nil || !c.Bound && !v.HasClaim {
				return true
			}
			zone, _ := cluster.ValueOf(v.Labels, topologyZone)
			is, _ := cluster.ValueOf(st.Node(n).Labels, topologyZone)
			return zone != "" && zone != is
		}
		class := st.StorageClass(c.Class)
		if class == nil || class.Mode != cluster.BindToFirstConsumer {
			return true
		}
		for v := range st.PersistentVolumes() {
			if v.Class == c.Class && v.Capacity >= c.Request && v.Available && (!v.HasClaim || v.Claim.Name == by.Name) {
				return false
			}
		}
		if d := st.CSIDriver(class.Provisioner); d == nil || !d.StorageCapacity {
			return false
		}
		for room := range st.CSIStorageCapacities() {
			if room.Class == c.Class && room.HasLimit && room.Limit >= c.Request {
				return false
			}
		}
		return true
	})
}

func (j volumeJudge) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return j.cpuJudge.Feasible(st, s, self, n) && j.claimed(st, s, n, func(*cluster.PodRow) bool { return false })
}

func (j volumeJudge) Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return j.cpuJudge.Preemptable(st, s, self, n) &&
		j.claimed(st, s, n, func(p *cluster.PodRow) bool { return p.Node == n && p.Priority < s.Priority && !p.Victim })
}

func (j volumeJudge) Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool {
	for n := range cluster.NodeIndex(st.Nodes.Len()) {
		if n != but && j.Feasible(st, s, cluster.NoPod, n) {
			return true
		}
	}
	return false
}

func (volumeJudge) Signature(_ *cluster.State, s engine.Subject) engine.Signature {
	return engine.SignatureAlone(s)
}

// volumeWorld is a log with volumes and a queue that judges by volumeJudge.
type volumeWorld struct {
	t     interface{ Fatal(...any) }
	now   time.Time
	st    *cluster.State
	judge Judge
	queue *Queue
	look  func(*Queue, *cluster.State) // after each delta
}

const topologyZone = "topology.kubernetes.io/zone"

const volumeClasses = 2 // of pods: of 200m, and of 600m

func newVolumeWorld(t interface{ Fatal(...any) }) *volumeWorld {
	return newVolumeWorldOf(t, volumeJudge{newCPUJudge()})
}

func newVolumeWorldOf(t interface{ Fatal(...any) }, judge Judge) *volumeWorld {
	w := &volumeWorld{t: t, now: time.Unix(1_000_000, 0), st: cluster.New(cluster.Version{Epoch: 3}), judge: judge}
	w.queue = NewQueue(0, w.judge)
	w.look = func(q *Queue, st *cluster.State) { q.Recheck(w.now, st) }
	w.apply(settings(1))
	for k := range cluster.ClassID(volumeClasses) {
		w.apply(cluster.ClassDefined{ID: k, Spec: cpuClass(200 + 400*int64(k))})
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint("keeper-", k), Class: k, NodeName: "elsewhere"}})
	}
	return w
}

func (w *volumeWorld) apply(d cluster.Delta) {
	if err := w.st.Apply(d); err != nil {
		w.t.Fatal(fmt.Sprintf("apply %+v: %v", d, err))
	}
	w.queue.Apply(w.now, w.st, d)
	w.look(w.queue, w.st)
}

func (w *volumeWorld) set(o cluster.Object) { w.apply(cluster.ObjectSet{Object: o}) }

// node sets a node and its CSINode, which has room for two volumes.
func (w *volumeWorld) node(name, zone string, milli int64) {
	at := w.st.Nodes.ByName(name)
	if at == cluster.NoNode {
		at = w.st.Nodes.Free()
	}
	w.apply(cluster.NodeSet{Index: at, Node: cluster.Node{Name: name, Labels: []cluster.Label{{Key: topologyZone, Value: zone}}, Allocatable: append(cpu(milli), cluster.Quantity{Name: "pods", Value: 9})}})
}

// pod sets a pod that uses some claims.
func (w *volumeWorld) pod(name string, class cluster.ClassID, priority int32, node string, claims ...string) cluster.PodID {
	labels := w.labels(name, claims...)
	id := w.st.FreePod()
	w.apply(cluster.PodSet{ID: id, Pod: cluster.Pod{
		UID: name, Name: name, Namespace: "default", Class: class, Labels: labels, Priority: priority, NodeName: node, Created: w.now.UnixNano(),
	}})
	return id
}

// labels defines a label set that uses some claims.
func (w *volumeWorld) labels(name string, claims ...string) cluster.LabelsID {
	set := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "of", Value: name}}}
	for _, c := range claims {
		set.Claims = append(set.Claims, cluster.PodClaim{Name: c})
	}
	labels := cluster.LabelsID(w.st.Version().Seq + 1)
	w.apply(cluster.LabelsDefined{ID: labels, Set: set})
	return labels
}

// helped reports whether a pod is feasible somewhere, or could preempt.
func (w *volumeWorld) helped(id cluster.PodID) bool {
	s := engine.SubjectOf(&w.st.Pod(id).Pod)
	for n := range cluster.NodeIndex(w.st.Nodes.Len()) {
		if w.judge.Feasible(w.st, s, id, n) || w.judge.Preemptable(w.st, s, id, n) {
			return true
		}
	}
	return false
}

func (w *volumeWorld) reject(a Attempt, at cluster.Version, plugin string) {
	w.queue.Reject(w.now, w.st, a, Diagnosis{Version: at, Verdicts: []engine.VerdictCount{{Plugin: plugin}}})
}

// cycle pops everything and rejects what is not helped. The pods that are left are tried again.
func (w *volumeWorld) cycle(meanwhile func()) {
	type tried struct {
		Attempt
		hopeless bool
	}
	var batch []tried
	w.queue.Recheck(w.now, w.st)
	at := w.st.Version()
	for _, a := range w.queue.Pop(w.now, 1000) {
		batch = append(batch, tried{a, !w.helped(a.ID)})
	}
	meanwhile()
	for _, a := range batch {
		if a.hopeless {
			w.reject(a.Attempt, at, engine.NodeResourcesFit)
		} else {
			w.queue.Retry(w.now, a.Attempt)
		}
	}
}

func (w *volumeWorld) placeOf(id cluster.PodID) Place {
	e, ok := w.queue.Entry(id)
	if !ok {
		w.t.Fatal("the queue does not hold the pod")
	}
	return e.Place
}

// sleeping has a pod that uses claim "data", of 500 bytes and no class that there is, sleep on node n1 of zone a.
func sleeping(t *testing.T, claims ...string) (*volumeWorld, cluster.PodID) {
	w := newVolumeWorld(t)
	w.node("n1", "a", 1000)
	id := w.pod("waits", 0, 5, "", append(claims, "data")...)
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", Class: "late", HasRequest: true, Request: 500})
	w.rejectAll()
	if got := w.placeOf(id); got != Unschedulable {
		t.Fatalf("at first: %v", got)
	}
	return w, id
}

// rejectAll has VolumeBinding reject all pods that are ready, and comes back when they could be popped again.
func (w *volumeWorld) rejectAll() {
	for _, a := range w.queue.Pop(w.now, 1000) {
		w.reject(a, w.st.Version(), "VolumeBinding")
	}
	w.now = w.now.Add(time.Minute)
}

func TestPodWakesByWhatItsClaimsAreMadeOf(t *testing.T) {
	claim := func(change func(*cluster.PersistentVolumeClaim)) *cluster.PersistentVolumeClaim {
		c := &cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", Class: "late", HasRequest: true, Request: 500}
		change(c)
		return c
	}
	bound := claim(func(c *cluster.PersistentVolumeClaim) { c.Volume, c.Bound = "pv", true })
	volume := func(change func(*cluster.PersistentVolume)) *cluster.PersistentVolume {
		v := &cluster.PersistentVolume{Name: "pv", Class: "late", Capacity: 1000, Available: true}
		change(v)
		return v
	}
	room := func(limit int64) *cluster.CSIStorageCapacity {
		return &cluster.CSIStorageCapacity{Namespace: "kube-system", Name: "room", Class: "late", HasLimit: true, Limit: limit}
	}
	class := &cluster.StorageClass{Name: "late", Provisioner: "driver", Mode: cluster.BindToFirstConsumer}
	for name, c := range map[string]struct {
		before []cluster.Object
		by     cluster.Object
		gone   bool // it goes
		want   string
	}{
		"its claim is bound":        {by: bound, want: "PersistentVolumeClaimUpdate"},
		"its claim goes":            {by: claim(func(*cluster.PersistentVolumeClaim) {}), gone: true, want: "PersistentVolumeClaimDelete"},
		"another's claim":           {by: claim(func(c *cluster.PersistentVolumeClaim) { c.Name = "other" })},
		"its claim, but in another": {by: claim(func(c *cluster.PersistentVolumeClaim) { c.Namespace = "other" })},
		"a volume for any":          {by: volume(func(*cluster.PersistentVolume) {}), want: "PersistentVolumeAdd"},
		"a volume for it": {by: volume(func(v *cluster.PersistentVolume) {
			v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "default", Name: "data"}
		}), want: "PersistentVolumeAdd"},
		"a volume for another": {by: volume(func(v *cluster.PersistentVolume) {
			v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "default", Name: "other"}
		})},
		"a volume of another class":    {by: volume(func(v *cluster.PersistentVolume) { v.Class = "other" })},
		"a volume that is too small":   {by: volume(func(v *cluster.PersistentVolume) { v.Capacity = 499 })},
		"a volume that is as large":    {by: volume(func(v *cluster.PersistentVolume) { v.Capacity = 500 }), want: "PersistentVolumeAdd"},
		"a volume that is not free":    {by: volume(func(v *cluster.PersistentVolume) { v.Available = false })},
		"a volume that goes":           {by: volume(func(v *cluster.PersistentVolume) { v.Deleting = true })},
		"its volume":                   {before: []cluster.Object{bound}, by: volume(func(v *cluster.PersistentVolume) { v.Class = "" }), want: "PersistentVolumeAdd"},
		"a volume, but it has its own": {before: []cluster.Object{bound}, by: volume(func(v *cluster.PersistentVolume) { v.Name = "other" })},
		"its class":                    {by: class, want: "storage.k8s.io/StorageClassAdd"},
		"another class":                {by: &cluster.StorageClass{Name: "other"}},
		"its class, as it was":         {before: []cluster.Object{class}, by: class},
		"room":                         {by: room(500), want: "storage.k8s.io/CSIStorageCapacityAdd"},
		"more room":                    {before: []cluster.Object{room(300)}, by: room(600), want: "storage.k8s.io/CSIStorageCapacityUpdate"},
		"less room":                    {before: []cluster.Object{room(900)}, by: room(600)},
		"more room, but not enough":    {before: []cluster.Object{room(300)}, by: room(400)},
		"room that goes":               {before: []cluster.Object{room(900)}, by: room(900), gone: true},
		"room, but it has its volume":  {before: []cluster.Object{bound}, by: room(900)},
		"a driver":                     {by: &cluster.CSIDriver{Name: "driver", StorageCapacity: true}},
		"a driver that has room everywhere": {
			before: []cluster.Object{&cluster.CSIDriver{Name: "driver", StorageCapacity: true}}, by: &cluster.CSIDriver{Name: "driver"},
			want: "storage.k8s.io/CSIDriverUpdate"},
		"a driver that is gone": {
			before: []cluster.Object{&cluster.CSIDriver{Name: "driver", StorageCapacity: true}}, by: &cluster.CSIDriver{Name: "driver"}, gone: true,
			want: "storage.k8s.io/CSIDriverDelete"},
		"a CSINode": {by: &cluster.CSINode{Name: "n1"}, want: "storage.k8s.io/CSINodeAdd"},
		"a CSINode of which no more is migrated": {
			before: []cluster.Object{&cluster.CSINode{Name: "n1"}},
			by:     &cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "d", Limited: true, Limit: 4}}}},
		"a CSINode of which more is migrated": {
			before: []cluster.Object{&cluster.CSINode{Name: "n1"}}, by: &cluster.CSINode{Name: "n1", Migrated: []string{"kubernetes.io/aws-ebs"}},
			want: "storage.k8s.io/CSINodeUpdate"},
		"a resource that can be read again": {
			before: []cluster.Object{&cluster.Unserved{Name: "storageclasses"}}, by: &cluster.Unserved{Name: "storageclasses"}, gone: true, want: "UnservedDelete"},
		"a resource that cannot be read": {by: &cluster.Unserved{Name: "storageclasses"}},
		"an attachment":                  {by: &cluster.VolumeAttachment{Name: "a", Attacher: "driver", Node: "n1", Volume: "pv"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := sleeping(t)
			for _, o := range c.before {
				w.set(o)
			}
			w.rejectAll() // it may have woken
			plain := w.pod("plain", 1, 5, "")
			for _, a := range w.queue.Pop(w.now, 1) {
				w.reject(a, w.st.Version(), engine.NodeResourcesFit)
			}
			w.now = w.now.Add(time.Minute)
			w.queue.judge = nowhere{newCPUJudge()}
			heard := new(heardOf)
			w.queue.Observe(heard)
			switch {
			case !c.gone:
				w.set(c.by)
			default:
				w.apply(cluster.ObjectRemoved{ObjectKey: c.by.Key()})
			}
			want := Unschedulable
			if c.want != "" {
				want = Active
			}
			if got := w.placeOf(id); got != want || heard.last != c.want {
				t.Errorf("%v by %q; want %v by %q", got, heard.last, want, c.want)
			}
			if got := w.placeOf(plain); got != Unschedulable {
				t.Errorf("a pod without claims: %v", got)
			}
		})
	}
}

// TestPodWithoutClaimsWakesWhenWhatItNeedsCanBeReadAgain is about pods with disks, and preemptors: nothing of theirs changes but that.
func TestPodWithoutClaimsWakesWhenWhatItNeedsCanBeReadAgain(t *testing.T) {
	w := newVolumeWorld(t)
	w.node("n1", "a", 1000)
	w.set(&cluster.Unserved{Name: cluster.BudgetResource})
	id := w.pod("waits", 0, 5, "")
	w.rejectAll()
	if got := w.placeOf(id); got != Unschedulable {
		t.Fatalf("at first: %v", got)
	}
	w.apply(cluster.ObjectRemoved{ObjectKey: (&cluster.Unserved{Name: cluster.BudgetResource}).Key()})
	if got := w.placeOf(id); got != Active {
		t.Errorf("then: %v", got)
	}
}

// heardOf remembers by what a pod has come to its place.
type heardOf struct{ last string }

func (h *heardOf) Incoming(_ *cluster.Pod, _ Place, event string) { h.last = event }
func (h *heardOf) Scheduled(int32, time.Duration, bool)           {}
func (h *heardOf) Unresolved()                                    {}

// once is claim "data", which only one pod may use, bound to a volume that is there.
func once(w *volumeWorld) {
	w.set(&cluster.PersistentVolume{Name: "pv"})
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", Volume: "pv", Bound: true, AccessModes: []string{"ReadWriteOncePod"}})
}

func TestPodWakesWhenTheOnlyOneThatMayUseItsClaimLeaves(t *testing.T) {
	for name, leave := range map[string]func(*volumeWorld, cluster.PodID){
		"it goes":                    func(w *volumeWorld, user cluster.PodID) { w.apply(cluster.PodRemoved{ID: user}) },
		"its node goes":              func(w *volumeWorld, _ cluster.PodID) { w.apply(cluster.NodeRemoved{Index: 1}) },
		"it uses the claim no more":  func(w *volumeWorld, user cluster.PodID) { w.relabel(user) },
		"its bind has failed":        nil,
		"another claim has one less": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w, want := newVolumeWorld(t), Active
			w.node("n1", "a", 1000)
			w.node("n2", "a", 100)
			once(w)
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "other", Volume: "pv", Bound: true, AccessModes: []string{"ReadWriteOncePod"}})
			other := w.pod("other", 0, 9, "n2", "other")
			var user cluster.PodID
			if name != "its bind has failed" {
				user = w.pod("user", 0, 9, "n2", "data")
			} else {
				user = w.pod("user", 0, 9, "", "data")
				w.apply(cluster.PodAssumed{ID: user, Node: 1, Attempt: 1})
				leave = func(w *volumeWorld, user cluster.PodID) { w.apply(cluster.PodForgotten{ID: user}) }
			}
			if name == "another claim has one less" {
				leave, want = func(w *volumeWorld, _ cluster.PodID) { w.apply(cluster.PodRemoved{ID: other}) }, Unschedulable
			}
			id := w.pod("waits", 0, 5, "", "data")
			w.rejectAll()
			if w.node("n1", "a", 1100); w.placeOf(id) != Unschedulable {
				t.Fatal("it woke before")
			}
			if leave(w, user); w.placeOf(id) != want {
				t.Errorf("%v, want %v", w.placeOf(id), want)
			}
		})
	}
}

// relabel has a pod use no claims any more.
func (w *volumeWorld) relabel(id cluster.PodID) {
	pod := w.st.Pod(id).Pod
	pod.Labels = cluster.NoLabels
	w.apply(cluster.PodSet{ID: id, Pod: pod})
}

func TestPodIsNotMadeUnschedulableWithWhatItsClaimWas(t *testing.T) {
	w := newVolumeWorld(t)
	w.node("n1", "a", 100) // where it does not fit in any case
	id := w.pod("waits", 0, 5, "", "data")
	other := w.pod("other", 0, 5, "", "theirs")
	w.cycle(func() { w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data"}) })
	if got := w.placeOf(id); got != Backoff {
		t.Errorf("the pod whose claim came during its attempt: %v", got)
	}
	if got := w.placeOf(other); got != Unschedulable {
		t.Errorf("another: %v", got)
	}
}

func TestPodThatWasHeldBackHearsOfItsClaimWhenItIsReleased(t *testing.T) {
	w := newVolumeWorld(t)
	w.node("n1", "a", 250)
	victim := w.pod("victim", 0, 1, "n1")
	id := w.pod("waits", 0, 5, "", "data")
	w.rejectAll()
	w.apply(cluster.PreemptionStarted{ID: id, Node: 0, Victims: []cluster.PodID{victim}})
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data"})
	if got := w.placeOf(id); got != Unschedulable {
		t.Errorf("while others are evicted for it: %v", got)
	}
	w.apply(cluster.PreemptionEnded{ID: id})
	if got := w.placeOf(id); got != Active {
		t.Errorf("afterwards: %v", got)
	}
}

func TestPodThatCouldPreemptButForItsClaimWakesWhenThatIsBound(t *testing.T) {
	w := newVolumeWorld(t)
	w.node("n1", "a", 250)
	w.pod("victim", 0, 1, "n1")
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data"})
	id := w.pod("waits", 0, 5, "", "data")
	for _, a := range w.queue.Pop(w.now, 1) {
		w.reject(a, w.st.Version(), engine.NodeResourcesFit) // there is no room in any case
	}
	w.now = w.now.Add(time.Minute)
	if w.helped(id) {
		t.Fatal("it could preempt before")
	}
	w.set(&cluster.PersistentVolume{Name: "pv"})
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", Volume: "pv", Bound: true})
	if got := w.placeOf(id); !w.helped(id) || got != Active {
		t.Errorf("the pod could preempt: %v; it is %v", w.helped(id), got)
	}
}

// check compares what is kept of claims with what the pods of the queue use.
func (w *volumeWorld) check(t *rapid.T) {
	uses := make(map[claimKey]int)
	for _, e := range w.queue.pods {
		if set := w.st.Labels(e.pod.Labels); set != nil {
			for _, by := range set.Claims {
				uses[claimKey{set.Namespace, by.Name}]++
			}
		}
	}
	for key, c := range w.queue.volumes.claims {
		if uses[key] != c.uses {
			t.Fatalf("claim %v: %d uses, want %d", key, c.uses, uses[key])
		}
		delete(uses, key)
	}
	if len(uses) > 0 {
		t.Fatalf("claims that are not kept: %v", uses)
	}
	for _, all := range []map[string]*sharing{w.queue.volumes.byVolume, w.queue.volumes.byClass} {
		for name, s := range all {
			if len(s.claims.claims) == 0 || s.name != name {
				t.Fatalf("%q is kept as what %d claims have, of the name %q", name, len(s.claims.claims), s.name)
			}
		}
	}
	if n := &w.queue.notes; n.claims.len()+n.sharing.len() > 0 {
		t.Fatalf("after a look there are notes of %d claims and %d that have something in common", n.claims.len(), n.sharing.len())
	}
}

// counting counts what it is asked about nodes.
type counting struct {
	volumeJudge
	asked *int
}

func (c counting) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	*c.asked++
	return c.volumeJudge.Feasible(st, s, self, n)
}

// manyClaims is a queue in which many pods sleep, each with a claim of its own that does not exist, and one without claims that no node has room
// for.
func manyClaims(t *testing.T, milli int64) (w *volumeWorld, plain cluster.PodID, asked *int) {
	w, asked = newVolumeWorld(t), new(int)
	w.node("n1", "a", milli)
	for k := range 300 {
		w.pod(fmt.Sprint("waits-", k), 0, 5, "", fmt.Sprint("data-", k))
	}
	plain = w.pod("plain", 1, 5, "")
	for _, a := range w.queue.Pop(w.now, 1000) {
		w.reject(a, w.st.Version(), engine.NodeName)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.judge = counting{volumeJudge{newCPUJudge()}, asked}
	w.look = func(*Queue, *cluster.State) {}
	return w, plain, asked
}

func TestPodsWithClaimsHoldUpNoneWithout(t *testing.T) {
	w, plain, _ := manyClaims(t, 100)
	w.node("n1", "a", 500) // room for the many, if they had what they claim
	for k := range 5 {
		if w.queue.RecheckUntil(w.now, w.st, steps) {
			t.Fatal("the look was over after so few steps:", k)
		}
	}
	w.node("n2", "a", 1000)
	for range 5 {
		if w.queue.RecheckUntil(w.now, w.st, steps) {
			t.Fatal("the look was over after so few steps")
		}
	}
	if got := w.placeOf(plain); got != Active {
		t.Errorf("a pod without claims: %v", got)
	}
	w.queue.Recheck(w.now, w.st)
	if got := w.queue.Count(Unschedulable); got != 300 {
		t.Errorf("%d pods sleep, want those with claims", got)
	}
}

func TestPodsThatDifferInTheirClaimsAreOneQuestionWhereThatDoesNotMatter(t *testing.T) {
	w, _, asked := manyClaims(t, 100)
	w.node("n1", "a", 150) // no room for any
	if w.queue.Recheck(w.now, w.st); *asked > 2 {
		t.Errorf("%d questions, want one for each class", *asked)
	}
	*asked = 0
	w.node("n1", "a", 300)
	if w.queue.Recheck(w.now, w.st); *asked < 300 {
		t.Errorf("%d questions, want one for each pod that it has room for", *asked)
	}
}

// TestStorageThatChangesAllTheTimeMakesNoLookLong has volumes come that nobody waits for, and one for each of few.
func TestStorageThatChangesAllTheTimeMakesNoLookLong(t *testing.T) {
	w, _, asked := manyClaims(t, 500)
	steps := 0
	for k := range 100 {
		w.set(&cluster.PersistentVolume{Name: fmt.Sprint("theirs-", k), HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: fmt.Sprint("theirs-", k)}})
		w.set(&cluster.PersistentVolume{Name: fmt.Sprint("free-", k), Class: "other", Available: true, Capacity: 1000})
		w.set(&cluster.CSIStorageCapacity{Namespace: "system", Name: fmt.Sprint("room-", k), Class: "other", HasLimit: true, Limit: 1000})
		w.set(&cluster.VolumeAttachment{Name: fmt.Sprint("attached-", k), Attacher: "driver", Node: "elsewhere", Volume: "theirs-0"})
	}
	for k := range 3 {
		w.set(&cluster.PersistentVolume{Name: fmt.Sprint("pv-", k), HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: fmt.Sprint("data-", k)}})
	}
	w.queue.RecheckUntil(w.now, w.st, func() bool { steps++; return false })
	if got := w.queue.Count(Active); got != 3 {
		t.Errorf("%d pods have woken, want 3", got)
	}
	if steps > 10 || *asked > 0 {
		t.Errorf("%d steps and %d questions", steps, *asked)
	}
}

func TestPodWithAClaimWakesWhenItCouldPreemptOnANodeThatHasChanged(t *testing.T) {
	w := newVolumeWorld(t)
	once(w)
	w.node("n1", "a", 100)
	w.pod("victim", 0, 1, "n1")
	id := w.pod("waits", 0, 5, "", "data")
	w.cycle(func() {})
	w.now = w.now.Add(time.Minute)
	if got := w.placeOf(id); got != Unschedulable {
		t.Fatalf("while the node is too small: %v", got)
	}
	if w.node("n1", "a", 200); w.placeOf(id) != Active {
		t.Errorf("when it has grown: %v", w.placeOf(id))
	}
}

// newFullWorld has a node to which two volumes can be attached: one of a pod that is there, and one of another that is nominated to it. A third
// has a claim too.
func newFullWorld(t *testing.T) *volumeWorld {
	w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
	w.node("n1", "a", 1000)
	w.set(&cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "driver", Limited: true, Limit: 2}}})
	for _, name := range []string{"one", "two", "three"} {
		w.set(&cluster.PersistentVolume{Name: name, Driver: "driver", Handle: name})
		w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Volume: name, Bound: true})
	}
	w.pod("there", 0, 9, "n1", "one")
	w.apply(cluster.PodNominated{ID: w.pod("nominated", 0, 9, "", "two"), Node: "n1"})
	return w
}

func TestPodWakesWhenWhatANominatedPodIsToAttachIsAttachedAlready(t *testing.T) {
	w := newFullWorld(t)
	id := w.pod("waits", 0, 5, "", "three")
	for _, a := range w.queue.Pop(w.now, 10) {
		w.reject(a, w.st.Version(), engine.NodeVolumeLimits)
	}
	w.now = w.now.Add(time.Minute)
	if got := w.placeOf(id); got != Unschedulable {
		t.Fatalf("while the nominated pod needs the last place: %v", got)
	}
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "two", Volume: "one", Bound: true})
	if got := w.placeOf(id); got != Active {
		t.Errorf("when it does not any more: %v", got)
	}
}

func TestALookAtPodsWithClaimsAsksLittleInAStep(t *testing.T) {
	w, _, asked := manyClaims(t, 100)
	for k := range 500 {
		w.node(fmt.Sprint("small-", k), "a", 50) // no room for any
	}
	most := 0
	for done := false; !done; {
		before := *asked
		done = w.queue.RecheckUntil(w.now, w.st, steps)
		most = max(most, *asked-before)
	}
	if most > 4 {
		t.Errorf("%d questions in one step", most)
	}
}

func TestAPodThatNeverPreemptsAnswersForNoneThatMay(t *testing.T) {
	for range 20 { // which pod of many answers is left to chance
		w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
		w.node("n1", "a", 100)
		w.set(&cluster.PersistentVolume{Name: "pv"})
		for _, c := range []string{"x", "y"} {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: c, Volume: "pv", Bound: true})
		}
		w.pod("victim", 0, 1, "n1")
		never, may := w.pod("never", 0, 5, "", "x"), w.pod("may", 0, 5, "", "y")
		row := w.st.Pod(never).Pod
		row.NeverPreempts = true
		w.apply(cluster.PodSet{ID: never, Pod: row})
		w.rejectAll()
		if got := w.placeOf(may); got != Unschedulable {
			t.Fatalf("while the node is too small: %v", got)
		}
		w.node("n1", "a", 300)
		if got := w.placeOf(may); got != Active {
			t.Fatalf("when it could preempt: %v", got)
		}
		if got := w.placeOf(never); got != Unschedulable {
			t.Fatalf("the one that never does: %v", got)
		}
	}
}

// TestPodsAreFlushedThoughThoseWithClaimsAreLookedAtWithoutEnd notes something for pods with claims before each step.
func TestPodsAreFlushedThoughThoseWithClaimsAreLookedAtWithoutEnd(t *testing.T) {
	w, plain, _ := manyClaims(t, 100)
	for k := range 50 {
		w.node(fmt.Sprint("n-", k), "a", 500)
	}
	w.now = w.now.Add(6 * time.Minute)
	for k := 0; w.placeOf(plain) == Unschedulable; k++ {
		if k == 1000 {
			t.Fatalf("after %d steps it has not come back", k)
		}
		w.node(fmt.Sprint("n-", k%50), "a", int64(501+k%2))
		w.queue.RecheckUntil(w.now, w.st, steps)
	}
}

// TestAPodWithClaimsIsNotCalledFlushedThatIsYetToBeLookedAt has a pod be overdue that nothing else brings back, or that a node does.
func TestAPodWithClaimsIsNotCalledFlushedThatIsYetToBeLookedAt(t *testing.T) {
	for name, helped := range map[string]bool{"nothing helps it": false, "a node does": true} {
		t.Run(name, func(t *testing.T) {
			w, id := sleeping(t)
			w.look = func(*Queue, *cluster.State) {}
			w.now = w.now.Add(6 * time.Minute)
			if helped {
				w.node("n1", "a", 1100)
			}
			w.queue.Recheck(w.now, w.st)
			if got := w.placeOf(id); got != Active {
				t.Fatalf("overdue: %v", got)
			}
			if got := w.queue.pods[id].flushed; got == helped {
				t.Errorf("flushed: %v", got)
			}
		})
	}
}

// TestPodWakesWhenThePluginFailsOnNoNodeAnyMore has nodes n1 and bad, on which VolumeBinding cannot judge the volume of a pod, so that the pod may
// not go to n1 either. By what happens to bad, no other node changes.
func TestPodWakesWhenThePluginFailsOnNoNodeAnyMore(t *testing.T) {
	for name, c := range map[string]struct {
		milli int64 // that bad has
		by    func(*volumeWorld)
	}{
		"the node goes": {1000, func(w *volumeWorld) { w.apply(cluster.NodeRemoved{Index: w.st.Nodes.ByName("bad")}) }},
		"its CSINode goes": {1000, func(w *volumeWorld) {
			w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "bad"}})
		}},
		"it is cordoned": {1000, func(w *volumeWorld) {
			i := w.st.Nodes.ByName("bad")
			n := w.st.Node(i)
			n.Unschedulable = true
			w.apply(cluster.NodeSet{Index: i, Node: n})
		}},
		"it is too small":      {1000, func(w *volumeWorld) { w.node("bad", "a", 100) }},
		"another pod takes it": {250, func(w *volumeWorld) { w.pod("filler", 0, 9, "bad") }},
	} {
		for _, when := range []string{"while it sleeps", "while its attempt runs"} {
			t.Run(name+" "+when, func(t *testing.T) {
				w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
				w.node("n1", "a", 1000)
				w.node("bad", "a", c.milli)
				w.set(&cluster.CSINode{Name: "bad", Migrated: []string{"p"}})
				w.set(&cluster.PersistentVolume{Name: "pv", Migration: cluster.Migration{Plugin: "p", Error: "no such thing"}})
				w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "x", Volume: "pv", Bound: true})
				id := w.pod("waits", 0, 5, "", "x")
				if w.helped(id) {
					t.Fatal("it is feasible at first")
				}
				at := w.st.Version()
				batch := w.queue.Pop(w.now, 1000)
				if when == "while its attempt runs" {
					c.by(w)
				}
				for _, a := range batch {
					w.reject(a, at, engine.VolumeBinding)
				}
				w.now = w.now.Add(time.Minute)
				if when == "while it sleeps" {
					c.by(w)
				}
				w.queue.Recheck(w.now, w.st)
				if !w.helped(id) {
					t.Fatal("it is not feasible in the end")
				}
				if got := w.placeOf(id); got == Unschedulable {
					t.Errorf("it sleeps, though n1 is feasible")
				}
			})
		}
	}
}

// unboundClaims has many pods sleep that each use a claim of the class "late" without a volume.
func unboundClaims(t *testing.T, n int) *volumeWorld {
	w := newVolumeWorld(t)
	w.node("n1", "a", 1000)
	for k := range n {
		name := fmt.Sprint("data-", k)
		w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Class: "late", HasRequest: true, Request: 500})
		w.pod(fmt.Sprint("waits-", k), 0, 5, "", name)
	}
	for _, a := range w.queue.Pop(w.now, n) {
		w.reject(a, w.st.Version(), engine.VolumeBinding)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	w.queue.judge = nowhere{newCPUJudge()}
	w.look = func(*Queue, *cluster.State) {}
	if got := w.queue.Count(Unschedulable); got != n {
		t.Fatalf("%d pods sleep at first", got)
	}
	return w
}

func TestClaimsThatHaveSomethingInCommonAreFoundInParts(t *testing.T) {
	const n = 300
	for name, by := range map[string]func(*volumeWorld){
		"their class": func(w *volumeWorld) {
			w.set(&cluster.StorageClass{Name: "late", Provisioner: "driver", Mode: cluster.BindToFirstConsumer})
		},
		"room for them": func(w *volumeWorld) {
			w.set(&cluster.PersistentVolume{Name: "pv", Class: "late", Capacity: 1000, Available: true})
		},
		"a driver that tells no room any more": func(w *volumeWorld) {
			w.set(&cluster.CSIDriver{Name: "driver", StorageCapacity: true})
			w.set(&cluster.CSIDriver{Name: "driver"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := unboundClaims(t, n)
			by(w)
			for done := false; !done; {
				before := w.queue.Count(Unschedulable)
				if done = w.queue.RecheckUntil(w.now, w.st, steps); before-w.queue.Count(Unschedulable) > 1 {
					t.Fatalf("%d pods come back in one step", before-w.queue.Count(Unschedulable))
				}
			}
			if got := w.queue.Count(Unschedulable); got != 0 {
				t.Errorf("%d pods sleep in the end", got)
			}
		})
	}
}

func TestRoomForLittleWakesNobodyWhoNeedsMoreThoughThereWasMuchBefore(t *testing.T) {
	w := unboundClaims(t, 1)
	w.set(&cluster.PersistentVolume{Name: "large", Class: "late", Capacity: 1000, Available: true})
	if w.queue.Recheck(w.now, w.st); w.queue.Count(Active) != 1 {
		t.Fatal("it does not wake by a volume that is large enough")
	}
	w.rejectAll()
	w.set(&cluster.PersistentVolume{Name: "small", Class: "late", Capacity: 100, Available: true})
	if w.queue.Recheck(w.now, w.st); w.queue.Count(Unschedulable) != 1 {
		t.Error("it wakes by a volume that is too small")
	}
}

// TestNoRoomIsForgotten compares what is kept of rooms with all of them.
func TestNoRoomIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var kept rooms
		var all []room
		for k, more := range rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 30).Draw(t, "amounts") {
			amount := 30 - int64(k) + more // mostly for less and less: that is what has to be kept
			r := room{event{seq: cluster.Seq(k + 1)}, amount}
			kept.add(r.event, amount)
			all = append(all, r)
			merged := len(kept) == mostRooms
			for need := range int64(36) {
				var want event
				for _, one := range all {
					if one.amount >= need {
						want = one.event
					}
				}
				if got := kept.last(need); got.seq < want.seq || !merged && got != want && len(all) <= mostRooms {
					t.Fatalf("the last room for %d was at %d, want %d", need, got.seq, want.seq)
				}
			}
		}
		if len(kept) > mostRooms {
			t.Fatalf("%d are kept", len(kept))
		}
	})
}

// TestAListOfClaimsIsGoneThroughInPartsWhileItChanges goes through a list as a look does.
func TestAListOfClaimsIsGoneThroughInPartsWhileItChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := claimList{kind: inClass}
		stays := make(map[*claim]bool) // and whether it has been met
		for range rapid.IntRange(0, 20).Draw(t, "claims") {
			c := new(claim)
			l.add(c)
			stays[c] = false
		}
		for left := len(l.claims); ; {
			if left = min(left, len(l.claims)); left == 0 {
				break
			}
			left--
			if _, known := stays[l.claims[left]]; known {
				stays[l.claims[left]] = true
			}
			switch rapid.IntRange(0, 2).Draw(t, "change") {
			case 0:
				l.add(new(claim))
			case 1:
				if len(l.claims) > 0 {
					c := rapid.SampledFrom(l.claims).Draw(t, "gone")
					l.remove(c)
					delete(stays, c)
				}
			}
		}
		for c, met := range stays {
			if !met {
				t.Fatalf("a claim at %d is not met", c.at[inClass])
			}
		}
	})
}
