package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/aliases"
)

const group = "kubescheduler.config.k8s.io/"

// object is a JSON object that is being converted: what is known of its old form is replaced, the rest is kept and has to
// exist in v1.
type object = map[string]any

// converter collects what has no equivalent.
type converter struct{ report []string }

func (c *converter) say(format string, args ...any) {
	c.report = append(c.report, fmt.Sprintf(format, args...))
}

// Convert returns a configuration of an older version, or a legacy policy, as KubeSchedulerConfiguration v1 in YAML. The
// report says what has no equivalent in v1 and is left out or changed, and what of the result a Berth with Yoda would refuse.
// Versions are v1alpha1 to v1beta3 and v1, which comes back as it is. What neither version knows is an error.
func Convert(data []byte) (out []byte, report []string, err error) {
	if err := aliases.Few(data, maxValues); err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	if err := aliases.Check(data); err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	encoded, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	var from object
	if err := json.Unmarshal(encoded, &from); err != nil {
		return nil, nil, fmt.Errorf("convert configuration: want an object: %w", err)
	}

	if err := checkShapes("", from); err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	c := &converter{}
	version, kind := text(from["apiVersion"]), text(from["kind"])
	version = strings.TrimPrefix(strings.Replace(version, "componentconfig/", group, 1), group)
	switch {
	case kind == "Policy" || kind == "" && (from["predicates"] != nil || from["priorities"] != nil):
		from, err = c.policy(from)
	case kind != "KubeSchedulerConfiguration":
		err = fmt.Errorf("kind %q: want KubeSchedulerConfiguration or Policy", kind)
	case version == "v1":
	case version == "v1alpha1":
		err = c.alpha1(from)
	case version == "v1alpha2" || version == "v1beta1" || version == "v1beta2" || version == "v1beta3":
		c.beta(from, version)
	default:
		err = fmt.Errorf("apiVersion %q: want %sv1alpha1 to v1", text(from["apiVersion"]), group)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	from["apiVersion"], from["kind"] = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	if out, err = yaml.Marshal(from); err != nil {
		return nil, nil, fmt.Errorf("convert configuration: %w", err)
	}
	cfg, err := Decode(out)
	if err != nil {
		return nil, nil, fmt.Errorf("convert configuration: neither version has this: %w", err)
	}
	if _, err := Complete(cfg, withYoda()); err != nil {
		c.say("Berth would refuse the result: %v", err)
	}
	return out, c.report, nil
}

// shapes are what the fields that are converted must hold, wherever they stand, so that nothing is overlooked.
var shapes = map[string]string{
	"profiles": "objects", "pluginConfig": "objects", "enabled": "objects", "disabled": "objects", "predicates": "objects",
	"priorities": "objects", "extenders": "objects",
	"plugins": "object", "args": "object", "argument": "object", "leaderElection": "object", "algorithmSource": "object",
	"policy": "object", "labelsPresence": "object", "serviceAffinity": "object", "requestedToCapacityRatioArguments": "object",
	"hardPodAffinitySymmetricWeight": "number", "bindTimeoutSeconds": "number", "weight": "number",
	"disablePreemption": "boolean", "alwaysCheckAllPredicates": "boolean", "presence": "boolean", "useLegacyPolicyConfig": "boolean",
	"clientConnection": "object", "algorithmProvider": "text", "policyConfigFile": "text", "policyConfigMapName": "text", "policyConfigMapNamespace": "text",
}

// checkShapes returns the first field, by name, that does not hold what it must.
func checkShapes(path string, from object) error {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		v, at := from[name], strings.TrimPrefix(path+"."+name, ".")
		if want := shapes[name]; want != "" && v != nil && shapeOf(v) != want && !(want == "objects" && shapeOf(v) == "empty") {
			return fmt.Errorf("%s: want %s", at, strings.Replace(want, "objects", "a list of objects", 1))
		}
		var children []object
		if o, ok := v.(object); ok {
			children = []object{o}
		} else {
			children = list(from, name)
		}
		for _, o := range children {
			if err := checkShapes(at, o); err != nil {
				return err
			}
		}
	}
	return nil
}

func shapeOf(v any) string {
	switch v := v.(type) {
	case object:
		return "object"
	case float64:
		return "number"
	case bool:
		return "boolean"
	case string:
		return "text"
	case []any:
		if len(v) == 0 {
			return "empty"
		}
		for _, item := range v {
			if _, ok := item.(object); !ok {
				return "list"
			}
		}
		return "objects"
	}
	return "other"
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// take removes a field and returns it; nil if it is not there.
func take(from object, name string) any {
	v := from[name]
	delete(from, name)
	return v
}

// list returns a field as a list of objects.
func list(from object, name string) []object {
	items, _ := from[name].([]any)
	var out []object
	for _, item := range items {
		if o, ok := item.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

// child returns a field that is an object, and makes it if it is not there.
func child(from object, name string) object {
	o, ok := from[name].(object)
	if !ok {
		o = object{}
		from[name] = o
	}
	return o
}

func asAny(list []object) []any {
	out := make([]any, len(list))
	for i, o := range list {
		out[i] = o
	}
	return out
}

// beta converts the versions that have profiles.
func (c *converter) beta(from object, version string) {
	c.addresses(from)
	if version != "v1beta3" {
		c.say("%s weighted TaintToleration, NodeAffinity and InterPodAffinity 1 by default; v1 weights them 3, 2 and 2", version)
	}
	for i, p := range list(from, "profiles") {
		c.profile(fmt.Sprintf("profiles[%d]", i), p)
	}
}

// addresses drops where old schedulers served health and metrics, insecurely.
func (c *converter) addresses(from object) {
	for _, name := range []string{"healthzBindAddress", "metricsBindAddress"} {
		if v := take(from, name); text(v) != "" {
			c.say("%s: %v is left out; roles serve health and metrics at --metrics-listen", name, v)
		}
	}
	election, ok := from["leaderElection"].(object)
	if !ok {
		return
	}
	for old, now := range map[string]string{"lockObjectName": "resourceName", "lockObjectNamespace": "resourceNamespace"} {
		if v := take(election, old); v != nil && election[now] == nil {
			election[now] = v
		}
	}
	if lock := text(election["resourceLock"]); lock != "" && lock != "leases" {
		election["resourceLock"] = "leases"
		c.say("leaderElection.resourceLock: %s is leases in v1", lock)
	}
}

// alpha1 converts the version that has one profile, spread over the top level.
func (c *converter) alpha1(from object) error {
	c.early(from)
	c.addresses(from)
	profile := object{}
	if name := take(from, "schedulerName"); name != nil {
		profile["schedulerName"] = name
	}
	for _, name := range []string{"plugins", "pluginConfig"} {
		if v := take(from, name); v != nil {
			profile[name] = v
		}
	}
	if plugins, ok := profile["plugins"].(object); ok {
		if v := take(plugins, "postFilter"); v != nil {
			plugins["preScore"] = v // as the point was called
		}
	}
	c.profile("profile", profile)
	if source, ok := take(from, "algorithmSource").(object); ok {
		if err := c.source(profile, source); err != nil {
			return err
		}
	}
	switch v, ok := take(from, "hardPodAffinitySymmetricWeight").(float64); {
	case !ok || v == 1:
	case v == 0:
		c.say("hardPodAffinitySymmetricWeight: 0 was the same as unset until 1.16, and stands for the default, 1; for none, set hardPodAffinityWeight: 0 of InterPodAffinity")
	default:
		setArg(profile, ofPodTerms, "hardPodAffinityWeight", v)
	}
	if take(from, "disablePreemption") == true {
		disable(profile, "postFilter", theOneAt("postFilter"))
	}
	if v, ok := take(from, "bindTimeoutSeconds").(float64); ok && v != 600 {
		setArg(profile, "VolumeBinding", "bindTimeoutSeconds", v)
	}
	if v := take(from, "failureDomains"); text(v) != "" {
		c.say("failureDomains: %v is left out; v1 has topologySpreadConstraints of pods", v)
	}
	c.say("v1alpha1 weighted TaintToleration, NodeAffinity and InterPodAffinity 1 by default; v1 weights them 3, 2 and 2")
	if len(profile) > 0 {
		from["profiles"] = []any{profile}
	}
	return nil
}

// early brings the fields that v1alpha1 had from 1.3 to 1.9, when it was of the API group componentconfig, to where it had them later.
func (c *converter) early(from object) {
	for _, name := range []string{"address", "port"} {
		if v := take(from, name); v != nil && v != "" {
			c.say("%s: %v is left out; roles serve health and metrics at --metrics-listen", name, v)
		}
	}
	c.move(from, "contentType", "clientConnection", "contentType")
	c.move(from, "kubeAPIQPS", "clientConnection", "qps")
	c.move(from, "kubeAPIBurst", "clientConnection", "burst")
	c.move(from, "lockObjectName", "leaderElection", "resourceName")
	c.move(from, "lockObjectNamespace", "leaderElection", "resourceNamespace")
	provider, file := text(take(from, "algorithmProvider")), text(take(from, "policyConfigFile"))
	configMap, namespace, legacy := text(take(from, "policyConfigMapName")), text(take(from, "policyConfigMapNamespace")), take(from, "useLegacyPolicyConfig") == true
	switch { // as kube-scheduler read them: a policy before a provider, and that of the ConfigMap, unless the file is asked for
	case from["algorithmSource"] != nil: // it is as late as 1.10
		if provider+file+configMap != "" {
			c.say("algorithmProvider, policyConfigFile and policyConfigMapName are left out; algorithmSource says it")
		}
	case configMap != "" && !legacy:
		if namespace != "" {
			configMap = namespace + "/" + configMap
		}
		c.say("policyConfigMapName: the policy is in ConfigMap %s: convert it too, and take over its profile", configMap)
	case file != "":
		c.say("policyConfigFile: the policy is in %s: convert it too, and take over its profile", file)
	case provider != "":
		from["algorithmSource"] = object{"provider": provider}
	}
}

// move moves a field into an object, unless that has the field.
func (c *converter) move(from object, old, into, now string) {
	v := take(from, old)
	if v == nil {
		return
	}
	if to := child(from, into); to[now] == nil {
		to[now] = v
	} else {
		c.say("%s: %v is left out; %s.%s says %v", old, v, into, now, to[now])
	}
}

// source converts where v1alpha1 had its predicates and priorities from.
func (c *converter) source(profile, source object) error {
	switch provider := text(take(source, "provider")); provider {
	case "", "DefaultProvider":
	case "ClusterAutoscalerProvider":
		setArg(profile, ofRequests, "scoringStrategy", object{"type": string(configv1.MostAllocated)})
	default:
		return fmt.Errorf("algorithmSource.provider: %q: want DefaultProvider or ClusterAutoscalerProvider", provider)
	}
	if policy, ok := take(source, "policy").(object); ok {
		where := "a ConfigMap"
		if file, ok := policy["file"].(object); ok {
			where = text(file["path"])
		}
		c.say("algorithmSource.policy: the policy is in %s: convert it too, and take over its profile", where)
	}
	for _, name := range slices.Sorted(maps.Keys(source)) {
		return fmt.Errorf("algorithmSource.%s: unknown field", name)
	}
	return nil
}

// argsOf returns the arguments of a plugin, made if they are not there.
func argsOf(profile object, plugin string) object {
	for _, c := range list(profile, "pluginConfig") {
		if text(c["name"]) == plugin {
			return child(c, "args")
		}
	}
	args := object{}
	configs, _ := profile["pluginConfig"].([]any)
	profile["pluginConfig"] = append(configs, object{"name": plugin, "args": args})
	return args
}

func setArg(profile object, plugin, field string, value any) {
	argsOf(profile, plugin)[field] = value
}

// setIn sets which plugins are enabled or disabled at a point; none removes the field.
func setIn(profile object, point, which string, plugins []object) {
	set := child(child(profile, "plugins"), point)
	if len(plugins) == 0 {
		delete(set, which)
		return
	}
	set[which] = asAny(plugins)
}

func disable(profile object, point, plugin string) {
	disabled := list(child(child(profile, "plugins"), point), "disabled")
	if !slices.ContainsFunc(disabled, func(o object) bool { return text(o["name"]) == plugin }) {
		setIn(profile, point, "disabled", append(disabled, object{"name": plugin}))
	}
}
