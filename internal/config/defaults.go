package config

import (
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// orDefault sets what is not set.
func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func pointTo[T any](v T) *T { return &v }

// valueOr returns what p points to, or value if it is nil.
func valueOr[T any](p *T, value T) T {
	if p == nil {
		return value
	}
	return *p
}

func orPointTo[T any](field **T, value T) {
	if *field == nil {
		*field = pointTo(value)
	}
}

// setDefaults fills in what a configuration leaves out, as kube-scheduler 1.36 does with its default feature gates.
func setDefaults(cfg *configv1.KubeSchedulerConfiguration) {
	orPointTo(&cfg.Parallelism, 16)
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(cfg.Profiles) == 1 { // with several, each has to be named
		orPointTo(&cfg.Profiles[0].SchedulerName, corev1.DefaultSchedulerName)
	}
	for i := range cfg.Profiles {
		setProfileDefaults(&cfg.Profiles[i])
	}
	orPointTo(&cfg.PercentageOfNodesToScore, 0)

	orDefault(&cfg.LeaderElection.ResourceLock, "leases")
	orDefault(&cfg.LeaderElection.ResourceNamespace, configv1.SchedulerDefaultLockObjectNamespace)
	orDefault(&cfg.LeaderElection.ResourceName, configv1.SchedulerDefaultLockObjectName)
	v1alpha1.RecommendedDefaultLeaderElectionConfiguration(&cfg.LeaderElection)
	v1alpha1.RecommendedDefaultClientConnectionConfiguration(&cfg.ClientConnection)

	orPointTo(&cfg.PodInitialBackoffSeconds, 1)
	orPointTo(&cfg.PodMaxBackoffSeconds, 10)
	orPointTo(&cfg.EnableProfiling, true)
	if *cfg.EnableProfiling {
		orPointTo(&cfg.EnableContentionProfiling, true)
	}
}

// setStorageShapes fills in by what VolumeBinding scores, with the feature gate StorageCapacityScoring.
func setStorageShapes(cfg *configv1.KubeSchedulerConfiguration) {
	for i := range cfg.Profiles {
		for k := range cfg.Profiles[i].PluginConfig {
			if args, ok := cfg.Profiles[i].PluginConfig[k].Args.Object.(*configv1.VolumeBindingArgs); ok && len(args.Shape) == 0 {
				args.Shape = standardStorageShape()
			}
		}
	}
}

func standardStorageShape() []configv1.UtilizationShapePoint {
	return []configv1.UtilizationShapePoint{{Utilization: 0, Score: maxShapeScore}, {Utilization: 100, Score: 0}}
}

func setProfileDefaults(p *configv1.KubeSchedulerProfile) {
	p.Plugins = mergePlugins(p.Plugins)
	has := make(map[string]bool)
	for i := range p.PluginConfig {
		has[p.PluginConfig[i].Name] = true
		setArgsDefaults(p.PluginConfig[i].Args.Object)
	}
	for _, name := range enabledNames(p.Plugins) {
		if args := newArgs(name); args != nil && !has[name] {
			p.PluginConfig = append(p.PluginConfig, configv1.PluginConfig{Name: name, Args: runtime.RawExtension{Object: args}})
		}
	}
}

// argsOfPlugins are empty arguments of every plugin that takes some.
func argsOfPlugins() []runtime.Object {
	return []runtime.Object{
		&configv1.DefaultPreemptionArgs{}, &configv1.DynamicResourcesArgs{}, &configv1.InterPodAffinityArgs{}, &configv1.NodeAffinityArgs{},
		&configv1.NodeResourcesBalancedAllocationArgs{}, &configv1.NodeResourcesFitArgs{}, &configv1.PodTopologySpreadArgs{},
		&configv1.VolumeBindingArgs{},
	}
}

// newArgs returns the default arguments of a plugin, nil if it takes none. Their type has its name.
func newArgs(plugin string) runtime.Object {
	kind := plugin + "Args"
	for _, args := range argsOfPlugins() {
		if reflect.TypeOf(args).Elem().Name() == kind {
			args.GetObjectKind().SetGroupVersionKind(configv1.SchemeGroupVersion.WithKind(kind))
			setArgsDefaults(args)
			return args
		}
	}
	return nil
}

func defaultResources() []configv1.ResourceSpec {
	return []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
}

func setArgsDefaults(args runtime.Object) {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		orPointTo(&a.MinCandidateNodesPercentage, 10)
		orPointTo(&a.MinCandidateNodesAbsolute, 100)
	case *configv1.DynamicResourcesArgs:
		orPointTo(&a.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
		orPointTo(&a.BindingTimeout, metav1.Duration{Duration: configv1.DynamicResourcesBindingTimeoutDefault})
	case *configv1.InterPodAffinityArgs:
		orPointTo(&a.HardPodAffinityWeight, 1)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		setResourceDefaults(&a.Resources)
	case *configv1.NodeResourcesFitArgs:
		if a.ScoringStrategy == nil {
			a.ScoringStrategy = &configv1.ScoringStrategy{Type: configv1.LeastAllocated}
		}
		setResourceDefaults(&a.ScoringStrategy.Resources)
	case *configv1.PodTopologySpreadArgs:
		orDefault(&a.DefaultingType, configv1.SystemDefaulting)
	case *configv1.VolumeBindingArgs:
		orPointTo(&a.BindTimeoutSeconds, int64(10*time.Minute/time.Second))
	}
}

func setResourceDefaults(resources *[]configv1.ResourceSpec) {
	if len(*resources) == 0 {
		*resources = defaultResources()
	}
	for i := range *resources {
		orDefault(&(*resources)[i].Weight, 1)
	}
}

// enabledNames returns the plugins that are enabled at some point, by name.
func enabledNames(p *configv1.Plugins) []string {
	var names []string
	for _, s := range pluginSets(p) {
		for _, plugin := range s.set.Enabled {
			names = append(names, plugin.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
