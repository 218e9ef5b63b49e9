package oracle

// recorder is put beside the tests of a plugin. It writes a line for each test and each call. A test's functions run in one goroutine, and
// nobody else's: that says whose a call is.
const recorder = `package %[1]s

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"runtime"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"
)

var berth struct {
	sync.Mutex
	out   *os.File
	tests map[string]string // by goroutine, as are what VolumeBinding scores by, and what it has scored last
	shapes map[string]any
	scores map[string]int64
}

func berthGoroutine() string {
	var stack [64]byte
	return string(bytes.Fields(stack[:runtime.Stack(stack[:], false)])[1])
}

func berthTestBegins(t *testing.T) {
	berth.Lock()
	berth.tests[berthGoroutine()] = t.Name()
	berth.Unlock()
	berthTell("test", map[string]any{})
}

func berthTell(point string, call map[string]any) {
	berth.Lock()
	defer berth.Unlock()
	call["test"], call["point"] = berth.tests[berthGoroutine()], point
	if point == "Score" {
		call["shape"], call["score"] = berth.shapes[berthGoroutine()], berth.scores[berthGoroutine()]
	}
	if err := json.NewEncoder(berth.out).Encode(call); err != nil {
		panic(err)
	}
}

// berthObjects returns objects by their kind.
func berthObjects(from ...any) map[string][]any {
	objects := make(map[string][]any)
	for _, list := range from {
		for _, o := range berthList(list) {
			t := reflect.TypeOf(o)
			for t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			objects[t.Name()] = append(objects[t.Name()], o)
		}
	}
	return objects
}

// berthList returns what a list, a lister or an indexer has.
func berthList(from any) (out []any) {
	v := reflect.ValueOf(from)
	if !v.IsValid() {
		return nil
	}
	if v.Kind() != reflect.Slice {
		list, args := v.MethodByName("List"), []reflect.Value(nil)
		if list.Type().NumIn() > 0 {
			args = []reflect.Value{reflect.ValueOf(labels.Everything())}
		}
		v = list.Call(args)[0]
	}
	for i := range v.Len() {
		out = append(out, v.Index(i).Interface())
	}
	return out
}

func init() {
	var err error
	if berth.out, err = os.OpenFile(os.Getenv("BERTH_CALLS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		panic(err)
	}
	berth.tests, berth.shapes, berth.scores = make(map[string]string), make(map[string]any), make(map[string]int64)
	podsOf := func(node fwk.NodeInfo) (pods []*v1.Pod) {
		for _, p := range node.GetPods() {
			pods = append(pods, p.GetPod())
		}
		return pods
	}
	recordHint = func(point string, pod *v1.Pod, was, is any, hint fwk.QueueingHint) {
		call := map[string]any{"pod": pod, "queue": hint == fwk.Queue}
		for which, o := range map[string]any{"was": was, "is": is} {
			if o != nil {
				call[which] = map[string]any{"kind": reflect.TypeOf(o).Elem().Name(), "object": o}
			}
		}
		berthTell(point, call)
	}
	recordCall = func(pl *%[2]s, point string, pod *v1.Pod, node fwk.NodeInfo, status *fwk.Status) {
		call := map[string]any{"pod": pod, "code": status.Code().String(), "gate": %[5]s, "objects": berthObjects(%[3]s)}
		if status != nil {
			call["reasons"] = status.Reasons()
		}
		if node != nil {
			call["node"], call["pods"] = node.Node(), podsOf(node)
		}
		if all, ok := any(%[4]s).(fwk.SharedLister); ok && all != nil {
			nodes, err := all.NodeInfos().List()
			if err != nil {
				panic(err)
			}
			var others []map[string]any
			for _, n := range nodes {
				others = append(others, map[string]any{"node": n.Node(), "pods": podsOf(n)})
			}
			call["others"] = others
		}
		berthTell(point, call)
	}
}
`

// wrappers follow the methods of a plugin that they take the place of.
const wrappers = `
var recordHint func(point string, pod *v1.Pod, was, is any, hint fwk.QueueingHint)

var recordCall func(pl *%[1]s, point string, pod *v1.Pod, node fwk.NodeInfo, status *fwk.Status)

func (pl *%[1]s) PreFilter(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	r, s := pl.unrecordedPreFilter(ctx, cs, pod, nodes)
	recordCall(pl, "PreFilter", pod, nil, s)
	return r, s
}

func (pl *%[1]s) Filter(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s := pl.unrecordedFilter(ctx, cs, pod, node)
	recordCall(pl, "Filter", pod, node, s)
	return s
}
`

// scoreWrapper takes the place of VolumeBinding's method.
const scoreWrapper = `
func (pl *VolumeBinding) Score(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	score, s := pl.unrecordedScore(ctx, cs, pod, node)
	recordScore(score)
	recordCall(pl, "Score", pod, node, s)
	return score, s
}

var recordShape func([]config.UtilizationShapePoint)

var recordScore func(int64)
`

// hintWrapper follows a method that is a queueing hint, and takes its place. A hint that has not known what to say has no say here.
const hintWrapper = `
func (pl *%[1]s) %[2]s(logger klog.Logger, pod *v1.Pod, was, is interface{}) (fwk.QueueingHint, error) {
	hint, err := pl.unrecorded%[2]s(logger, pod, was, is)
	if err == nil {
		recordHint("%[2]s", pod, was, is, hint)
	}
	return hint, err
}
`

// binderFile has the binder of volumes, and binderMethods are its methods that are wrapped.
const binderFile = "binder.go"

var binderMethods = []string{"GetPodVolumeClaims", "FindPodVolumes", "AssumePodVolumes", "RevertAssumedPodVolumes", "bindAPIUpdate", "checkBindings"}

// binderWrappers take the place of these. What is there before and behind each call is told, so that each is a case of its own.
const binderWrappers = `
var recordBinder func(b *volumeBinder, point string, pod *v1.Pod, node *v1.Node, given *PodVolumes, call func() (result map[string]any, found *PodVolumes, err error))

func (b *volumeBinder) GetPodVolumeClaims(logger klog.Logger, pod *v1.Pod) (claims *PodVolumeClaims, err error) {
	recordBinder(b, "GetPodVolumeClaims", pod, nil, nil, func() (map[string]any, *PodVolumes, error) {
		claims, err = b.unrecordedGetPodVolumeClaims(logger, pod)
		return map[string]any{"unbound": claims != nil && len(claims.unboundClaimsImmediate) > 0}, nil, err
	})
	return claims, err
}

func (b *volumeBinder) FindPodVolumes(logger klog.Logger, pod *v1.Pod, claims *PodVolumeClaims, node *v1.Node) (volumes *PodVolumes, reasons ConflictReasons, err error) {
	recordBinder(b, "FindPodVolumes", pod, node, nil, func() (map[string]any, *PodVolumes, error) {
		volumes, reasons, err = b.unrecordedFindPodVolumes(logger, pod, claims, node)
		return map[string]any{"reasons": reasons}, volumes, err
	})
	return volumes, reasons, err
}

func (b *volumeBinder) AssumePodVolumes(logger klog.Logger, pod *v1.Pod, node string, volumes *PodVolumes) (bound bool, err error) {
	recordBinder(b, "AssumePodVolumes", pod, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, volumes, func() (map[string]any, *PodVolumes, error) {
		bound, err = b.unrecordedAssumePodVolumes(logger, pod, node, volumes)
		return map[string]any{"bound": bound}, volumes, err
	})
	return bound, err
}

func (b *volumeBinder) RevertAssumedPodVolumes(volumes *PodVolumes) {
	recordBinder(b, "RevertAssumedPodVolumes", nil, nil, volumes, func() (map[string]any, *PodVolumes, error) {
		b.unrecordedRevertAssumedPodVolumes(volumes)
		return map[string]any{}, nil, nil
	})
}

func (b *volumeBinder) bindAPIUpdate(ctx context.Context, pod *v1.Pod, bindings []*BindingInfo, claims []*v1.PersistentVolumeClaim) (err error) {
	recordBinder(b, "bindAPIUpdate", pod, nil, berthGiven(bindings, claims), func() (map[string]any, *PodVolumes, error) {
		err = b.unrecordedbindAPIUpdate(ctx, pod, bindings, claims)
		return map[string]any{}, nil, err
	})
	return err
}

func (b *volumeBinder) checkBindings(logger klog.Logger, pod *v1.Pod, bindings []*BindingInfo, claims []*v1.PersistentVolumeClaim) (bound bool, err error) {
	recordBinder(b, "checkBindings", pod, nil, berthGiven(bindings, claims), func() (map[string]any, *PodVolumes, error) {
		bound, err = b.unrecordedcheckBindings(logger, pod, bindings, claims)
		return map[string]any{"bound": bound}, nil, err
	})
	return bound, err
}

// berthGiven returns what is given as lists, nil if one of them is.
func berthGiven(bindings []*BindingInfo, claims []*v1.PersistentVolumeClaim) *PodVolumes {
	if bindings == nil || claims == nil {
		return nil
	}
	out := &PodVolumes{StaticBindings: bindings}
	for _, c := range claims {
		out.DynamicProvisions = append(out.DynamicProvisions, &DynamicProvision{PVC: c})
	}
	return out
}
`

// binderRecorder is put beside the tests of the binder.
const binderRecorder = `package volumebinding

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

func init() {
	recordShape = func(shape []config.UtilizationShapePoint) {
		berth.Lock()
		defer berth.Unlock()
		berth.shapes[berthGoroutine()] = shape
	}
	recordScore = func(score int64) {
		berth.Lock()
		defer berth.Unlock()
		berth.scores[berthGoroutine()] = score
	}
	// lists returns the volumes and claims as they are, and what they are assumed to be.
	lists := func(b *volumeBinder) (there, assumed []any) {
		for _, o := range b.pvCache.store.List() {
			v := o.(*v1.PersistentVolume)
			there = append(there, v)
			if is, err := b.pvCache.Get(v.Name); err == nil && is != v {
				assumed = append(assumed, is)
			}
		}
		for _, o := range b.pvcCache.store.List() {
			c := o.(*v1.PersistentVolumeClaim)
			there = append(there, c)
			if is, err := b.pvcCache.Get(getPVCName(c)); err == nil && is != c {
				assumed = append(assumed, is)
			}
		}
		return there, assumed
	}
	state := func(b *volumeBinder, given *PodVolumes) json.RawMessage {
		there, assumed := lists(b)
		nodes, err := b.nodeLister.List(labels.Everything())
		if err != nil {
			panic(err)
		}
		pods, err := b.podLister.List(labels.Everything())
		if err != nil {
			panic(err)
		}
		// What the API server has of all that there is, or is given.
		var written []any
		volumes, claims := map[string]bool{}, map[string]*v1.PersistentVolumeClaim{}
		for _, o := range there {
			switch o := o.(type) {
			case *v1.PersistentVolume:
				volumes[o.Name] = true
			case *v1.PersistentVolumeClaim:
				claims[o.Name] = o
			}
		}
		if given != nil {
			for _, s := range given.StaticBindings {
				volumes[s.pv.Name], claims[s.pvc.Name] = true, s.pvc
			}
			for _, d := range given.DynamicProvisions {
				claims[d.PVC.Name] = d.PVC
			}
		}
		for name := range volumes {
			if v, err := b.kubeClient.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{}); err == nil {
				written = append(written, v)
			}
		}
		for _, c := range claims {
			if c, err := b.kubeClient.CoreV1().PersistentVolumeClaims(c.Namespace).Get(context.Background(), c.Name, metav1.GetOptions{}); err == nil {
				written = append(written, c)
			}
		}
		out, err := json.Marshal(map[string]any{
			"objects": berthObjects(there, b.classLister, b.csiNodeLister, b.csiDriverLister, b.csiStorageCapacityLister),
			"assumed": berthObjects(assumed), "written": berthObjects(written), "nodes": nodes, "pods": pods,
		})
		if err != nil {
			panic(err)
		}
		return out
	}
	choices := func(v *PodVolumes) (out []map[string]any) {
		if v == nil {
			return nil
		}
		out = []map[string]any{}
		for _, s := range v.StaticBindings {
			out = append(out, map[string]any{"claim": s.pvc.Name, "uid": s.pvc.UID, "volume": s.pv.Name, "version": s.pv.ResourceVersion})
		}
		for _, d := range v.DynamicProvisions {
			out = append(out, map[string]any{"claim": d.PVC.Name, "uid": d.PVC.UID, "version": d.PVC.ResourceVersion})
		}
		return out
	}
	claims := func(v *PodVolumes) (out []*v1.PersistentVolumeClaim) {
		if v != nil {
			for _, s := range v.StaticBindings {
				out = append(out, s.pvc)
			}
		}
		return out
	}
	recordBinder = func(b *volumeBinder, point string, pod *v1.Pod, node *v1.Node, given *PodVolumes, call func() (map[string]any, *PodVolumes, error)) {
		told := map[string]any{"pod": pod, "node": node, "given": choices(given), "claims": claims(given), "before": state(b, given), "label": nodeLabelKey}
		result, found, err := call()
		for key, value := range result {
			told[key] = value
		}
		if found != nil {
			told["found"] = choices(found)
		}
		if err != nil {
			told["error"] = err.Error()
		}
		told["after"] = state(b, given)
		berthTell(point, told)
	}
}
`
