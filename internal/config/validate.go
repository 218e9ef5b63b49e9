package config

import (
	"fmt"
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// validate returns what kube-scheduler finds wrong with a configuration that has its defaults, in its words.
func validate(cfg *configv1.KubeSchedulerConfiguration, options Options) error {
	var errs []error
	add := func(list ...*field.Error) {
		for _, err := range list {
			errs = append(errs, err)
		}
	}
	if cfg.ClientConnection.Burst < 0 {
		add(field.Invalid(field.NewPath("clientConnection", "burst"), cfg.ClientConnection.Burst, "must be non-negative"))
	}
	add(validateLeaderElection(field.NewPath("leaderElection"), &cfg.LeaderElection)...)
	if *cfg.Parallelism <= 0 {
		add(field.Invalid(field.NewPath("parallelism"), *cfg.Parallelism, "should be an integer value greater than zero"))
	}
	profiles := field.NewPath("profiles")
	seen := make(map[string]int)
	for i := range cfg.Profiles {
		p, path := &cfg.Profiles[i], profiles.Index(i)
		name := ""
		if p.SchedulerName != nil {
			name = *p.SchedulerName
		}
		if name == "" {
			add(field.Required(path.Child("schedulerName"), ""))
		}
		add(validatePercentage(path.Child("percentageOfNodesToScore"), p.PercentageOfNodesToScore)...)
		errs = append(errs, validatePlugins(path, p, options)...)
		if k, ok := seen[name]; ok {
			add(field.Duplicate(path.Child("schedulerName"), profiles.Index(k).Child("schedulerName")))
		}
		seen[name] = i
	}
	add(validateQueueSort(profiles, cfg.Profiles)...)
	add(validatePercentage(field.NewPath("percentageOfNodesToScore"), cfg.PercentageOfNodesToScore)...)
	if *cfg.PodInitialBackoffSeconds <= 0 {
		add(field.Invalid(field.NewPath("podInitialBackoffSeconds"), *cfg.PodInitialBackoffSeconds, "must be greater than 0"))
	}
	if *cfg.PodMaxBackoffSeconds < *cfg.PodInitialBackoffSeconds {
		add(field.Invalid(field.NewPath("podMaxBackoffSeconds"), *cfg.PodMaxBackoffSeconds, "must be greater than or equal to PodInitialBackoffSeconds"))
	}
	add(validateExtenders(field.NewPath("extenders"), cfg.Extenders)...)
	return together(errs)
}

func validateLeaderElection(path *field.Path, l *v1alpha1.LeaderElectionConfiguration) (errs field.ErrorList) {
	if !*l.LeaderElect {
		return nil
	}
	for _, d := range []struct {
		name  string
		value any
		is    int64
	}{
		{"leaseDuration", l.LeaseDuration, int64(l.LeaseDuration.Duration)},
		{"renewDeadline", l.RenewDeadline, int64(l.RenewDeadline.Duration)},
		{"retryPeriod", l.RetryPeriod, int64(l.RetryPeriod.Duration)},
	} {
		if d.is <= 0 {
			errs = append(errs, field.Invalid(path.Child(d.name), d.value, "must be greater than zero"))
		}
	}
	if l.LeaseDuration.Duration <= l.RenewDeadline.Duration {
		errs = append(errs, field.Invalid(path.Child("leaseDuration"), l.RenewDeadline, "must be greater than `RenewDeadline`"))
	}
	if l.ResourceLock != "leases" {
		errs = append(errs, field.Invalid(path.Child("resourceLock"), l.ResourceLock, `resourceLock value must be "leases"`))
	}
	return errs
}

func validatePercentage(path *field.Path, p *int32) field.ErrorList {
	if p != nil && (*p < 0 || *p > 100) {
		return field.ErrorList{field.Invalid(path, *p, "not in valid range [0-100]")}
	}
	return nil
}

// removed are plugins that kube-scheduler once had, and refuses by name.
var removed = map[string]bool{"AzureDiskLimits": true, "CinderLimits": true, "EBSLimits": true, "GCEPDLimits": true}

func removedError(path *field.Path, name string) *field.Error {
	return field.Invalid(path, name, fmt.Sprintf("was invalid in version %q (KubeSchedulerConfiguration is version %q)", "v1", configv1.SchemeGroupVersion.String()))
}

func validatePlugins(path *field.Path, p *configv1.KubeSchedulerProfile, options Options) (errs []error) {
	for _, s := range pluginSets(p.Plugins) {
		for i, e := range s.set.Enabled {
			if removed[e.Name] {
				errs = append(errs, removedError(path.Child("plugins", s.point, "enabled").Index(i), e.Name))
			}
		}
	}
	seen := make(map[string]bool)
	for i := range p.PluginConfig {
		c, at := &p.PluginConfig[i], path.Child("pluginConfig").Index(i)
		if seen[c.Name] {
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen[c.Name] = true
		want := newArgs(c.Name)
		switch {
		case removed[c.Name]:
			errs = append(errs, removedError(at, c.Name))
		case want == nil:
		case reflect.TypeOf(want) != reflect.TypeOf(c.Args.Object):
			errs = append(errs, field.Invalid(at.Child("args"), c.Args.Object, "has to match plugin args"))
		default:
			if err := validateArgs(at.Child("args"), c.Args.Object, options); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// validateQueueSort checks that all profiles order the one queue alike.
func validateQueueSort(path *field.Path, profiles []configv1.KubeSchedulerProfile) (errs field.ErrorList) {
	first := profiles[0].Plugins.QueueSort
	if n := len(first.Enabled); n > 1 {
		errs = append(errs, field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n, "only one queue sort plugin can be enabled"))
	}
	for i := 1; i < len(profiles); i++ {
		if other := profiles[i].Plugins.QueueSort; !apiequality.Semantic.DeepEqual(first, other) {
			errs = append(errs, field.Invalid(path.Index(i).Child("plugins", "queueSort"), other, "must be the same for all profiles"))
		}
	}
	return errs
}

func validateExtenders(path *field.Path, extenders []configv1.Extender) (errs field.ErrorList) {
	binders := 0
	managed := make(map[string]bool)
	for i := range extenders {
		e, at := &extenders[i], path.Index(i)
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			errs = append(errs, field.Invalid(at.Child("weight"), e.Weight, "must have a positive weight applied to it"))
		}
		if e.BindVerb != "" {
			binders++
		}
		for k, r := range e.ManagedResources {
			name := at.Child("managedResources").Index(k).Child("name")
			errs = append(errs, validateExtendedResource(name, r.Name)...)
			if managed[r.Name] {
				errs = append(errs, field.Invalid(name, r.Name, "duplicate extender managed resource name"))
			}
			managed[r.Name] = true
		}
	}
	if binders > 1 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders), "only one extender can implement bind"))
	}
	return errs
}

func validateExtendedResource(path *field.Path, name string) (errs field.ErrorList) {
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	native := !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/")
	quota := strings.HasPrefix(name, "requests.") || len(validation.IsQualifiedName("requests."+name)) > 0
	if errs == nil && (native || quota) {
		errs = append(errs, field.Invalid(path, name, "is an invalid extended resource name"))
	}
	return errs
}
