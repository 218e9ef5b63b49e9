package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

func workloadOf(t *testing.T, name string) workload {
	t.Helper()
	found, err := workloadsNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	return found[len(found)-1]
}

// The shapes are those of kube-scheduler's scheduler_perf.
func TestWorkloadsHaveTheirConstraints(t *testing.T) {
	color := func(c string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"color": c}}
	}
	const host, zone = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
	spread := func(maxSkew int32, action corev1.UnsatisfiableConstraintAction) corev1.PodSpec {
		return corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			{MaxSkew: maxSkew, TopologyKey: zone, WhenUnsatisfiable: action, LabelSelector: color("blue")},
		}}
	}
	want := map[string]corev1.Pod{
		"anti-affinity": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"color": "green"}},
			Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: color("green"), TopologyKey: host}},
			}}}},
		"affinity": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"color": "blue"}},
			Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: color("blue"), TopologyKey: zone}},
			}}}},
		"preferred": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"color": "red"}},
			Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: color("red"), TopologyKey: host}},
				},
			}}}},
		"spread-hard": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"color": "blue"}}, Spec: spread(1, corev1.DoNotSchedule)},
		"spread-soft": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"color": "blue"}}, Spec: spread(5, corev1.ScheduleAnyway)},
		"node-affinity": {Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-0", "zone-1"}}},
			}}},
		}}}},
	}
	cfg := config{nodes: 10, pods: 3, classes: maxClasses, nodeCPU: 4, seed: 1}
	for name := range want {
		l := newLoad(cfg, workloadOf(t, name))
		for i := range cfg.pods {
			pod := l.pod(i)
			got := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels},
				Spec: corev1.PodSpec{Affinity: pod.Spec.Affinity, TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints}}
			if diff := cmp.Diff(want[name], got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			requests := pod.Spec.Containers[0].Resources.Requests
			if requests.Cpu().String() != "100m" || requests.Memory().String() != "500Mi" {
				t.Errorf("%s requests %v, want 100m and 500Mi", name, requests)
			}
		}
	}
	node := newLoad(cfg, workloads()[0]).node(7)
	if labels := node.Labels; labels[host] != node.Name || labels[zone] != "zone-7" {
		t.Errorf("labels of node 7: %v", labels)
	}
}

func TestMorePodsThanCanBeBoundAreRefused(t *testing.T) {
	// Each node runs 40 pods by its CPUs, 65 by its memory and 110 by their number. With 25 nodes, five zones have three and
	// five have two.
	for _, tt := range []struct {
		workload    string
		nodes, cpus int
		room        int
	}{
		{"anti-affinity", 25, 4, 25},
		{"anti-affinity", 3, 4, 3},
		{"affinity", 25, 4, 2 * 40},
		{"affinity", 25, 64, 2 * 65},
		{"affinity", 5, 4, 40},
		{"preferred", 25, 4, 25 * 40},
		{"spread-hard", 25, 4, 10 * 2 * 40},
		{"spread-hard", 5, 4, 5 * 40},
		{"spread-soft", 25, 4, 25 * 40},
		{"node-affinity", 25, 4, (3 + 3) * 40},
		{"node-affinity", 1, 4, 40},
		{"daemonset", 25, 4, 25},
		{"restart", 25, 4, 25*40 - 7},
		{"volumes-intree", 25, 4, 25*40 - 7},
		{"volumes-csi", 25, 64, 25*39 - 7},
		{"volumes-migrated", 25, 2, 25*20 - 7},
		{"volumes-local", 25, 4, 25},
		{"volumes-provision", 25, 4, 25 * 39},
	} {
		w := workloadOf(t, tt.workload)
		cfg := config{nodes: tt.nodes, nodeCPU: tt.cpus, pods: tt.room, boundPods: 7}
		if err := w.checkRoom(cfg); err != nil {
			t.Errorf("%d pods: %v", cfg.pods, err)
		}
		cfg.pods++
		if err := w.checkRoom(cfg); err == nil {
			t.Errorf("%s on %d nodes of %d CPUs: %d pods are accepted", tt.workload, tt.nodes, tt.cpus, cfg.pods)
		}
	}
}

// The null binder puts the pods on the nodes in turn, wherever they may go.
func TestBrokenConstraintsFailAContenderThatIsNotBlind(t *testing.T) {
	cfg := small() // 40 pods, 8 on each of 5 nodes, which are a zone each
	careless := runWith(t, cfg, workloadOf(t, "anti-affinity"), contender{name: "careless", commands: nullCommands})
	against := func(p string) bool { return strings.Contains(p, "against its pod anti-affinity") }
	if careless.broken != 40 || len(careless.problems) != 40 || !slices.ContainsFunc(careless.problems, against) {
		t.Errorf("all pods on nodes with others that they must not be with: %d broken constraints, problems %q", careless.broken, careless.problems)
	}
	if careless.usedNodes != 5 || careless.fewest != 8 || careless.most != 8 {
		t.Errorf("%d nodes used, %d to %d pods by zone, want 5 and 8", careless.usedNodes, careless.fewest, careless.most)
	}
	blind := runWith(t, cfg, workloadOf(t, "affinity"), contender{name: "null", blind: true, commands: nullCommands})
	if blind.broken != 32 || len(blind.problems) > 0 {
		t.Errorf("pods not in the zone of the others: %d broken constraints, problems %q, want 32 that are no fault of it", blind.broken, blind.problems)
	}
}

func TestPodsOfDeploymentsAreThoseOfReplicaSetsInTurn(t *testing.T) {
	for name, deployments := range map[string]int{"deployment": 1, "deployments": 100} {
		l := newLoad(config{pods: 1, classes: maxClasses, nodeCPU: 4}, workloadOf(t, name))
		var selectors []labels.Selector
		for d := range deployments {
			selector, err := metav1.LabelSelectorAsSelector(replicaSet(d).Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			selectors = append(selectors, selector)
		}
		requests := map[string]bool{}
		for i := range 200 {
			pod, set := l.pod(i), replicaSet(i%deployments)
			owner := metav1.GetControllerOf(pod)
			if owner == nil || owner.Kind != "ReplicaSet" || owner.APIVersion != "apps/v1" || owner.Name != set.Name || owner.UID != set.UID {
				t.Fatalf("%s: pod %d is controlled by %v, want %s", name, i, owner, set.Name)
			}
			for d, selector := range selectors {
				if selector.Matches(labels.Set(pod.Labels)) != (d == i%deployments) {
					t.Fatalf("%s: selector of %s and pod %d", name, replicaSet(d).Name, i)
				}
			}
			r := pod.Spec.Containers[0].Resources.Requests
			requests[r.Cpu().String()+" "+r.Memory().String()] = true
		}
		if len(requests) != deployments || !requests["100m 500Mi"] {
			t.Errorf("%s: %d different requests, want %d, one of 100m and 500Mi", name, len(requests), deployments)
		}
	}
}

func TestPodsOfDaemonSetArePinnedToTheirNodes(t *testing.T) {
	l := newLoad(config{pods: 1, classes: 1, nodeCPU: 4}, workloadOf(t, "daemonset"))
	pod := l.pod(12)
	for i := range 20 {
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(l.node(i)); err != nil || ok != (i == 12) {
			t.Errorf("pod 12 may go to node %d: %v, %v", i, ok, err)
		}
	}
	if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "DaemonSet" {
		t.Errorf("pod is controlled by %v, want a DaemonSet", owner)
	}
	var tolerated []string
	for _, toleration := range pod.Spec.Tolerations {
		tolerated = append(tolerated, toleration.Key+":"+string(toleration.Effect))
	}
	// As in the documentation of DaemonSets, for pods that do not use the host's network.
	want := []string{
		"node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/disk-pressure:NoSchedule",
		"node.kubernetes.io/memory-pressure:NoSchedule", "node.kubernetes.io/pid-pressure:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule",
	}
	if diff := cmp.Diff(want, tolerated); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
}
