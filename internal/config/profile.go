package config

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
)

// profileOf makes of a profile of cfg what the roles are told. Both have their defaults.
func profileOf(cfg *configv1.KubeSchedulerConfiguration, p *configv1.KubeSchedulerProfile, r resolved, options Options) cluster.Profile {
	out := cluster.Profile{
		SchedulerName: *p.SchedulerName, PreFilters: options.built(r.at["preFilter"]), Filters: options.built(r.at["filter"]),
		PercentageOfNodesToScore: *cfg.PercentageOfNodesToScore,
		// With what is not built: its say is part of the text that tells why a pod fits nowhere.
		PostFilters:        r.at["postFilter"],
		PreEnqueues:        options.foreignAt(r, "preEnqueue"),
		QueueSort:          options.queueSortOf(r),
		VolumeLimitScaling: options.VolumeLimitScaling, RequireCSIDrivers: options.RequireCSIDrivers,
		TaintComparison: options.TaintComparison,
	}
	if p.PercentageOfNodesToScore != nil { // 0, too, is said
		out.PercentageOfNodesToScore = *p.PercentageOfNodesToScore
	}
	for _, plugin := range inTree() {
		switch a := argsFor(p, plugin.Name).(type) {
		case *configv1.NodeResourcesFitArgs:
			setFit(&out, a)
			if ignored := extender.IgnoredResources(cfg.Extenders); len(ignored) > 0 { // whatever the arguments say, as in kube-scheduler
				out.IgnoredResources = ignored
			}
		case *configv1.NodeResourcesBalancedAllocationArgs:
			for _, resource := range a.Resources {
				out.BalancedResources = append(out.BalancedResources, resource.Name)
			}
		case *configv1.NodeAffinityArgs:
			setAddedAffinity(&out, a.AddedAffinity)
		case *configv1.PodTopologySpreadArgs:
			setDefaultSpread(&out, a)
		case *configv1.InterPodAffinityArgs:
			out.HardPodAffinityWeight, out.IgnorePreferredTerms = *a.HardPodAffinityWeight, a.IgnorePreferredTermsOfExistingPods
		case *configv1.VolumeBindingArgs:
			if options.StorageCapacityScoring {
				out.StorageShape = points(a.Shape)
			}
		}
	}
	if options.StorageCapacityScoring && len(out.StorageShape) == 0 { // the plugin does not run
		out.StorageShape = points(standardStorageShape())
	}
	for _, name := range options.built(r.at["score"]) {
		if p := engine.PluginOf(name); p == nil || p.Scores(&out) { // a service's scores wherever it runs
			out.Weights = append(out.Weights, cluster.PluginWeight{Name: name, Weight: r.weights[name]})
		}
	}
	options.addCompiledIn(&out, r)
	return out
}

// argsFor returns the arguments of a plugin of a profile that has its defaults; those of a plugin that does not run are the defaults.
func argsFor(p *configv1.KubeSchedulerProfile, plugin string) runtime.Object {
	args := newArgs(plugin)
	if slices.Contains(enabledNames(p.Plugins), plugin) {
		for i := range p.PluginConfig {
			if p.PluginConfig[i].Name == plugin {
				args = p.PluginConfig[i].Args.Object
			}
		}
	}
	return args
}

// bindTimeoutOf returns how long VolumeBinding waits.
func bindTimeoutOf(p *configv1.KubeSchedulerProfile) time.Duration {
	const most = int64(math.MaxInt64 / time.Second)
	return time.Duration(min(most, *argsFor(p, engine.VolumeBinding).(*configv1.VolumeBindingArgs).BindTimeoutSeconds)) * time.Second
}

// candidatesOf returns how many candidates preemption is to find at least.
func candidatesOf(p *configv1.KubeSchedulerProfile) engine.CandidateNodes {
	args := argsFor(p, engine.DefaultPreemption).(*configv1.DefaultPreemptionArgs)
	return engine.CandidateNodes{Percentage: *args.MinCandidateNodesPercentage, Absolute: *args.MinCandidateNodesAbsolute}
}

// built leaves out what Berth does not have.
func (o Options) built(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		known := o.lookUp(name)
		return known == nil || known.Unbuilt
	})
}

func setFit(out *cluster.Profile, a *configv1.NodeResourcesFitArgs) {
	out.IgnoredResources, out.IgnoredResourceGroups = a.IgnoredResources, a.IgnoredResourceGroups
	s := a.ScoringStrategy
	out.FitStrategy = string(s.Type)
	for _, r := range s.Resources {
		out.FitResources = append(out.FitResources, cluster.PluginWeight{Name: r.Name, Weight: r.Weight})
	}
	if s.RequestedToCapacityRatio != nil {
		out.Shape = points(s.RequestedToCapacityRatio.Shape)
	}
}

func points(shape []configv1.UtilizationShapePoint) (out []cluster.ShapePoint) {
	for _, p := range shape {
		out = append(out, cluster.ShapePoint{Utilization: p.Utilization, Score: p.Score})
	}
	return out
}

func setAddedAffinity(out *cluster.Profile, affinity *corev1.NodeAffinity) {
	if affinity == nil {
		return
	}
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		out.HasAddedRequired = true
		for _, t := range required.NodeSelectorTerms {
			out.AddedRequired = append(out.AddedRequired, term(t))
		}
	}
	for _, p := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
		out.AddedPreferred = append(out.AddedPreferred, cluster.PreferredTerm{Weight: p.Weight, Term: term(p.Preference)})
	}
}

func term(t corev1.NodeSelectorTerm) cluster.NodeSelectorTerm {
	return cluster.NodeSelectorTerm{Expressions: requirements(t.MatchExpressions), Fields: requirements(t.MatchFields)}
}

func requirements(from []corev1.NodeSelectorRequirement) []cluster.Requirement {
	var out []cluster.Requirement
	for _, r := range from {
		out = append(out, cluster.Requirement{Key: r.Key, Operator: string(r.Operator), Values: r.Values})
	}
	return out
}

func setDefaultSpread(out *cluster.Profile, a *configv1.PodTopologySpreadArgs) {
	if a.DefaultingType == configv1.SystemDefaulting {
		out.DefaultSpread, out.SystemSpread = cluster.SystemSpread(), true
		return
	}
	for _, c := range a.DefaultConstraints {
		// kube-scheduler reads the rest of a constraint no stricter: what is not Honor is Ignore, less than one domain is
		// asked for like one, and matchLabelKeys fall with the selector that each pod's own replaces.
		out.DefaultSpread = append(out.DefaultSpread, cluster.SpreadConstraint{
			TopologyKey:   c.TopologyKey,
			MaxSkew:       c.MaxSkew,
			MinDomains:    max(1, valueOr(c.MinDomains, 1)),
			Hard:          c.WhenUnsatisfiable == corev1.DoNotSchedule,
			HonorAffinity: valueOr(c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor,
			HonorTaints:   valueOr(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyHonor,
		})
	}
}
