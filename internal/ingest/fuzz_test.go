package ingest_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// FuzzObjects makes objects of every kind that a source tells, with anything in any field, and takes them the way to a replica:
// reduced, folded, applied, encoded, decoded and applied there. Nothing of it may fail, what a replica has must be what the ledger
// has, and evaluating it must not panic.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{
		"", "\x00", "\xff\xff\xff\xff", strings.Repeat("\x01", 64), strings.Repeat("\x83\x05", 300), strings.Repeat("\xfe\x10\x40", 200),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(carryAnything)
}

// The same at random, for there is little time for fuzzing in a test.
func TestWhateverAnObjectSaysReachesReplicas(t *testing.T) {
	for seed := range 300 {
		carryAnything(t, binary.LittleEndian.AppendUint16(nil, uint16(seed)))
	}
}

func carryAnything(t *testing.T, data []byte) {
	w := newWorld(t)
	fill := newFiller(data)
	for range 3 {
		w.tell(source.Event{Kind: source.NodeSet, Node: source.ReduceNode(made[v1.Node](fill))})
	}
	var pods []source.Pod
	for range 3 {
		pod := source.ReducePod(made[v1.Pod](fill))
		pods = append(pods, pod)
		w.tell(source.Event{Kind: source.PodSet, Pod: pod})
	}
	e := source.Event{Kind: source.NamespaceSet}
	e.Namespace, e.Labels = source.ReduceNamespace(made[v1.Namespace](fill))
	w.tell(e)
	for _, o := range []cluster.Object{
		source.ReduceBudget(made[policyv1.PodDisruptionBudget](fill)),
		source.ReducePersistentVolume(made[v1.PersistentVolume](fill)),
		source.ReducePersistentVolumeClaim(made[v1.PersistentVolumeClaim](fill)),
		source.ReduceStorageClass(made[storagev1.StorageClass](fill)),
		source.ReduceCSINode(made[storagev1.CSINode](fill)),
		source.ReduceCSIDriver(made[storagev1.CSIDriver](fill)),
		source.ReduceCSIStorageCapacity(made[storagev1.CSIStorageCapacity](fill)),
		source.ReduceVolumeAttachment(made[storagev1.VolumeAttachment](fill)),
	} {
		w.tell(source.Event{Kind: source.ObjectSet, Object: o})
	}
	reduced := len(slices.Collect(w.told.Objects()))
	var kept []cluster.ObjectKey
	for _, kind := range cluster.ObjectKinds() { // whatever a reduction makes of them
		o := cluster.NewObject(cluster.ObjectKey{Kind: kind})
		fill.fill(reflect.ValueOf(o).Elem(), 0)
		if key := o.Key(); max(len(key.Namespace), len(key.Name)) > 1024 {
			continue // no name is longer
		}
		kept = append(kept, o.Key())
		w.tell(source.Event{Kind: source.ObjectSet, Object: o})
	}
	w.selector(source.ReduceService(made[v1.Service](fill)))
	w.selector(source.ReduceReplicationController(made[v1.ReplicationController](fill)))
	w.selector(source.ReduceReplicaSet(made[appsv1.ReplicaSet](fill)))
	w.selector(source.ReduceStatefulSet(made[appsv1.StatefulSet](fill)))
	w.evaluate()

	for _, pod := range pods {
		moved := source.Event{Kind: source.PodMoved}
		moved.Pod.UID, moved.Pod.NodeName, moved.Pod.Nominated = pod.UID, fill.text(), fill.text()
		w.tell(moved)
	}
	w.reload()
	for _, key := range kept {
		w.tell(source.Event{Kind: source.ObjectGone, Key: key})
	}
	if n := len(slices.Collect(w.told.Objects())); n > reduced {
		t.Errorf("%d objects are left", n)
	}
	for _, pod := range pods[1:] {
		w.tell(source.Event{Kind: source.PodGone, Pod: source.Pod{Pod: cluster.Pod{UID: pod.UID}}})
	}
	if n := w.told.Count(cluster.Pending) + w.told.Count(cluster.Bound); n > 1 {
		t.Errorf("%d pods are left of one that is not gone", n)
	}
	w.reload()
}

// world is a ledger and a replica of it.
type world struct {
	t            *testing.T
	told, copied *cluster.State
	fold         *ingest.Fold
	heard        []source.Unsupported
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, told: cluster.New(cluster.Version{Epoch: 1}), copied: cluster.New(cluster.Version{Epoch: 1})}
	w.fold = ingest.New(w.told, w.apply, ingest.Telling(wire.Tellable, func(u source.Unsupported) {
		if u.Why == "" || u.Kind == "" {
			t.Errorf("unsupported without a reason: %+v", u)
		}
		w.heard = append(w.heard, u)
	}))
	settings := cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}
	if err := w.apply(cluster.SettingsSet{Settings: settings}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) apply(d cluster.Delta) error {
	w.t.Helper()
	if err := w.told.Apply(d); err != nil {
		w.t.Fatalf("the ledger refuses %+v: %v", d, err)
	}
	if err := w.copied.Apply(w.carry(d)); err != nil {
		w.t.Fatalf("a replica refuses %+v: %v", d, err)
	}
	if a, b := w.told.Digest(), w.copied.Digest(); a != b {
		w.t.Fatalf("after %+v the digests are %x and %x", d, a, b)
	}
	return nil
}

// carry returns a delta as it arrives.
func (w *world) carry(d cluster.Delta) cluster.Delta {
	w.t.Helper()
	b, err := wire.Encode(d)
	if err != nil {
		w.t.Fatalf("Encode(%+v): %v", d, err)
	}
	if len(b) > wire.MaxTold+1024 {
		w.t.Fatalf("a %T takes %d bytes", d, len(b))
	}
	out, err := wire.Decode(b)
	if err != nil {
		w.t.Fatalf("Decode(Encode(%+v)): %v", d, err)
	}
	return out
}

func (w *world) tell(e source.Event) {
	w.t.Helper()
	if err := w.fold.Observe(e); err != nil {
		w.t.Fatalf("Observe(%+v): %v", e, err)
	}
}

func (w *world) selector(s source.Selector, ok bool) {
	w.t.Helper()
	if ok {
		w.tell(source.Event{Kind: source.SelectorSet, Selector: s})
	} else {
		w.tell(source.Event{Kind: source.SelectorGone, Selector: s})
	}
}

// reload loads a snapshot, as a follower does.
func (w *world) reload() {
	w.t.Helper()
	loaded := cluster.New(w.told.Version())
	for d := range w.told.Snapshot() {
		if err := loaded.Apply(w.carry(d)); err != nil {
			w.t.Fatalf("a snapshot with %+v does not load: %v", d, err)
		}
	}
	loaded.Restore(w.told.Version())
	if a, b := w.told.Digest(), loaded.Digest(); a != b {
		w.t.Fatalf("the ledger's digest is %x, that of its snapshot %x", a, b)
	}
	w.copied = loaded
}

// evaluate judges every pod on every node.
func (w *world) evaluate() {
	w.t.Helper()
	all := cluster.Range{End: cluster.NodeIndex(w.copied.Nodes.Len())}
	e := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})
	for id, p := range w.copied.Pods() {
		s := engine.Subject{Class: p.Class, Labels: p.Labels, Priority: p.Priority}
		found, ok := e.Filter(w.copied, s, all)
		if !ok {
			w.t.Fatalf("pod %d: no class", id)
		}
		class := w.copied.Class(p.Class)
		if class.Spec.Unsupported != "" && found.FeasibleCount > 0 {
			w.t.Errorf("an unsupported pod fits on %d nodes", found.FeasibleCount)
		}
		for i := range all.End {
			if found.Eligible.Has(i) && w.copied.Nodes.Unsupported.Has(i) {
				w.t.Errorf("a pod fits on an unsupported node")
			}
		}
		if _, ok := e.Score(w.copied, s, all, found.Eligible, 10); !ok {
			w.t.Fatalf("pod %d: no class to score", id)
		}
	}
}

func made[O any](f *filler) *O {
	o := new(O)
	f.fill(reflect.ValueOf(o).Elem(), 0)
	return o
}

// filler fills objects: as its bytes say while there are any, and then at random, as the first two of them decide.
type filler struct {
	data []byte
	rest *rand.Rand
}

func newFiller(data []byte) *filler {
	var seed [2]byte
	data = data[copy(seed[:], data):]
	return &filler{data: data, rest: rand.New(rand.NewPCG(uint64(binary.LittleEndian.Uint16(seed[:])), 1))}
}

func (f *filler) byte() byte {
	if len(f.data) == 0 {
		return byte(f.rest.Uint32())
	}
	b := f.data[0]
	f.data = f.data[1:]
	return b
}

// below returns a number in [0, n), n at most 256.
func (f *filler) below(n int) int { return int(f.byte()) % n }

func (f *filler) number() int64 {
	switch f.below(8) {
	case 0:
		return math.MaxInt64
	case 1:
		return math.MinInt64
	case 2:
		var b [8]byte
		for i := range b {
			b[i] = f.byte()
		}
		return int64(binary.LittleEndian.Uint64(b[:]))
	case 3:
		return -int64(f.byte())
	case 4:
		return int64(f.byte())<<8 | int64(f.byte())
	}
	return int64(f.byte())
}

// texts mean something somewhere.
var texts = []string{
	"default-scheduler", "default", "a", "b", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "metadata.name", "NoSchedule",
	"PreferNoSchedule", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "DoNotSchedule", "ScheduleAnyway", "Honor", "Ignore",
	"cpu", "memory", "pods", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi", "Always", "Equal", "ReplicaSet", "apps/v1", "v1", "TCP", "UDP",
	"a\xffb", "\xc3\x28", "", "\x00", "12", "nginx:1",
}

func (f *filler) text() string {
	switch f.below(8) {
	case 0:
		b := make([]byte, f.below(24))
		for i := range b {
			b[i] = f.byte()
		}
		return string(b)
	case 1:
		if f.below(128) == 0 {
			return strings.Repeat(texts[f.below(len(texts))]+"x", 1<<f.below(20))
		}
	}
	return texts[f.below(len(texts))]
}

// deepest is how deep a value is filled: far enough for the requirements of a term.
const deepest = 14

func (f *filler) fill(v reflect.Value, depth int) {
	if depth > deepest {
		return
	}
	switch at := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*at = f.quantity()
		return
	case *metav1.Time:
		*at = metav1.NewTime(time.Unix(f.number()>>uint(f.below(40)), f.number()))
		return
	case *metav1.ManagedFieldsEntry, *v1.Probe, *v1.Lifecycle, *v1.SecurityContext, *v1.EnvVar, *v1.EnvFromSource, *v1.EphemeralContainer,
		*v1.VolumeMount, *v1.PodSecurityContext, *v1.ProjectedVolumeSource, *v1.ContainerState:
		return // large, and nothing for scheduling
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(f.text())
	case reflect.Bool:
		v.SetBool(f.below(2) == 1)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(f.number() >> (64 - v.Type().Bits()))
		if f.below(2) == 0 {
			v.SetInt(int64(f.byte()))
		}
	case reflect.Pointer:
		if f.below(2) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), depth+1)
		}
	case reflect.Slice:
		n := f.below(3)
		if depth < 5 && f.below(128) == 0 {
			n = 300
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range f.below(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key, depth+1)
			f.fill(value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i), depth+1)
			}
		}
	}
}

func (f *filler) quantity() resource.Quantity {
	switch f.below(4) {
	case 0:
		return *resource.NewQuantity(f.number(), resource.BinarySI)
	case 1:
		return *resource.NewMilliQuantity(f.number(), resource.DecimalSI)
	case 2:
		all := []string{"1", "100m", "1n", "1Gi", "9223372036854775807", "99999999999999999999999", "-1", "-99999999999999999999999", "5e15", "1E"}
		return resource.MustParse(all[f.below(len(all))])
	}
	return *resource.NewQuantity(int64(f.byte()), resource.DecimalSI)
}
