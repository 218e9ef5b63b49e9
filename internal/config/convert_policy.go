package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/engine"
)

// predicates returns the plugins that stand for a policy's predicate at Filter.
func predicates(name string) (stand []string) {
	for _, p := range inTree() {
		if slices.Contains(p.Predicates, name) {
			stand = append(stand, p.Name)
		}
	}
	return stand
}

// always are predicates that every policy had, named or not.
var always = []string{"PodToleratesNodeTaints", "CheckNodeUnschedulable"}

// volumeCounts are predicates about volumes that CSI drivers serve now.
var volumeCounts = map[string]bool{
	"MaxEBSVolumeCount": true, "MaxGCEPDVolumeCount": true, "MaxAzureDiskVolumeCount": true, "MaxCinderVolumeCount": true,
}

// priority returns the plugin that stands for a policy's priority at Score, "" if there is none.
func priority(name string) string {
	all := inTree()
	if k := slices.IndexFunc(all, func(p engine.Plugin) bool { return slices.Contains(p.Priorities, name) }); k >= 0 {
		return all[k].Name
	}
	return ""
}

// spreadPriorities spread the pods of services and controllers, as PodTopologySpread's default constraints do now.
var spreadPriorities = map[string]bool{"SelectorSpreadPriority": true, "ServiceSpreadingPriority": true}

var goneOfPolicies = map[string]string{
	"NodePreferAvoidPodsPriority": gone["NodePreferAvoidPods"],
	"ResourceLimitsPriority":      gone["NodeResourceLimits"],
	"EqualPriority":               "it made no difference",
}

// policy converts a policy: what it named runs, with its weights, and of filters and scores nothing else does.
func (c *converter) policy(from object) (object, error) {
	out, profile := object{}, object{}
	filters, err := c.predicates(profile, from)
	if err != nil {
		return nil, err
	}
	weights, err := c.priorities(profile, from)
	if err != nil {
		return nil, err
	}
	for _, p := range inTree() {
		if p.Gated || len(p.Predicates)+len(p.Priorities) == 0 {
			continue // of those that came later a policy says nothing
		}
		noFilter := p.RunsAt("filter") && filters != nil && !filters[p.Name]
		weight, scored := weights[p.Name]
		noScore := p.Weight != 0 && weights != nil && !scored
		switch {
		case (noFilter || !p.RunsAt("filter")) && (noScore || p.Weight == 0) && (noFilter || noScore):
			disable(profile, multiPoint, p.Name)
			continue
		case noFilter:
			disable(profile, "filter", p.Name)
			if p.RunsAt("preFilter") {
				disable(profile, "preFilter", p.Name)
			}
		case noScore:
			disable(profile, "score", p.Name)
		}
		if scored && weight != float64(p.Weight) {
			set := child(child(profile, "plugins"), "score")
			setIn(profile, "score", "enabled", append(list(set, "enabled"), object{"name": p.Name, "weight": weight}))
		}
	}
	if v, ok := take(from, "hardPodAffinitySymmetricWeight").(float64); ok && v != 0 && v != 1 { // 0 is what an unset one was
		setArg(profile, ofPodTerms, "hardPodAffinityWeight", v)
	}
	if take(from, "alwaysCheckAllPredicates") == true {
		c.say("alwaysCheckAllPredicates is left out: a node's verdict is that of the first filter it fails; kubectl berth why lists all that the nearest nodes lack")
	}
	extenders := list(from, "extenders")
	delete(from, "extenders")
	for i, e := range extenders {
		if err := c.extender(i, e); err != nil {
			return nil, err
		}
	}
	if len(extenders) > 0 {
		out["extenders"] = asAny(extenders)
	}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		delete(from, name)
	}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		return nil, fmt.Errorf("policy: unknown field %q", name)
	}
	if len(profile) > 0 {
		out["profiles"] = []any{profile}
	}
	return out, nil
}

// predicates returns which plugins filter; nil if the policy leaves that to the default.
func (c *converter) predicates(profile, from object) (map[string]bool, error) {
	named, said := take(from, "predicates").([]any)
	if !said {
		return nil, nil
	}
	filters := make(map[string]bool)
	for _, name := range always {
		for _, plugin := range predicates(name) {
			filters[plugin] = true
		}
	}
	for _, p := range list(object{"": named}, "") {
		name := text(p["name"])
		argument, _ := p["argument"].(object)
		labels, isLabels := argument["labelsPresence"].(object)
		_, isService := argument["serviceAffinity"].(object)
		switch {
		case isLabels:
			c.requireLabels(profile, texts(labels["labels"]), labels["presence"] == true)
			filters[ofNodeTerms] = true
		case isService:
			c.say("predicate %s (serviceAffinity) is left out: v1 does not have it; %s", name, gone["ServiceAffinity"])
		case volumeCounts[name]:
			for _, plugin := range predicates("MaxCSIVolumeCountPred") {
				filters[plugin] = true
			}
			c.say("predicate %s is left out: %s", name, gone["EBSLimits"])
		case predicates(name) != nil:
			for _, plugin := range predicates(name) {
				filters[plugin] = true
			}
		default:
			return nil, fmt.Errorf("policy: unknown predicate %q", name)
		}
	}
	return filters, nil
}

// priorities returns which plugins score, with weights; nil if the policy leaves that to the default.
func (c *converter) priorities(profile, from object) (map[string]float64, error) {
	named, said := take(from, "priorities").([]any)
	if !said {
		return nil, nil
	}
	weights := make(map[string]float64)
	strategy := ""
	for _, p := range list(object{"": named}, "") {
		name := text(p["name"])
		weight, _ := p["weight"].(float64)
		argument, _ := p["argument"].(object)
		ratio, isRatio := argument["requestedToCapacityRatioArguments"].(object)
		if isRatio {
			name = "RequestedToCapacityRatioPriority"
		}
		plugin, why := priority(name), goneOfPolicies[name]
		switch {
		case argument["labelPreference"] != nil:
			c.say("priority %s (labelPreference) is left out: v1 does not have it; %s, though its preferences are normalised together with those of pods", name, gone["NodeLabel"])
		case argument["serviceAntiAffinity"] != nil:
			c.say("priority %s (serviceAntiAffinity) is left out: v1 does not have it; %s", name, gone["SelectorSpread"])
		case why != "":
			c.say("priority %s is left out: v1 does not have it; %s", name, why)
		case plugin == "" && !spreadPriorities[name]:
			return nil, fmt.Errorf("policy: unknown priority %q", name)
		case weight == 0:
			c.say("priority %s is left out: its weight is 0", name)
		case spreadPriorities[name]:
			c.say("priority %s is %s in v1, which spreads by the constraints of pods too", name, ofSpreading)
			if _, ok := weights[ofSpreading]; !ok { // it may be named itself
				weights[ofSpreading] = weight
			}
		case plugin == ofRequests && strategy != "":
			c.say("priority %s is left out: a profile has one strategy of %s, and %s came first", name, ofRequests, strategy)
		case plugin == ofRequests:
			weights[plugin], strategy = weight, name
			setStrategy(profile, name, ratio)
		default:
			weights[plugin] = weight
		}
	}
	return weights, nil
}

func setStrategy(profile object, priority string, ratio object) {
	switch priority {
	case "MostRequestedPriority":
		setArg(profile, ofRequests, "scoringStrategy", object{"type": string(configv1.MostAllocated)})
	case "RequestedToCapacityRatioPriority":
		strategy := object{"type": string(configv1.RequestedToCapacityRatio)}
		if shape := ratio["shape"]; shape != nil {
			strategy["requestedToCapacityRatio"] = object{"shape": shape}
		}
		if resources := ratio["resources"]; resources != nil {
			strategy["resources"] = resources
		}
		setArg(profile, ofRequests, "scoringStrategy", strategy)
	}
}

// extender converts an extender of a policy, where durations were nanoseconds.
func (c *converter) extender(i int, e object) error {
	if v := take(e, "enableHttps"); v != nil {
		e["enableHTTPS"] = v
	}
	switch v := e["httpTimeout"].(type) {
	case nil:
	case float64:
		e["httpTimeout"] = time.Duration(v).String()
	default:
		return fmt.Errorf("policy: extenders[%d].httpTimeout: %v: want nanoseconds", i, v)
	}
	return nil
}
