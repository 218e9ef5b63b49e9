package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/engine"
)

// coscheduling is the plugin of sigs.k8s.io/scheduler-plugins. Of it Berth has what it is for: pods of its PodGroups are placed as those of scheduling.k8s.io are, in profiles that enable it. Where a
// service has a plugin of that name, or one is compiled in, that one runs, and Berth's takes no part.
const coscheduling = "Coscheduling"

var coschedulingDescriptor = engine.Descriptor{Name: coscheduling, Points: []string{"queueSort", "preFilter", "postFilter", "reserve", "permit"}}

// ownCoscheduling reports whether the plugin is Berth's.
func (o Options) ownCoscheduling() bool {
	return o.Plugins[coscheduling] == nil && o.CompiledIn[coscheduling] == nil
}

// takeCoscheduling takes Berth's Coscheduling off the points of a profile, as nothing runs there, and reports whether the profile has it: whether it is at Permit, where the plugin has pods wait for others of
// their group. Where it alone sorts the queue, Berth's own does: that is an order in which its groups can be placed, and all that they need.
func (o Options) takeCoscheduling(r resolved) bool {
	if !o.ownCoscheduling() {
		return false
	}
	has := slices.Contains(r.at["permit"], coscheduling)
	for point, names := range r.at {
		switch {
		case point != "queueSort":
			r.at[point] = slices.DeleteFunc(names, func(name string) bool { return name == coscheduling })
		case slices.Equal(names, []string{coscheduling}):
			r.at[point] = []string{theOneAt(point)}
		}
	}
	return has
}

// coschedulingArgs are the plugin's arguments.
type coschedulingArgs struct {
	APIVersion               string `json:"apiVersion"`
	Kind                     string `json:"kind"`
	PermitWaitingTimeSeconds *int64 `json:"permitWaitingTimeSeconds"`
	PodGroupBackoffSeconds   *int64 `json:"podGroupBackoffSeconds"`
	PodGroupRejectPercentage *int32 `json:"podGroupRejectPercentage"`
}

// checkCoscheduling finds what is wrong with the arguments of Berth's Coscheduling, as the plugin does.
func (o Options) checkCoscheduling(path *field.Path, p *configv1.KubeSchedulerProfile) (errs field.ErrorList) {
	if !o.ownCoscheduling() {
		return nil
	}
	for i := range p.PluginConfig {
		c, at := &p.PluginConfig[i], path.Index(i).Child("args")
		if c.Name != coscheduling || c.Args.Raw == nil {
			continue
		}
		var args coschedulingArgs
		decoder := json.NewDecoder(bytes.NewReader(c.Args.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			errs = append(errs, field.Invalid(at, string(c.Args.Raw), fmt.Sprintf("want CoschedulingArgs: %v", err)))
			continue
		}
		for _, is := range []struct {
			name  string
			value *int64
		}{{"permitWaitingTimeSeconds", args.PermitWaitingTimeSeconds}, {"podGroupBackoffSeconds", args.PodGroupBackoffSeconds}} {
			if is.value != nil && *is.value < 0 {
				errs = append(errs, field.Invalid(at.Child(is.name), *is.value, "must not be negative"))
			}
		}
		if percent := args.PodGroupRejectPercentage; percent != nil && (*percent < 0 || *percent > 100) {
			errs = append(errs, field.Invalid(at.Child("podGroupRejectPercentage"), *percent, "not in valid range [0-100]"))
		}
	}
	return errs
}

// coschedulingNotes says what a configuration, as it is written, says in vain about Berth's Coscheduling.
func (o Options) coschedulingNotes(cfg *configv1.KubeSchedulerConfiguration) (out []string) {
	if !o.ownCoscheduling() {
		return nil
	}
	for i := range cfg.Profiles {
		p, path := &cfg.Profiles[i], field.NewPath("profiles").Index(i)
		if p.Plugins != nil {
			r := o.resolve(mergePlugins(p.Plugins))
			at := func(point string) bool { return slices.Contains(r.at[point], coscheduling) }
			if others := coschedulingDescriptor.Points[1:]; !at("permit") && slices.ContainsFunc(others, at) {
				out = append(out, fmt.Sprintf("%v: Coscheduling is ignored, as it does not run at permit: pods of its PodGroups are placed each by itself", path.Child("plugins")))
			}
			if i == 0 && at("queueSort") { // as in all other profiles
				out = append(out, fmt.Sprintf("%v: Coscheduling is ignored here: a group stands where the first of its pods does", path.Child("plugins", "queueSort")))
			}
		}
		for k := range p.PluginConfig {
			if c := &p.PluginConfig[k]; c.Name == coscheduling && c.Args.Raw != nil {
				out = append(out, fmt.Sprintf("%v is ignored: nothing is held for a group that waits, and it backs off as its pods do", path.Child("pluginConfig").Index(k).Child("args")))
			}
		}
	}
	return out
}
