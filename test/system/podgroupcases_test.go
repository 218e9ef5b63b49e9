package system

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	kubeschedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// What kube-scheduler 1.36's own integration tests say of PodGroups (test/integration/scheduler/podgroup/podgroup_test.go and preemption/podgrouppreemption_test.go), by their names. A
// case is its steps, one a line: a verb, names, and settings key=value.
//
//	nodes      cpu=N, rack=R zone=Z of a case where there are several of these
//	group      min=N or basic, priority=N, mode=whole for disruptionMode PodGroup, topology for one zone, which all nodes of a case are in, topology=rack or =zone where there are several
//	pods       cpu=Q (1), priority=N, group=NAME, on=NODE for pods that are there already, app=LABEL
//	budget     none of the pods with this label app may be disrupted
//	delete     pods
//	bound, waits, gone, gated: what becomes of pods: they are bound; unschedulable; deleted; not tried, though a pod behind them is bound
//	some       bound=N waits=N, of these pods
//	condition  status=S reason=R of PodGroups
//	within     nodes=A,B: each of these pods is on one of these nodes
//	together   topology=rack or =zone: all of these pods are in the same one
var podGroupCases = []struct{ name, steps string }{
	{"gang schedules when pod group and resources are available", `
		nodes node cpu=4
		group pg1 min=3 priority=100
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		condition pg1 status=True reason=Scheduled`},
	{"gang waits for quorum to start, then schedules", `
		nodes node cpu=4
		group pg1 min=3 priority=100
		pods p1 p2 group=pg1 priority=100
		gated p1 p2
		pods p3 group=pg1 priority=100
		bound p1 p2 p3`},
	{"gang waits for pod group, then for resources, then schedules", `
		nodes node cpu=4
		pods blocker cpu=2 priority=100
		bound blocker
		pods p1 p2 p3 group=pg1 priority=100
		gated p1 p2 p3
		group pg1 min=3 priority=100
		waits p1 p2 p3
		condition pg1 status=False reason=Unschedulable
		delete blocker
		bound p1 p2 p3
		condition pg1 status=True reason=Scheduled`},
	{"minCount is scheduled, but one pod from a gang remain unschedulable until the blocked resources are released", `
		nodes node cpu=4
		pods small-blocker priority=100
		bound small-blocker
		pods p1 p2 p3 p4 group=pg1 priority=100
		group pg1 min=3 priority=100
		some p1 p2 p3 p4 bound=3 waits=1
		delete small-blocker
		bound p1 p2 p3 p4`},
	{"two gangs competing for the same resources shouldn't deadlock", `
		nodes node cpu=4
		group pg1 min=3 priority=100
		group pg2 min=3 priority=100
		pods p1 group=pg1 priority=100
		pods other-p1 group=pg2 priority=100
		pods p2 group=pg1 priority=100
		pods other-p2 group=pg2 priority=100
		pods p3 group=pg1 priority=100
		pods other-p3 group=pg2 priority=100
		some p1 p2 p3 other-p1 other-p2 other-p3 bound=3 waits=3
		bound p1 p2 p3
		waits other-p1 other-p2 other-p3`},
	{"gang schedules with preemption", `
		nodes node cpu=4
		pods low-priority-blocker cpu=2 priority=10
		bound low-priority-blocker
		group pg1 min=3 priority=100
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		condition pg1 status=True reason=Scheduled
		gone low-priority-blocker`},
	{"basic group schedules when pod group and resources are available, without gang enforcement", `
		nodes node cpu=4
		group pg1 basic
		pods p1 group=pg1 priority=100
		bound p1
		pods p2 p3 group=pg1 priority=100
		bound p1 p2 p3`},
	{"basic group waits for pod group, part of it waits for resources, then schedules", `
		nodes node cpu=4
		pods blocker cpu=2 priority=100
		bound blocker
		pods p1 p2 p3 group=pg1 priority=100
		gated p1 p2 p3
		group pg1 basic
		some p1 p2 p3 bound=2 waits=1
		delete blocker
		bound p1 p2 p3`},
	{"basic group schedules with preemption", `
		nodes node cpu=4
		pods low-priority-blocker cpu=2 priority=10
		bound low-priority-blocker
		group pg1 basic priority=100
		pods p1 p2 p3 p4 group=pg1 priority=100
		bound p1 p2 p3 p4
		gone low-priority-blocker`},
	{"gang schedules with workload-aware preemption", `
		nodes node cpu=4
		pods low-p1 low-p2 low-p3 low-p4 priority=10
		bound low-p1 low-p2 low-p3 low-p4
		group pg1 min=3 priority=100
		pods p1 p2 p3 p4 group=pg1 priority=100
		bound p1 p2 p3 p4
		gone low-p1 low-p2 low-p3 low-p4`},
	{"gang schedules with partial workload-aware preemption", `
		nodes node cpu=4
		pods very-low-p1 very-low-p2 priority=5
		pods low-p1 low-p2 priority=10
		bound very-low-p1 very-low-p2 low-p1 low-p2
		group mid-pg min=2 priority=50
		pods mid-p1 mid-p2 group=mid-pg priority=50
		bound mid-p1 mid-p2
		gone very-low-p1 very-low-p2
		bound low-p1 low-p2`},
	// There, no such gang preempts: "tas gang with constraint does not use workload preemption". Here it does, in the domain where that is best.
	{"tas gang with constraint preempts", `
		nodes node cpu=4
		pods very-low-p1 very-low-p2 priority=5
		pods low-p1 low-p2 priority=10
		bound very-low-p1 very-low-p2 low-p1 low-p2
		group mid-pg min=2 priority=50 topology
		pods mid-p1 mid-p2 group=mid-pg priority=50
		bound mid-p1 mid-p2
		gone very-low-p1 very-low-p2
		bound low-p1 low-p2`},

	{"Full PodGroup Preemption", `
		nodes node1 cpu=3
		group pg1 min=3 priority=100
		pods low-1 low-2 low-3 priority=10
		bound low-1 low-2 low-3
		pods high-1 high-2 high-3 group=pg1 priority=100
		bound high-1 high-2 high-3
		gone low-1 low-2 low-3`},
	{"Full PodGroup Preemption for basic policy", `
		nodes node1 cpu=3
		group pg1 basic priority=100
		pods low-1 low-2 low-3 priority=10
		bound low-1 low-2 low-3
		pods high-1 high-2 high-3 group=pg1 priority=100
		bound high-1 high-2 high-3
		gone low-1 low-2 low-3`},
	{"Partial Preemption", `
		nodes node1 node2 cpu=2
		group pg1 min=3 priority=100
		pods low-1 cpu=2 priority=10 on=node1
		pods low-2 priority=10 on=node2
		pods high-1 high-2 high-3 group=pg1 priority=100
		bound high-1 high-2 high-3 low-2
		gone low-1`},
	{"Partial Preemption with basic policy", `
		nodes node1 node2 cpu=2
		group pg1 basic priority=100
		pods low-1 priority=10 on=node1
		pods very-low-1 cpu=2 priority=5 on=node2
		pods high-1 high-2 high-3 group=pg1 priority=100
		bound high-1 high-2 high-3 low-1
		gone very-low-1`},
	{"PDB Violation Handling (Reprieve)", `
		nodes node1 cpu=3
		budget foo
		group pg1 min=2 priority=100
		pods low-1 low-2 app=foo priority=10
		pods low-3 priority=10
		bound low-1 low-2 low-3
		pods high-1 high-2 cpu=500m group=pg1 priority=100
		bound high-1 high-2
		gone low-3
		bound low-1 low-2`},
	{"Multi-node Preemption", `
		nodes node1 node2 cpu=2
		group pg1 min=4 priority=100
		pods low-1 low-2 priority=10 on=node1
		pods low-3 low-4 priority=10 on=node2
		pods high-1 high-2 high-3 high-4 group=pg1 priority=100
		bound high-1 high-2 high-3 high-4
		gone low-1 low-2 low-3 low-4`},
	{"Insufficient Resources (No Preemption)", `
		nodes node1 cpu=3
		group pg1 min=3 priority=100
		pods mid-1 priority=500
		pods low-1 low-2 priority=10
		bound mid-1 low-1 low-2
		pods high-1 high-2 high-3 group=pg1 priority=100
		waits high-1 high-2 high-3
		bound mid-1 low-1 low-2`},
	{"Priority-based Victim Selection", `
		nodes node1 cpu=3
		group pg1 min=2 priority=100
		pods mid-1 priority=50
		pods low-1 low-2 priority=10
		bound mid-1 low-1 low-2
		pods high-1 high-2 group=pg1 priority=100
		bound high-1 high-2 mid-1
		gone low-1 low-2`},
	{"Preempt the whole PodGroup even if preempting a single Pod would suffice", `
		nodes node1 cpu=3
		group pg1 min=1 priority=100
		group pg2 min=3 priority=10 mode=whole
		pods low-1 low-2 low-3 group=pg2 priority=10
		bound low-1 low-2 low-3
		pods high-1 group=pg1 priority=100
		bound high-1
		gone low-1 low-2 low-3`},
	{"Preempt the whole basic PodGroup with a PodGroup disruption mode", `
		nodes node1 cpu=3
		group pg1 min=1 priority=100
		group pg2 basic priority=10 mode=whole
		pods low-1 low-2 low-3 group=pg2 priority=10
		bound low-1 low-2 low-3
		pods high-1 group=pg1 priority=100
		bound high-1
		gone low-1 low-2 low-3`},
	// There, the PodGroup's priority counts, though its pod's is lower. Here, the lower of the two: by the pod's the room is held for it, so that whoever is between would have what others went for.
	{"Priority divergence in PodGroups - preemptor PodGroup has higher priority than its pod", `
		nodes node1 cpu=3
		group pg1 min=1 priority=100
		group pg2 min=3 priority=10 mode=whole
		pods high-1 high-2 high-3 group=pg2 priority=100
		bound high-1 high-2 high-3
		pods low-1 group=pg1 priority=10
		waits low-1
		bound high-1 high-2 high-3`},
	{"Priority divergence in PodGroups - preemptor PodGroup has higher priority than the victim candidate PodGroup", `
		nodes node1 cpu=3
		group pg1 min=1 priority=100
		group pg2 min=3 priority=10 mode=whole
		pods high-1 high-2 high-3 group=pg2 priority=100
		bound high-1 high-2 high-3
		pods low-1 group=pg1 priority=50
		bound low-1
		gone high-1 high-2 high-3`},
	{"Priority divergence in PodGroups - preemptor PodGroup has too low priority", `
		nodes node1 cpu=3
		group pg1 min=1 priority=10
		group pg2 min=3 priority=100 mode=whole
		pods low-1 low-2 low-3 group=pg2 priority=10
		bound low-1 low-2 low-3
		pods high-1 group=pg1 priority=100
		waits high-1
		bound low-1 low-2 low-3`},
	{"Preemptor Pod without PodGroupName does not respect the PodGroup disruption mode", `
		nodes node1 cpu=3
		group pg1 min=1 priority=10
		pods low-1 group=pg1 priority=30
		bound low-1
		pods low-2 group=pg1 priority=20
		bound low-2
		pods low-3 group=pg1 priority=10
		bound low-3
		pods high-1 priority=100
		bound high-1 low-1 low-2
		gone low-3`},
}

// TestPodGroupsAsKubeSchedulersOwnTestsHaveThem plays the cases at once: each has a namespace, and nodes that no other pods can go to.
func TestPodGroupsAsKubeSchedulersOwnTestsHaveThem(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	for _, value := range []int32{5, 10, 20, 30, 50, 100, 500} {
		class := &kubeschedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", value)}, Value: value}
		if _, err := cp.Client().SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2, LeaseTTL: berthtest.Patience})
	t.Run("cases", func(t *testing.T) {
		for i, c := range slices.Concat(podGroupCases, topologyCases) {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := &podGroupStage{cp: cp, namespace: fmt.Sprint("case-", i)}
				s.create(t, func(ctx context.Context) error {
					ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
					_, err := cp.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
					return err
				})
				for line := range strings.Lines(strings.TrimSpace(c.steps)) {
					s.play(t, strings.TrimSpace(line))
				}
			})
		}
	})
	checkCluster(t, cp)
}

// podGroupStage is where a case is played.
type podGroupStage struct {
	cp        *kubetest.ControlPlane
	namespace string
	probes    int
}

// step is a line of a case.
type step struct {
	names    []string
	settings map[string]string
}

func (s step) get(key, otherwise string) string {
	if v, ok := s.settings[key]; ok {
		return v
	}
	return otherwise
}

func (s step) number(t *testing.T, key string) int32 {
	t.Helper()
	n, err := strconv.ParseInt(s.settings[key], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func (s *podGroupStage) play(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	it := step{settings: make(map[string]string)}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok || w == "basic" || w == "topology" {
			it.settings[key] = value
		} else {
			it.names = append(it.names, w)
		}
	}
	switch words[0] {
	case "some":
		s.await(t, line, func(of map[string]string) bool {
			return count(it.names, of, "bound") == int(it.number(t, "bound")) && count(it.names, of, "waits") == int(it.number(t, "waits"))
		})
	case "bound", "waits", "gone":
		s.await(t, line, func(of map[string]string) bool { return count(it.names, of, words[0]) == len(it.names) })
	case "within":
		s.whereIn(t, line, it.names, strings.Split(it.get("nodes", ""), ","), "")
	case "together":
		s.whereIn(t, line, it.names, nil, s.topology(it.get("topology", "")))
	case "gated":
		s.probes++
		probe := fmt.Sprint("probe-", s.probes)
		s.pod(t, probe, step{settings: map[string]string{"cpu": "0"}})
		s.await(t, line, func(of map[string]string) bool { return of[probe] == "bound" })
		if of := s.states(t); count(it.names, of, "untried") != len(it.names) {
			t.Fatalf("%s: they are %v", line, of)
		}
	default:
		for _, name := range it.names {
			s.do(t, words[0], name, it)
		}
	}
}

// do makes or deletes something of this name.
func (s *podGroupStage) do(t *testing.T, verb, name string, it step) {
	t.Helper()
	client := s.cp.Client()
	switch verb {
	case "pods":
		s.pod(t, name, it)
	case "delete":
		s.create(t, func(ctx context.Context) error {
			return client.CoreV1().Pods(s.namespace).Delete(ctx, name, metav1.DeleteOptions{})
		})
	case "nodes":
		node := kubetest.PlainNode(0)
		node.Name = s.namespace + "-" + name
		node.Labels = map[string]string{corev1.LabelHostname: node.Name, corev1.LabelTopologyZone: s.namespace, "case": s.namespace}
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(it.get("cpu", ""))
		if rack, ok := it.settings["rack"]; ok {
			node.Labels[s.topology("rack")], node.Labels[s.topology("zone")] = rack, it.get("zone", "")
			delete(node.Status.Allocatable, corev1.ResourceMemory) // upstream's have none, so that CPU alone says how full they are
		}
		s.create(t, func(ctx context.Context) error {
			_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		})
	case "budget":
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		}}
		s.create(t, func(ctx context.Context) error {
			_, err := client.PolicyV1().PodDisruptionBudgets(s.namespace).Create(ctx, budget, metav1.CreateOptions{})
			return err
		})
	case "group":
		s.create(t, func(ctx context.Context) error {
			_, err := client.SchedulingV1alpha2().PodGroups(s.namespace).Create(ctx, s.podGroupOf(t, name, it), metav1.CreateOptions{})
			return err
		})
	case "condition":
		berthtest.Await(t, berthtest.Patience, "the condition of "+name, func(ctx context.Context) error {
			group, err := client.SchedulingV1alpha2().PodGroups(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(group.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == schedulingv1alpha2.PodGroupScheduled && string(c.Status) == it.get("status", "") && c.Reason == it.get("reason", "")
			}) {
				return fmt.Errorf("its conditions are %+v", group.Status.Conditions)
			}
			return nil
		})
	default:
		t.Fatalf("there is no step %q", verb)
	}
}

// topology returns the label by which the nodes of this case alone are in racks or zones.
func (s *podGroupStage) topology(of string) string { return s.namespace + ".example.com/" + of }

func (s *podGroupStage) podGroupOf(t *testing.T, name string, it step) *schedulingv1alpha2.PodGroup {
	t.Helper()
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, ok := it.settings["basic"]; ok {
		group.Spec.SchedulingPolicy.Basic = &schedulingv1alpha2.BasicSchedulingPolicy{}
	} else {
		group.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: it.number(t, "min")}
	}
	if p, ok := it.settings["priority"]; ok {
		group.Spec.PriorityClassName = "p" + p
	}
	if it.get("mode", "") == "whole" {
		group.Spec.DisruptionMode = new(schedulingv1alpha2.DisruptionModePodGroup)
	}
	if of, ok := it.settings["topology"]; ok {
		key := corev1.LabelTopologyZone
		if of != "" {
			key = s.topology(of)
		}
		group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{
			Topology: []schedulingv1alpha2.TopologyConstraint{{Key: key}},
		}
	}
	return group
}

func (s *podGroupStage) pod(t *testing.T, name string, it step) {
	t.Helper()
	pod := kubetest.PlainPod(0)
	pod.Name, pod.Labels = name, map[string]string{"app": it.get("app", "")}
	pod.Spec.NodeSelector = map[string]string{"case": s.namespace}
	pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(it.get("cpu", "1"))}
	if p, ok := it.settings["priority"]; ok {
		pod.Spec.PriorityClassName = "p" + p
	}
	if g, ok := it.settings["group"]; ok {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &g}
	}
	if node, ok := it.settings["on"]; ok {
		pod.Spec.NodeName = s.namespace + "-" + node
	}
	s.create(t, func(ctx context.Context) error {
		_, err := s.cp.Client().CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// whereIn says of pods that are bound that they are not on some of these nodes, or, if a label is given, not all on nodes with the same value of it.
func (s *podGroupStage) whereIn(t *testing.T, line string, names, nodes []string, label string) {
	t.Helper()
	values := make(map[string]bool)
	s.create(t, func(ctx context.Context) error {
		for _, name := range names {
			pod, err := s.cp.Client().CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if label == "" {
				if on := strings.TrimPrefix(pod.Spec.NodeName, s.namespace+"-"); !slices.Contains(nodes, on) {
					t.Errorf("%s: %s is on %q", line, name, on)
				}
				continue
			}
			node, err := s.cp.Client().CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			values[node.Labels[label]] = true
		}
		return nil
	})
	if label != "" && (len(values) != 1 || values[""]) {
		t.Errorf("%s: they are in %v", line, values)
	}
}

// create does something to the API server, within the time of a call.
func (s *podGroupStage) create(t *testing.T, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Fatal(err)
	}
}

// states returns what has become of each pod. Those that are not there are gone.
func (s *podGroupStage) states(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	s.create(t, func(ctx context.Context) error {
		pods, err := s.cp.Client().CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			switch {
			case p.DeletionTimestamp != nil: // and so are those on their way
			case p.Spec.NodeName != "":
				out[p.Name] = "bound"
			case slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
			}):
				out[p.Name] = "waits"
			default:
				out[p.Name] = "untried"
			}
		}
		return nil
	})
	return out
}

func (s *podGroupStage) await(t *testing.T, what string, ok func(of map[string]string) bool) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, what, func(context.Context) error {
		if of := s.states(t); !ok(of) {
			return fmt.Errorf("they are %v", of)
		}
		return nil
	})
}

// count returns how many of these pods are in a state.
func count(names []string, of map[string]string, state string) (n int) {
	for _, name := range names {
		is, there := of[name]
		if !there {
			is = "gone"
		}
		if is == state {
			n++
		}
	}
	return n
}
