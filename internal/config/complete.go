package config

import (
	"fmt"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Completed is a configuration that Berth can run by.
type Completed struct {
	// Config has all defaults, and of the arguments those of plugins that run, by plugin.
	Config   *configv1.KubeSchedulerConfiguration
	Profiles []cluster.Profile // in the configuration's order
	// BindTimeouts say, by the profiles' scheduler names, how long VolumeBinding waits for the claims of a pod to be bound.
	BindTimeouts map[string]time.Duration
	// Arguments are those of plugins of services, as far as they run.
	Arguments Arguments
	// Steps are those that profiles have plugins of services, and such as are compiled in, take, by scheduler name.
	Steps map[string]Steps
	// Candidates say, likewise, how many nodes extenders are told of at least that have a say in preemption.
	Candidates map[string]engine.CandidateNodes
	// Coscheduling are the scheduler names of the profiles with the plugin Coscheduling, if it is Berth's own.
	Coscheduling map[string]bool
	// Notes say what is set in the configuration and means nothing to Berth.
	Notes []string
}

// Complete fills in what cfg leaves out and checks it, as it is meant with options. cfg is not changed. The error names every field that is wrong, and
// every plugin that the configuration names and Berth does not have, but for those behind the first hundred.
func Complete(cfg *configv1.KubeSchedulerConfiguration, options Options) (Completed, error) {
	if err := few(cfg); err != nil {
		return Completed{}, fmt.Errorf("check configuration: %w", err)
	}
	written := cfg
	cfg = cfg.DeepCopy()
	setDefaults(cfg)
	if options.StorageCapacityScoring {
		setStorageShapes(cfg)
	}
	if err := validate(cfg, options); err != nil {
		return Completed{}, fmt.Errorf("check configuration: %w", err)
	}
	out := Completed{Config: cfg, Notes: append(notes(written), options.coschedulingNotes(written)...), BindTimeouts: make(map[string]time.Duration), Arguments: make(Arguments), Steps: make(map[string]Steps), Candidates: make(map[string]engine.CandidateNodes), Coscheduling: make(map[string]bool)}
	var errs []error
	for _, err := range extenderErrors(field.NewPath("extenders"), cfg.Extenders) {
		errs = append(errs, err)
	}
	for i := range cfg.Profiles {
		p, path := &cfg.Profiles[i], field.NewPath("profiles").Index(i)
		r := options.resolve(p.Plugins)
		if options.takeCoscheduling(r) {
			out.Coscheduling[*p.SchedulerName] = true
		}
		profile := profileOf(cfg, p, r, options)
		bad := unrunnable(path.Child("plugins"), r, &profile)
		if i < len(written.Profiles) {
			bad = slices.Concat(options.unbuilt(path, &written.Profiles[i]), options.unbuiltPoints(path.Child("plugins"), written.Profiles[i].Plugins, r), bad)
		}
		for _, err := range bad {
			errs = append(errs, err)
		}
		for _, err := range options.checkCoscheduling(path.Child("pluginConfig"), p) {
			errs = append(errs, err)
		}
		out.Profiles = append(out.Profiles, profile)
		out.BindTimeouts[*p.SchedulerName], out.Candidates[*p.SchedulerName] = bindTimeoutOf(p), candidatesOf(p)
		keepUsedArgs(p)
		if args := options.argumentsOf(p); len(args) > 0 {
			out.Arguments[*p.SchedulerName] = args
		}
		if steps, any := options.stepsOf(r); any {
			out.Steps[*p.SchedulerName] = steps
		}
	}
	if err := out.Arguments.check(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, checkOneSort(field.NewPath("profiles"), cfg.Profiles, out.Profiles)...)
	if err := together(errs); err != nil {
		return Completed{}, fmt.Errorf("check configuration: %w", err)
	}
	return out, nil
}

const (
	// maxEntries is how many profiles, and entries of each list of plugins, there may be: each profile has all defaults, and entries are
	// compared with each other.
	maxEntries = 1000
	// maxErrors is how many errors are told. The text of an aggregate takes time with the square of them.
	maxErrors = 100
)

// few finds lists that have more entries than are looked at.
func few(cfg *configv1.KubeSchedulerConfiguration) error {
	var errs []error
	check := func(path *field.Path, entries int) {
		if entries > maxEntries {
			errs = append(errs, field.TooMany(path, entries, maxEntries))
		}
	}
	profiles := field.NewPath("profiles")
	check(profiles, len(cfg.Profiles))
	for i := range cfg.Profiles {
		p, path := &cfg.Profiles[i], profiles.Index(i)
		check(path.Child("pluginConfig"), len(p.PluginConfig))
		if p.Plugins == nil {
			continue
		}
		for _, s := range pluginSets(p.Plugins) {
			check(path.Child("plugins", s.point, "enabled"), len(s.set.Enabled))
			check(path.Child("plugins", s.point, "disabled"), len(s.set.Disabled))
		}
	}
	return together(errs)
}

// together makes one error of the first of a list, and says how many more there are; nil if there are none.
func together(errs []error) error {
	all := utilerrors.Flatten(utilerrors.NewAggregate(errs))
	if all == nil {
		return nil
	}
	first := all.Errors()
	if more := len(first) - maxErrors; more > 0 {
		return utilerrors.NewAggregate(append(first[:maxErrors:maxErrors], fmt.Errorf("and %d more", more)))
	}
	return all
}

// unbuilt finds what a profile, as written, says about plugins that Berth does not have or nobody has. That they stand in the default
// profile says nothing; nor does a profile that has been completed before, where all defaults are written out.
func (o Options) unbuilt(path *field.Path, p *configv1.KubeSchedulerProfile) (errs field.ErrorList) {
	refuse := func(at *field.Path, name string) {
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("Berth does not have %s yet", name)))
	}
	if p.Plugins != nil {
		errs = o.checkEntries(path.Child("plugins"), p.Plugins)
		completed := isCompleted(&p.Plugins.MultiPoint)
		for _, s := range pluginSets(p.Plugins) {
			for i, e := range s.set.Enabled {
				known := o.lookUp(e.Name)
				if known == nil || !known.Unbuilt || completed && s.point == multiPoint && (weightOf(e) == int32(known.Weight) || weightOf(e) == 0) {
					continue
				}
				refuse(path.Child("plugins", s.point, "enabled").Index(i), e.Name)
			}
		}
	}
	for i := range p.PluginConfig {
		c, at := &p.PluginConfig[i], path.Child("pluginConfig").Index(i)
		known := o.lookUp(c.Name)
		if known == nil {
			if !removed[c.Name] {
				errs = append(errs, field.Invalid(at.Child("name"), c.Name, noSuchPlugin))
			}
			continue
		}
		standard := newArgs(c.Name)
		if !known.Unbuilt || standard == nil || c.Args.Object == nil {
			continue
		}
		args := c.Args.Object.DeepCopyObject()
		setArgsDefaults(args)
		args.GetObjectKind().SetGroupVersionKind(standard.GetObjectKind().GroupVersionKind())
		if !apiequality.Semantic.DeepEqual(standard, args) {
			refuse(at.Child("args"), "the plugin "+c.Name)
		}
	}
	return errs
}

// weightOf returns the weight of an entry; 0 if it has none.
func weightOf(e configv1.Plugin) int32 { return valueOr(e.Weight, 0) }

// isCompleted reports whether each default plugin is either enabled or disabled by name, but for those that a release or a feature gate of kube-scheduler's may be without.
func isCompleted(s *configv1.PluginSet) bool {
	for _, plugin := range inTree() {
		is := func(p configv1.Plugin) bool { return p.Name == plugin.Name }
		if !plugin.Gated && !plugin.OwnGate && !plugin.Unbuilt && !slices.ContainsFunc(s.Enabled, is) && !slices.ContainsFunc(s.Disabled, is) {
			return false
		}
	}
	return true
}

// unrunnable finds combinations that Berth, and mostly kube-scheduler too, cannot run.
func unrunnable(path *field.Path, r resolved, profile *cluster.Profile) (errs field.ErrorList) {
	switch got, has := r.at["queueSort"], theOneAt("queueSort"); {
	case len(got) > 1:
		errs = append(errs, field.Invalid(path.Child("queueSort"), got, "exactly one queue sort plugin is required: disable the others at this point"))
	case len(got) == 0 || got[0] != has && profile.QueueSort == "":
		errs = append(errs, field.Invalid(path.Child("queueSort"), got, "exactly one queue sort plugin is required, and Berth has "+has))
	}
	if len(r.at["bind"]) == 0 {
		errs = append(errs, field.Invalid(path.Child("bind"), r.at["bind"], "at least one bind plugin is needed, and Berth has "+theOneAt("bind")))
	}
	if gates := engine.JudgeOf(engine.Gates); !slices.Contains(r.at["preEnqueue"], gates) {
		errs = append(errs, field.Invalid(path.Child("preEnqueue"), r.at["preEnqueue"], "Berth cannot do without "+gates+": the API server binds no gated pod"))
	}
	for _, point := range []string{"filter", "score", "postFilter"} {
		for _, p := range inTree() {
			if point == "score" && !p.Scores(profile) {
				continue
			}
			for _, other := range p.Needs[point] {
				if slices.Contains(r.at[point], p.Name) && !slices.Contains(r.at[other], p.Name) {
					errs = append(errs, field.Invalid(path.Child(other), r.at[other], fmt.Sprintf("%s cannot run at %s without %s: disable it at both or at neither", p.Name, point, other)))
				}
			}
		}
	}
	return errs
}

// checkOneSort finds profiles that have another plugin of others sort the queue than the first has, or the same one with other arguments.
func checkOneSort(path *field.Path, written []configv1.KubeSchedulerProfile, profiles []cluster.Profile) (errs []error) {
	argumentsOf := func(i int) *runtime.RawExtension {
		for k := range written[i].PluginConfig {
			if c := &written[i].PluginConfig[k]; c.Name == profiles[0].QueueSort {
				return &c.Args
			}
		}
		return nil
	}
	for i := 1; i < len(profiles); i++ {
		switch name, first := profiles[i].QueueSort, profiles[0].QueueSort; {
		case name != first:
			errs = append(errs, field.Invalid(path.Index(i).Child("plugins", "queueSort"), name, fmt.Sprintf("must be the same for all profiles, as they share one queue: the first has %q", first)))
		case name != "" && !apiequality.Semantic.DeepEqual(argumentsOf(i), argumentsOf(0)):
			errs = append(errs, field.Invalid(path.Index(i).Child("pluginConfig"), name, "its args must be the same for all profiles, as they share one queue"))
		}
	}
	return errs
}

// theOneAt returns the only plugin that Berth has for a point.
func theOneAt(point string) string {
	all := inTree()
	return all[slices.IndexFunc(all, func(p engine.Plugin) bool { return p.RunsAt(point) && !p.Unbuilt })].Name
}

// keepUsedArgs drops the arguments of plugins that do not run, and sorts the others.
func keepUsedArgs(p *configv1.KubeSchedulerProfile) {
	used := enabledNames(p.Plugins)
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c configv1.PluginConfig) bool { return !slices.Contains(used, c.Name) })
	slices.SortFunc(p.PluginConfig, func(a, b configv1.PluginConfig) int {
		return slices.Index(used, a.Name) - slices.Index(used, b.Name)
	})
}

// notes says what is written and ignored.
func notes(cfg *configv1.KubeSchedulerConfiguration) []string {
	var standard configv1.KubeSchedulerConfiguration
	setDefaults(&standard)
	completed := cfg.DeepCopy()
	setDefaults(completed)
	var out []string
	ignored := func(is bool, what string) {
		if is {
			out = append(out, what)
		}
	}
	ignored(*completed.Parallelism != *standard.Parallelism,
		"parallelism is ignored: each worker uses all its processors")
	ignored(completed.ClientConnection.ContentType != standard.ClientConnection.ContentType || completed.ClientConnection.AcceptContentTypes != "",
		"clientConnection.contentType and acceptContentTypes are ignored: Berth speaks protobuf and accepts JSON")
	for i := range cfg.Profiles {
		if cfg.Profiles[i].Plugins != nil {
			out = append(out, groupNotes(field.NewPath("profiles").Index(i).Child("plugins"), cfg.Profiles[i].Plugins)...)
		}
	}
	ignored(completed.DelayCacheUntilActive, "delayCacheUntilActive is ignored: a binder lists the cluster when it becomes active")
	return out
}

// groupNotes says what a profile says in vain about placing PodGroups: they are followed wherever the API server serves them, and placed alike, in all profiles.
func groupNotes(path *field.Path, p *configv1.Plugins) (out []string) {
	for _, s := range pluginSets(p) {
		placing := s.point == "placementGenerate" || s.point == "placementScore"
		for i, e := range s.set.Disabled {
			if plugin := engine.PluginOf(e.Name); placing || plugin != nil && plugin.OfGroups() {
				out = append(out, fmt.Sprintf("%v is ignored: PodGroups are followed in every profile where the API server serves them. Pods that name none are placed each by itself", path.Child(s.point, "disabled").Index(i)))
			}
		}
		for i, e := range s.set.Enabled {
			if placing && weightOf(e) > 1 {
				out = append(out, fmt.Sprintf("%v is ignored: all scores of placements count the same", path.Child(s.point, "enabled").Index(i).Child("weight")))
			}
		}
	}
	return out
}
