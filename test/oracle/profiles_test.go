package oracle

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// scorers are the score plugins that Berth has, filters the others, both in kube-scheduler's default order.
var (
	scorers = []string{
		names.TaintToleration, names.NodeAffinity, names.NodeResourcesFit, names.PodTopologySpread, names.InterPodAffinity,
		names.NodeResourcesBalancedAllocation, names.ImageLocality,
	}
	filters = []string{
		names.NodeUnschedulable, names.NodeName, names.NodePorts, names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding,
		names.VolumeZone, names.NodeDeclaredFeatures,
	}
	// volumePlugins are those of the filters that read volumes.
	volumePlugins = []string{names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding, names.VolumeZone}
	// rated are the scorers whose raw scores are compared besides the normalised ones.
	rated = []string{names.TaintToleration, names.NodeAffinity, names.PodTopologySpread, names.InterPodAffinity}
	// atFilter are all that filter, of both lists, in the same order; atPreFilter those that have a PreFilter too.
	atFilter = []string{
		names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity, names.NodePorts, names.NodeResourcesFit,
		names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding, names.VolumeZone, names.PodTopologySpread, names.InterPodAffinity, names.NodeDeclaredFeatures,
	}
	atPreFilter = []string{
		names.NodeAffinity, names.NodePorts, names.NodeResourcesFit, names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding,
		names.VolumeZone, names.PodTopologySpread, names.InterPodAffinity, names.NodeDeclaredFeatures,
	}
	// atPostFilter are those that do something for a pod that fits nowhere.
	atPostFilter = []string{names.DynamicResources, names.DefaultPreemption}
	// A framework does not start, or a queue does not gate pods, without these.
	frame = []string{names.PrioritySort, names.DefaultBinder, names.SchedulingGates}
)

// defaultProfile is kube-scheduler's default profile without the plugins that Berth does not have.
func defaultProfile(t interface{ Fatalf(string, ...any) }) config.KubeSchedulerProfile {
	cfg, err := latest.Default()
	if err != nil {
		t.Fatalf("read kube-scheduler's default configuration: %v", err)
	}
	p := cfg.Profiles[0]
	p.Plugins.MultiPoint.Enabled = slices.DeleteFunc(p.Plugins.MultiPoint.Enabled, func(plugin config.Plugin) bool {
		return !slices.Contains(slices.Concat(scorers, filters, atPostFilter, frame), plugin.Name)
	})
	return p
}

// drawProfiles draws the profiles of a cluster: the default one and one of any weights, strategy and resources.
func drawProfiles(t *rapid.T) []config.KubeSchedulerProfile {
	p := defaultProfile(t)
	p.SchedulerName = "custom"
	for i := range p.Plugins.MultiPoint.Enabled {
		if p.Plugins.MultiPoint.Enabled[i].Weight != 0 {
			p.Plugins.MultiPoint.Enabled[i].Weight = rapid.Int32Range(1, 100).Draw(t, "weight")
		}
	}
	for _, name := range scorers {
		if oneIn(t, 8, "score is disabled") {
			p.Plugins.Score.Disabled = append(p.Plugins.Score.Disabled, config.Plugin{Name: name})
		}
	}
	for _, name := range atFilter {
		// Without NodePorts, pods of the same ports come to the same node: see the package's comment.
		if oneIn(t, 12, "filter is disabled") && name != names.NodePorts {
			p.Plugins.Filter.Disabled = append(p.Plugins.Filter.Disabled, config.Plugin{Name: name})
			if slices.Contains(atPreFilter, name) && rapid.Bool().Draw(t, "at PreFilter too") {
				p.Plugins.PreFilter.Disabled = append(p.Plugins.PreFilter.Disabled, config.Plugin{Name: name})
			}
		}
	}
	if oneIn(t, 2, "few volume plugins") {
		for _, name := range volumePlugins {
			if rapid.Bool().Draw(t, "without "+name) {
				for _, set := range []*config.PluginSet{&p.Plugins.PreFilter, &p.Plugins.Filter, &p.Plugins.Reserve, &p.Plugins.PreBind} {
					set.Disabled = append(set.Disabled, config.Plugin{Name: name})
				}
			}
		}
	}
	for _, name := range atPostFilter {
		if oneIn(t, 8, "nothing is done for pods that fit nowhere") {
			p.Plugins.PostFilter.Disabled = append(p.Plugins.PostFilter.Disabled, config.Plugin{Name: name})
		}
	}
	if oneIn(t, 4, "another order") {
		p.Plugins.MultiPoint.Enabled = rapid.Permutation(p.Plugins.MultiPoint.Enabled).Draw(t, "order")
	}
	for i := range p.PluginConfig {
		switch args := p.PluginConfig[i].Args.(type) {
		case *config.NodeResourcesFitArgs:
			args.ScoringStrategy = drawStrategy(t)
			if oneIn(t, 4, "a resource is ignored") {
				args.IgnoredResources = []string{gpu}
			}
			if oneIn(t, 4, "a group is ignored") {
				args.IgnoredResourceGroups = []string{strings.SplitN(fpga, "/", 2)[0]}
			}
		case *config.NodeResourcesBalancedAllocationArgs:
			args.Resources = drawResources(t, 1)
		case *config.NodeAffinityArgs:
			if oneIn(t, 8, "added affinity") {
				args.AddedAffinity = drawAddedAffinity(t)
			}
		case *config.InterPodAffinityArgs:
			args.HardPodAffinityWeight = pick[int32](t, "hard affinity weighs", 1, 0, 7, 100)
			args.IgnorePreferredTermsOfExistingPods = oneIn(t, 4, "terms of existing pods do not count")
		case *config.PodTopologySpreadArgs:
			if oneIn(t, 2, "default constraints") {
				args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, drawDefaultConstraints(t)
			}
		}
	}
	return []config.KubeSchedulerProfile{defaultProfile(t), p}
}

// drawAddedAffinity draws node affinity that all pods of a profile have besides their own. It is valid: a profile does not
// start otherwise.
func drawAddedAffinity(t *rapid.T) *v1.NodeAffinity {
	term := func() v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
			Key:      pick(t, "key", "disk", "zone"),
			Operator: pick(t, "operator", v1.NodeSelectorOpNotIn, v1.NodeSelectorOpIn), Values: []string{pick(t, "value", "b", "a", "5")},
		}}}
	}
	a := &v1.NodeAffinity{}
	if rapid.Bool().Draw(t, "required") {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term()}}
	}
	if rapid.Bool().Draw(t, "preferred") {
		a.PreferredDuringSchedulingIgnoredDuringExecution = []v1.PreferredSchedulingTerm{{Weight: pick[int32](t, "weight", 1, 50), Preference: term()}}
	}
	return a
}

func drawStrategy(t *rapid.T) *config.ScoringStrategy {
	s := &config.ScoringStrategy{
		Type:      rapid.SampledFrom([]config.ScoringStrategyType{config.LeastAllocated, config.MostAllocated, config.RequestedToCapacityRatio}).Draw(t, "strategy"),
		Resources: drawResources(t, 100),
	}
	if s.Type == config.RequestedToCapacityRatio {
		shape := []config.UtilizationShapePoint{}
		for u := rapid.Int32Range(0, 40).Draw(t, "utilization"); u <= 100 && len(shape) < 4; u += rapid.Int32Range(1, 60).Draw(t, "step") {
			shape = append(shape, config.UtilizationShapePoint{Utilization: u, Score: rapid.Int32Range(0, 10).Draw(t, "shape score")})
		}
		s.RequestedToCapacityRatio = &config.RequestedToCapacityRatioParam{Shape: shape}
	}
	return s
}

// drawResources draws the resources to score with, each once.
func drawResources(t *rapid.T, maxWeight int64) []config.ResourceSpec {
	all := []string{"cpu", "memory", gpu, "ephemeral-storage", fpga, hugePages, "pods", "example.com/never-seen"}
	var out []config.ResourceSpec
	for _, name := range all {
		if rapid.Bool().Draw(t, "score with "+name) {
			out = append(out, config.ResourceSpec{Name: name, Weight: rapid.Int64Range(1, maxWeight).Draw(t, "weight")})
		}
	}
	if out == nil {
		out = []config.ResourceSpec{{Name: gpu, Weight: 1}}
	}
	return out
}

// berthProfile says the same as a profile of kube-scheduler.
func berthProfile(p *config.KubeSchedulerProfile) cluster.Profile {
	out := cluster.Profile{SchedulerName: p.SchedulerName}
	disabled := func(set config.PluginSet, name string) bool {
		return slices.ContainsFunc(set.Disabled, func(d config.Plugin) bool { return d.Name == name })
	}
	for _, plugin := range p.Plugins.MultiPoint.Enabled {
		if !built(plugin.Name) && !slices.Contains(atPostFilter, plugin.Name) {
			continue
		}
		if slices.Contains(atPreFilter, plugin.Name) && !disabled(p.Plugins.PreFilter, plugin.Name) {
			out.PreFilters = append(out.PreFilters, plugin.Name)
		}
		if slices.Contains(atFilter, plugin.Name) && !disabled(p.Plugins.Filter, plugin.Name) {
			out.Filters = append(out.Filters, plugin.Name)
		}
		if slices.Contains(atPostFilter, plugin.Name) && !disabled(p.Plugins.PostFilter, plugin.Name) {
			out.PostFilters = append(out.PostFilters, plugin.Name)
		}
		if slices.Contains(scorers, plugin.Name) && plugin.Weight != 0 && !disabled(p.Plugins.Score, plugin.Name) {
			out.Weights = append(out.Weights, cluster.PluginWeight{Name: plugin.Name, Weight: int64(plugin.Weight)})
		}
	}
	for i := range p.PluginConfig {
		switch args := p.PluginConfig[i].Args.(type) {
		case *config.NodeResourcesFitArgs:
			out.FitStrategy = string(args.ScoringStrategy.Type)
			out.IgnoredResources, out.IgnoredResourceGroups = args.IgnoredResources, args.IgnoredResourceGroups
			for _, r := range args.ScoringStrategy.Resources {
				out.FitResources = append(out.FitResources, cluster.PluginWeight{Name: r.Name, Weight: r.Weight})
			}
			if ratio := args.ScoringStrategy.RequestedToCapacityRatio; ratio != nil {
				for _, point := range ratio.Shape {
					out.Shape = append(out.Shape, cluster.ShapePoint{Utilization: point.Utilization, Score: point.Score})
				}
			}
		case *config.NodeResourcesBalancedAllocationArgs:
			for _, r := range args.Resources {
				out.BalancedResources = append(out.BalancedResources, r.Name)
			}
		case *config.NodeAffinityArgs:
			if a := args.AddedAffinity; a != nil {
				// A class reads them in the same words.
				class := source.ReducePod(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: a}}}).Class
				out.AddedRequired, out.HasAddedRequired, out.AddedPreferred = class.Required, class.HasRequired, class.Preferred
			}
		case *config.InterPodAffinityArgs:
			out.HardPodAffinityWeight, out.IgnorePreferredTerms = args.HardPodAffinityWeight, args.IgnorePreferredTermsOfExistingPods
		case *config.PodTopologySpreadArgs:
			if out.SystemSpread = args.DefaultingType == config.SystemDefaulting; out.SystemSpread {
				out.DefaultSpread = cluster.SystemSpread()
			}
			for _, c := range args.DefaultConstraints {
				out.DefaultSpread = append(out.DefaultSpread, berthConstraint(c))
			}
		}
	}
	return out
}

// berthConstraint says the same as a default constraint.
func berthConstraint(c v1.TopologySpreadConstraint) cluster.SpreadConstraint {
	return cluster.SpreadConstraint{
		TopologyKey: c.TopologyKey, MaxSkew: c.MaxSkew, MinDomains: ptr.Deref(c.MinDomains, 1), Hard: c.WhenUnsatisfiable == v1.DoNotSchedule,
		HonorAffinity: ptr.Deref(c.NodeAffinityPolicy, v1.NodeInclusionPolicyHonor) == v1.NodeInclusionPolicyHonor,
		HonorTaints:   ptr.Deref(c.NodeTaintsPolicy, v1.NodeInclusionPolicyIgnore) == v1.NodeInclusionPolicyHonor,
	}
}

func TestBerthsDefaultProfileIsKubeSchedulers(t *testing.T) {
	p := defaultProfile(t)
	if diff := cmp.Diff(berthProfile(&p), engine.DefaultProfile(p.SchedulerName)); diff != "" {
		t.Errorf("DefaultProfile (-kube-scheduler +Berth):\n%s", diff)
	}
}
