package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/engine"
)

// The plugins whose arguments old configurations gave in other ways.
var (
	ofNodeTerms = engine.JudgeOf(engine.NodeTerms)
	ofRequests  = engine.JudgeOf(engine.Requests)
	ofSpreading = engine.JudgeOf(engine.Spreading)
	ofPodTerms  = engine.JudgeOf(engine.PodTerms)
)

const all = "*"

// inTree returns kube-scheduler's plugins, those of the default profile in their order there.
func inTree() []engine.Plugin {
	return slices.DeleteFunc(slices.Clone(engine.Plugins()), func(p engine.Plugin) bool { return len(p.Points) == 0 })
}

// lookUp returns a plugin, nil if neither kube-scheduler nor a plugin service nor the program has one of that name, and it is not Coscheduling.
func (o Options) lookUp(name string) *engine.Plugin {
	if p := engine.PluginOf(name); p != nil && len(p.Points) > 0 {
		return p
	}
	for _, foreign := range []map[string][]string{o.Plugins, o.CompiledIn} {
		if points, ok := foreign[name]; ok {
			return &engine.Plugin{Descriptor: &engine.Descriptor{Name: name, Points: points}}
		}
	}
	if name == coscheduling {
		return &engine.Plugin{Descriptor: &coschedulingDescriptor}
	}
	return nil
}

// entry is how the plugin stands in the default profile.
func entry(p *engine.Plugin) configv1.Plugin {
	out := configv1.Plugin{Name: p.Name}
	if p.Weight != 0 {
		out.Weight = pointTo(int32(p.Weight))
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
	for _, p := range inTree() {
		if !p.Gated {
			out.MultiPoint.Enabled = append(out.MultiPoint.Enabled, entry(&p))
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
func (o Options) resolve(p *configv1.Plugins) resolved {
	out := resolved{at: make(map[string][]string), weights: make(map[string]int64)}
	sets := pluginSets(p)
	everywhere := sets[0].set
	for _, s := range sets[1:] {
		out.at[s.point] = o.expand(s, everywhere)
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
func (o Options) checkEntries(path *field.Path, p *configv1.Plugins) (errs field.ErrorList) {
	for _, s := range pluginSets(p) {
		seen := make(map[string]bool)
		for i, e := range s.set.Enabled {
			at := path.Child(s.point, "enabled").Index(i)
			known := o.lookUp(e.Name)
			switch {
			case known == nil:
				errs = append(errs, field.Invalid(at.Child("name"), e.Name, noSuchPlugin))
			case s.point != multiPoint && !known.RunsAt(s.point):
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

const noSuchPlugin = "does not exist: Berth has no plugin of that name, nor has a service of --plugin-services, nor is one compiled in"

// interfaceOf is what kube-scheduler calls a plugin of a point.
func interfaceOf(point string) string { return string(point[0]-'a'+'A') + point[1:] + "Plugin" }

// expand returns the plugins of a point in order: those enabled both at the point and everywhere, as the point orders
// them; those enabled everywhere only; those enabled at the point only.
func (o Options) expand(s pluginSet, everywhere *configv1.PluginSet) []string {
	has := func(list []configv1.Plugin, name string) bool {
		return slices.ContainsFunc(list, func(p configv1.Plugin) bool { return p.Name == name })
	}
	var both, spread, own []string
	withoutSpread := has(s.set.Disabled, all)
	spreads := func(name string) bool {
		known := o.lookUp(name)
		return !withoutSpread && known != nil && known.RunsAt(s.point) && !has(s.set.Disabled, name)
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
