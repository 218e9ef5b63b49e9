package oracle

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// hintCall is a call of a queueing hint in one of its tests: the pod is rejected by the plugin, and an object or a pod has come, changed
// or gone.
type hintCall struct {
	Test    string
	Point   string
	Pod     *v1.Pod
	Was, Is *told
	Queue   bool
}

// told is an object of a kind.
type told struct {
	Kind   string
	Object json.RawMessage
}

// read returns the object; nil: there is none.
func (o *told) read(t *testing.T) metav1.Object {
	if o == nil {
		return nil
	}
	kinds := []metav1.Object{
		&v1.Pod{}, &v1.PersistentVolume{}, &v1.PersistentVolumeClaim{}, &storagev1.StorageClass{}, &storagev1.CSINode{}, &storagev1.CSIDriver{},
		&storagev1.CSIStorageCapacity{}, &storagev1.VolumeAttachment{},
	}
	k := slices.IndexFunc(kinds, func(kind metav1.Object) bool { return reflect.TypeOf(kind).Elem().Name() == o.Kind })
	if k < 0 {
		t.Fatalf("a hint about a %s", o.Kind)
	}
	if err := json.Unmarshal(o.Object, kinds[k]); err != nil {
		t.Fatal(err)
	}
	return kinds[k]
}

// nowhere judges that no pod can go anywhere, whatever happens: only hints bring pods back, and what is known of whom a change concerns.
type nowhere struct{ *engine.Evaluator }

func (nowhere) Feasible(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false
}

func (nowhere) Preemptable(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false
}

func (nowhere) Possible(*cluster.State, engine.Subject, cluster.NodeIndex) bool { return false }

// hintWorld is a log that a queue follows.
type hintWorld struct {
	*world
	now   time.Time
	queue *pending.Queue
}

func (w *hintWorld) tell(deltas ...cluster.Delta) {
	for _, d := range deltas {
		w.world.apply(d)
		w.queue.Apply(w.now, w.state, d)
	}
}

// pod tells of a pod.
func (w *hintWorld) pod(pod *v1.Pod) cluster.PodID {
	r := source.ReducePod(pod)
	id := w.state.FreePod()
	class, labels := cluster.ClassID(2*id), cluster.LabelsID(2*id+1)
	w.tell(cluster.ClassDefined{ID: class, Spec: r.Class}, cluster.LabelsDefined{ID: labels, Set: r.Labels})
	r.Pod.Class, r.Pod.Labels = class, labels
	w.tell(cluster.PodSet{ID: id, Pod: r.Pod})
	return id
}

// TestUpstreamsVolumeHintsQueueTheSame has pods sleep that the plugin has rejected, in each case of kube-scheduler's tests of its queueing hints
// for volumes, and lets happen what the case says. They must wake if the hint queues them, and else not, but for what is said below.
func TestUpstreamsVolumeHintsQueueTheSame(t *testing.T) {
	for _, table := range upstreamTables {
		t.Run(table.plugin, func(t *testing.T) {
			cases := table.hintCases(t)
			for _, c := range cases {
				want := c.Queue
				if class, ok := c.Is.read(t).(*storagev1.StorageClass); ok && table.plugin == names.VolumeZone && class.VolumeBindingMode == nil {
					// Of a new class VolumeBinding says that it helps, and here pods are asked for no plugin: they are those whose claims are of it.
					want = true
				}
				if got := c.wakes(t, table.plugin); got != want {
					t.Errorf("%s: %s says %v, and here the pod wakes: %v", c.Test, c.Point, c.Queue, got)
				}
			}
			if len(cases) != table.hinted {
				t.Errorf("%d cases, there were %d", len(cases), table.hinted)
			}
			t.Logf("%d cases", len(cases))
		})
	}
}

// hintCases returns the calls of hints.
func (table *upstreamTable) hintCases(t *testing.T) (out []*hintCall) {
	for _, l := range table.told(t) {
		if strings.HasPrefix(l.Point, "isSchedulableAfter") {
			out = append(out, read[hintCall](t, l))
		}
	}
	return out
}

// wakes reports whether the pod of a case does.
func (c *hintCall) wakes(t *testing.T, plugin string) bool {
	profile := defaultProfile(t)
	w := &hintWorld{now: time.Unix(1000, 0)}
	w.world = newWorld(t, []config.KubeSchedulerProfile{profile}, gates{}, 1, new(tally))
	w.queue = pending.NewQueue(0, nowhere{w.evaluator})
	w.queue.Reset(w.now, w.state)
	w.tell(cluster.NodeSet{Index: 0, Node: source.ReduceNode(plain("node", 0))})

	// 1. What the case says that there is, and what it leaves out.
	complete := new(upstreamCall).complete
	waiting := complete(c.Pod, "waits", "")
	was, is := c.Was.read(t), c.Is.read(t)
	for _, o := range c.missing(waiting, was, is) {
		w.tell(cluster.ObjectSet{Object: reduceKept(o)})
	}
	var gone cluster.PodID
	if p, ok := was.(*v1.Pod); ok {
		node := ""
		if p.Spec.NodeName != "" || c.Point == "isSchedulableAfterPodDeleted" && plugin == "VolumeRestrictions" { // which does not ask
			node = "node"
		}
		gone = w.pod(complete(p, "goes", node))
	} else if was != nil {
		w.tell(cluster.ObjectSet{Object: reduceKept(defaulted(was))})
	}
	// 2. The pod sleeps.
	id := w.pod(waiting)
	for _, a := range w.queue.Pop(w.now, 10) {
		w.queue.Reject(w.now, w.state, a, pending.Diagnosis{Version: w.state.Version(), Verdicts: []engine.VerdictCount{{Plugin: plugin, Count: 1}}})
	}
	w.queue.Recheck(w.now, w.state)
	if e, _ := w.queue.Entry(id); e.Place != pending.Unschedulable {
		t.Fatalf("the pod does not sleep: %v", e.Place)
	}
	// 3. It happens. What is not told to replicas since it changes nothing that anybody reads is not told here, but for claims: those of
	// cases are all alike.
	switch {
	case is != nil:
		set := cluster.ObjectSet{Object: reduceKept(defaulted(is))}
		if before, known := w.state.Object(set.Object.Key()); !known || !set.Same(before) || set.Object.Key().Kind == cluster.PersistentVolumeClaimKind {
			w.tell(set)
		}
	case reflect.TypeOf(was) == reflect.TypeFor[*v1.Pod]():
		w.tell(cluster.PodRemoved{ID: gone})
	default:
		w.tell(cluster.ObjectRemoved{ObjectKey: reduceKept(defaulted(was)).Key()})
	}
	w.queue.Recheck(w.now, w.state)
	e, _ := w.queue.Entry(id)
	return e.Place != pending.Unschedulable
}

// missing has the pod use claims that the object of the case concerns, where kube-scheduler's hint does not ask, and returns what there has to
// be for that. A pod that nothing of the kind could matter to is no more rejected by the plugin than woken here.
func (c *hintCall) missing(pod *v1.Pod, was, is metav1.Object) (objects []metav1.Object) {
	claim := func(name string, class, volume string) {
		objects = append(objects, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &class, VolumeName: volume, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod},
			},
		})
	}
	uses := func(class string) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "missing", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"}}})
		claim("missing", class, "")
	}
	switch o := is.(type) {
	case *storagev1.StorageClass:
		uses(o.Name)
	case *storagev1.CSIStorageCapacity:
		uses(o.StorageClassName)
	case *storagev1.CSIDriver: // the hint asks for volumes that the pod has of the driver, here it is whose class provisions with it
		for _, v := range pod.Spec.Volumes {
			if v.CSI != nil && v.CSI.Driver == o.Name {
				uses("class")
			}
		}
	case *v1.PersistentVolume:
		claim(pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, "", o.Name)
	}
	if _, ok := was.(*v1.Pod); ok { // the hint does not ask whether only one pod may use the claim
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				claim(v.PersistentVolumeClaim.ClaimName, "", "")
			}
		}
	}
	return objects
}

// defaulted gives a claim of a case the namespace that pods of cases get.
func defaulted(o metav1.Object) metav1.Object {
	if c, ok := o.(*v1.PersistentVolumeClaim); ok && c.Namespace == "" {
		c.Namespace = "default"
	}
	return o
}
