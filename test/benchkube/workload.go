package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// workload is what pods of a run ask for.
type workload struct {
	name  string
	about string // in one line
	pods  int    // how many, unless the command line says; 0: one for each node
	nodes int    // how many, unless the command line says; 0: 5,000
	// limit is how long a contender may take, unless the command line says. 0: 5 minutes.
	limit time.Duration
	// shape makes of the pod number i, which requests 100m of CPU and 500 MiB, one of the workload. nil: pods differ in their
	// requests and have no constraints.
	shape func(pod *corev1.Pod, i int)
	// deployments is how many the pods belong to, whose ReplicaSets exist too.
	deployments int
	// room is how many pods can be bound, whichever choices are made, given how many a node can run. nil: not known.
	room func(cfg config, perNode int) int
	// newScript returns what happens in a run. nil: the pods are bound, and that is all.
	newScript func() script
	// claims: pods have claims, for which the null binder can write what a scheduler writes.
	claims bool
	// groups: pods name PodGroups, which API server and contenders have to know of.
	groups bool
	// boundPods is how many are bound beforehand, unless the command line says.
	boundPods int
	// shapeNode makes of a node one of the workload. nil: it is as it is.
	shapeNode func(*corev1.Node)
	// shapeOf and shapeNodeOf do the same by what is configured, of a pod and its class, and of a node.
	shapeOf     func(cfg config, pod *corev1.Pod, i, class int)
	shapeNodeOf func(cfg config, node *corev1.Node, i int)
	// cards returns those of a node, for pods that ask for some.
	cards func(cfg config, node string, i int) []v1alpha1.Card
	// contenders are who runs it, in this order, unless the command line says. Empty: one of each scheduler.
	contenders []string
	// apart: it is not among all workloads, for its contenders are binaries of other modules.
	apart bool
	// baseline names the workload that it is compared with, which runs before it. Empty: none.
	baseline string
}

func (w workload) script() script {
	if w.newScript == nil {
		return bindAll{}
	}
	return w.newScript()
}

// plain is the workload of pods without constraints, which every contender can run.
const plain = "plain"

const (
	plainPods         = 10000
	constrainedPods   = 2000
	preemptorPods     = 1000
	unschedulablePods = 1000
	latePods          = 100
	placedPods        = 140000
	claimingPods      = 1000 // that are bound before

	usualNodes     = 5000
	daemonSetNodes = 15000

	usualLimit = 5 * time.Minute
	longLimit  = 10 * time.Minute
	shortLimit = time.Minute // for what kube-scheduler would take hours for
)

// workloads returns all workloads. Those with constraints have the shapes of kube-scheduler's scheduler_perf, but all pods in
// one namespace and on nodes that are empty at first.
func workloads() []workload {
	return []workload{
		{name: plain, about: "pods of 16 requests, without constraints", pods: plainPods},
		{name: "deployment", about: "pods of one deployment", pods: plainPods, deployments: 1, shape: ofDeployments(1)},
		{
			name: "deployments", about: "pods of 100 deployments in turn, of different requests", pods: plainPods,
			deployments: 100, shape: ofDeployments(100),
		},
		{
			name: "daemonset", about: "a pod for each of 15,000 nodes, pinned to it as the DaemonSet controller does",
			nodes: daemonSetNodes, shape: ofDaemonSet, room: func(cfg config, _ int) int { return cfg.nodes },
		},
		{
			name: "anti-affinity", about: "required anti-affinity to each other on hostname", pods: constrainedPods,
			shape: constrained("green", func(pod *corev1.Pod) {
				pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{podTerm("green", corev1.LabelHostname)},
				}}
			}),
			room: func(cfg config, _ int) int { return cfg.nodes },
		},
		{
			name: "affinity", about: "required affinity to each other on zone", pods: constrainedPods,
			shape: constrained("blue", func(pod *corev1.Pod) {
				pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{podTerm("blue", corev1.LabelTopologyZone)},
				}}
			}),
			room: func(cfg config, perNode int) int { return zonesOf(cfg.nodes).smallest() * perNode },
		},
		{
			name: "preferred", about: "preferred affinity to each other on hostname, of weight 1", pods: constrainedPods,
			shape: constrained("red", func(pod *corev1.Pod) {
				pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: podTerm("red", corev1.LabelHostname)}},
				}}
			}),
			room: anywhere,
		},
		{
			name: "spread-hard", about: "at most 1 pod more in a zone than in any other", pods: constrainedPods,
			shape: constrained("blue", spread(1, corev1.DoNotSchedule)),
			room: func(cfg config, perNode int) int {
				zones := zonesOf(cfg.nodes)
				return len(zones) * zones.smallest() * perNode
			},
		},
		{
			name: "spread-soft", about: "preferably at most 5 pods more in a zone than in any other", pods: constrainedPods,
			shape: constrained("blue", spread(5, corev1.ScheduleAnyway)),
			room:  anywhere,
		},
		{
			name: "node-affinity", about: "required node affinity to 2 of 10 zones", pods: constrainedPods,
			shape: constrained("", func(pod *corev1.Pod) {
				pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{
							Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{kubetest.ZoneName(0), kubetest.ZoneName(1)},
						}},
					}}},
				}}
			}),
			room: func(cfg config, perNode int) int { return zonesOf(cfg.nodes).first(2) * perNode },
		},
		{name: "storm-baseline", about: "plain pods, without the others of storm", pods: plainPods},
		{
			name: "storm", about: "plain pods, and among them as many that fit nowhere", pods: plainPods, limit: longLimit,
			newScript: func() script { return &storm{tellMax: tellMax} }, baseline: "storm-baseline",
		},
		{
			name: "gated-baseline", about: "as gated, with pods that come when those of gated lose their gates", pods: plainPods,
			newScript: func() script { return &gated{} },
		},
		{
			name: "gated", about: "plain pods with a gate while other things happen, and then without", pods: plainPods,
			newScript: func() script { return &gated{withGates: true} }, baseline: "gated-baseline",
		},
		{
			name: "preemption", about: "high priority on a cluster full of low ones, some of them protected by a budget", pods: preemptorPods,
			limit:     longLimit,
			newScript: func() script { return &preemption{} },
			room:      func(cfg config, _ int) int { return preemptionRoom(cfg.nodes, cfg.nodeCPU) },
		},
		{
			name: "churn", about: "pods come and go and nodes change, beside pods that fit nowhere; --pods is about these", pods: unschedulablePods,
			newScript: func() script { return newChurn() },
		},
		{
			name: "restart", about: "few pods, on a cluster that has --bound-pods", pods: latePods, boundPods: placedPods,
			newScript: func() script { return restart{} },
			room:      func(cfg config, perNode int) int { return cfg.nodes*perNode - cfg.boundPods },
		},
		{
			name: "gangs", about: "PodGroups of 8 pods each, that are placed together", pods: gangPods, limit: longLimit, groups: true,
			shape: ofGang, newScript: func() script { return gangs{} }, room: anywhere,
		},
		{
			name: "gangs-racks", about: "the same, each in one rack of 100 nodes, of which all are considered", pods: gangPods, limit: longLimit, groups: true,
			shape: ofGang, shapeNodeOf: inRack, newScript: func() script { return gangs{racks: true} }, room: anywhere,
		},
		claiming("volumes-intree", "a claim each, bound to an in-tree disk, beside --bound-pods of them", claims{disk: inTreeDisk}),
		claiming("volumes-migrated", "the same of nodes that have at most 39 of them, as CSI volumes", claims{disk: inTreeDisk, csiNode: true, migrated: true}),
		claiming("volumes-csi", "the same with CSI volumes", claims{disk: csiDisk, csiNode: true}),
		claiming("volumes-local", "a claim each, that waits for the local volume of a node", claims{local: true}),
		claiming("volumes-provision", "a claim each, for which a volume is provisioned where the pod goes", claims{csiNode: true}),
		{
			name: gpuWorkload, about: "pods of 16 kinds that ask for 1, 2 or 4 cards, with memory or clock, of nodes that have 8, of five models", pods: plainPods, limit: longLimit,
			shapeOf: ofKinds, room: gpuRoom, cards: gpuCards, newScript: func() script { return gpu{} }, apart: true,
			contenders: []string{berthAll, berthYodaService, berthYoda, kubeScheduler, kubeYoda, berthAllAgain},
		},
		{
			name: openbWorkload, about: "nodes with cards and pods that ask for some, or for part of one, of the trace of --openb, offered in its order until there is no room", limit: longLimit,
			shapeOf: openbPodOf, shapeNodeOf: openbNodeOf, cards: openbCards, newScript: func() script { return offerOpenb{} }, apart: true,
			contenders: []string{kubeYoda, kubeDevicePlugin, berthYodaService},
		},
	}
}

func anywhere(cfg config, perNode int) int { return cfg.nodes * perNode }

// constrained gives pods a color, if there is one, and a constraint.
func constrained(color string, constrain func(*corev1.Pod)) func(*corev1.Pod, int) {
	return func(pod *corev1.Pod, _ int) {
		pod.Labels = nil
		if color != "" {
			pod.Labels = map[string]string{"color": color}
		}
		constrain(pod)
	}
}

func colored(color string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"color": color}}
}

func podTerm(color, key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: colored(color), TopologyKey: key}
}

// spread keeps blue pods apart by zone.
func spread(maxSkew int32, action corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: maxSkew, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: action, LabelSelector: colored("blue"),
		}}
	}
}

// allWorkloads stands for all of them on the command line but for those that are apart, and volumeWorkloads for those of pods with claims.
const (
	allWorkloads    = "all"
	volumeWorkloads = "volumes"
)

func workloadNames() []string {
	var names []string
	for _, w := range workloads() {
		names = append(names, w.name)
	}
	return names
}

// describeWorkloads returns a line for each workload.
func describeWorkloads() string {
	var lines []string
	for _, w := range workloads() {
		lines = append(lines, fmt.Sprintf("%-17s %s", w.name, w.about))
	}
	lines = append(lines, fmt.Sprintf("%-17s %s", volumeWorkloads, "all of "+volumeWorkloads+"-…"))
	return strings.Join(lines, "\n")
}

// workloadsNamed returns the workloads of a comma-separated list of names, each after what it is compared with.
func workloadsNamed(names string) ([]workload, error) {
	known := workloads()
	if names == allWorkloads {
		return slices.DeleteFunc(known, func(w workload) bool { return w.apart }), nil
	}
	named := func(name string) int { return slices.IndexFunc(known, func(w workload) bool { return w.name == name }) }
	var out []workload
	for name := range strings.SplitSeq(names, ",") {
		if name == volumeWorkloads {
			out = append(out, slices.DeleteFunc(slices.Clone(known), func(w workload) bool { return !w.claims })...)
			continue
		}
		at := named(name)
		if at < 0 {
			return nil, fmt.Errorf("no workload %q; there are %s, %s and %s", name, strings.Join(workloadNames(), ", "), volumeWorkloads, allWorkloads)
		}
		if b := known[at].baseline; b != "" && !slices.ContainsFunc(out, func(w workload) bool { return w.name == b }) {
			out = append(out, known[named(b)])
		}
		out = append(out, known[at])
	}
	return out, nil
}

// zoneSizes is the number of nodes in each zone that has any.
type zoneSizes []int

func zonesOf(nodes int) zoneSizes {
	z := make(zoneSizes, min(nodes, kubetest.Zones))
	for i := range nodes {
		z[i%len(z)]++
	}
	return z
}

// first returns the number of nodes in the first n zones.
func (z zoneSizes) first(n int) int {
	sum := 0
	for _, nodes := range z[:min(n, len(z))] {
		sum += nodes
	}
	return sum
}

// smallest returns the number of nodes in the last zone, which has the fewest.
func (z zoneSizes) smallest() int { return z[len(z)-1] }

// checkRoom refuses more pods than can be bound, which would be waited for in vain.
func (w workload) checkRoom(cfg config) error {
	if w.room == nil {
		return nil
	}
	pod, node := kubetest.PlainPod(0).Spec.Containers[0].Resources.Requests, kubetest.PlainNode(0).Status.Allocatable
	perNode := min(int64(cfg.nodeCPU)*1000/pod.Cpu().MilliValue(), node.Memory().Value()/pod.Memory().Value(), node.Pods().Value())
	if room := w.room(cfg, int(perNode)); cfg.pods > room {
		return fmt.Errorf("%d pods of workload %s are more than the %d that %d nodes surely have room for", cfg.pods, w.name, room, cfg.nodes)
	}
	return nil
}
