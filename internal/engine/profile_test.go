package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// verdictOf says what an evaluator finds of the scene's first node.
func verdictOf(t *testing.T, b scene) []string {
	t.Helper()
	st := b.state(t)
	f, _ := NewEvaluator(EvaluatorConfig{}).Filter(st, of(testClass), everything(st))
	var out []string
	for _, v := range f.Verdicts {
		out = append(out, fmt.Sprintf("%s: %s", v.Plugin, v.Reason))
	}
	return out
}

func TestDisabledPluginsDoNotFilter(t *testing.T) {
	hostile := cluster.Node{
		Name: "node", Unschedulable: true, Taints: []cluster.Taint{{Key: "k", Effect: "NoSchedule"}},
		Allocatable: requests(100, 100),
	}
	port := []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 80}}
	class := cluster.ClassSpec{
		NodeName: "elsewhere", NodeSelector: []cluster.Label{{Key: "a", Value: "b"}}, HostPorts: port, Requests: requests(1000, 0),
		Features: []string{"Feature"},
	}
	reasons := map[string]string{
		NodeUnschedulable: ReasonUnschedulable, NodeName: ReasonNodeName, TaintToleration: ReasonUntoleratedTaint,
		NodeAffinity: ReasonNodeAffinity, NodePorts: ReasonNodePorts, NodeResourcesFit: ReasonInsufficient + "cpu",
		NodeDeclaredFeatures: ReasonFeatures,
	}
	all := slices.DeleteFunc(DefaultProfile("").Filters, func(name string) bool {
		p := PluginOf(name)
		return p.relate != nil || p.resolve != nil // the scene has no pods for the former, and no volumes
	})
	if len(all) != len(reasons) {
		t.Fatalf("%d default filters, and reasons of %d", len(all), len(reasons))
	}
	of := func(filters ...string) []string {
		profile := DefaultProfile("")
		profile.Filters = filters
		return verdictOf(t, scene{
			nodes: []cluster.Node{hostile}, class: class, other: cluster.ClassSpec{HostPorts: port}, pods: []string{"node"}, profile: &profile,
		})
	}
	for k, plugin := range all {
		if diff := cmp.Diff([]string{plugin + ": " + reasons[plugin]}, of(plugin)); diff != "" {
			t.Errorf("with %s alone (-want +got):\n%s", plugin, diff)
		}
		if got := of(slices.Delete(slices.Clone(all), 0, k+1)...); slices.Contains(got, plugin+": "+reasons[plugin]) {
			t.Errorf("with %s and those before it disabled: %v", plugin, got)
		}
	}
	if got := of(); got != nil {
		t.Errorf("with no filter at all: %v", got)
	}
}

func TestFiltersRunInTheProfilesOrder(t *testing.T) {
	profile := DefaultProfile("")
	profile.Filters = []string{"OfSomebodyElse", TaintToleration, NodeUnschedulable}
	node := cluster.Node{Unschedulable: true, Taints: []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}}
	got := verdictOf(t, scene{nodes: []cluster.Node{node}, profile: &profile})
	if diff := cmp.Diff([]string{"TaintToleration: " + ReasonUntoleratedTaint}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestWithoutPreFilterNodeAffinityNarrowsNothing(t *testing.T) {
	for _, tt := range []struct {
		name       string
		preFilters []string
		want       string
	}{
		{"enabled", []string{NodeAffinity}, ReasonNodeAffinityOutside},
		{"disabled", nil, ReasonNodeAffinity},
	} {
		profile := DefaultProfile("")
		profile.PreFilters = tt.preFilters
		got := verdictOf(t, scene{nodes: []cluster.Node{{Name: "node"}}, class: required(fields("In", "elsewhere")), profile: &profile})
		if diff := cmp.Diff([]string{"NodeAffinity: " + tt.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAddedAffinityBindsAllPodsOfTheProfile(t *testing.T) {
	inA, inB := expressions("zone", "In", "a"), expressions("zone", "In", "b")
	node := cluster.Node{Labels: []cluster.Label{{Key: "zone", Value: "a"}}}
	for _, tt := range []struct {
		name  string
		added []cluster.NodeSelectorTerm
		class cluster.ClassSpec
		want  []string
	}{
		{"it matches", []cluster.NodeSelectorTerm{inB, inA}, cluster.ClassSpec{}, nil},
		{"it does not match", []cluster.NodeSelectorTerm{inB}, cluster.ClassSpec{}, []string{"NodeAffinity: " + ReasonNodeAffinityEnforced}},
		{"it has no term", nil, cluster.ClassSpec{}, []string{"NodeAffinity: " + ReasonNodeAffinityEnforced}},
		{"the pod's own does not match", []cluster.NodeSelectorTerm{inA}, required(inB), []string{"NodeAffinity: " + ReasonNodeAffinity}},
		{"neither matches", []cluster.NodeSelectorTerm{inB}, required(inB), []string{"NodeAffinity: " + ReasonNodeAffinityEnforced}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			profile := DefaultProfile("")
			profile.HasAddedRequired, profile.AddedRequired = true, tt.added
			got := verdictOf(t, scene{nodes: []cluster.Node{node}, class: tt.class, profile: &profile})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddedPreferencesAddToThePodsOwn(t *testing.T) {
	profile := DefaultProfile("")
	profile.AddedPreferred = []cluster.PreferredTerm{{Weight: 30, Term: expressions("zone", "Exists")}}
	class := cluster.ClassSpec{Preferred: []cluster.PreferredTerm{{Weight: 12, Term: expressions("zone", "In", "a")}}}
	st := scene{nodes: []cluster.Node{{Labels: []cluster.Label{{Key: "zone", Value: "a"}}}}, class: class, profile: &profile}.state(t)
	groups, _ := NewEvaluator(EvaluatorConfig{}).Score(st, of(testClass), everything(st), st.Nodes.Live, 1)
	if len(groups) != 1 || groups[0].Raw.Scores[1] != 42 {
		t.Errorf("%+v, want a raw score of 42", groups)
	}
}

func TestIgnoredResourcesAreNotChecked(t *testing.T) {
	const gpu = "example.com/gpu"
	for _, tt := range []struct {
		name              string
		resources, groups []string
		asks              string
		ignored           bool
	}{
		{"by name", []string{gpu}, nil, gpu, true},
		{"by group", nil, []string{"example.com"}, gpu, true},
		{"another name", []string{"example.com/cpu"}, nil, gpu, false},
		{"another group", nil, []string{"example"}, gpu, false},
		{"cpu is not extended", []string{"cpu"}, []string{"cpu"}, "cpu", false},
		{"hugepages are not extended", []string{"hugepages-2Mi"}, nil, "hugepages-2Mi", false},
		{"kubernetes.io is not extended", []string{"x.kubernetes.io/y"}, []string{"x.kubernetes.io"}, "x.kubernetes.io/y", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			profile := DefaultProfile("")
			profile.IgnoredResources, profile.IgnoredResourceGroups = tt.resources, tt.groups
			class := cluster.ClassSpec{Requests: []cluster.Quantity{quantity(tt.asks, 1)}}
			got := verdictOf(t, scene{nodes: []cluster.Node{{Name: "node"}}, class: class, profile: &profile})
			if (got == nil) != tt.ignored {
				t.Errorf("verdicts %v, want ignored: %v", got, tt.ignored)
			}
		})
	}
}

func TestVerdictsFollowNewSettings(t *testing.T) {
	profile := DefaultProfile("test")
	st := scene{nodes: []cluster.Node{{Unschedulable: true}}, profile: &profile}.state(t)
	e := NewEvaluator(EvaluatorConfig{})
	if f, _ := e.Filter(st, of(testClass), everything(st)); f.FeasibleCount != 0 {
		t.Errorf("a cordoned node is feasible")
	}
	profile.Filters = []string{NodeName}
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
	if f, _ := e.Filter(st, of(testClass), everything(st)); f.FeasibleCount != 1 {
		t.Errorf("a cordoned node is not feasible, though nothing filters cordoned nodes any more")
	}
}

func TestPreferencesThatDoNotParseMatterOnlyWhereTheyScore(t *testing.T) {
	class := cluster.ClassSpec{Preferred: []cluster.PreferredTerm{{Weight: 1, Term: expressions("n", "Near", "5")}}}
	profile := DefaultProfile("")
	node := []cluster.Node{{Name: "node"}}
	if got := verdictOf(t, scene{nodes: node, class: class, profile: &profile}); len(got) != 1 {
		t.Errorf("scored: %v, want one verdict", got)
	}
	profile.Weights = nil
	if got := verdictOf(t, scene{nodes: node, class: class, profile: &profile}); got != nil {
		t.Errorf("not scored: %v, want none", got)
	}
}

// Codes and places tell plugins apart: a verdict is one of a plugin's reasons, and a score has a place to itself.
func TestNoTwoPluginsShareACodeOrAPlace(t *testing.T) {
	codes, places := map[Verdict]string{codeFeasible: "feasible", codeUnsupported: "", codeNoVictims: "", codeNotHelpful: ""}, make(map[string]string)
	for _, p := range Plugins() {
		for k := range p.reasons {
			code := p.code + Verdict(k)
			if other, taken := codes[code]; taken || code >= maxCodes {
				t.Errorf("%s has the code %d, of %q", p.Name, code, other)
			}
			codes[code] = p.Name
		}
		if p.scale == notScored {
			continue
		}
		place, most := fmt.Sprint(p.scale.normalized(), p.place), fixedScores
		switch {
		case p.scale.ranges():
			most = normalizedScores
		case p.scale.normalized():
			most = nodeScales
		}
		if other, taken := places[place]; taken || p.place >= most {
			t.Errorf("%s has the place %d, of %q", p.Name, p.place, other)
		}
		places[place] = p.Name
	}
}

func TestTheProfileOfGeneratorsIsTheDefault(t *testing.T) {
	if diff := cmp.Diff(DefaultProfile("s"), clustertest.Profile("s")); diff != "" {
		t.Errorf("profile (-want +got):\n%s", diff)
	}
}
