package config_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

const header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// complete reads and completes a configuration, given without its header.
func complete(body string) (config.Completed, error) { return completeWith(config.Options{}, body) }

// completeWith does so as it is meant with options.
func completeWith(options config.Options, body string) (config.Completed, error) {
	cfg, err := config.Decode([]byte(header + body))
	if err != nil {
		return config.Completed{}, err
	}
	return config.Complete(cfg, options)
}

func mustComplete(t *testing.T, body string) config.Completed {
	t.Helper()
	c, err := complete(body)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// profile wraps plugins and pluginConfig, in flow style, into the one profile of a configuration.
func profile(plugins, pluginConfig string) string {
	out := "profiles:\n- schedulerName: default-scheduler\n"
	if plugins != "" {
		out += "  plugins: " + plugins + "\n"
	}
	if pluginConfig != "" {
		out += "  pluginConfig: " + pluginConfig + "\n"
	}
	return out
}

func TestTheEmptyConfigurationIsTheDefaultProfile(t *testing.T) {
	c := mustComplete(t, "")
	if diff := cmp.Diff([]cluster.Profile{engine.DefaultProfile("default-scheduler")}, c.Profiles); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	if c.Notes != nil {
		t.Errorf("notes: %q", c.Notes)
	}
}

// The figures are those of kube-scheduler 1.36's default_plugins.go and defaults.go.
func TestDefaultsAreKubeSchedulers(t *testing.T) {
	c := mustComplete(t, "")
	var plugins []string
	for _, p := range c.Config.Profiles[0].Plugins.MultiPoint.Enabled {
		weight := ""
		if p.Weight != nil {
			weight = " " + strings.Repeat("I", int(*p.Weight))
		}
		plugins = append(plugins, p.Name+weight)
	}
	want := []string{
		"SchedulingGates", "PrioritySort", "NodeUnschedulable", "NodeName", "TaintToleration III", "NodeAffinity II",
		"NodePorts", "NodeResourcesFit I", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
		"PodTopologySpread II", "InterPodAffinity II", "DynamicResources II", "DefaultPreemption",
		"NodeResourcesBalancedAllocation I", "ImageLocality I", "DefaultBinder", "NodeDeclaredFeatures",
	}
	if diff := cmp.Diff(want, plugins); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
	out, err := config.Encode(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"parallelism: 16", "percentageOfNodesToScore: 0", "podInitialBackoffSeconds: 1", "podMaxBackoffSeconds: 10",
		"leaseDuration: 15s", "renewDeadline: 10s", "retryPeriod: 2s", "resourceLock: leases", "resourceName: kube-scheduler",
		"resourceNamespace: kube-system", "leaderElect: true", "qps: 50", "burst: 100",
		"contentType: application/vnd.kubernetes.protobuf", "enableProfiling: true", "enableContentionProfiling: true",
		"minCandidateNodesPercentage: 10", "minCandidateNodesAbsolute: 100", "hardPodAffinityWeight: 1",
		"ignorePreferredTermsOfExistingPods: false", "defaultingType: System", "bindTimeoutSeconds: 600", "filterTimeout: 10s",
		"bindingTimeout: 10m0s", "type: LeastAllocated", "kind: NodeAffinityArgs", "schedulerName: default-scheduler",
	} {
		if !slices.ContainsFunc(strings.Split(string(out), "\n"), func(line string) bool { return strings.TrimSpace(line) == want }) {
			t.Errorf("the completed configuration has no line %q", want)
		}
	}
}

func TestEachProfileHasTheBindTimeoutOfItsArguments(t *testing.T) {
	c := mustComplete(t, "profiles: [{schedulerName: patient}, {schedulerName: hasty, pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 1}}]}, "+
		"{schedulerName: never, pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 0}}]}]")
	if diff := cmp.Diff(map[string]time.Duration{"patient": 600 * time.Second, "hasty": time.Second, "never": 0}, c.BindTimeouts); diff != "" {
		t.Errorf("bind timeouts (-want +got):\n%s", diff)
	}
}

// kube-scheduler's defaults, and what is said.
func TestEachProfileHasTheCandidatesOfItsArguments(t *testing.T) {
	c := mustComplete(t, "extenders: [{urlPrefix: 'http://x', preemptVerb: p}]\nprofiles: [{schedulerName: a}, "+
		"{schedulerName: b, pluginConfig: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 7}}]}]")
	if diff := cmp.Diff(map[string]engine.CandidateNodes{"a": {Percentage: 10, Absolute: 100}, "b": {Absolute: 7}}, c.Candidates); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestACompletedConfigurationCompletesToItself(t *testing.T) {
	for _, body := range []string{
		"",
		profile("{multiPoint: {disabled: [{name: InterPodAffinity}]}}", "[{name: InterPodAffinity, args: {hardPodAffinityWeight: 5}}]"),
		profile("", "[{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, minDomains: 3}]}}]"),
		"percentageOfNodesToScore: 30",
		profile("{multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: SchedulingGates}, {name: DefaultBinder}, {name: NodeName}]}}", ""),
		profile("{score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity, weight: 9}]}}",
			"[{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}]"),
	} {
		first := mustComplete(t, body)
		out, err := config.Encode(first.Config)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Decode(out)
		if err != nil {
			t.Fatalf("decode what was encoded: %v\n%s", err, out)
		}
		second, err := config.Complete(cfg, config.Options{})
		if err != nil {
			t.Fatalf("complete what was completed: %v\n%s", err, out)
		}
		if diff := cmp.Diff(first.Profiles, second.Profiles); diff != "" {
			t.Errorf("profiles (-first +second):\n%s", diff)
		}
		again, err := config.Encode(second.Config)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(out), string(again)); diff != "" {
			t.Errorf("encoded (-first +second):\n%s", diff)
		}
	}
}

func TestPostFilterPluginsReachTheProfile(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		want       []string
	}{
		{"the default", "", []string{"DynamicResources", "DefaultPreemption"}},
		{"arguments", profile("", "[{name: DefaultPreemption, args: {minCandidateNodesAbsolute: 5}}]"), []string{"DynamicResources", "DefaultPreemption"}},
		{"no preemption", profile("{postFilter: {disabled: [{name: DefaultPreemption}]}}", ""), []string{"DynamicResources"}},
		{"nothing but preemption", profile("{postFilter: {disabled: [{name: '*'}], enabled: [{name: DefaultPreemption}]}}", ""), []string{"DefaultPreemption"}},
		{"nothing", profile("{postFilter: {disabled: [{name: '*'}]}}", ""), nil},
		{"preemption first", profile("{postFilter: {enabled: [{name: DefaultPreemption}]}, preEnqueue: {enabled: [{name: DefaultPreemption}]}}", ""), []string{"DefaultPreemption", "DynamicResources"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, mustComplete(t, tt.body).Profiles[0].PostFilters); diff != "" {
				t.Errorf("post filters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompleteDoesNotChangeWhatItIsGiven(t *testing.T) {
	cfg := &configv1.KubeSchedulerConfiguration{}
	if _, err := config.Complete(cfg, config.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&configv1.KubeSchedulerConfiguration{}, cfg); diff != "" {
		t.Errorf("after Complete (-want +got):\n%s", diff)
	}
}

// weights writes weights as name:weight.
func weights(p cluster.Profile) string {
	var out []string
	for _, w := range p.Weights {
		out = append(out, w.Name+":"+string(rune('0'+w.Weight)))
	}
	return strings.Join(out, " ")
}

func TestPluginsMergeAsInKubeScheduler(t *testing.T) {
	const (
		volumes  = "VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone"
		between  = volumes + " PodTopologySpread InterPodAffinity NodeDeclaredFeatures"
		filters  = "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit " + between
		prefs    = "NodeAffinity NodePorts NodeResourcesFit " + between
		behind   = "NodeResourcesFit:1 PodTopologySpread:2 InterPodAffinity:2 NodeResourcesBalancedAllocation:1 ImageLocality:1"
		standard = "TaintToleration:3 NodeAffinity:2 " + behind
		needed   = "{name: PrioritySort}, {name: SchedulingGates}, {name: DefaultBinder}"
	)
	for _, tt := range []struct{ name, plugins, preFilters, filters, weights string }{
		{"nothing said", "{}", prefs, filters, standard},
		{"one disabled at a point", "{filter: {disabled: [{name: NodeName}]}}", prefs,
			"NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit " + between, standard},
		{"one disabled at all points", "{multiPoint: {disabled: [{name: NodeAffinity}]}}", "NodePorts NodeResourcesFit " + between,
			"NodeUnschedulable NodeName TaintToleration NodePorts NodeResourcesFit " + between, "TaintToleration:3 " + behind},
		{"those that look at other pods, disabled", "{multiPoint: {disabled: [{name: PodTopologySpread}, {name: InterPodAffinity}]}}",
			"NodeAffinity NodePorts NodeResourcesFit " + volumes + " NodeDeclaredFeatures",
			"NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit " + volumes + " NodeDeclaredFeatures",
			"TaintToleration:3 NodeAffinity:2 NodeResourcesFit:1 NodeResourcesBalancedAllocation:1 ImageLocality:1"},
		{"all disabled at a point", "{score: {disabled: [{name: '*'}]}}", prefs, filters, ""},
		{"all disabled at a point but one", "{score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}}", prefs, filters, "ImageLocality:1"},
		{"all disabled everywhere but some", "{multiPoint: {disabled: [{name: '*'}], enabled: [" + needed + ", {name: NodeResourcesFit, weight: 4}, {name: NodeName}]}}",
			"NodeResourcesFit", "NodeResourcesFit NodeName", "NodeResourcesFit:4"},
		{"a weight at the point", "{score: {enabled: [{name: ImageLocality, weight: 7}]}}", prefs, filters,
			"ImageLocality:7 TaintToleration:3 NodeAffinity:2 NodeResourcesFit:1 PodTopologySpread:2 InterPodAffinity:2 NodeResourcesBalancedAllocation:1"},
		{"a weight at all points, where it stood", "{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}}", prefs, filters,
			"TaintToleration:3 NodeAffinity:5 " + behind},
		{"a weight at the point before that at all points", "{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}, score: {enabled: [{name: NodeAffinity, weight: 6}]}}", prefs, filters,
			"NodeAffinity:6 TaintToleration:3 " + behind},
		{"weight 0 is 1", "{multiPoint: {enabled: [{name: TaintToleration, weight: 0}]}}", prefs, filters,
			"TaintToleration:1 NodeAffinity:2 " + behind},
		{"enabled at a point comes first", "{filter: {enabled: [{name: NodeResourcesFit}, {name: NodePorts}]}}", prefs,
			"NodeResourcesFit NodePorts NodeUnschedulable NodeName TaintToleration NodeAffinity " + between, standard},
		{"enabled and disabled at a point: runs, behind", "{filter: {enabled: [{name: NodeName}], disabled: [{name: NodeName}]}}", prefs,
			"NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit " + between + " NodeName", standard},
		{"a plugin that Berth does not have, disabled", "{multiPoint: {disabled: [{name: DynamicResources}]}, postFilter: {disabled: [{name: '*'}]}}", prefs, filters, standard},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := mustComplete(t, profile(tt.plugins, "")).Profiles[0]
			got := [3]string{strings.Join(p.PreFilters, " "), strings.Join(p.Filters, " "), weights(p)}
			if diff := cmp.Diff([3]string{tt.preFilters, tt.filters, tt.weights}, got); diff != "" {
				t.Errorf("preFilters, filters, weights (-want +got):\n%s", diff)
			}
		})
	}
}

func TestArgumentsReachTheProfile(t *testing.T) {
	p := mustComplete(t, profile("", `
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/a]
      ignoredResourceGroups: [example.org]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: example.com/gpu, weight: 5}, {name: cpu}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 1}, {utilization: 80, score: 9}]}
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: memory}, {name: example.com/gpu, weight: 1}]}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [gpu]}]}, {matchFields: [{key: metadata.name, operator: In, values: [node-1]}]}]
        preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 3, preference: {matchExpressions: [{key: ssd, operator: Exists}]}}
`)).Profiles[0]
	want := engine.DefaultProfile("default-scheduler")
	want.IgnoredResources, want.IgnoredResourceGroups = []string{"example.com/a"}, []string{"example.org"}
	want.FitStrategy = cluster.RequestedToCapacityRatio
	want.FitResources = []cluster.PluginWeight{{Name: "example.com/gpu", Weight: 5}, {Name: "cpu", Weight: 1}}
	want.Shape = []cluster.ShapePoint{{Utilization: 0, Score: 1}, {Utilization: 80, Score: 9}}
	want.BalancedResources = []string{"memory", "example.com/gpu"}
	want.HasAddedRequired = true
	want.AddedRequired = []cluster.NodeSelectorTerm{
		{Expressions: []cluster.Requirement{{Key: "pool", Operator: "In", Values: []string{"gpu"}}}},
		{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"node-1"}}}},
	}
	want.AddedPreferred = []cluster.PreferredTerm{
		{Weight: 3, Term: cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{{Key: "ssd", Operator: "Exists"}}}},
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("profile (-want +got):\n%s", diff)
	}
}

func TestArgumentsOfInterPodAffinityReachTheProfile(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		weight     int32
		ignore     bool
	}{
		{"none", "{}", 1, false},
		{"a weight", "{hardPodAffinityWeight: 100}", 100, false},
		{"no weight", "{hardPodAffinityWeight: 0}", 0, false},
		{"preferred terms", "{ignorePreferredTermsOfExistingPods: true}", 1, true},
	} {
		want := engine.DefaultProfile("default-scheduler")
		want.HardPodAffinityWeight, want.IgnorePreferredTerms = tt.weight, tt.ignore
		got := mustComplete(t, args("InterPodAffinity", tt.args)).Profiles[0]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: profile (-want +got):\n%s", tt.name, diff)
		}
	}
	got := mustComplete(t, profile("{multiPoint: {disabled: [{name: InterPodAffinity}]}}", "[{name: InterPodAffinity, args: {hardPodAffinityWeight: 5}}]"))
	if w := got.Profiles[0].HardPodAffinityWeight; w != 1 {
		t.Errorf("weight of a plugin that does not run: %d, want the default", w)
	}
}

func TestArgumentsOfPodTopologySpreadReachTheProfile(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		want       []cluster.SpreadConstraint
		system     bool
	}{
		{"none", "{}", cluster.SystemSpread(), true},
		{"kube-scheduler's own", "{defaultingType: System}", cluster.SystemSpread(), true},
		{"an empty list", "{defaultingType: List}", nil, false},
		{"a list, in its order", `{defaultingType: List, defaultConstraints: [
			{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway},
			{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]}`,
			[]cluster.SpreadConstraint{
				{TopologyKey: "zone", MaxSkew: 2, MinDomains: 1, HonorAffinity: true},
				{TopologyKey: "rack", MaxSkew: 1, MinDomains: 1, HonorAffinity: true, Hard: true},
			}, false},
		{"all of a constraint", `{defaultingType: List, defaultConstraints: [
			{maxSkew: 4, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3, nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor, matchLabelKeys: [a]}]}`,
			[]cluster.SpreadConstraint{{TopologyKey: "zone", MaxSkew: 4, MinDomains: 3, HonorTaints: true, Hard: true}}, false},
		{"policies written out", `{defaultingType: List, defaultConstraints: [
			{maxSkew: 4, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, minDomains: -3, nodeAffinityPolicy: Honor, nodeTaintsPolicy: Ignore}]}`,
			[]cluster.SpreadConstraint{{TopologyKey: "zone", MaxSkew: 4, MinDomains: 1, HonorAffinity: true}}, false},
	} {
		want := engine.DefaultProfile("default-scheduler")
		want.DefaultSpread, want.SystemSpread = tt.want, tt.system
		got := mustComplete(t, args("PodTopologySpread", tt.args)).Profiles[0]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: profile (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAProfilesPercentageOfNodesComesBeforeThatOfAll(t *testing.T) {
	c := mustComplete(t, `
percentageOfNodesToScore: 30
profiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 70}, {schedulerName: c, percentageOfNodesToScore: 0}]
`)
	got := make(map[string]int32)
	for _, p := range c.Profiles {
		got[p.SchedulerName] = p.PercentageOfNodesToScore
	}
	if diff := cmp.Diff(map[string]int32{"a": 30, "b": 70, "c": 0}, got); diff != "" {
		t.Errorf("percentages (-want +got):\n%s", diff)
	}
	if c.Notes != nil {
		t.Errorf("notes: %q", c.Notes)
	}
}

func TestSeveralProfilesStandSideBySide(t *testing.T) {
	c := mustComplete(t, `
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]
`)
	packer := engine.DefaultProfile("packer")
	packer.FitStrategy = cluster.MostAllocated
	if diff := cmp.Diff([]cluster.Profile{engine.DefaultProfile("default-scheduler"), packer}, c.Profiles); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	if *c.Config.PodInitialBackoffSeconds != 2 || *c.Config.PodMaxBackoffSeconds != 20 {
		t.Errorf("backoffs %d, %d", *c.Config.PodInitialBackoffSeconds, *c.Config.PodMaxBackoffSeconds)
	}
}

func TestWhatMeansNothingToBerthIsNoted(t *testing.T) {
	for _, tt := range []struct{ body, want string }{
		{"parallelism: 3", "parallelism"},
		{"delayCacheUntilActive: true", "delayCacheUntilActive"},
		{"clientConnection: {contentType: application/json}", "contentType"},
	} {
		c := mustComplete(t, tt.body)
		if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], tt.want+" ") {
			t.Errorf("%s: notes %q, want one of %s", tt.body, c.Notes, tt.want)
		}
	}
}

// PodGroups are followed in all profiles: what kube-scheduler writes with its gates on says nothing that has to be noted, and what would not have them followed is.
func TestThatPodGroupsCannotBeSwitchedOffInAProfileIsNoted(t *testing.T) {
	const vain = " is ignored: PodGroups are followed in every profile where the API server serves them. Pods that name none are placed each by itself"
	for plugins, want := range map[string][]string{
		"{multiPoint: {enabled: [{name: GangScheduling}, {name: TopologyPlacementGenerator}, {name: PodGroupPodsCount, weight: 1}]}}": nil,
		"{multiPoint: {disabled: [{name: ImageLocality}, {name: GangScheduling}]}}":                                                   {"profiles[0].plugins.multiPoint.disabled[1]" + vain},
		"{permit: {disabled: [{name: GangScheduling}]}, score: {disabled: [{name: ImageLocality}]}}":                                  {"profiles[0].plugins.permit.disabled[0]" + vain},
		"{placementScore: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 2}]}}": {
			"profiles[0].plugins.placementScore.disabled[0]" + vain, "profiles[0].plugins.placementScore.enabled[0].weight is ignored: all scores of placements count the same",
		},
	} {
		if diff := cmp.Diff(want, mustComplete(t, profile(plugins, "")).Notes); diff != "" {
			t.Errorf("%s: notes (-want +got):\n%s", plugins, diff)
		}
	}
}

func TestExtendersDecideWhichResourcesAreIgnored(t *testing.T) {
	const fit = "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/own], ignoredResourceGroups: [example.org]}}]}]\n"
	for _, tt := range []struct {
		extenders string
		want      []string
	}{
		{"", []string{"example.com/own"}},
		{"extenders: [{urlPrefix: 'http://x', managedResources: [{name: example.com/seen}]}]", []string{"example.com/own"}},
		{"extenders: [{urlPrefix: 'http://x', managedResources: [{name: example.com/seen}, {name: example.com/left, ignoredByScheduler: true}]}]", []string{"example.com/left"}},
	} {
		c := mustComplete(t, fit+tt.extenders)
		if diff := cmp.Diff(tt.want, c.Profiles[0].IgnoredResources); diff != "" || len(c.Profiles[0].IgnoredResourceGroups) != 1 {
			t.Errorf("%s: groups %v; ignored (-want +got):\n%s", tt.extenders, c.Profiles[0].IgnoredResourceGroups, diff)
		}
	}
}
