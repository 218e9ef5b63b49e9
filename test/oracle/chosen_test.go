package oracle

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// inBerthsOrder is kube-scheduler's binder of volumes, but it looks at the volumes of a class in the order in which Berth prefers those of one size, and at
// those that are kept for claims by name. kube-scheduler looks at them in any: that of a Go map.
type inBerthsOrder struct {
	volumebinding.SchedulerVolumeBinder
}

func (b inBerthsOrder) GetPodVolumeClaims(logger klog.Logger, pod *v1.Pod) (*volumebinding.PodVolumeClaims, error) {
	claims, err := b.SchedulerVolumeBinder.GetPodVolumeClaims(logger, pod)
	if err == nil {
		for _, volumes := range *unexported[map[string][]*v1.PersistentVolume](claims, "unboundVolumesDelayBinding") {
			slices.SortFunc(volumes, compareVolumes)
		}
	}
	return claims, err
}

func compareVolumes(a, b *v1.PersistentVolume) int {
	x, y := source.ReducePersistentVolume(a), source.ReducePersistentVolume(b)
	switch {
	case x.HasClaim && y.HasClaim:
		return strings.Compare(a.Name, b.Name)
	case x.HasClaim:
		return -1
	case y.HasClaim:
		return 1
	}
	_, shelf := x.ShelfKey()
	_, other := y.ShelfKey()
	return cmp.Or(strings.Compare(shelf, other), slices.CompareFunc(x.Labels, y.Labels, func(a, b cluster.Label) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
	}), strings.Compare(a.Name, b.Name))
}

// unexported is a field of a struct of kube-scheduler's that only its package can name.
func unexported[T any](of any, field string) *T {
	f := reflect.ValueOf(of).Elem().FieldByName(field)
	if f.Type() != reflect.TypeFor[T]() {
		panic(fmt.Sprintf("%T has %s %v", of, field, f.Type()))
	}
	return (*T)(f.Addr().UnsafePointer())
}

// chosen returns what the plugin VolumeBinding has chosen for the claims of a pod on each of some nodes, where it has, as its Reserve finds it in the state of a
// cycle. It is what Berth says of such choices: a claim that the pod names twice, for which kube-scheduler looks for two volumes, gets the first that was found.
func chosen(state fwk.CycleState, nodes []fwk.NodeInfo) map[string][]cluster.VolumeChoice {
	data, err := state.Read(names.VolumeBinding)
	if err != nil {
		return nil // it did not run
	}
	out := make(map[string][]cluster.VolumeChoice)
	found := *unexported[map[string]*volumebinding.PodVolumes](data, "podVolumesByNode")
	for _, n := range nodes {
		of := found[n.Node().Name]
		if of == nil {
			continue
		}
		var all []cluster.VolumeChoice
		choose := func(claim *v1.PersistentVolumeClaim, volume string) {
			if !slices.ContainsFunc(all, func(c cluster.VolumeChoice) bool { return c.Claim == claim.Name }) {
				all = append(all, cluster.VolumeChoice{Claim: claim.Name, UID: string(claim.UID), Volume: volume})
			}
		}
		for _, b := range of.StaticBindings {
			choose(*unexported[*v1.PersistentVolumeClaim](b, "pvc"), (*unexported[*v1.PersistentVolume](b, "pv")).Name)
		}
		for _, p := range of.DynamicProvisions {
			choose(p.PVC, "")
		}
		if all != nil {
			out[n.Node().Name] = inOrder(all)
		}
	}
	return out
}

// inOrder returns choices by claim.
func inOrder(choices []cluster.VolumeChoice) []cluster.VolumeChoice {
	return slices.SortedFunc(slices.Values(choices), func(a, b cluster.VolumeChoice) int { return strings.Compare(a.Claim, b.Claim) })
}

// choose returns what Berth chooses for the claims of a pending pod on each node that it finds feasible.
func (w *world) choose(id cluster.PodID, d *decision) map[string][]cluster.VolumeChoice {
	out := make(map[string][]cluster.VolumeChoice)
	if len(w.pending[id].Spec.Volumes) == 0 {
		return out
	}
	for _, name := range d.feasible(w.nodeNames()) {
		choices, ok := w.evaluator.ChooseVolumes(w.state, engine.SubjectOf(&w.state.Pod(id).Pod), w.state.Nodes.ByName(name), nil)
		if !ok {
			w.breaks("node %s is feasible, and there are no volumes for the claims", name)
		}
		if len(choices) > 0 {
			out[name] = inOrder(choices)
		}
	}
	return out
}

// differChosen returns how what kube-scheduler and Berth have chosen on a node differs, "" if it does not, and counts it.
func (n *tally) differChosen(node string, want, got []cluster.VolumeChoice) string {
	for _, c := range want {
		if n.choices++; c.Volume == "" {
			n.provisions++
		}
	}
	if diff := gocmp.Diff(want, inOrder(got), cmpopts.EquateEmpty()); diff != "" {
		return fmt.Sprintf("on node %s is chosen (-kube-scheduler +Berth):\n%s", node, diff)
	}
	return ""
}
