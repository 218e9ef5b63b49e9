package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Options are what a configuration means by, and does not say itself. Their zero value is what kube-scheduler does by default.
type Options struct {
	// The feature gates of kube-scheduler's that Berth has.
	StorageCapacityScoring, VolumeLimitScaling bool
	// RequireCSIDrivers is Berth's own; see cluster.Profile.
	RequireCSIDrivers bool
	// Plugins are those of plugin services, and the points of each.
	Plugins map[string][]string
	// CompiledIn are plugins that the program itself has, written for kube-scheduler, and all points of each, in the words of a profile.
	CompiledIn map[string][]string
}

// OptionsOf returns the options by which profiles have been completed. Of plugins of services it knows those that a profile has, and takes each at any point
// where one can be.
func OptionsOf(profiles []cluster.Profile) (o Options) {
	for i := range profiles {
		p := &profiles[i]
		o.StorageCapacityScoring = o.StorageCapacityScoring || len(p.StorageShape) > 0
		o.VolumeLimitScaling = o.VolumeLimitScaling || p.VolumeLimitScaling
		o.RequireCSIDrivers = o.RequireCSIDrivers || p.RequireCSIDrivers
	}
	o.Plugins = foreign(profiles)
	return o
}

// gates are the feature gates that Berth has, by kube-scheduler's names; all are off by default.
func (o *Options) gates() map[string]*bool {
	return map[string]*bool{
		"StorageCapacityScoring": &o.StorageCapacityScoring, "VolumeLimitScaling": &o.VolumeLimitScaling,
	}
}

// The stages of feature gates, as kubernetes_feature_enabled has them.
const (
	alpha = "ALPHA"
	beta  = "BETA"
	ga    = ""
)

// standard is what a feature gate is in kube-scheduler 1.36.
type standard struct {
	on    bool
	stage string
}

// fixed returns the other feature gates that kube-scheduler 1.36 reads, at their defaults: Berth does as it does then.
func fixed() map[string]standard {
	out := maps.Clone(fixedGates)
	for _, p := range engine.Plugins() {
		if p.OwnGate {
			out[p.Name] = standard{!p.Gated, beta}
			if p.Gated {
				out[p.Name] = standard{false, alpha}
			}
		}
	}
	return out
}

// Gate is a feature gate of kube-scheduler's.
type Gate struct {
	Name, Stage string // ALPHA, BETA, or nothing of what is for general use
	On          bool
}

// Gates returns all feature gates that kube-scheduler 1.36 reads, as Berth does, by name.
func (o *Options) Gates() (all []Gate) {
	for name, on := range o.gates() {
		all = append(all, Gate{name, alpha, *on})
	}
	for name, is := range fixed() {
		all = append(all, Gate{name, is.stage, is.on})
	}
	slices.SortFunc(all, func(a, b Gate) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// fixedGates is fixed without those that are called as plugins are.
var fixedGates = map[string]standard{
	"AllAlpha":                                {false, alpha},
	"AllBeta":                                 {false, beta},
	"ComponentFlagz":                          {true, beta},
	"ComponentStatusz":                        {true, beta},
	"ContextualLogging":                       {true, beta},
	"CoordinatedLeaderElection":               {false, beta},
	"LoggingAlphaOptions":                     {false, alpha},
	"LoggingBetaOptions":                      {true, beta},
	"NativeHistograms":                        {false, alpha},
	"DRAAdminAccess":                          {true, ga},
	"DRAConsumableCapacity":                   {true, beta},
	"DRADeviceBindingConditions":              {true, beta},
	"DRADeviceTaintRules":                     {false, beta},
	"DRADeviceTaints":                         {true, beta},
	"DRAExtendedResource":                     {true, beta},
	"DRAListTypeAttributes":                   {false, alpha},
	"DRANodeAllocatableResources":             {false, alpha},
	"DRAPartitionableDevices":                 {true, beta},
	"DRAPrioritizedList":                      {true, ga},
	"DRAResourceClaimDeviceStatus":            {true, beta},
	"DRASchedulerFilterTimeout":               {true, beta},
	"DRAWorkloadResourceClaims":               {false, alpha},
	"DynamicResourceAllocation":               {true, ga},
	"GenericWorkload":                         {false, alpha},
	"InPlacePodLevelResourcesVerticalScaling": {true, beta},
	"InPlacePodVerticalScaling":               {true, ga},
	"MatchLabelKeysInPodTopologySpread":       {true, beta},
	"NodeInclusionPolicyInPodTopologySpread":  {true, ga},
	"NominatedNodeNameForExpectation":         {true, beta},
	"OpportunisticBatching":                   {true, beta},
	"PodLevelResources":                       {true, beta},
	"SchedulerAsyncAPICalls":                  {false, beta},
	"SchedulerAsyncPreemption":                {true, beta},
	"SchedulerPopFromBackoffQ":                {true, beta},
	"SchedulerQueueingHints":                  {true, ga},
	"SidecarContainers":                       {true, ga},
	"TaintTolerationComparisonOperators":      {false, alpha},
	"TopologyAwareWorkloadScheduling":         {false, alpha},
	"VolumeAttributesClass":                   {true, ga},
	"WorkloadAwarePreemption":                 {false, alpha},
}

// SetGates sets feature gates, each given as NAME=true or NAME=false; the last one of a name counts. An error says which cannot be set, and what can.
func (o *Options) SetGates(gates []string) error {
	own, fixed := o.gates(), fixed()
	for _, gate := range gates {
		gate = strings.TrimPrefix(strings.TrimSpace(gate), "kube:") // the component, as kube-scheduler takes it
		if gate == "" {
			continue // as after a comma at the end
		}
		name, text, _ := strings.Cut(strings.TrimSpace(gate), "=")
		name = strings.TrimSpace(name)
		on, err := strconv.ParseBool(strings.TrimSpace(text))
		is, taken := fixed[name]
		switch {
		case own[name] == nil && !taken:
			return fmt.Errorf("%q: Berth has no such feature gate: it has %s; and it takes, at their defaults, %s",
				name, listed(own), listed(fixed))
		case err != nil:
			return fmt.Errorf("%q: want %s=true or %[2]s=false", gate, name)
		case !taken:
			*own[name] = on
		case on != is.on && (strings.HasPrefix(name, "DRA") || name == "DynamicResourceAllocation"):
			return fmt.Errorf("%q: Berth has no dynamic resource allocation, and takes %s=%t, its default, alone: pods with resource claims stay pending", gate, name, is.on)
		case on != is.on:
			return fmt.Errorf("%q: Berth does as kube-scheduler does with %s=%t, its default, and has nothing else", gate, name, is.on)
		}
	}
	return nil
}

// listed returns the names that a table has, in alphabetical order.
func listed[V any](table map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}
