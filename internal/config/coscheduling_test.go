package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

// usual is how scheduler-plugins has the plugin enabled.
const usual = "{multiPoint: {enabled: [{name: Coscheduling}]}, queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: '*'}]}}"

func TestCoschedulingIsTakenOfProfilesThatEnableIt(t *testing.T) {
	for _, test := range []struct {
		name, profiles string
		want           map[string]bool
		notes          []string // what each begins with
	}{
		{"none", "- {schedulerName: a}\n", nil, nil},
		{"as usual", "- {schedulerName: a, plugins: " + usual + "}\n", map[string]bool{"a": true}, []string{"profiles[0].plugins.queueSort: Coscheduling is ignored here"}},
		{"one of two", "- {schedulerName: a}\n- {schedulerName: b, plugins: {permit: {enabled: [{name: Coscheduling}]}}}\n", map[string]bool{"b": true}, nil},
		{"with arguments", "- {schedulerName: a, plugins: {permit: {enabled: [{name: Coscheduling}]}}, pluginConfig: [{name: Coscheduling, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: CoschedulingArgs, permitWaitingTimeSeconds: 10, podGroupBackoffSeconds: 5, podGroupRejectPercentage: 0}}]}\n",
			map[string]bool{"a": true}, []string{"profiles[0].pluginConfig[0].args is ignored: nothing is held"}},
		{"not at permit", "- {schedulerName: a, plugins: {preFilter: {enabled: [{name: Coscheduling}]}}}\n", nil, []string{"profiles[0].plugins: Coscheduling is ignored, as it does not run at permit"}},
		{"at all but permit", "- {schedulerName: a, plugins: {multiPoint: {enabled: [{name: Coscheduling}]}, queueSort: {disabled: [{name: Coscheduling}]}, permit: {disabled: [{name: Coscheduling}]}}}\n", nil, []string{"profiles[0].plugins: Coscheduling is ignored"}},
		{"disabled", "- {schedulerName: a, plugins: {multiPoint: {disabled: [{name: Coscheduling}]}}}\n", nil, nil},
	} {
		out, err := complete("profiles:\n" + test.profiles)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if len(test.want)+len(out.Coscheduling) > 0 {
			if diff := cmp.Diff(test.want, out.Coscheduling); diff != "" {
				t.Errorf("%s: who has it (-want +got):\n%s", test.name, diff)
			}
		}
		if !slices.EqualFunc(test.notes, out.Notes, func(want, got string) bool { return strings.HasPrefix(got, want) }) {
			t.Errorf("%s: notes %q, want such as begin with %q", test.name, out.Notes, test.notes)
		}
		for _, p := range out.Profiles { // nothing of it runs
			if diff := cmp.Diff(engine.DefaultProfile(p.SchedulerName), p); diff != "" {
				t.Errorf("%s: the profile is not the default one (-want +got):\n%s", test.name, diff)
			}
		}
		if len(out.Steps) > 0 || len(out.Arguments) > 0 {
			t.Errorf("%s: steps %v and arguments %v, want none", test.name, out.Steps, out.Arguments)
		}
	}

	// Another's of that name runs, and Berth's does not take part.
	points := map[string][]string{"Coscheduling": {"queueSort", "preFilter", "postFilter", "reserve", "permit"}}
	for name, options := range map[string]config.Options{"a service's": {Plugins: points}, "compiled in": {CompiledIn: points}} {
		out, err := completeWith(options, "profiles:\n- {schedulerName: a, plugins: "+usual+"}\n")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(out.Coscheduling)+len(out.Notes) > 0 || !slices.Equal(out.Steps["a"].Permit, []string{"Coscheduling"}) || out.Profiles[0].QueueSort != "Coscheduling" {
			t.Errorf("%s: Berth's has part in %v, with notes %q; the steps are %+v, and %q sorts", name, out.Coscheduling, out.Notes, out.Steps, out.Profiles[0].QueueSort)
		}
	}
}

func TestWhatIsWrongWithCoschedulingIsNamed(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"two that sort", profile("{multiPoint: {enabled: [{name: Coscheduling}]}}", ""), "profiles[0].plugins.queueSort: Invalid value: [\"PrioritySort\",\"Coscheduling\"]: exactly one queue sort plugin is required"},
		{"a point where it never is", profile("{score: {enabled: [{name: Coscheduling}]}}", ""), "profiles[0].plugins.score.enabled[0].name: Invalid value: \"Coscheduling\": plugin does not extend ScorePlugin"},
		{"no number", profile("", "[{name: Coscheduling, args: {permitWaitingTimeSeconds: soon}}]"), "profiles[0].pluginConfig[0].args: Invalid value"},
		{"an argument that it has not", profile("", "[{name: Coscheduling, args: {deniedPGExpirationTimeSeconds: 3}}]"), `unknown field "deniedPGExpirationTimeSeconds"`},
		{"a time before now", profile("", "[{name: Coscheduling, args: {permitWaitingTimeSeconds: -1}}]"), "profiles[0].pluginConfig[0].args.permitWaitingTimeSeconds: Invalid value: -1: must not be negative"},
		{"a backoff before now", profile("", "[{name: Coscheduling, args: {podGroupBackoffSeconds: -1}}]"), "args.podGroupBackoffSeconds: Invalid value: -1: must not be negative"},
		{"more than all", profile("", "[{name: Coscheduling, args: {podGroupRejectPercentage: 101}}]"), "args.podGroupRejectPercentage: Invalid value: 101: not in valid range [0-100]"},
	} {
		if _, err := complete(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
