package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gangs are pods that name a PodGroup, which wants all of them placed together, some within one rack. Racks are of the nodes for the workload: two nodes that
// are next to each other in the order of their names are of one, as are the two that follow two racks later.
const (
	rackLabel  = "rack"
	racks      = 3
	classGang  = "gang"
	classShort = "short" // of a gang that never has as many pods as it wants
	leastGang  = 3
	mostGang   = 8
	finalGangs = 4 // that are left at the end
)

// rack returns the rack of node number i.
func rack(i int) string { return fmt.Sprintf("rack-%d", i/2%racks) }

// gangName returns the name of the PodGroup that a pod names, with its namespace; "" if it names none.
func gangName(p *corev1.Pod) string {
	if p == nil || p.Spec.SchedulingGroup == nil || p.Spec.SchedulingGroup.PodGroupName == nil {
		return ""
	}
	return p.Namespace + "/" + *p.Spec.SchedulingGroup.PodGroupName
}

// podGroup returns a gang that wants so many pods, in one rack if that is asked for.
func podGroup(name string, minCount int, inRack bool) *schedulingv1alpha2.PodGroup {
	g := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: int32(minCount)}
	if inRack {
		g.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: rackLabel}}}
	}
	return g
}

// ganged makes a pod one of a gang.
func ganged(p *corev1.Pod, g *schedulingv1alpha2.PodGroup) *corev1.Pod {
	p.Namespace = g.Namespace
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &g.Name}
	return p
}

// createShort creates a gang that lacks a pod, and so must wait for ever.
func (w *workload) createShort(ctx context.Context) error {
	g := podGroup(classShort, leastGang, false)
	if err := w.store.createGroup(ctx, g); err != nil {
		return fmt.Errorf("create PodGroup: %w", err)
	}
	for i := range leastGang - 1 {
		w.create(ctx, 0, ganged(pod(classShort, fmt.Sprintf("%s-%d", classShort, i), 10), g))
	}
	return nil
}

// addGang creates a gang: half of them want one rack, a third goes before others and preempts them, half have all of their pods evicted or none.
// Of a quarter the pods come first, and their PodGroup behind them.
func (w *workload) addGang(ctx context.Context) {
	w.number++
	n := leastGang + w.rng.IntN(mostGang-leastGang+1)
	g := podGroup(fmt.Sprintf("%s-%d", classGang, w.number), n, w.rng.IntN(2) == 0)
	if w.rng.IntN(5) == 0 {
		g.Namespace = tenantNamespace
	}
	cpu := 60 + 60*w.rng.Int64N(4)
	urgent := w.rng.IntN(3) == 0
	if urgent {
		cpu += 300
		g.Spec.PriorityClassName = classUrgent
	}
	if w.rng.IntN(2) == 0 {
		g.Spec.DisruptionMode = new(schedulingv1alpha2.DisruptionModePodGroup)
	}
	var pods []*corev1.Pod
	for i := range n {
		p := ganged(pod(classGang, fmt.Sprintf("%s-%d", g.Name, i), cpu), g)
		if urgent {
			p.Spec.PriorityClassName, p.Spec.Priority = classUrgent, new(int32(urgentPriority))
		}
		pods = append(pods, p)
	}
	podsFirst := w.rng.IntN(4) == 0
	if podsFirst {
		w.create(ctx, 0, pods...)
	}
	w.createGroup(ctx, g)
	if !podsFirst {
		w.create(ctx, 0, pods...)
	}
}

// createGroup creates a PodGroup. What comes of it is seen by what becomes of its pods: those that are there without it are deleted in the end.
func (w *workload) createGroup(ctx context.Context, g *schedulingv1alpha2.PodGroup) {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	_ = w.store.createGroup(ctx, g)
}

// deleteGroup deletes the PodGroup of an entry of live, and reports whether it has gone.
func (w *workload) deleteGroup(ctx context.Context, l livePod) bool {
	if l.gang == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	return w.store.outcome(w.store.deleteGroup(ctx, l.namespace, l.gang)) != Unknown
}

// changeGang deletes one pod of a gang, and half of the time another one comes in its place.
func (w *workload) changeGang(ctx context.Context) {
	var gangs []int
	for i, l := range w.live {
		if l.gang != "" && len(l.names) > 1 && l.class == classGang {
			gangs = append(gangs, i)
		}
	}
	if len(gangs) == 0 {
		return
	}
	l := &w.live[gangs[w.rng.IntN(len(gangs))]]
	k, replaced := w.rng.IntN(len(l.names)), w.rng.IntN(2) == 0
	if !w.deletePod(ctx, l.namespace, l.names[k], l.uids[k]) {
		return
	}
	each := l.cpu / int64(len(l.names))
	l.cpu -= each
	l.names, l.uids = slices.Delete(l.names, k, k+1), slices.Delete(l.uids, k, k+1)
	if !replaced {
		return
	}
	w.number++
	p := ganged(pod(classGang, fmt.Sprintf("%s-%d", l.gang, w.number), each), podGroup(l.gang, 1, false))
	p.Namespace = l.namespace
	if l.urgent {
		p.Spec.PriorityClassName, p.Spec.Priority = classUrgent, new(int32(urgentPriority))
	}
	if uid, made := w.createPod(ctx, p); made {
		l.names, l.uids, l.cpu = append(l.names, p.Name), append(l.uids, uid), l.cpu+each
	}
}

// hopeless reports whether pods of a gang wait that must: their PodGroup has gone, or wants more pods than there are.
func (l livePod) hopeless(groups map[string]*schedulingv1alpha2.PodGroup) bool {
	if l.class != classGang || !l.waits {
		return false
	}
	g := groups[l.namespace+"/"+l.gang]
	return g == nil || len(l.names) < int(g.Spec.SchedulingPolicy.Gang.MinCount)
}

// killInGang kills the active binder when the first pod of a new gang is seen to be bound: others of it are not, unless they are just being.
func (n *nemesis) killInGang(ctx context.Context, f Fault) (func() error, error) {
	began := make(chan struct{}, 1)
	gangs := map[string]bool{} // uids of pods that have come since
	seen := func(o *Object) {
		if o.Pod != nil && o.Pod.Labels[labelClass] == classGang {
			gangs[o.UID] = true
		}
		if o.On != "" && gangs[o.UID] {
			select {
			case began <- struct{}{}:
			default:
			}
		}
	}
	n.seen.Store(&seen)
	defer n.seen.Store(nil)
	select {
	case <-began:
		// Who is elected is not asked again: that takes longer than the other binds.
		return func() error { return n.crew.start(f.Met) }, n.crew.kill(f.Met)
	case <-ctx.Done():
	case <-time.After(stepLimit):
	}
	return nil, errors.New("no gang was bound")
}
