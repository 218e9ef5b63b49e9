package config

import (
	"fmt"
	"slices"
	"strings"

	configv1 "k8s.io/kube-scheduler/config/v1"
)

// strategies are plugins that became strategies of NodeResourcesFit.
var strategies = map[string]configv1.ScoringStrategyType{
	"NodeResourcesLeastAllocated": configv1.LeastAllocated,
	"NodeResourcesMostAllocated":  configv1.MostAllocated,
	"RequestedToCapacityRatio":    configv1.RequestedToCapacityRatio,
}

// selectorSpread is the plugin that spread the pods of services and controllers, under both its names.
var selectorSpread = map[string]bool{"SelectorSpread": true, "DefaultPodTopologySpread": true}

// gone are plugins that v1 does not have, with what there is instead.
var gone = map[string]string{
	"SelectorSpread":           "PodTopologySpread spreads the pods of services, softly, by default",
	"DefaultPodTopologySpread": "PodTopologySpread spreads the pods of services, softly, by default",
	"NodeLabel":                "NodeAffinity has addedAffinity",
	"ServiceAffinity":          "pods have podAffinity",
	"NodePreferAvoidPods":      "nodes have taints of effect PreferNoSchedule",
	"EBSLimits":                "NodeVolumeLimits counts the volumes of CSI drivers",
	"GCEPDLimits":              "NodeVolumeLimits counts the volumes of CSI drivers",
	"AzureDiskLimits":          "NodeVolumeLimits counts the volumes of CSI drivers",
	"CinderLimits":             "NodeVolumeLimits counts the volumes of CSI drivers",
	"NodeResourceLimits":       "nothing in v1 scores limits",
}

// profile converts the plugins and arguments of a profile, where it stands.
func (c *converter) profile(path string, p object) {
	if plugins, ok := p["plugins"].(object); ok {
		c.yoda(path, p)
		c.oneSorts(path, p)
		if take(plugins, "unreserve") != nil {
			c.say("%s.plugins.unreserve is left out; plugins of reserve do both", path)
		}
		for _, point := range pointsOf(plugins) {
			c.point(path, p, point)
		}
		for point, set := range plugins {
			if s, ok := set.(object); ok && len(s) == 0 {
				delete(plugins, point)
			}
		}
		if len(plugins) == 0 {
			delete(p, "plugins")
		}
	}
	c.pluginConfig(path, p)
}

func pointsOf(plugins object) []string {
	var points []string
	for point := range plugins {
		points = append(points, point)
	}
	slices.Sort(points)
	return points
}

// point converts what is enabled and disabled at a point.
func (c *converter) point(path string, p object, point string) {
	set, ok := child(p, "plugins")[point].(object)
	if !ok {
		return
	}
	var enabled, disabled []object
	var enabledStrategies, disabledStrategies int
	for _, e := range list(set, "enabled") {
		name := text(e["name"])
		switch strategy, why := strategies[name], gone[name]; {
		case strategy != "" && point == "score":
			if enabledStrategies++; enabledStrategies > 1 {
				c.say("%s.plugins.score.enabled: %s is left out: a profile has one strategy of %s", path, name, ofRequests)
				continue
			}
			e["name"] = ofRequests
			child(argsOf(p, ofRequests), "scoringStrategy")["type"] = string(strategy)
			enabled = append(enabled, e)
		case strategy != "":
			// Its other points are those of NodeResourcesFit, which are there by default.
		case selectorSpread[name] && (point == "preScore" || point == "score") && !stands(p, point, ofSpreading):
			c.say("%s.plugins.%s.enabled: %s is %s in v1, which spreads by the constraints of pods too", path, point, name, ofSpreading)
			e["name"] = ofSpreading
			enabled = append(enabled, e)
		case why != "":
			c.say("%s.plugins.%s.enabled: %s is left out: v1 does not have it; %s", path, point, name, why)
		default:
			enabled = append(enabled, e)
		}
	}
	for _, d := range list(set, "disabled") {
		name := text(d["name"])
		switch {
		case strategies[name] != "":
			disabledStrategies++
		case selectorSpread[name]:
			c.say("%s.plugins.%s.disabled: %s is left out: v1 does not have it; %s", path, point, name, gone[name])
		case gone[name] != "": // nothing is left to disable
		default:
			disabled = append(disabled, d)
		}
	}
	if disabledStrategies > 0 && enabledStrategies == 0 && point == "score" {
		disabled = append(disabled, object{"name": ofRequests})
	}
	setIn(p, point, "enabled", enabled)
	setIn(p, point, "disabled", disabled)
}

// stands reports whether a plugin of the default profile runs at a point, by what the profile says as far as it is converted.
func stands(p object, point, plugin string) bool {
	for _, at := range []string{point, multiPoint} {
		set, _ := child(p, "plugins")[at].(object)
		has := func(which, name string) bool {
			return slices.ContainsFunc(list(set, which), func(o object) bool { return text(o["name"]) == name })
		}
		switch {
		case has("enabled", plugin):
			return true
		case has("disabled", plugin) || has("disabled", all):
			return false
		}
	}
	return true
}

// pluginConfig converts the arguments of plugins.
func (c *converter) pluginConfig(path string, p object) {
	before := list(p, "pluginConfig")
	if len(before) == 0 {
		return
	}
	delete(p, "pluginConfig")
	var kept []any
	for _, entry := range before {
		if name := text(entry["name"]); strategies[name] == "" && gone[name] == "" {
			if args, ok := entry["args"].(object); ok && strings.HasPrefix(text(args["apiVersion"]), group) {
				delete(args, "apiVersion")
				delete(args, "kind")
			}
			if args, ok := entry["args"].(object); ok && name == ofSpreading && len(list(args, "defaultConstraints")) > 0 && args["defaultingType"] == nil {
				args["defaultingType"] = string(configv1.ListDefaulting) // the only one there was at first
			}
			kept = append(kept, entry)
		}
	}
	if len(kept) > 0 {
		p["pluginConfig"] = kept
	}
	for _, entry := range before {
		name := text(entry["name"])
		args, _ := entry["args"].(object)
		switch {
		case name == "NodeLabel":
			c.nodeLabel(path, p, args)
		case strategies[name] != "":
			c.strategyArgs(path, p, name, args)
		case gone[name] != "":
			c.say("%s.pluginConfig: the arguments of %s are left out: v1 does not have it; %s", path, name, gone[name])
		}
	}
}

// strategyArgs makes arguments of a former plugin those of the strategy, if that is the one of the profile.
func (c *converter) strategyArgs(path string, p object, name string, args object) {
	strategy := child(argsOf(p, ofRequests), "scoringStrategy")
	if now := text(strategy["type"]); now != "" && now != string(strategies[name]) {
		c.say("%s.pluginConfig: the arguments of %s are left out: the strategy is %s", path, name, now)
		return
	}
	strategy["type"] = string(strategies[name])
	if resources := args["resources"]; resources != nil {
		strategy["resources"] = resources
	}
	if shape := args["shape"]; shape != nil {
		child(strategy, "requestedToCapacityRatio")["shape"] = shape
	}
}

// nodeLabel makes labels that nodes must have, or must not have, an affinity of all pods.
func (c *converter) nodeLabel(path string, p, args object) {
	c.requireLabels(p, texts(args["presentLabels"]), true)
	c.requireLabels(p, texts(args["absentLabels"]), false)
	for _, field := range []string{"presentLabelsPreference", "absentLabelsPreference"} {
		if labels := texts(args[field]); len(labels) > 0 {
			c.say("%s.pluginConfig: NodeLabel's %s %v is left out: preferences of NodeAffinity's addedAffinity are normalised together with those of pods", path, field, labels)
		}
	}
}

// requireLabels adds to the one term of the profile's added affinity.
func (c *converter) requireLabels(p object, labels []string, present bool) {
	if len(labels) == 0 {
		return
	}
	operator := "Exists"
	if !present {
		operator = "DoesNotExist"
	}
	required := child(child(argsOf(p, ofNodeTerms), "addedAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
	terms := list(required, "nodeSelectorTerms")
	if len(terms) == 0 {
		terms = []object{{}}
	}
	for _, t := range terms { // ORed: each has to ask for it
		expressions, _ := t["matchExpressions"].([]any)
		for _, label := range labels {
			expressions = append(expressions, object{"key": label, "operator": operator})
		}
		t["matchExpressions"] = expressions
	}
	required["nodeSelectorTerms"] = asAny(terms)
}

// texts returns a list of strings.
func texts(v any) []string {
	var out []string
	items, _ := v.([]any)
	for _, item := range items {
		out = append(out, fmt.Sprint(item))
	}
	return out
}
