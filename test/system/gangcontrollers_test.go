package system

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	kubeschedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// What the controllers of batch jobs write, as of Kueue 0.17, JobSet 0.10 and LeaderWorkerSet 0.7.
const (
	kueueTopologyGate  = "kueue.x-k8s.io/topology"
	kueueAdmissionGate = "kueue.x-k8s.io/admission"
	jobsetExclusive    = "alpha.jobset.sigs.k8s.io/exclusive-topology"
	jobsetJobKey       = "jobset.sigs.k8s.io/job-key"
	jobsetPriority     = "jobset.sigs.k8s.io/priority"
	lwsExclusive       = "leaderworkerset.sigs.k8s.io/exclusive-topology"
	lwsGroupKey        = "leaderworkerset.sigs.k8s.io/group-key"
)

// stagehand makes pods as a controller does, in a namespace.
type stagehand struct {
	*testing.T
	cp        *kubetest.ControlPlane
	namespace string
}

// pod makes a pod of 2 CPUs, of a PodGroup if that has a name, as a controller shapes it.
func (s stagehand) pod(name, group string, shape ...func(*corev1.Pod)) {
	s.Helper()
	pod := kubetest.PlainPod(0)
	pod.Name, pod.Labels, pod.Annotations = name, make(map[string]string), make(map[string]string)
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
	if group != "" {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	}
	for _, change := range shape {
		change(pod)
	}
	s.do("make "+name, func(ctx context.Context) error {
		_, err := s.cp.Client().CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

func (s stagehand) do(what string, do func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if err := do(ctx); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// group makes a PodGroup, a gang if it wants some pods at least, with a topology and a preferred one if these are not empty.
func (s stagehand) group(name string, minCount int32, topology, preferred string, change ...func(*schedulingv1alpha2.PodGroup)) {
	s.Helper()
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if minCount > 0 {
		group.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: minCount}
	} else {
		group.Spec.SchedulingPolicy.Basic = &schedulingv1alpha2.BasicSchedulingPolicy{}
	}
	if topology != "" {
		group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: topology}}}
	}
	if preferred != "" {
		group.Annotations = map[string]string{source.PreferredTopology: preferred}
	}
	for _, c := range change {
		c(group)
	}
	s.do("make "+name, func(ctx context.Context) error {
		_, err := s.cp.Client().SchedulingV1alpha2().PodGroups(s.namespace).Create(ctx, group, metav1.CreateOptions{})
		return err
	})
}

// bound waits until pods are bound, and returns the rack of each.
func (s stagehand) bound(names ...string) (racks []string) {
	s.Helper()
	berthtest.Await(s.T, berthtest.Patience, fmt.Sprint(names, " to be bound"), func(ctx context.Context) error {
		racks = nil
		for _, name := range names {
			pod, err := s.cp.Client().CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("%s is not: %+v", name, pod.Status.Conditions)
			}
			node, err := s.cp.Client().CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			racks = append(racks, node.Labels[rackLabel])
		}
		return nil
	})
	return racks
}

// in says that pods are bound, all in one of these racks.
func (s stagehand) in(rack string, names ...string) {
	s.Helper()
	if racks := s.bound(names...); slices.Max(racks) != slices.Min(racks) || !strings.Contains(rack, racks[0]) {
		s.Errorf("%v are in the racks %v, want one of %s", names, racks, rack)
	}
}

// untried says that none of these pods has been tried, though a pod that came later is bound: there is one shard.
func (s stagehand) untried(probe string, names ...string) {
	s.Helper()
	s.pod(probe, "", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil })
	s.bound(probe)
	for _, name := range names {
		s.do("read "+name, func(ctx context.Context) error {
			pod, err := s.cp.Client().CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					s.Errorf("%s has been tried: %s", name, c.Message)
				}
			}
			if pod.Spec.NodeName != "" {
				s.Errorf("%s is on %s", name, pod.Spec.NodeName)
			}
			return nil
		})
	}
}

// ungate takes the scheduling gates from a pod, and gives it a node selector, as Kueue does in one patch.
func (s stagehand) ungate(name string, selector map[string]string) {
	s.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"schedulingGates": nil, "nodeSelector": selector}})
	if err != nil {
		s.Fatal(err)
	}
	s.do("ungate "+name, func(ctx context.Context) error {
		_, err := s.cp.Client().CoreV1().Pods(s.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// ofKueue shapes a pod that Kueue holds back.
func ofKueue(gate string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
		p.Labels["kueue.x-k8s.io/managed"], p.Labels["kueue.x-k8s.io/queue-name"], p.Labels["kueue.x-k8s.io/podset"] = "true", "team", "main"
		p.Labels["kueue.x-k8s.io/priority-class"] = "workloads-first" // a WorkloadPriorityClass: Kueue's queues only
		p.Annotations["kueue.x-k8s.io/workload"], p.Annotations["kueue.x-k8s.io/podset-preferred-topology"] = "job-train", rackLabel
	}
}

// exclusively returns the affinity by which a job has a domain for itself: to pods of its key, and against those of other keys.
func exclusively(key, value, topology string, more ...metav1.LabelSelectorRequirement) *corev1.Affinity {
	term := func(requirements ...metav1.LabelSelectorRequirement) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchExpressions: requirements}, TopologyKey: topology, NamespaceSelector: &metav1.LabelSelector{}}}
	}
	return &corev1.Affinity{
		PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(append([]metav1.LabelSelectorRequirement{
			{Key: key, Operator: metav1.LabelSelectorOpExists}, {Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}},
		}, more...)...)},
	}
}

// ofJobSet shapes a pod of a job of a JobSet that has a rack for itself: the leader by affinity, a follower by the leader's rack.
func ofJobSet(job string, index int, rack string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels["jobset.sigs.k8s.io/jobset-name"], p.Labels["jobset.sigs.k8s.io/replicatedjob-name"], p.Labels[jobsetJobKey] = "train", "workers", job
		p.Labels[jobsetPriority] = "0"
		p.Annotations[jobsetExclusive], p.Annotations[batchv1.JobCompletionIndexAnnotation] = rackLabel, fmt.Sprint(index)
		if index == 0 {
			p.Spec.Affinity = exclusively(jobsetJobKey, job, rackLabel, metav1.LabelSelectorRequirement{Key: jobsetPriority, Operator: metav1.LabelSelectorOpIn, Values: []string{"0"}})
		} else {
			p.Spec.NodeSelector = map[string]string{rackLabel: rack}
		}
	}
}

// ofLeaderWorkerSet shapes a pod of a group of a LeaderWorkerSet. In a rack for itself, if rack is not "-".
func ofLeaderWorkerSet(group string, worker int, rack string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels["leaderworkerset.sigs.k8s.io/name"], p.Labels["leaderworkerset.sigs.k8s.io/worker-index"], p.Labels[lwsGroupKey] = "serve", fmt.Sprint(worker), group
		p.Annotations["leaderworkerset.sigs.k8s.io/size"] = "3"
		if rack == "-" {
			return
		}
		p.Annotations[lwsExclusive] = rackLabel
		if worker == 0 {
			p.Spec.Affinity = exclusively(lwsGroupKey, group, rackLabel)
		} else {
			p.Spec.NodeSelector = map[string]string{rackLabel: rack}
		}
	}
}

// TestPodsOfBatchControllersAreGangs has pods as Kueue, JobSet and LeaderWorkerSet make them, of PodGroups and not. Each of the racks a, b and c has 3 nodes of 4 CPUs, and so room for 6 pods.
func TestPodsOfBatchControllersAreGangs(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	if err := cp.CreateNodes(t.Context(), 9, func(i int) *corev1.Node {
		node := kubetest.PlainNode(i)
		node.Labels[rackLabel], node.Labels["example.com/pool"] = string(rune('a'+i/3)), "gold"
		return node
	}); err != nil {
		t.Fatal(err)
	}
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 1, LeaseTTL: berthtest.Patience})
	stage := func(name string, play func(stagehand)) {
		t.Run(name, func(t *testing.T) {
			s := stagehand{t, cp, strings.ToLower(strings.ReplaceAll(name, " ", "-"))}
			s.do("make the namespace", func(ctx context.Context) error {
				_, err := cp.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
				return err
			})
			play(s)
			berthtest.Await(t, berthtest.Patience, "its pods to be gone", func(ctx context.Context) error { // the next has the nodes
				if err := cp.Client().CoreV1().Pods(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
					return err
				}
				left, err := cp.Client().CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
				if err == nil && len(left.Items) > 0 {
					err = fmt.Errorf("%d are left", len(left.Items))
				}
				return err
			})
		})
	}
	stage("Kueue ungates a gang", func(s stagehand) {
		s.group("train", 3, "", "")
		for _, name := range []string{"p0", "p1", "p2"} {
			s.pod(name, "train", ofKueue(kueueTopologyGate))
		}
		s.untried("probe0", "p0", "p1", "p2")
		// One after the other they get the rack that Kueue has chosen. None is tried before as many as the gang wants may be.
		s.ungate("p0", map[string]string{rackLabel: "b", "example.com/pool": "gold"})
		s.ungate("p1", map[string]string{rackLabel: "b", "example.com/pool": "gold"})
		s.untried("probe1", "p0", "p1", "p2")
		s.ungate("p2", map[string]string{rackLabel: "b", "example.com/pool": "gold"})
		s.in("b", "p0", "p1", "p2")
	})
	stage("Kueue ungates a gang in two racks", func(s stagehand) { // as Kueue may where a rack is preferred
		s.group("train", 2, "", "")
		s.pod("p0", "train", ofKueue(kueueTopologyGate))
		s.pod("p1", "train", ofKueue(kueueTopologyGate))
		s.ungate("p0", map[string]string{rackLabel: "c"})
		s.ungate("p1", map[string]string{rackLabel: "a"})
		s.in("c", "p0")
		s.in("a", "p1")
	})
	stage("Kueue ungates a gang that has a topology", func(s stagehand) { // Kueue knows the flavor, and the PodGroup the rack
		s.group("train", 3, rackLabel, "")
		for _, name := range []string{"p0", "p1", "p2"} {
			s.pod(name, "train", ofKueue(kueueAdmissionGate))
		}
		for _, name := range []string{"p0", "p1", "p2"} {
			s.ungate(name, map[string]string{"example.com/pool": "gold"})
		}
		s.in("abc", "p0", "p1", "p2")
	})
	stage("Kueue ungates single pods", func(s stagehand) {
		s.pod("p0", "", ofKueue(kueueTopologyGate))
		s.pod("p1", "", ofKueue(kueueTopologyGate))
		s.ungate("p0", map[string]string{rackLabel: "c"})
		s.in("c", "p0")
		s.untried("probe", "p1")
	})
	stage("Kueues priorities are its own", func(s stagehand) {
		s.do("make a class", func(ctx context.Context) error {
			_, err := cp.Client().SchedulingV1().PriorityClasses().Create(ctx, &kubeschedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 1}, metav1.CreateOptions{})
			return err
		})
		// Pods that say nothing but the name of a WorkloadPriorityClass have the priority 0, and preempt nobody, where those of a PriorityClass do.
		for k := range 6 {
			s.pod(fmt.Sprint("there-", k), "", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{rackLabel: "a"} })
		}
		s.bound("there-0", "there-1", "there-2", "there-3", "there-4", "there-5")
		s.group("first", 2, "", "")
		s.pod("p0", "first", ofKueue(kueueTopologyGate))
		s.pod("p1", "first", ofKueue(kueueTopologyGate))
		s.ungate("p0", map[string]string{rackLabel: "a"})
		s.ungate("p1", map[string]string{rackLabel: "a"})
		berthtest.Await(s.T, berthtest.Patience, "the gang to wait", func(ctx context.Context) error {
			pod, err := cp.Client().CoreV1().Pods(s.namespace).Get(ctx, "p0", metav1.GetOptions{})
			if err == nil && !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				err = fmt.Errorf("it has the conditions %+v", pod.Status.Conditions)
			}
			return err
		})
		s.bound("there-0", "there-1", "there-2", "there-3", "there-4", "there-5")
		// A group without a class has the priority 0 where the API server has WorkloadAwarePreemption, whatever its pods have.
		s.group("second", 2, "", "", func(g *schedulingv1alpha2.PodGroup) { g.Spec.PriorityClassName = "low" })
		low := func(p *corev1.Pod) { p.Spec.PriorityClassName = "low" }
		s.pod("q0", "second", ofKueue(kueueTopologyGate), low)
		s.pod("q1", "second", ofKueue(kueueTopologyGate), low)
		s.ungate("q0", map[string]string{rackLabel: "a"})
		s.ungate("q1", map[string]string{rackLabel: "a"})
		s.in("a", "q0", "q1")
	})
	stage("JobSet has a rack for each job", func(s stagehand) {
		s.pod("one-0", "", ofJobSet("one", 0, ""))
		s.pod("two-0", "", ofJobSet("two", 0, ""))
		racks := s.bound("one-0", "two-0") // only then its webhook lets the followers be made
		if racks[0] == racks[1] {
			s.Errorf("both jobs are in the rack %s", racks[0])
		}
		s.pod("one-1", "", ofJobSet("one", 1, racks[0]))
		s.pod("two-1", "", ofJobSet("two", 1, racks[1]))
		s.in(racks[0], "one-0", "one-1")
		s.in(racks[1], "two-0", "two-1")
	})
	stage("JobSet has a rack for each job and a basic group", func(s stagehand) {
		s.group("train", 0, "", "")
		s.pod("one-0", "train", ofJobSet("one", 0, ""))
		rack := s.bound("one-0")[0]
		s.pod("one-1", "train", ofJobSet("one", 1, rack))
		s.in(rack, "one-0", "one-1")
	})
	stage("JobSet waits for the leader of a gang that waits for followers", func(s stagehand) { // so a gang is not for jobs with exclusive-topology
		s.group("train", 2, "", "")
		s.pod("one-0", "train", ofJobSet("one", 0, ""))
		s.untried("probe", "one-0")
	})
	stage("JobSet without exclusive topology is a gang with one", func(s stagehand) {
		s.group("train", 4, "", rackLabel)
		for k := range 4 {
			s.pod(fmt.Sprint("one-", k), "train", ofJobSet("one", 0, ""), func(p *corev1.Pod) {
				p.Spec.Affinity = nil
				delete(p.Annotations, jobsetExclusive)
			})
		}
		s.in("abc", "one-0", "one-1", "one-2", "one-3")
	})
	stage("a gang of leaders has a rack for each", func(s stagehand) { // whose followers are of another group, or of none
		s.group("leaders", 3, "", "")
		for _, job := range []string{"one", "two", "three"} {
			s.pod(job+"-0", "leaders", ofJobSet(job, 0, ""))
		}
		racks := s.bound("one-0", "two-0", "three-0")
		if slices.Sort(racks); !slices.Equal(racks, []string{"a", "b", "c"}) {
			s.Errorf("they are in the racks %v", racks)
		}
	})
	stage("LeaderWorkerSet has a rack for each group", func(s stagehand) {
		s.pod("serve-0", "", ofLeaderWorkerSet("g0", 0, ""))
		s.pod("serve-1", "", ofLeaderWorkerSet("g1", 0, ""))
		racks := s.bound("serve-0", "serve-1") // only then its controller makes the workers
		if racks[0] == racks[1] {
			s.Errorf("both groups are in the rack %s", racks[0])
		}
		s.pod("serve-0-1", "", ofLeaderWorkerSet("g0", 1, racks[0]))
		s.pod("serve-0-2", "", ofLeaderWorkerSet("g0", 2, racks[0]))
		s.in(racks[0], "serve-0", "serve-0-1", "serve-0-2")
	})
	stage("LeaderWorkerSet is a gang with a topology", func(s stagehand) {
		s.group("serve-0", 3, rackLabel, "")
		s.pod("serve-0", "serve-0", ofLeaderWorkerSet("g0", 0, "-"))
		s.untried("probe", "serve-0")
		s.pod("serve-0-1", "serve-0", ofLeaderWorkerSet("g0", 1, "-"))
		s.pod("serve-0-2", "serve-0", ofLeaderWorkerSet("g0", 2, "-"))
		s.in("abc", "serve-0", "serve-0-1", "serve-0-2")
	})
	stage("a preference that cannot be read keeps a group waiting", func(s stagehand) {
		s.group("train", 1, "", "zone,,rack")
		s.pod("p0", "train")
		s.untried("probe", "p0")
		s.do("correct it", func(ctx context.Context) error {
			patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, source.PreferredTopology, rackLabel)
			_, err := cp.Client().SchedulingV1alpha2().PodGroups(s.namespace).Patch(ctx, "train", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
		s.bound("p0")
	})
	checkCluster(t, cp)
}
