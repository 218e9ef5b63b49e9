package kubetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hostname = corev1.LabelHostname
	zone     = corev1.LabelTopologyZone
)

// change makes a plain pod another one.
type change = func(*corev1.Pod)

// all makes several changes.
func all(changes ...change) change {
	return func(pod *corev1.Pod) {
		for _, c := range changes {
			c(pod)
		}
	}
}

func color(value string) change {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"color": value} }
}

func in(namespace string) change {
	return func(pod *corev1.Pod) { pod.Namespace = namespace }
}

func colored(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"color": value}}
}

func near(value, key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: colored(value), TopologyKey: key}
}

func with(terms ...corev1.PodAffinityTerm) change {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	}
}

func without(terms ...corev1.PodAffinityTerm) change {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	}
}

func spread(constraints ...corev1.TopologySpreadConstraint) change {
	return func(pod *corev1.Pod) { pod.Spec.TopologySpreadConstraints = constraints }
}

func apart(value, key string, maxSkew int32) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		TopologyKey: key, MaxSkew: maxSkew, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: colored(value),
	}
}

func deleted(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func ended(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }

// twelveNodes are in ten zones: node 10 is in the zone of node 0, and node 11 has no labels at all.
func twelveNodes() []corev1.Node {
	var nodes []corev1.Node
	for i := range 12 {
		nodes = append(nodes, *PlainNode(i))
	}
	nodes[11].Labels = nil
	return nodes
}

// where places pods: the i-th is the pod number i, on the node of that number.
type where struct {
	node int
	change
}

// broken returns what Check finds, as "pod: rule".
func broken(nodes []corev1.Node, pods []where) []string {
	o := objects{nodes: nodes, namespaces: []corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "a"}}},
	}}
	for i, w := range pods {
		o.pods = append(o.pods, placed(i, PlainNode(w.node).Name, w.change))
	}
	var out []string
	for _, v := range check(o).Violations {
		var i int
		if _, err := fmt.Sscanf(v.Pod.Name, "pod-%06d", &i); err != nil {
			return []string{err.Error()}
		}
		out = append(out, fmt.Sprintf("%d: %s", i, v.Rule))
	}
	return out
}

// scenario is placements, and what is wrong with them.
type scenario struct {
	name string
	pods []where
	want []string
}

func judgeAll(t *testing.T, scenarios []scenario) {
	t.Helper()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if diff := cmp.Diff(s.want, broken(twelveNodes(), s.pods)); diff != "" {
				t.Errorf("broken (-want +got):\n%s", diff)
			}
			// The order of lists of the API server says nothing.
			if got := broken(slices.Insert(twelveNodes()[1:], 5, twelveNodes()[0]), s.pods); cmp.Diff(s.want, got) != "" {
				t.Errorf("broken, with nodes in another order: %q, want %q", got, s.want)
			}
		})
	}
}

func TestBrokenNodeAffinityIsFound(t *testing.T) {
	selects := func(key, value string) change {
		return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{key: value} }
	}
	requires := func(terms ...corev1.NodeSelectorTerm) change {
		return func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	zones := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-1", "zone-2"}},
	}}
	name := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-00005"}},
	}}
	judgeAll(t, []scenario{
		{"selector", []where{{1, selects(zone, "zone-1")}, {2, selects(zone, "zone-1")}, {11, selects(zone, "zone-1")}}, []string{"1: node affinity", "2: node affinity"}},
		{"two zones", []where{{1, requires(zones)}, {2, requires(zones)}, {3, requires(zones)}}, []string{"2: node affinity"}},
		{"one term of several", []where{{1, requires(zones, name)}, {5, requires(zones, name)}, {6, requires(zones, name)}}, []string{"2: node affinity"}},
		{"it has ended", []where{{2, all(selects(zone, "zone-1"), ended)}}, nil},
	})
}

func TestBrokenAntiAffinityIsFoundWhicheverPodWasFirst(t *testing.T) {
	alone := all(color("green"), without(near("green", hostname)))
	aloneInZone := all(color("green"), without(near("green", zone)))
	elsewhere := func(selector *metav1.LabelSelector, namespaces ...string) change {
		return without(corev1.PodAffinityTerm{LabelSelector: colored("green"), TopologyKey: hostname, Namespaces: namespaces, NamespaceSelector: selector})
	}
	judgeAll(t, []scenario{
		{"one on each node", []where{{0, alone}, {1, alone}, {10, alone}}, nil},
		{"two on a node", []where{{0, alone}, {1, alone}, {0, alone}}, []string{"0: pod anti-affinity", "2: pod anti-affinity"}},
		{"three on a node", []where{{0, alone}, {0, alone}, {0, alone}}, []string{"0: pod anti-affinity", "1: pod anti-affinity", "2: pod anti-affinity"}},
		{"one of another color", []where{{0, alone}, {0, color("blue")}}, nil},
		{"the other was first", []where{{0, color("green")}, {0, all(color("blue"), without(near("green", hostname)))}}, []string{"1: pod anti-affinity"}},
		{"the other was second", []where{{0, all(color("blue"), without(near("green", hostname)))}, {0, color("green")}}, []string{"0: pod anti-affinity"}},
		{"two in a zone", []where{{0, aloneInZone}, {10, aloneInZone}, {1, aloneInZone}}, []string{"0: pod anti-affinity", "1: pod anti-affinity"}},
		{"no label", []where{{11, alone}, {11, alone}}, nil},
		{"one has ended", []where{{0, alone}, {0, all(alone, ended)}}, nil},
		{"two terms", []where{{0, all(color("green"), without(near("blue", hostname), near("green", zone)))}, {10, color("green")}}, []string{"0: pod anti-affinity"}},
		{"another namespace", []where{{0, alone}, {0, all(alone, in("other"))}}, nil},
		{"a namespace by name", []where{{0, elsewhere(nil, "other")}, {0, all(color("green"), in("other"))}}, []string{"0: pod anti-affinity"}},
		{"named namespaces only", []where{{0, elsewhere(nil, "other")}, {0, color("green")}}, nil},
		{"a namespace by label", []where{{0, elsewhere(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}})}, {0, all(color("green"), in("other"))}}, []string{"0: pod anti-affinity"}},
		{"a namespace by another label", []where{{0, elsewhere(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}})}, {0, all(color("green"), in("other"))}}, nil},
		{"another namespace by label only", []where{{0, elsewhere(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}})}, {0, color("green")}}, nil},
		{"all namespaces", []where{{0, elsewhere(&metav1.LabelSelector{})}, {0, color("green")}}, []string{"0: pod anti-affinity"}},
	})
}

func TestBrokenAffinityIsFound(t *testing.T) {
	together := all(color("blue"), with(near("blue", zone)))
	guest := all(color("red"), with(near("blue", zone)))
	both := all(color("blue"), with(near("blue", zone), near("blue", hostname)))
	judgeAll(t, []scenario{
		{"one alone", []where{{3, together}}, nil},
		{"all in a zone", []where{{0, together}, {10, together}, {0, together}}, nil},
		{"one in another", []where{{0, together}, {10, together}, {1, together}}, []string{"2: pod affinity"}},
		{"the first in another", []where{{0, together}, {1, together}, {1, together}}, []string{"0: pod affinity"}},
		{"two zones of two", []where{{0, together}, {1, together}, {10, together}, {1, together}}, []string{"1: pod affinity", "3: pod affinity"}},
		{"two zones, with a pod that anything may be near", []where{{0, together}, {1, together}, {1, color("blue")}}, nil},
		{"three zones, with one such pod", []where{{0, together}, {1, together}, {2, together}, {1, color("blue")}}, []string{"2: pod affinity"}},
		{"a guest", []where{{0, guest}, {10, color("blue")}}, nil},
		{"a guest of nobody", []where{{0, guest}}, []string{"0: pod affinity"}},
		{"a guest in another zone", []where{{0, guest}, {1, color("blue")}}, []string{"0: pod affinity"}},
		{"a guest in another namespace", []where{{0, guest}, {0, all(color("blue"), in("other"))}}, []string{"0: pod affinity"}},
		{"guests do not keep each other company", []where{{0, guest}, {0, guest}}, []string{"0: pod affinity", "1: pod affinity"}},
		{"no label", []where{{11, together}}, []string{"0: pod affinity"}},
		{"two keys", []where{{0, both}, {0, both}}, nil},
		{"two keys, one of them met", []where{{0, both}, {10, both}, {0, both}}, []string{"1: pod affinity"}},
		{"what is near has ended", []where{{0, guest}, {0, all(color("blue"), ended)}}, []string{"0: pod affinity"}},
	})
}

func TestBrokenSpreadIsFound(t *testing.T) {
	even := all(color("blue"), spread(apart("blue", zone, 1)))
	loose := all(color("blue"), spread(apart("blue", zone, 2)))
	soft := all(color("blue"), spread(apart("blue", zone, 1)), func(pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
	})
	everything := spread(corev1.TopologySpreadConstraint{TopologyKey: zone, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{}})
	zones := func(min int32, names ...string) change {
		return all(color("blue"), spread(apart("blue", zone, 1)), func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints[0].MinDomains = &min
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: names}}}},
			}}}
		})
	}
	versioned := func(version string) change {
		return all(even, func(pod *corev1.Pod) {
			pod.Labels["version"] = version
			pod.Spec.TopologySpreadConstraints[0].MatchLabelKeys = []string{"version"}
		})
	}
	var evenly []where // one in each zone
	for i := range 10 {
		evenly = append(evenly, where{i, even})
	}
	more := func(pods ...where) []where { return slices.Concat(evenly, pods) }
	judgeAll(t, []scenario{
		{"one in each zone", evenly, nil},
		{"one more", more(where{3, even}), nil},
		{"two more in a zone", more(where{0, even}, where{10, even}), []string{"11: topology spread"}},
		{"two more in two zones", more(where{0, even}, where{1, even}), nil},
		{"two in a zone, none in others", []where{{0, even}, {0, even}}, []string{"1: topology spread"}},
		{"a skew of two", []where{{0, loose}, {10, loose}}, nil},
		{"a skew of three", []where{{0, loose}, {10, loose}, {0, loose}}, []string{"2: topology spread"}},
		{"soft", []where{{0, soft}, {0, soft}, {0, soft}}, nil},
		{"others came later", more(where{0, color("blue")}, where{0, color("blue")}), nil},
		{"others in the emptiest", append(evenly[:9:9], where{9, color("blue")}, where{0, even}), nil},
		{"another namespace counts nothing", append(evenly[:9:9], where{9, all(color("blue"), in("other"))}, where{0, even}), []string{"10: topology spread"}},
		{"what has ended counts nothing", append(evenly[:9:9], where{9, all(even, ended)}, where{0, even}), []string{"10: topology spread"}},
		{"what is being deleted counts nothing", []where{{0, even}, {0, all(even, deleted)}}, nil},
		{"no label", []where{{11, even}}, []string{"0: topology spread"}},
		{"everything", []where{{0, everything}, {0, everything}, {0, everything}}, nil},
		{"zones it cannot go to do not count", []where{{0, zones(1, "zone-0", "zone-1")}, {0, zones(1, "zone-0", "zone-1")}, {1, zones(1, "zone-0", "zone-1")}}, nil},
		{"zones it can go to do", []where{{0, zones(1, "zone-0", "zone-1")}, {0, zones(1, "zone-0", "zone-1")}}, []string{"1: topology spread"}},
		{"one zone", []where{{0, zones(1, "zone-0")}, {0, zones(1, "zone-0")}}, nil},
		{"fewer zones than there have to be", []where{{0, zones(2, "zone-0")}, {0, zones(2, "zone-0")}}, []string{"1: topology spread"}},
		{"versions are counted apart", []where{{0, versioned("1")}, {0, versioned("2")}}, nil},
		{"one version", []where{{0, versioned("1")}, {0, versioned("1")}, {0, versioned("2")}}, []string{"1: topology spread"}},
		{"two keys", []where{{0, all(even, spread(apart("blue", zone, 5), apart("blue", hostname, 1)))}, {0, all(even, spread(apart("blue", zone, 5), apart("blue", hostname, 1)))}},
			[]string{"1: topology spread"}},
	})
}

func TestTaintsKeepNodesOutOfSpreadOnlyIfThePodSaysSo(t *testing.T) {
	honor := corev1.NodeInclusionPolicyHonor
	ignore := corev1.NodeInclusionPolicyIgnore
	pods := func(change func(*corev1.Pod)) []where {
		even := all(color("blue"), spread(apart("blue", zone, 1)), change)
		return []where{{0, even}, {0, even}}
	}
	nodes := twelveNodes()[:2]
	nodes[1].Spec.Taints = []corev1.Taint{{Key: "reserved", Effect: corev1.TaintEffectNoSchedule}}
	for _, tt := range []struct {
		name   string
		change change
		want   []string
	}{
		{"not said", func(*corev1.Pod) {}, []string{"1: topology spread"}},
		{"ignored", func(pod *corev1.Pod) { pod.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &ignore }, []string{"1: topology spread"}},
		{"honored", func(pod *corev1.Pod) { pod.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honor }, nil},
		{"honored and tolerated", func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honor
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, []string{"1: topology spread"}},
	} {
		if diff := cmp.Diff(tt.want, broken(nodes, pods(tt.change))); diff != "" {
			t.Errorf("%s: broken (-want +got):\n%s", tt.name, diff)
		}
	}
	excluded := func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{zone: "zone-0"}
		pod.Spec.TopologySpreadConstraints[0].NodeAffinityPolicy = &ignore
	}
	if diff := cmp.Diff([]string{"1: topology spread"}, broken(nodes, pods(excluded))); diff != "" {
		t.Errorf("nodes that the selector excludes, counted all the same (-want +got):\n%s", diff)
	}
}

func TestViolationsSayWhatIsWrong(t *testing.T) {
	alone := all(color("green"), without(near("green", hostname)))
	pods := []corev1.Pod{placed(0, "node-00000", alone), placed(1, "node-00000", color("green"))}
	want := []string{"pod default/pod-000000: on node node-00000 against its pod anti-affinity: default/pod-000001 is in kubernetes.io/hostname=node-00000 too, on node node-00000"}
	if diff := cmp.Diff(want, check(objects{nodes: twelveNodes(), pods: pods}).Problems()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestCheckCountsUsedNodesAndPodsByZone(t *testing.T) {
	pods := []corev1.Pod{
		placed(0, "node-00000", nil), placed(1, "node-00010", nil), placed(2, "node-00010", nil), placed(3, "node-00002", nil),
		placed(4, "node-00011", nil), placed(5, "node-00003", ended), placed(6, "", nil),
	}
	r := check(objects{nodes: twelveNodes(), pods: pods})
	want := map[string]int{"zone-0": 3, "zone-2": 1}
	for i := range 10 {
		want[fmt.Sprint("zone-", i)] += 0
	}
	if diff := cmp.Diff(want, r.Zones); diff != "" {
		t.Errorf("pods by zone (-want +got):\n%s", diff)
	}
	if r.UsedNodes != 4 {
		t.Errorf("%d nodes are used, want 4", r.UsedNodes)
	}
}
