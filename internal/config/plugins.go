package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// The names of plugins whose arguments or points have a meaning here.
const (
	nodeAffinity       = "NodeAffinity"
	nodePorts          = "NodePorts"
	nodeResourcesFit   = "NodeResourcesFit"
	balancedAllocation = "NodeResourcesBalancedAllocation"
	taintToleration    = "TaintToleration"
	podTopologySpread  = "PodTopologySpread"
	interPodAffinity   = "InterPodAffinity"
	declaredFeatures   = "NodeDeclaredFeatures"
	schedulingGates    = "SchedulingGates"
	prioritySort       = "PrioritySort"
	defaultBinder      = "DefaultBinder"
	defaultPreemption  = "DefaultPreemption"
)

const all = "*"

// plugin is one of kube-scheduler's plugins.
type plugin struct {
	name   string
	points []string // where it runs
	// byDefault: it is in the default profile, with this weight; 0 is none.
	byDefault bool
	weight    int32
	// built: Berth has it.
	built bool
}

// inTree are kube-scheduler's plugins, those of the default profile in their order there. When Berth learns a plugin,
// built becomes true here.
var inTree = []plugin{
	{schedulingGates, []string{"preEnqueue"}, true, 0, true},
	{prioritySort, []string{"queueSort"}, true, 0, true},
	{"NodeUnschedulable", []string{"filter"}, true, 0, true},
	{"NodeName", []string{"filter"}, true, 0, true},
	{taintToleration, []string{"filter", "preScore", "score"}, true, 3, true},
	{nodeAffinity, []string{"preFilter", "filter", "preScore", "score"}, true, 2, true},
	{nodePorts, []string{"preFilter", "filter"}, true, 0, true},
	{nodeResourcesFit, []string{"preFilter", "filter", "preScore", "score", "placementScore"}, true, 1, true},
	{"VolumeRestrictions", []string{"preFilter", "filter"}, true, 0, false},
	{"NodeVolumeLimits", []string{"preFilter", "filter"}, true, 0, false},
	{"VolumeBinding", []string{"preFilter", "filter", "reserve", "preScore", "score", "preBind"}, true, 0, false},
	{"VolumeZone", []string{"preFilter", "filter"}, true, 0, false},
	{podTopologySpread, []string{"preFilter", "filter", "preScore", "score"}, true, 2, true},
	{interPodAffinity, []string{"preFilter", "filter", "preScore", "score"}, true, 2, true},
	{"DynamicResources", []string{"preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"}, true, 2, false},
	{defaultPreemption, []string{"preEnqueue", "postFilter"}, true, 0, true},
	{balancedAllocation, []string{"preScore", "score"}, true, 1, true},
	{"ImageLocality", []string{"score"}, true, 1, true},
	{defaultBinder, []string{"bind"}, true, 0, true},
	{declaredFeatures, []string{"preFilter", "filter"}, true, 0, true},
	// Behind feature gates that are off.
	{"GangScheduling", []string{"preEnqueue", "permit"}, false, 0, false},
	{"TopologyPlacementGenerator", []string{"placementGenerate"}, false, 0, false},
	{"PodGroupPodsCount", []string{"placementScore"}, false, 0, false},
}

// lookUp returns a plugin, nil if kube-scheduler has none of that name.
func lookUp(name string) *plugin {
	if i := slices.IndexFunc(inTree, func(p plugin) bool { return p.name == name }); i >= 0 {
		return &inTree[i]
	}
	return nil
}

func (p *plugin) runsAt(point string) bool { return slices.Contains(p.points, point) }

// entry is how the plugin stands in the default profile.
func (p *plugin) entry() configv1.Plugin {
	out := configv1.Plugin{Name: p.name}
	if p.weight != 0 {
		out.Weight = pointTo(p.weight)
	}
	return out
}

// multiPoint is the point that stands for all.
const multiPoint = "multiPoint"

// pluginSet is what a profile says about a point.
type pluginSet struct {
	point string
	set   *configv1.PluginSet
}

// pluginSets returns what a profile says about each point, and about all of them first.
func pluginSets(p *configv1.Plugins) []pluginSet {
	return []pluginSet{
		{multiPoint, &p.MultiPoint}, {"preFilter", &p.PreFilter}, {"filter", &p.Filter}, {"postFilter", &p.PostFilter},
		{"reserve", &p.Reserve}, {"preScore", &p.PreScore}, {"score", &p.Score}, {"preBind", &p.PreBind}, {"bind", &p.Bind},
		{"postBind", &p.PostBind}, {"permit", &p.Permit}, {"preEnqueue", &p.PreEnqueue}, {"queueSort", &p.QueueSort},
		{"placementGenerate", &p.PlacementGenerate}, {"placementScore", &p.PlacementScore},
	}
}

// mergePlugins returns the default plugins as a profile changes them.
func mergePlugins(custom *configv1.Plugins) *configv1.Plugins {
	out := &configv1.Plugins{}
	for i := range inTree {
		if inTree[i].byDefault {
			out.MultiPoint.Enabled = append(out.MultiPoint.Enabled, inTree[i].entry())
		}
	}
	if custom == nil {
		return out
	}
	customSets := pluginSets(custom)
	for i, s := range pluginSets(out) {
		*s.set = mergeSet(s.set.Enabled, customSets[i].set)
	}
	return out
}

// mergeSet applies what a profile says about a point to the defaults of the point. A default that the profile enables too
// is replaced where it stands; what it enables else comes behind.
func mergeSet(defaults []configv1.Plugin, custom *configv1.PluginSet) configv1.PluginSet {
	var out configv1.PluginSet
	disabled := make(map[string]bool)
	for _, p := range custom.Disabled {
		out.Disabled = append(out.Disabled, configv1.Plugin{Name: p.Name})
		disabled[p.Name] = true
	}
	last := make(map[string]int) // of each name, the last entry
	for i, p := range custom.Enabled {
		last[p.Name] = i
	}
	replaced := make(map[int]bool)
	for _, p := range defaults {
		if disabled[all] || disabled[p.Name] {
			continue
		}
		if i, ok := last[p.Name]; ok {
			p = custom.Enabled[i]
			replaced[i] = true
		}
		out.Enabled = append(out.Enabled, p)
	}
	for i, p := range custom.Enabled {
		if !replaced[i] {
			out.Enabled = append(out.Enabled, p)
		}
	}
	return out
}

// resolved says which plugins run at each point, in order, and how much their scores weigh.
type resolved struct {
	at      map[string][]string
	weights map[string]int64 // never 0; of Score
}

// resolve spreads what is enabled for all points over the points where it runs.
func resolve(p *configv1.Plugins) resolved {
	out := resolved{at: make(map[string][]string), weights: make(map[string]int64)}
	sets := pluginSets(p)
	everywhere := sets[0].set
	for _, s := range sets[1:] {
		out.at[s.point] = expand(s, everywhere)
	}
	for _, e := range slices.Concat(p.Score.Enabled, everywhere.Enabled) {
		if _, ok := out.weights[e.Name]; ok {
			continue // what the point says comes first
		}
		out.weights[e.Name] = 1
		if w := weightOf(e); w != 0 {
			out.weights[e.Name] = int64(w)
		}
	}
	return out
}

// checkEntries finds entries of a profile, as written, that cannot run: unknown names, points that a plugin has nothing to
// do at, and duplicates.
func checkEntries(path *field.Path, p *configv1.Plugins) (errs field.ErrorList) {
	for _, s := range pluginSets(p) {
		seen := make(map[string]bool)
		for i, e := range s.set.Enabled {
			at := path.Child(s.point, "enabled").Index(i)
			known := lookUp(e.Name)
			switch {
			case known == nil:
				errs = append(errs, field.Invalid(at.Child("name"), e.Name, noSuchPlugin))
			case s.point != multiPoint && !known.runsAt(s.point):
				errs = append(errs, field.Invalid(at.Child("name"), e.Name, "plugin does not extend "+interfaceOf(s.point)))
			case seen[e.Name]:
				errs = append(errs, field.Duplicate(at.Child("name"), e.Name))
			case weightOf(e) < 0:
				errs = append(errs, field.Invalid(at.Child("weight"), weightOf(e), "must not be negative"))
			}
			seen[e.Name] = true
		}
	}
	return errs
}

const noSuchPlugin = "does not exist: Berth has no plugin of that name and loads none from outside"

// interfaceOf is what kube-scheduler calls a plugin of a point.
func interfaceOf(point string) string { return string(point[0]-'a'+'A') + point[1:] + "Plugin" }

// expand returns the plugins of a point in order: those enabled both at the point and everywhere, as the point orders
// them; those enabled everywhere only; those enabled at the point only.
func expand(s pluginSet, everywhere *configv1.PluginSet) []string {
	has := func(list []configv1.Plugin, name string) bool {
		return slices.ContainsFunc(list, func(p configv1.Plugin) bool { return p.Name == name })
	}
	var both, spread, own []string
	withoutSpread := has(s.set.Disabled, all)
	spreads := func(name string) bool {
		known := lookUp(name)
		return !withoutSpread && known != nil && known.runsAt(s.point) && !has(s.set.Disabled, name)
	}
	for _, e := range s.set.Enabled {
		if has(everywhere.Enabled, e.Name) && spreads(e.Name) {
			both = append(both, e.Name)
		} else {
			own = append(own, e.Name)
		}
	}
	for _, e := range everywhere.Enabled {
		if spreads(e.Name) && !has(s.set.Enabled, e.Name) {
			spread = append(spread, e.Name)
		}
	}
	return slices.Concat(both, spread, own)
}
