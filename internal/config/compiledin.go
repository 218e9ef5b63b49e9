package config

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// compiledInPoints are where a plugin that is compiled in may run. At others Berth cannot run one yet.
var compiledInPoints = []string{"preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit", "preBind", "bind", "postBind"}

// EnabledCompiledIn returns which of some names a profile, as it is written, enables at any point, in the order in which they come first.
func EnabledCompiledIn(p *configv1.KubeSchedulerProfile, names []string) (enabled []string) {
	if p.Plugins == nil {
		return nil
	}
	for _, s := range pluginSets(p.Plugins) {
		for _, e := range s.set.Enabled {
			if slices.Contains(names, e.Name) && !slices.Contains(enabled, e.Name) {
				enabled = append(enabled, e.Name)
			}
		}
	}
	return enabled
}

// addCompiledIn has a profile filter and score by the plugins that are compiled in and run in it, also at points before that: at which, their own process knows.
func (o Options) addCompiledIn(out *cluster.Profile, r resolved) {
	own := func(name string) bool { _, ok := o.CompiledIn[name]; return ok }
	out.PreFilters = slices.DeleteFunc(out.PreFilters, own)
	for _, name := range r.at["preFilter"] {
		if own(name) && !slices.Contains(out.Filters, name) {
			out.Filters = append(out.Filters, name)
		}
	}
	scores := slices.ContainsFunc(out.Weights, func(w cluster.PluginWeight) bool { return own(w.Name) })
	for _, name := range r.at["preScore"] {
		if own(name) && !scores { // its process calls what runs here when it is asked for scores, and scores nothing
			out.Weights, scores = append(out.Weights, cluster.PluginWeight{Name: name, Weight: 1}), true
		}
	}
}

// unbuiltPoints finds where a profile, as it is written, has plugins that are compiled in run at points where Berth cannot run them. Only who is written runs: none is a default.
func (o Options) unbuiltPoints(path *field.Path, p *configv1.Plugins, r resolved) (errs field.ErrorList) {
	if p == nil {
		return nil
	}
	refused := make(map[string][]string) // points that are enabled for all, by plugin
	for _, s := range pluginSets(p)[1:] {
		for _, name := range r.at[s.point] {
			if _, ok := o.CompiledIn[name]; !ok {
				continue
			}
			if slices.Contains(compiledInPoints, s.point) {
				continue
			}
			if k := slices.IndexFunc(s.set.Enabled, func(e configv1.Plugin) bool { return e.Name == name }); k >= 0 {
				errs = append(errs, field.Forbidden(path.Child(s.point, "enabled").Index(k), fmt.Sprintf("Berth cannot run plugins that are compiled in, such as %s, at this point yet", name)))
			} else {
				refused[name] = append(refused[name], s.point)
			}
		}
	}
	for k, e := range p.MultiPoint.Enabled {
		if points := refused[e.Name]; len(points) > 0 {
			errs = append(errs, field.Forbidden(path.Child(multiPoint, "enabled").Index(k), fmt.Sprintf("%s is compiled in, and runs at %s too, where Berth cannot run such plugins yet: disable it there, or enable it at other points only",
				e.Name, strings.Join(points, ", "))))
			delete(refused, e.Name)
		}
	}
	return errs
}
