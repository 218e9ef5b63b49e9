package config

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Options are what a configuration means by, and does not say itself. Their zero value is what kube-scheduler does by default.
type Options struct {
	// The feature gates of kube-scheduler's that Berth has.
	StorageCapacityScoring, VolumeLimitScaling, TaintComparison bool
	// Serving are those of how the operators' endpoints are served that are not as by default, and Client all those of client-go.
	Serving, Client map[string]bool
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
		o.TaintComparison = o.TaintComparison || p.TaintComparison
		o.RequireCSIDrivers = o.RequireCSIDrivers || p.RequireCSIDrivers
	}
	o.Plugins = foreign(profiles)
	return o
}

// gates are the feature gates that Berth has, by kube-scheduler's names; all are off by default.
func (o *Options) gates() map[string]*bool {
	return map[string]*bool{
		"StorageCapacityScoring": &o.StorageCapacityScoring, "VolumeLimitScaling": &o.VolumeLimitScaling,
		"TaintTolerationComparisonOperators": &o.TaintComparison,
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
		case slices.Contains(asOn, name):
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

// gatesText has a line for each feature gate that kube-scheduler 1.36 takes, which are those of all of Kubernetes: its name, on or off as it is by default, its stage, and locked if it
// cannot be changed.
//
//go:embed gates.txt
var gatesText string

// known is a feature gate of Kubernetes.
type known struct {
	standard
	locked bool
}

// knownGates are those of gatesText, by name.
var knownGates = sync.OnceValue(func() map[string]known {
	all := make(map[string]known)
	for line := range strings.Lines(gatesText) {
		fields := strings.Fields(line)
		all[fields[0]] = known{standard{fields[1] == "on", fields[2]}, len(fields) == 4}
	}
	return all
})

// meaningless says why it changes nothing in Berth when a feature gate that kube-scheduler reads is not at its default. Of gates that are not here, their families say it.
var meaningless = map[string]string{
	"ComponentFlagz":                          "the page is served in any case, to those who may get it",
	"ComponentStatusz":                        "the page is served in any case, to those who may get it",
	"ContextualLogging":                       "Berth's log says in each line what it is about",
	"CoordinatedLeaderElection":               "Berth takes the Lease as kube-scheduler does without",
	"InPlacePodLevelResourcesVerticalScaling": "what the API server lets into pods counts",
	"LoggingAlphaOptions":                     "it is about options of klog, which does not write Berth's log",
	"LoggingBetaOptions":                      "it is about options of klog, which does not write Berth's log",
	"MatchLabelKeysInPodTopologySpread":       "what the API server lets into pods counts",
	"NativeHistograms":                        "Berth's histograms have fixed buckets, as kube-scheduler's without",
	"NominatedNodeNameForExpectation":         "where a pod is to go is not written to it; if volumes or plugins take long, nobody reads it there",
	"OpportunisticBatching":                   "Berth judges pods that are alike together in any case, and decides as if it did not",
	"PodLevelResources":                       "what the API server lets into pods counts",
	"SchedulerAsyncAPICalls":                  "Berth's writes to the API server hold up no decision in any case",
	"SchedulerAsyncPreemption":                "evictions hold up no decision in any case",
	"SchedulerPopFromBackoffQ":                "pods that back off are tried early in any case, if no other waits",
}

// families say it of the gates whose names begin so.
var families = []struct{ prefix, why string }{
	{"DRA", "Berth has no dynamic resource allocation: pods with resource claims stay pending"},
	{"DynamicResourceAllocation", "Berth has no dynamic resource allocation: pods with resource claims stay pending"},
	{"GangScheduling", withGroups}, {"GenericWorkload", withGroups}, {"TopologyAwareWorkloadScheduling", withGroups},
	{"WorkloadAwarePreemption", withGroups},
}

const withGroups = "Berth places pods of PodGroups together, as their topology says, and preempts for them as a whole, wherever the API server serves PodGroups"

// asOn are gates without which Berth does as kube-scheduler does with them.
var asOn = []string{"GangScheduling", "GenericWorkload", "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"}

// ofServing are gates that say how the operators' endpoints are served: package secureport obeys them.
var ofServing = []string{"AllowParsingUserUIDFromCertAuth", "CBORServingAndStorage", "RemoteRequestHeaderUID"}

// ofClient are gates of client-go, which obeys them.
var ofClient = []string{"AtomicFIFO", "ClientsAllowCARotation", "ClientsAllowCBOR", "ClientsAllowTLSCacheGC", "ClientsPreferCBOR", "InOrderInformersBatchProcess", "InformerResourceVersion", "UnlockWhileProcessingFIFO", "WatchListClient"}

// why returns why a feature gate that Berth has not changes nothing.
func why(name string) string {
	if text, ok := meaningless[name]; ok {
		return text
	}
	for _, f := range families {
		if strings.HasPrefix(name, f.prefix) {
			return f.why
		}
	}
	switch p := engine.PluginOf(name); {
	case p != nil && p.OwnGate:
		return "the plugin of that name runs, unless a profile disables it"
	}
	return "kube-scheduler does not read it"
}

// ownGates say what the feature gates do that Berth has.
var ownGates = map[string]string{
	"StorageCapacityScoring":             "as in kube-scheduler: nodes are scored by the room that CSIStorageCapacities tell of",
	"TaintTolerationComparisonOperators": "as in kube-scheduler: tolerations with the operators Lt and Gt tolerate taints whose values are lower, or greater, integers",
	"VolumeLimitScaling":                 "as in kube-scheduler: no pod comes to a node without the CSI drivers of its volumes, as far as these ask for that",
}

// GateDoes returns what a feature gate does in Berth that kube-scheduler reads.
func GateDoes(name string) string {
	if does, ok := ownGates[name]; ok {
		return does
	}
	if is := knownGates()[name]; is.locked {
		return "is locked"
	}
	if name == allAlpha || name == allBeta {
		return "is for all others of the stage, as in kube-scheduler"
	}
	return "nothing, if it is not at its default: " + why(name)
}

// AcceptGates sets feature gates as kube-scheduler takes them: those that Berth has as they are given, and any other of Kubernetes, with a note that says why it changes
// nothing, if it is not at its default. One that Kubernetes has not, or that cannot be changed, is an error.
func (o *Options) AcceptGates(gates []string) (notes []string, err error) {
	own, given := o.gates(), make(map[string]bool)
	var errs []error
	o.Serving, o.Client = make(map[string]bool), make(map[string]bool)
	for _, gate := range gates {
		gate = strings.TrimPrefix(strings.TrimSpace(gate), "kube:")
		if gate == "" {
			continue
		}
		name, text, found := strings.Cut(gate, "=")
		name = strings.TrimSpace(name)
		if !found {
			errs = append(errs, fmt.Errorf("missing bool value for feature gate key:%s", name))
			continue
		}
		on, err := strconv.ParseBool(strings.TrimSpace(text))
		is, known := knownGates()[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("unrecognized feature gate: %s", name))
		case err != nil:
			errs = append(errs, fmt.Errorf("invalid value of %s: %s, err: %w", name, strings.TrimSpace(text), err))
		case is.locked && on != is.on:
			errs = append(errs, fmt.Errorf("cannot set feature gate %v to %v, feature is locked to %v", name, on, is.on))
		default:
			given[name] = on
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	is := func(name string) bool { return effective(name, given) }
	for name, field := range own {
		*field = is(name)
	}
	for _, name := range ofServing {
		if known := knownGates()[name]; is(name) != known.on {
			o.Serving[name] = is(name)
		}
	}
	for _, name := range ofClient {
		o.Client[name] = is(name)
	}
	// What is not as by default, of what kube-scheduler reads, and of what is given by name.
	read := fixed()
	for _, name := range slices.Sorted(maps.Keys(knownGates())) {
		_, named := given[name]
		_, reads := read[name]
		switch {
		case name == allAlpha || name == allBeta || own[name] != nil || slices.Contains(ofServing, name) || slices.Contains(ofClient, name):
		case (named || reads) && is(name) != knownGates()[name].on:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s=%t changes nothing: %s", name, is(name), why(name)))
		}
	}
	return notes, nil
}

// The gates that are about all others of a stage.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// effective returns whether a feature gate is on where some are given: as it is given; else, if it can be changed, as those of its stage are; else as by default.
func effective(name string, given map[string]bool) bool {
	if on, ok := given[name]; ok {
		return on
	}
	is := knownGates()[name]
	if is.locked || name == allAlpha || name == allBeta {
		return is.on
	}
	for all, stage := range map[string]string{allAlpha: alpha, allBeta: beta} {
		if on, ok := given[all]; ok && is.stage == stage {
			return on
		}
	}
	return is.on
}
