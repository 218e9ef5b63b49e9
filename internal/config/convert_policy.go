package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"
)

// predicates are the plugins that stand for a policy's predicates at Filter.
var predicates = map[string][]string{
	"GeneralPredicates":     {"NodeName", nodePorts, nodeAffinity, nodeResourcesFit},
	"PodFitsResources":      {nodeResourcesFit},
	"PodFitsHostPorts":      {nodePorts},
	"PodFitsPorts":          {nodePorts},
	"HostName":              {"NodeName"},
	"MatchNodeSelector":     {nodeAffinity},
	"MatchInterPodAffinity": {interPodAffinity},
	"EvenPodsSpread":        {podTopologySpread},
	"NoDiskConflict":        {"VolumeRestrictions"},
	"NoVolumeZoneConflict":  {"VolumeZone"},
	"MaxCSIVolumeCountPred": {"NodeVolumeLimits"},
	"CheckVolumeBinding":    {"VolumeBinding"},
	// Every policy had these two, named or not.
	"PodToleratesNodeTaints": {taintToleration},
	"CheckNodeUnschedulable": {"NodeUnschedulable"},
}

// volumeCounts are predicates about volumes that CSI drivers serve now.
var volumeCounts = map[string]bool{
	"MaxEBSVolumeCount": true, "MaxGCEPDVolumeCount": true, "MaxAzureDiskVolumeCount": true, "MaxCinderVolumeCount": true,
}

// priorities are the plugins that stand for a policy's priorities at Score.
var priorities = map[string]string{
	"BalancedResourceAllocation":       balancedAllocation,
	"ImageLocalityPriority":            "ImageLocality",
	"InterPodAffinityPriority":         interPodAffinity,
	"NodeAffinityPriority":             nodeAffinity,
	"TaintTolerationPriority":          taintToleration,
	"EvenPodsSpreadPriority":           podTopologySpread,
	"LeastRequestedPriority":           nodeResourcesFit,
	"MostRequestedPriority":            nodeResourcesFit,
	"RequestedToCapacityRatioPriority": nodeResourcesFit,
}

// spreadPriorities spread the pods of services and controllers, as PodTopologySpread's default constraints do now.
var spreadPriorities = map[string]bool{"SelectorSpreadPriority": true, "ServiceSpreadingPriority": true}

var goneOfPolicies = map[string]string{
	"NodePreferAvoidPodsPriority": gone["NodePreferAvoidPods"],
	"ResourceLimitsPriority":      gone["NodeResourceLimits"],
	"EqualPriority":               "it made no difference",
}

// later are default plugins that came after policies: a policy says nothing about them.
var later = []string{"DynamicResources", declaredFeatures}

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
	for i := range inTree {
		p := &inTree[i]
		if !p.byDefault || slices.Contains(later, p.name) {
			continue
		}
		noFilter := p.runsAt("filter") && filters != nil && !filters[p.name]
		weight, scored := weights[p.name]
		noScore := p.weight != 0 && weights != nil && !scored
		switch {
		case (noFilter || !p.runsAt("filter")) && (noScore || p.weight == 0) && (noFilter || noScore):
			disable(profile, multiPoint, p.name)
			continue
		case noFilter:
			disable(profile, "filter", p.name)
			if p.runsAt("preFilter") {
				disable(profile, "preFilter", p.name)
			}
		case noScore:
			disable(profile, "score", p.name)
		}
		if scored && weight != float64(p.weight) {
			set := child(child(profile, "plugins"), "score")
			setIn(profile, "score", "enabled", append(list(set, "enabled"), object{"name": p.name, "weight": weight}))
		}
	}
	if v, ok := take(from, "hardPodAffinitySymmetricWeight").(float64); ok && v != 0 && v != 1 { // 0 is what an unset one was
		setArg(profile, interPodAffinity, "hardPodAffinityWeight", v)
	}
	if take(from, "alwaysCheckAllPredicates") == true {
		c.say("alwaysCheckAllPredicates is left out: a node's verdict is that of the first filter it fails")
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
	filters := map[string]bool{taintToleration: true, "NodeUnschedulable": true}
	for _, p := range list(object{"": named}, "") {
		name := text(p["name"])
		argument, _ := p["argument"].(object)
		labels, isLabels := argument["labelsPresence"].(object)
		_, isService := argument["serviceAffinity"].(object)
		switch {
		case isLabels:
			c.requireLabels(profile, texts(labels["labels"]), labels["presence"] == true)
			filters[nodeAffinity] = true
		case isService:
			c.say("predicate %s (serviceAffinity) is left out: v1 does not have it; %s", name, gone["ServiceAffinity"])
		case volumeCounts[name]:
			filters["NodeVolumeLimits"] = true
			c.say("predicate %s is left out: %s", name, gone["EBSLimits"])
		case predicates[name] != nil:
			for _, plugin := range predicates[name] {
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
		plugin, why := priorities[name], goneOfPolicies[name]
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
			c.say("priority %s is %s in v1, which spreads by the constraints of pods too", name, podTopologySpread)
			if _, ok := weights[podTopologySpread]; !ok { // it may be named itself
				weights[podTopologySpread] = weight
			}
		case plugin == nodeResourcesFit && strategy != "":
			c.say("priority %s is left out: a profile has one strategy of NodeResourcesFit, and %s came first", name, strategy)
		case plugin == nodeResourcesFit:
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
		setArg(profile, nodeResourcesFit, "scoringStrategy", object{"type": string(configv1.MostAllocated)})
	case "RequestedToCapacityRatioPriority":
		strategy := object{"type": string(configv1.RequestedToCapacityRatio)}
		if shape := ratio["shape"]; shape != nil {
			strategy["requestedToCapacityRatio"] = object{"shape": shape}
		}
		if resources := ratio["resources"]; resources != nil {
			strategy["resources"] = resources
		}
		setArg(profile, nodeResourcesFit, "scoringStrategy", strategy)
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
