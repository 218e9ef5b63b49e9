package config_test

import (
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/config"
)

func TestDecodingIsStrict(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"unknown field", "nonsense: 1", `strict decoding error: unknown field "nonsense"`},
		{"another case", "Parallelism: 1", `strict decoding error: unknown field "Parallelism"`},
		{"unknown field of a profile", "profiles: [{name: a}]", `strict decoding error: unknown field "profiles[0].name"`},
		{"given twice", "parallelism: 1\nparallelism: 2", `key "parallelism" already set in map`},
		{"unknown field of arguments", profile("", "[{name: NodeAffinity, args: {added: 1}}]"),
			`strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeAffinity: strict decoding error: unknown field "added"`},
		{"another case in arguments", profile("", "[{name: NodeResourcesFit, args: {IgnoredResources: []}}]"), `unknown field "IgnoredResources"`},
		{"arguments of another kind", profile("", "[{name: NodeAffinity, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs}}]"),
			"args for plugin NodeAffinity were not of type NodeAffinityArgs.kubescheduler.config.k8s.io, got InterPodAffinityArgs.kubescheduler.config.k8s.io"},
		{"not a number", "parallelism: many", "cannot unmarshal string into Go struct field KubeSchedulerConfiguration.parallelism of type int32"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := config.Decode([]byte(header + tt.body)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Decode: %v\nwant %s", err, tt.want)
			}
		})
	}
	for _, tt := range []struct{ file, want string }{
		{"", "Object 'Kind' is missing"},
		{"[]", "json: cannot unmarshal array"},
		{"apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration", "`berth config convert` makes v1 of older versions"},
		{"apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs", "want KubeSchedulerConfiguration, got kubescheduler.config.k8s.io/v1, Kind=NodeAffinityArgs"},
	} {
		if _, err := config.Decode([]byte(tt.file)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Decode(%q): %v\nwant %s", tt.file, err, tt.want)
		}
	}
}

func fit(args string) string { return profile("", "[{name: NodeResourcesFit, args: "+args+"}]") }

func spread(constraint string) string {
	return args("PodTopologySpread", "{defaultingType: List, defaultConstraints: ["+constraint+"]}")
}

func args(plugin, args string) string {
	return profile("", "[{name: "+plugin+", args: "+args+"}]")
}

// The texts are those of kube-scheduler's validation.
func TestValidationIsKubeSchedulers(t *testing.T) {
	const at = "profiles[0].pluginConfig[0].args."
	for _, tt := range []struct{ name, body, want string }{
		{"parallelism", "parallelism: 0", "parallelism: Invalid value: 0: should be an integer value greater than zero"},
		{"percentage", "percentageOfNodesToScore: 101", "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"},
		{"percentage of a profile", "profiles: [{percentageOfNodesToScore: -1}]", "profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]"},
		{"first backoff", "podInitialBackoffSeconds: 0", "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"},
		{"last backoff", "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4", "podMaxBackoffSeconds: Invalid value: 4: must be greater than or equal to PodInitialBackoffSeconds"},
		{"burst", "clientConnection: {burst: -2}", "clientConnection.burst: Invalid value: -2: must be non-negative"},
		{"lock", "leaderElection: {resourceLock: endpoints}", `leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"`},
		{"lease", "leaderElection: {leaseDuration: 5s}", "must be greater than `RenewDeadline`"},
		{"retry", "leaderElection: {retryPeriod: -1s}", "leaderElection.retryPeriod: Invalid value:"},
		{"unnamed profiles", "profiles: [{schedulerName: a}, {}]", "profiles[1].schedulerName: Required value"},
		{"profiles of one name", "profiles: [{schedulerName: a}, {schedulerName: a}]", "profiles[1].schedulerName: Duplicate value: "},
		{"queue sort differs", "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]", "profiles[1].plugins.queueSort: Invalid value: "},
		{"two queue sorts", profile("{queueSort: {enabled: [{name: PrioritySort}, {name: Other}]}}", ""), "profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled"},
		{"a removed plugin", profile("{filter: {enabled: [{name: EBSLimits}]}}", ""), `profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`},
		{"arguments twice", profile("", "[{name: NodeAffinity, args: {}}, {name: NodeAffinity, args: {}}]"), `profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"`},

		{"strategy", fit("{scoringStrategy: {type: Best}}"), at + `scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`},
		{"weight of a resource", fit("{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 101}]}}"), at + "scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]"},
		{"no shape", fit("{scoringStrategy: {type: RequestedToCapacityRatio}}"), at + "scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio"},
		{"empty shape", fit("{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}"), at + "scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified"},
		{"shape of another strategy", fit("{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {}}}"), at + "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"},
		{"shape does not increase", fit("{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 1}, {utilization: 5, score: 2}]}}}"), "shape[1].utilization: Invalid value: 5: values must be sorted in increasing order"},
		{"shape out of range", fit("{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 101, score: 11}]}}}"), "shape[0].score: Invalid value: 11: not in valid range [0, 10]"},
		{"ignored resource", fit("{ignoredResources: ['a b']}"), at + `ignoredResources[0]: Invalid value: "a b": name part must consist of`},
		{"ignored group", fit("{ignoredResourceGroups: [a/b]}"), at + `ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'`},
		{"balanced weight", args("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}"), at + "resources[0].weight: Invalid value: 2: must be 1"},
		{"balanced twice", args("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu}]}"), at + `resources[1].name: Duplicate value: "cpu"`},
		{"added affinity", args("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]}}}"),
			at + `addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Near"`},
		{"added preference", args("NodeAffinity", "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Gt, values: [b]}]}}]}}"),
			at + "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchExpressions[0].values[0]: Invalid value: "},
		{"affinity weight", args("InterPodAffinity", "{hardPodAffinityWeight: 101}"), at + "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"},
		{"affinity weight below", args("InterPodAffinity", "{hardPodAffinityWeight: -1}"), at + "hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]"},
		{"preemption", args("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"), at + "minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage"},
		{"spread type", args("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}"), at + `defaultingType: Invalid value: "System": when .defaultConstraints are not empty`},
		{"kind of spread", args("PodTopologySpread", "{defaultingType: Maybe}"), at + `defaultingType: Unsupported value: "Maybe": supported values: "System", "List"`},
		{"spread by what", spread("{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}"), at + "defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"},
		{"skew of spread", spread("{maxSkew: 0, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}"), at + "defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)"},
		{"key of spread", spread("{maxSkew: 1, topologyKey: '', whenUnsatisfiable: ScheduleAnyway}"), at + "defaultConstraints[0].topologyKey: Required value: can not be empty"},
		{"key of spread, no label", spread("{maxSkew: 1, topologyKey: 'a b', whenUnsatisfiable: ScheduleAnyway}"), at + `defaultConstraints[0].topologyKey: Invalid value: "a b": name part must consist of`},
		{"action of spread", spread("{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Never}"), at + `defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway"`},
		{"no action of spread", spread("{maxSkew: 1, topologyKey: a}"), at + "defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty"},
		{"spread twice", args("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}"), at + `defaultConstraints[1]: Duplicate value: "{a, DoNotSchedule}"`},
		{"volume binding", args("VolumeBinding", "{bindTimeoutSeconds: -1}"), at + "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"},
		{"volume shape", args("VolumeBinding", "{shape: [{utilization: 0, score: 0}]}"), "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"},
		{"claims", args("DynamicResources", "{bindingTimeout: 10ms}"), "must be at least 1 second"},

		{"extender's weight", "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]", "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it"},
		{"extenders' binds", "extenders: [{urlPrefix: a, bindVerb: b}, {urlPrefix: c, bindVerb: b}]", `extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind`},
		{"extender's resource", "extenders: [{urlPrefix: a, managedResources: [{name: cpu}]}]", `extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := complete(tt.body); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error: %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestWhatBerthDoesNotHaveIsNamed(t *testing.T) {
	const notYet = "Forbidden: Berth does not have "
	for _, tt := range []struct{ name, body, want string }{
		{"enabled at a point", profile("{score: {enabled: [{name: DynamicResources, weight: 2}]}}", ""), "profiles[0].plugins.score.enabled[0]: " + notYet + "DynamicResources yet"},
		{"enabled everywhere", profile("{multiPoint: {enabled: [{name: DynamicResources}]}}", ""), "profiles[0].plugins.multiPoint.enabled[0]: " + notYet + "DynamicResources yet"},
		{"enabled after all are disabled", profile("{filter: {disabled: [{name: '*'}], enabled: [{name: NodeName}, {name: DynamicResources}]}}", ""), "profiles[0].plugins.filter.enabled[1]: " + notYet + "DynamicResources yet"},
		{"a gang's plugin at a wrong point", profile("{filter: {enabled: [{name: GangScheduling}]}}", ""), "plugin does not extend FilterPlugin"},
		{"arguments", args("DynamicResources", "{filterTimeout: 5s}"), "profiles[0].pluginConfig[0].args: " + notYet + "the plugin DynamicResources yet"},
		{"enabled at postFilter", profile("{postFilter: {enabled: [{name: DynamicResources}]}}", ""), "profiles[0].plugins.postFilter.enabled[0]: " + notYet + "DynamicResources yet"},
		{"preemption without preEnqueue", profile("{preEnqueue: {disabled: [{name: DefaultPreemption}]}}", ""), "DefaultPreemption cannot run at postFilter without preEnqueue"},
		{"extender's URL", "extenders: [{urlPrefix: 'x:1/y'}]", `extenders[0].urlPrefix: Invalid value: "x:1/y": want an absolute URL such as https://extender.example:8888/scheduler`},
		{"extender's timeout", "extenders: [{urlPrefix: 'http://x', httpTimeout: -1s}]", `extenders[0].httpTimeout: Invalid value: "-1s": want a positive duration, or none for 5s`},
		{"unknown plugin", profile("{score: {enabled: [{name: Mine}]}}", ""), `profiles[0].plugins.score.enabled[0].name: Invalid value: "Mine": does not exist`},
		{"unknown plugin everywhere", profile("{multiPoint: {enabled: [{name: Mine}]}}", ""), `profiles[0].plugins.multiPoint.enabled[0].name: Invalid value: "Mine": does not exist`},
		{"arguments of an unknown plugin", profile("", "[{name: Mine, args: {a: 1}}]"), `profiles[0].pluginConfig[0].name: Invalid value: "Mine": does not exist`},
		{"a plugin at a wrong point", profile("{filter: {enabled: [{name: ImageLocality}]}}", ""), "plugin does not extend FilterPlugin"},
		{"a plugin twice", profile("{filter: {enabled: [{name: NodeName}, {name: NodeName}]}}", ""), `profiles[0].plugins.filter.enabled[1].name: Duplicate value: "NodeName"`},
		{"a negative weight", profile("{score: {enabled: [{name: ImageLocality, weight: -1}]}}", ""), "profiles[0].plugins.score.enabled[0].weight: Invalid value: -1: must not be negative"},
		{"no queue sort", profile("{queueSort: {disabled: [{name: PrioritySort}]}}", ""), "exactly one queue sort plugin is required"},
		{"no bind", profile("{bind: {disabled: [{name: DefaultBinder}]}}", ""), "at least one bind plugin is needed"},
		{"no gates", profile("{preEnqueue: {disabled: [{name: SchedulingGates}]}}", ""), "Berth cannot do without SchedulingGates"},
		{"filter without preFilter", profile("{preFilter: {disabled: [{name: NodeResourcesFit}]}}", ""), "NodeResourcesFit cannot run at filter without preFilter"},
		{"volumes without reserve", profile("{reserve: {disabled: [{name: VolumeBinding}]}}", ""), `profiles[0].plugins.reserve: Invalid value: ["DynamicResources"]: VolumeBinding cannot run at filter without reserve: disable it at both or at neither`},
		{"volumes without preBind", profile("{preBind: {disabled: [{name: '*'}]}}", ""), "profiles[0].plugins.preBind: Invalid value: null: VolumeBinding cannot run at filter without preBind: disable it at both or at neither"},
		{"score without preScore", profile("{preScore: {disabled: [{name: '*'}]}}", ""), "TaintToleration cannot run at score without preScore"},
		{"spread without preFilter", profile("{preFilter: {disabled: [{name: PodTopologySpread}]}}", ""), "PodTopologySpread cannot run at filter without preFilter"},
		{"spread without preScore", profile("{preScore: {disabled: [{name: PodTopologySpread}]}}", ""), "PodTopologySpread cannot run at score without preScore"},
		{"affinity without preFilter", profile("{preFilter: {disabled: [{name: InterPodAffinity}]}}", ""), "InterPodAffinity cannot run at filter without preFilter"},
		{"affinity without preScore", profile("{preScore: {disabled: [{name: InterPodAffinity}]}}", ""), "InterPodAffinity cannot run at score without preScore"},
		{"features without preFilter", profile("{preFilter: {disabled: [{name: NodeDeclaredFeatures}]}}", ""), "NodeDeclaredFeatures cannot run at filter without preFilter"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := complete(tt.body); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error: %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestWhatStandsByDefaultIsAccepted(t *testing.T) {
	for _, tt := range []struct{ name, body string }{
		{"empty arguments", args("DynamicResources", "{}")},
		{"arguments that name their kind", args("DynamicResources", "{apiVersion: kubescheduler.config.k8s.io/v1, kind: DynamicResourcesArgs, filterTimeout: 10s}")},
		{"disabled", profile("{multiPoint: {disabled: [{name: VolumeBinding}]}, score: {disabled: [{name: DynamicResources}]}}", "")},
		{"behind feature gates", profile("{permit: {enabled: [{name: GangScheduling}]}, multiPoint: {enabled: [{name: GangScheduling}, {name: TopologyPlacementGenerator}, {name: PodGroupPodsCount, weight: 1}]}}", "")},
		{"an unknown name, disabled", profile("{score: {disabled: [{name: SelectorSpread}]}}", "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := complete(tt.body); err != nil {
				t.Error(err)
			}
		})
	}
}
