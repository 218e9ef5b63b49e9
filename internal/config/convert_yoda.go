package config

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// Yoda-Scheduler is a kube-scheduler, up to 1.20, with one plugin, oldYoda. What it did at filter, reserve and queueSort is done by yodaPlugin, and its score is the sum of features that are plugins each.
const (
	oldYoda    = "yoda"
	yodaPlugin = "Yoda"
)

// yodaFeatures are the plugins that its score has become, with what each weighed in the sum.
var yodaFeatures = []struct {
	name   string
	weight int64
}{
	{"YodaBandwidth", 1}, {"YodaClock", 1}, {"YodaCore", 1}, {"YodaPower", 1}, {"YodaFreeMemory", 2}, {"YodaTotalMemory", 1}, {"YodaAllocate", 3}, {"YodaActual", 2},
}

// withYoda are the options of a Berth that has Yoda.
func withYoda() Options {
	plugins := map[string][]string{yodaPlugin: {"queueSort", "filter", "reserve"}}
	for _, f := range yodaFeatures {
		plugins[f.name] = []string{"score"}
	}
	return Options{Plugins: plugins}
}

// yoda makes Yoda-Scheduler's plugin those of Yoda.
func (c *converter) yoda(path string, p object) {
	spread(p)
	plugins := child(p, "plugins")
	said := false
	for _, point := range pointsOf(plugins) {
		set, _ := plugins[point].(object)
		if disabled := list(set, "disabled"); slices.ContainsFunc(disabled, isOldYoda) {
			setIn(p, point, "disabled", slices.DeleteFunc(disabled, isOldYoda))
		}
		enabled := list(set, "enabled")
		at := slices.IndexFunc(enabled, isOldYoda)
		if at < 0 {
			continue
		}
		if !said {
			said = true
			c.say("%s: plugin %s has become %s, of which Berth has to be told: docs/deploy.md, \"GPUs\". It reads pods' labels scv/… as before, and GPUs from scvs.yoda.berth.dev, which berth-scv writes", path, oldYoda, yodaPlugin)
		}
		setIn(p, point, "enabled", slices.Replace(enabled, at, at+1, c.yodaAt(path, point, enabled[at])...))
		if point == "filter" { // a pod gets its GPUs behind it
			reserve, _ := plugins["reserve"].(object)
			setIn(p, "reserve", "enabled", append(list(reserve, "enabled"), object{"name": yodaPlugin}))
		}
	}
	c.yodaArgs(path, p)
}

// spread enables Yoda-Scheduler's plugin at each of its points, in place of multiPoint, where it is not disabled.
func spread(p object) {
	plugins := child(p, "plugins")
	set, _ := plugins[multiPoint].(object)
	enabled := list(set, "enabled")
	at := slices.IndexFunc(enabled, isOldYoda)
	if at < 0 {
		return
	}
	old := enabled[at]
	setIn(p, multiPoint, "enabled", slices.Delete(enabled, at, at+1))
	for _, point := range []string{"queueSort", "filter", "score"} {
		set, _ := plugins[point].(object)
		off := slices.ContainsFunc(list(set, "disabled"), func(o object) bool { return isOldYoda(o) || text(o["name"]) == all })
		if own := list(set, "enabled"); !off && !slices.ContainsFunc(own, isOldYoda) {
			setIn(p, point, "enabled", append(own, maps.Clone(old)))
		}
	}
}

func isOldYoda(o object) bool { return text(o["name"]) == oldYoda }

// yodaAt returns what is enabled at a point in place of Yoda-Scheduler's plugin.
func (c *converter) yodaAt(path, point string, old object) []object {
	switch point {
	case "queueSort", "filter":
		return []object{{"name": yodaPlugin}}
	case "score":
		return c.yodaScores(path, old)
	case "reserve":
	default:
		c.say("%s.plugins.%s.enabled: %s is left out: its features compare nodes where they score them", path, point, oldYoda)
	}
	return nil
}

// yodaScores divides its weight among its features, so that they weigh together what it did against other plugins, as far as that can be divided.
func (c *converter) yodaScores(path string, old object) (scores []object) {
	weighed, _ := old["weight"].(float64)
	if weighed == 0 {
		weighed = 1
	}
	sum := int64(0)
	for _, f := range yodaFeatures {
		sum += f.weight
	}
	times := max(1, int64(math.Round(weighed/float64(sum))))
	for _, f := range yodaFeatures {
		scores = append(scores, object{"name": f.name, "weight": times * f.weight})
	}
	if together := times * sum; float64(together) != weighed {
		c.say("%s.plugins.score.enabled: %s weighed %v, and its %d features weigh %d together", path, oldYoda, weighed, len(yodaFeatures), together)
	}
	return scores
}

// yodaArgs leaves out its arguments.
func (c *converter) yodaArgs(path string, p object) {
	var kept []object
	for _, entry := range list(p, "pluginConfig") {
		if !isOldYoda(entry) {
			kept = append(kept, entry)
			continue
		}
		if args, _ := entry["args"].(object); len(args) > 0 {
			c.say("%s.pluginConfig: the arguments of %s are left out (%s): it finds the API server as a pod in its cluster, or by --kubeconfig", path, oldYoda, strings.Join(slices.Sorted(maps.Keys(args)), ", "))
		}
	}
	if delete(p, "pluginConfig"); len(kept) > 0 {
		p["pluginConfig"] = asAny(kept)
	}
}

// oneSorts has the default give way to another plugin that sorts the queue. Old versions had none by default.
func (c *converter) oneSorts(path string, p object) {
	set, _ := child(p, "plugins")["queueSort"].(object)
	other := slices.ContainsFunc(list(set, "enabled"), func(o object) bool { return text(o["name"]) != theOneAt("queueSort") })
	if other && stands(p, "queueSort", theOneAt("queueSort")) {
		disable(p, "queueSort", theOneAt("queueSort"))
		c.say("%s.plugins.queueSort.disabled: %s is there now, since one plugin sorts the queue in v1", path, theOneAt("queueSort"))
	}
}
