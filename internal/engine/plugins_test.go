package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

const (
	testClass  cluster.ClassID = 1
	otherClass cluster.ClassID = 2
	mib                        = int64(1) << 20
)

// scene is a small cluster in which one class is judged.
type scene struct {
	nodes   []cluster.Node
	class   cluster.ClassSpec
	other   cluster.ClassSpec // of the pods that are there already
	pods    []string          // the names of their nodes
	profile *cluster.Profile  // of class "test"; nil: the default
}

func (b scene) state(t *testing.T) *cluster.State {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	settings := cluster.Settings{Shards: 1, Seed: 7}
	if b.profile != nil {
		p := *b.profile
		p.SchedulerName, b.class.SchedulerName = "test", "test"
		settings.Profiles = []cluster.Profile{p}
	}
	apply(t, st, cluster.SettingsSet{Settings: settings},
		cluster.ClassDefined{ID: testClass, Spec: b.class}, cluster.ClassDefined{ID: otherClass, Spec: b.other})
	for i, n := range b.nodes {
		if amount(n.Allocatable, "pods") == 0 {
			n.Allocatable = append(n.Allocatable, quantity("pods", 110))
		}
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: n})
	}
	for k, node := range b.pods {
		id := cluster.PodID(k)
		apply(t, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(k), Class: otherClass, NodeName: node}})
	}
	return st
}

func quantity(name string, value int64) cluster.Quantity {
	return cluster.Quantity{Name: name, Value: value}
}

func requests(cpu, memory int64, more ...cluster.Quantity) []cluster.Quantity {
	return append([]cluster.Quantity{quantity("cpu", cpu), quantity("memory", memory)}, more...)
}

func required(terms ...cluster.NodeSelectorTerm) cluster.ClassSpec {
	return cluster.ClassSpec{HasRequired: true, Required: terms}
}

func expressions(key, operator string, values ...string) cluster.NodeSelectorTerm {
	return cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{{Key: key, Operator: operator, Values: values}}}
}

func fields(operator string, values ...string) cluster.NodeSelectorTerm {
	return cluster.NodeSelectorTerm{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: operator, Values: values}}}
}

func tolerating(t ...cluster.Toleration) cluster.ClassSpec { return cluster.ClassSpec{Tolerations: t} }

func TestFilters(t *testing.T) {
	const (
		fits        = ""
		unschedul   = "!NodeUnschedulable: node(s) were unschedulable"
		wrongName   = "!NodeName: node(s) didn't match the requested node name"
		untolerated = "!TaintToleration: node(s) had untolerated taint(s)"
		affinity    = "!NodeAffinity: node(s) didn't match Pod's node affinity/selector"
		outside     = "!NodeAffinity: node(s) didn't satisfy plugin(s) [NodeAffinity]"
		conflict    = "!NodeAffinity: pod affinity terms conflict"
		ports       = "NodePorts: node(s) didn't have free ports for the requested pod ports"
	)
	cordoned := cluster.Node{Unschedulable: true}
	tainted := cluster.Node{Taints: []cluster.Taint{{Key: "k", Value: "v", Effect: "NoSchedule"}}}
	labelled := cluster.Node{Labels: []cluster.Label{{Key: "empty"}, {Key: "n", Value: "5"}, {Key: "text", Value: "x"}}}
	port := func(ip, protocol string, number int32) cluster.ClassSpec {
		return cluster.ClassSpec{HostPorts: []cluster.HostPort{{IP: ip, Protocol: protocol, Port: number}}}
	}
	sized := cluster.Node{Allocatable: append(requests(1000, 1000), quantity("example.com/gpu", 2), quantity("pods", 2))}
	tests := []struct {
		name string
		node cluster.Node
		spec cluster.ClassSpec
		used *cluster.ClassSpec
		want string // with a ! in front if it is unresolvable; several are separated by ";"
	}{
		{name: "a cordoned node", node: cordoned, want: unschedul},
		{name: "a cordoned node, tolerated", node: cordoned, spec: tolerating(cluster.Toleration{Key: "node.kubernetes.io/unschedulable", Operator: "Exists"}), want: fits},
		{name: "a cordoned node, tolerated by equality with the empty value", node: cordoned, spec: tolerating(cluster.Toleration{Key: "node.kubernetes.io/unschedulable"}), want: fits},
		{name: "a cordoned node, tolerated for another effect", node: cordoned, spec: tolerating(cluster.Toleration{Operator: "Exists", Effect: "NoExecute"}), want: unschedul},

		{name: "the named node", spec: cluster.ClassSpec{NodeName: "node"}, want: fits},
		{name: "another than the named node", spec: cluster.ClassSpec{NodeName: "elsewhere"}, want: wrongName},

		{name: "an untolerated taint", node: tainted, want: untolerated},
		{name: "NoExecute counts too", node: cluster.Node{Taints: []cluster.Taint{{Key: "k", Effect: "NoExecute"}}}, want: untolerated},
		{name: "PreferNoSchedule does not count", node: cluster.Node{Taints: []cluster.Taint{{Key: "k", Effect: "PreferNoSchedule"}}}, want: fits},
		{name: "tolerated by key and value", node: tainted, spec: tolerating(cluster.Toleration{Key: "k", Value: "v"}), want: fits},
		{name: "tolerated with another value", node: tainted, spec: tolerating(cluster.Toleration{Key: "k", Value: "w"}), want: untolerated},
		{name: "tolerated by Exists of another effect", node: tainted, spec: tolerating(cluster.Toleration{Key: "k", Operator: "Exists", Effect: "NoExecute"}), want: untolerated},
		{name: "an empty key with Equal compares values only", node: tainted, spec: tolerating(cluster.Toleration{Value: "v"}), want: fits},
		{name: "Gt tolerates nothing", node: tainted, spec: tolerating(cluster.Toleration{Key: "k", Operator: "Gt", Value: "1"}), want: untolerated},

		{name: "a node selector that matches", node: labelled, spec: cluster.ClassSpec{NodeSelector: []cluster.Label{{Key: "n", Value: "5"}, {Key: "empty"}}}, want: fits},
		{name: "a node selector with another value", node: labelled, spec: cluster.ClassSpec{NodeSelector: []cluster.Label{{Key: "n", Value: "6"}}}, want: affinity},
		{name: "a node selector of a label the node lacks", node: labelled, spec: cluster.ClassSpec{NodeSelector: []cluster.Label{{Key: "m"}}}, want: affinity},
		{name: "In", node: labelled, spec: required(expressions("text", "In", "y", "x")), want: fits},
		{name: "NotIn of a label the node lacks", node: labelled, spec: required(expressions("m", "NotIn", "x")), want: fits},
		{name: "NotIn", node: labelled, spec: required(expressions("text", "NotIn", "x")), want: affinity},
		{name: "Exists", node: labelled, spec: required(expressions("empty", "Exists")), want: fits},
		{name: "DoesNotExist", node: labelled, spec: required(expressions("empty", "DoesNotExist")), want: affinity},
		{name: "Gt a smaller number", node: labelled, spec: required(expressions("n", "Gt", "4")), want: fits},
		{name: "Gt the same number", node: labelled, spec: required(expressions("n", "Gt", "5")), want: affinity},
		{name: "Lt a larger number", node: labelled, spec: required(expressions("n", "Lt", "6")), want: fits},
		{name: "Lt of a label that is no number", node: labelled, spec: required(expressions("text", "Lt", "6")), want: affinity},
		{name: "one of two terms", node: labelled, spec: required(expressions("n", "In", "9"), expressions("text", "Exists")), want: fits},
		{name: "a term that does not parse beside one that matches", node: labelled, spec: required(expressions("n", "Gt", "many"), expressions("text", "Exists")), want: fits},
		{name: "a term that does not parse", node: labelled, spec: required(expressions("n", "Near", "5")), want: affinity},
		{name: "In without values does not parse", node: labelled, spec: required(expressions("n", "In")), want: affinity},
		{name: "an empty term", node: labelled, spec: required(cluster.NodeSelectorTerm{}), want: affinity},
		{name: "required without terms", node: labelled, spec: required(), want: affinity},
		{name: "by name", spec: required(fields("In", "node")), want: fits},
		{name: "not by name", spec: required(fields("NotIn", "node")), want: affinity},
		{name: "by another name", spec: required(fields("In", "elsewhere")), want: outside},
		{name: "a node set aside is not judged further", node: cordoned, spec: required(fields("In", "elsewhere")), want: outside},
		{name: "by another name or a label", node: labelled, spec: required(fields("In", "elsewhere"), expressions("n", "Exists")), want: fits},
		{name: "by two names of one field, which does not parse", spec: required(fields("In", "node", "elsewhere")), want: affinity},
		{name: "by names that contradict each other", want: conflict, spec: required(cluster.NodeSelectorTerm{
			Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"node"}}, {Key: "metadata.name", Operator: "In", Values: []string{"b"}}},
		})},

		{name: "a port in use", spec: port("10.0.0.1", "TCP", 80), used: new(port("10.0.0.1", "TCP", 80)), want: ports},
		{name: "a port in use on all IPs", spec: port("10.0.0.1", "TCP", 80), used: new(port("0.0.0.0", "TCP", 80)), want: ports},
		{name: "all IPs of a port in use on one", spec: port("0.0.0.0", "TCP", 80), used: new(port("10.0.0.1", "TCP", 80)), want: ports},
		{name: "a port on another IP", spec: port("10.0.0.1", "TCP", 80), used: new(port("10.0.0.2", "TCP", 80)), want: fits},
		{name: "a port of another protocol", spec: port("0.0.0.0", "UDP", 80), used: new(port("0.0.0.0", "TCP", 80)), want: fits},

		{name: "exactly what is left", node: sized, spec: cluster.ClassSpec{Requests: requests(400, 1000)}, used: &cluster.ClassSpec{Requests: []cluster.Quantity{quantity("cpu", 600)}}, want: fits},
		{name: "more than what is left", node: sized, spec: cluster.ClassSpec{Requests: requests(401, 1000)}, used: &cluster.ClassSpec{Requests: []cluster.Quantity{quantity("cpu", 600)}}, want: "NodeResourcesFit: Insufficient cpu"},
		{name: "more than the node has", node: sized, spec: cluster.ClassSpec{Requests: requests(401, 1001)}, used: &cluster.ClassSpec{Requests: []cluster.Quantity{quantity("cpu", 600)}}, want: "!NodeResourcesFit: Insufficient cpu; !NodeResourcesFit: Insufficient memory"},
		{name: "an extended resource", node: sized, spec: cluster.ClassSpec{Requests: []cluster.Quantity{quantity("example.com/gpu", 3)}}, want: "!NodeResourcesFit: Insufficient example.com/gpu"},
		{name: "a resource that no node has", node: sized, spec: cluster.ClassSpec{Requests: []cluster.Quantity{quantity("example.com/fpga", 1)}}, want: "!NodeResourcesFit: Insufficient example.com/fpga"},
		{name: "a name that is no resource", node: sized, spec: cluster.ClassSpec{Requests: []cluster.Quantity{quantity("luck", 1)}}, want: fits},
		{name: "no room for a pod", node: cluster.Node{Allocatable: []cluster.Quantity{quantity("pods", 1)}}, used: &cluster.ClassSpec{}, want: "NodeResourcesFit: Too many pods"},

		{name: "what Berth cannot judge", spec: cluster.ClassSpec{Unsupported: "volumes", UnsupportedPlugin: "VolumeBinding"}, want: "!VolumeBinding: volumes"},
		{name: "a preference that does not parse", want: `!NodeAffinity: parse preferred node affinity term 0: key "a": operator "Near" is not valid`,
			spec: cluster.ClassSpec{Preferred: []cluster.PreferredTerm{{Weight: 1, Term: expressions("a", "Near")}}}},
		{name: "a preference of no weight that does not parse", want: fits,
			spec: cluster.ClassSpec{Preferred: []cluster.PreferredTerm{{Weight: 0, Term: expressions("a", "Near")}}}},

		{name: "the first plugin gives the reason", node: cluster.Node{Unschedulable: true, Taints: tainted.Taints}, spec: cluster.ClassSpec{NodeName: "b", Requests: requests(1, 1)}, want: unschedul},
		{name: "taints come before affinity", node: tainted, spec: required(expressions("n", "Exists")), want: untolerated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.node.Name = "node"
			b := scene{nodes: []cluster.Node{tt.node}, class: tt.spec}
			if tt.used != nil {
				b.other, b.pods = *tt.used, []string{"node"}
			}
			st := b.state(t)
			e := NewEvaluator(EvaluatorConfig{})
			f, ok := e.Filter(st, of(testClass), cluster.Range{First: 0, End: 64})
			if !ok {
				t.Fatal("Filter does not know the class")
			}
			if got := texts(f.Verdicts); got != tt.want {
				t.Errorf("Filter: %q, want %q", got, tt.want)
			}
			if want := tt.want == fits; f.Eligible.Has(0) != want || f.FeasibleCount == 1 != want || f.Nodes != 1 {
				t.Errorf("Filter: %+v, want feasible %v of 1 node", f, want)
			}
			v, ok := e.Node(st, of(testClass), cluster.NoPod, 0)
			if got := texts(e.Explain(st, of(testClass), v, 0)); !ok || got != tt.want {
				t.Errorf("Node: %q, %v, want %q", got, ok, tt.want)
			}
		})
	}
}

func texts(verdicts []VerdictCount) string {
	var out []string
	for _, v := range verdicts {
		mark := ""
		if v.Unresolvable {
			mark = "!"
		}
		out = append(out, fmt.Sprintf("%s%s: %s", mark, v.Plugin, v.Reason))
	}
	return strings.Join(out, "; ")
}

func TestScores(t *testing.T) {
	const unscored = NotScored
	gpu := quantity("example.com/gpu", 4)
	image := func(size int64) []cluster.Image {
		return []cluster.Image{{Names: []string{"app:1", "app@sha256:0"}, Size: size}}
	}
	strategy := func(name string, resources ...cluster.PluginWeight) *cluster.Profile {
		p := DefaultProfile("test")
		p.FitStrategy, p.FitResources = name, resources
		p.Shape = []cluster.ShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
		return &p
	}
	cpuAndMemory := []cluster.PluginWeight{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
	pod := cluster.ClassSpec{Requests: requests(3000, 5000), ScoreRequests: requests(3000, 5000)}
	twoNodes := []cluster.Node{{Name: "a", Allocatable: requests(4000, 10000)}, {Name: "b", Allocatable: requests(6000, 10000)}}
	besteffort := cluster.ClassSpec{ScoreRequests: requests(100, 200*mib), NonZeroCPU: 100, NonZeroMemory: 200 * mib}
	balanced := DefaultProfile("test")
	balanced.BalancedResources = []string{"cpu", "memory", "example.com/gpu"}
	images := func(containers int32, names ...string) cluster.ClassSpec {
		return cluster.ClassSpec{Images: names, ImageContainers: containers}
	}
	none := cluster.Profile{Weights: []cluster.PluginWeight{{Name: TaintToleration, Weight: 1}}}

	tests := []struct {
		name string
		b    scene
		want [][3]int32 // by node: fit, balanced, image
	}{
		// a: cpu (4000-3000)/4000 = 25, memory 50: 37. b: 50, 50.
		// Balance with the pod: a |.75-.5|/2 = .125: 87; b |.5-.5|: 100; without: 100. a 50+(50+87-100)/2 = 68, b 75.
		{"LeastAllocated", scene{nodes: twoNodes, class: pod}, [][3]int32{{37, 68, 0}, {50, 75, 0}}},
		// a: 75 and 50: 62. b: 50 and 50.
		{"MostAllocated", scene{nodes: twoNodes, class: pod, profile: strategy(cluster.MostAllocated, cpuAndMemory...)}, [][3]int32{{62, 68, 0}, {50, 75, 0}}},
		// a: at 75% 25, at 50% 50: 37.5, rounded up. b: 50.
		{"RequestedToCapacityRatio", scene{nodes: twoNodes, class: pod, profile: strategy(cluster.RequestedToCapacityRatio, cpuAndMemory...)}, [][3]int32{{38, 68, 0}, {50, 75, 0}}},
		// cpu full scores 0 and is left out: 50, not 25. Balance with the pod |1-.5|/2: 75, 50+(50+75-100)/2 = 62.
		{"RequestedToCapacityRatio leaves out what scores 0", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(3000, 10000)}}, class: pod,
			profile: strategy(cluster.RequestedToCapacityRatio, cpuAndMemory...),
		}, [][3]int32{{50, 62, 0}}},
		// cpu 25·3, memory 50·1: 125/4 = 31. The gpu is not requested, the disk not there: both are left out.
		{"weights of resources", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(4000, 10000, quantity("example.com/gpu", 8))}}, class: pod,
			profile: strategy(cluster.LeastAllocated, cluster.PluginWeight{Name: "cpu", Weight: 3}, cluster.PluginWeight{Name: "memory", Weight: 1},
				cluster.PluginWeight{Name: "example.com/gpu", Weight: 9}, cluster.PluginWeight{Name: "ephemeral-storage", Weight: 9}),
		}, [][3]int32{{31, 68, 0}}},
		// cpu (1000-200)/1000 = 80; memory (1024-400)/1024 = 60.9: 70. It requests nothing: no balance.
		{"pods without requests count 100m and 200 MiB", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(1000, 1024*mib)}}, class: besteffort, other: besteffort, pods: []string{"a"},
		}, [][3]int32{{70, unscored, 0}}},
		// The node's pods request 200% of its cpu: 0; memory 100.
		{"more requested than allocatable", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(1000, 1000)}}, class: cluster.ClassSpec{},
			other: cluster.ClassSpec{Requests: requests(2000, 0), NonZeroCPU: 2000}, pods: []string{"a"},
		}, [][3]int32{{50, unscored, 0}}},
		// With the pod .6 and .25: std .175: 82; without .3 and 0: 85. 50+(50-3)/2 = 73. Least: 40 and 75: 57.
		{"balance counts real requests", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(10000, 20000)}}, class: pod,
			other: cluster.ClassSpec{Requests: requests(3000, 0), NonZeroCPU: 3000}, pods: []string{"a"},
		}, [][3]int32{{57, 73, 0}}},
		// With the pod .6, .25, .5: std .1472: 85; without .3, 0, 0: std .1414: 85. 75.
		{"balance of three resources", scene{
			nodes: []cluster.Node{{Name: "a", Allocatable: requests(10000, 20000, quantity("example.com/gpu", 8))}},
			class: cluster.ClassSpec{Requests: requests(3000, 5000, gpu), ScoreRequests: requests(3000, 5000, gpu)},
			other: cluster.ClassSpec{Requests: requests(3000, 0), NonZeroCPU: 3000}, pods: []string{"a"}, profile: &balanced,
		}, [][3]int32{{57, 75, 0}}},
		// 250 MiB on one of two nodes: 125; (125-23)/(1000-23) = 10.4%.
		{"an image on one of two nodes", scene{
			nodes: []cluster.Node{{Name: "a", Images: image(250 * mib)}, {Name: "b"}}, class: images(1, "app:1"),
		}, [][3]int32{{0, unscored, 10}, {0, unscored, 0}}},
		// Twice 125 of at most 2000: (250-23)/(2000-23) = 11.5%.
		{"an image of two containers", scene{
			nodes: []cluster.Node{{Name: "a", Images: image(250 * mib)}, {Name: "b"}}, class: images(2, "app:1", "app:1"),
		}, [][3]int32{{0, unscored, 11}, {0, unscored, 0}}},
		{"an image has at most 1000 MiB, and the size it was first seen with", scene{
			nodes: []cluster.Node{{Name: "a", Images: image(4000 * mib)}, {Name: "b", Images: image(1)}}, class: images(1, "app@sha256:0"),
		}, [][3]int32{{0, unscored, 100}, {0, unscored, 100}}},
		{"an image below 23 MiB", scene{
			nodes: []cluster.Node{{Name: "a", Images: image(22 * mib)}}, class: images(1, "app:1"),
		}, [][3]int32{{0, unscored, 0}}},
		{"plugins without a weight do not score", scene{nodes: twoNodes, class: pod, profile: &none}, [][3]int32{{unscored, unscored, unscored}, {unscored, unscored, unscored}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := tt.b.state(t)
			groups, ok := NewEvaluator(EvaluatorConfig{}).Score(st, of(testClass), cluster.Range{First: 0, End: 64}, st.Nodes.Live, 100)
			if !ok {
				t.Fatal("Score: the class is not known")
			}
			got := make([][3]int32, len(tt.b.nodes))
			for _, g := range groups {
				for _, s := range g.Nodes {
					got[s.Node] = [3]int32(s.Scores[:3])
					want := int64(max(s.Scores[0], 0)) + int64(max(s.Scores[1], 0))
					if image := int64(max(s.Scores[2], 0)); s.Fixed != want || g.OfImages != image {
						t.Errorf("node %d: Fixed = %d, OfImages = %d, want %d and %d", s.Node, s.Fixed, g.OfImages, want, image)
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("scores by node (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRawScoresAreNormalisedOverAllGroups(t *testing.T) {
	soft := func(n int) []cluster.Taint {
		return []cluster.Taint{{Key: "a", Effect: "PreferNoSchedule"}, {Key: "b", Effect: "PreferNoSchedule"}, {Key: "c", Effect: "PreferNoSchedule"}}[:n]
	}
	b := scene{
		nodes: []cluster.Node{
			{Name: "plain"},
			{Name: "preferred", Labels: []cluster.Label{{Key: "zone", Value: "z"}}, Taints: soft(1)},
			{Name: "both", Labels: []cluster.Label{{Key: "disk", Value: "ssd"}, {Key: "zone", Value: "z"}}, Taints: soft(3)},
			{Name: "tolerated", Taints: []cluster.Taint{{Key: "t", Effect: "PreferNoSchedule"}}},
		},
		class: cluster.ClassSpec{
			Tolerations: []cluster.Toleration{{Key: "t", Operator: "Exists"}},
			Preferred: []cluster.PreferredTerm{
				{Weight: 30, Term: expressions("zone", "Exists")}, {Weight: 50, Term: expressions("disk", "In", "ssd")},
				{Weight: 100, Term: cluster.NodeSelectorTerm{}},
			},
		},
	}
	st := b.state(t)
	groups, _ := NewEvaluator(EvaluatorConfig{}).Score(st, of(testClass), cluster.Range{First: 0, End: 64}, st.Nodes.Live, 1)
	var raws []Raw
	for _, g := range groups {
		raws = append(raws, g.Raw)
	}
	if diff := cmp.Diff([]Raw{{}, {Scores: [2]int64{1, 30}}, {Scores: [2]int64{3, 80}}}, raws); diff != "" {
		t.Fatalf("raw scores (-want +got):\n%s", diff)
	}
	if groups[0].Count != 2 || len(groups[0].Nodes) != 1 {
		t.Errorf("first group has %d nodes, lists %d, want 2 and 1", groups[0].Count, len(groups[0].Nodes))
	}
	// Taints: 100, 100-33 = 67, 0. Affinity: 0, 3000/80 = 37, 100.
	want := []GroupScores{ // in total 3·taints + 2·affinity: nothing else scores
		{Feasible: true, Normalized: Normalized{100}, Totals: []int64{300}},
		{Feasible: true, Raw: [4]int64{1, 30}, Normalized: Normalized{67, 37}, Totals: []int64{275}},
		{Feasible: true, Raw: [4]int64{3, 80}, Normalized: Normalized{0, 100}, Totals: []int64{200}},
	}
	got, _ := NewEvaluator(EvaluatorConfig{}).Totals(st, of(testClass), groups, cluster.NoNode)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

func TestParseIntIsStrconvs(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "+7": 7, "-12": -12, "007": 7, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	} {
		if got, ok := parseInt(text); !ok || got != want {
			t.Errorf("parseInt(%q) = %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "+", "-", "1_000", "0x10", "1.5", " 1", "9223372036854775808", "-9223372036854775809", "99999999999999999999"} {
		if got, ok := parseInt(text); ok {
			t.Errorf("parseInt(%q) = %d, want no number", text, got)
		}
	}
}

func TestPluginsThatReadOtherNodesSayWhatMayLetAPodPreempt(t *testing.T) {
	for _, p := range relatingPlugins() {
		if p.keeps.pod == nil || p.keeps.on == nil {
			t.Errorf("%s has no hints for pods that it keeps from preempting", p.Name)
		}
	}
}
