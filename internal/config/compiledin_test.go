package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
)

// compiledIn are plugins that a program has.
var compiledIn = config.Options{CompiledIn: map[string][]string{
	"Cheapest": {"preFilter", "filter", "score"}, "Chooser": {"preFilter"}, "Gang": {"preFilter", "permit", "reserve"}, "Binder": {"bind"}, "Early": {"preScore"}, "Idle": nil,
	"Sorter": {"preEnqueue", "queueSort", "postFilter", "permit"}, "Grouper": {"filter", "placementScore"},
}}

func TestPluginsThatAreCompiledInFilterAndScore(t *testing.T) {
	c, err := completeWith(compiledIn, `
profiles:
- plugins:
    multiPoint:
      enabled: [{name: Chooser}, {name: Cheapest, weight: 7}]
    preFilter:
      disabled: [{name: Cheapest}]
  pluginConfig:
  - {name: Cheapest, args: {currency: coins}}
`)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profiles[0]
	if got := p.Filters[len(p.Filters)-2:]; !slices.Equal(got, []string{"Cheapest", "Chooser"}) {
		t.Errorf("the last filters are %v, want Cheapest, and Chooser, which runs before them", got)
	}
	if slices.ContainsFunc(p.PreFilters, func(name string) bool { return compiledIn.CompiledIn[name] != nil }) {
		t.Errorf("Berth's own PreFilter plugins are %v", p.PreFilters)
	}
	if !slices.Contains(p.Weights, cluster.PluginWeight{Name: "Cheapest", Weight: 7}) {
		t.Errorf("weights %v, want Cheapest with 7", p.Weights)
	}
	if len(c.Arguments) != 0 {
		t.Errorf("arguments %v are told to services", c.Arguments)
	}
}

// What runs at PreScore is called when scores are asked for: without a plugin that scores, one of 0.
func TestAPluginThatIsCompiledInRunsAtPreScoreAlone(t *testing.T) {
	early := cluster.PluginWeight{Name: "Early", Weight: 1}
	for plugins, want := range map[string]bool{
		"{preScore: {enabled: [{name: Early}]}}":                     true,
		"{multiPoint: {enabled: [{name: Early}, {name: Chooser}]}}":  true,
		"{multiPoint: {enabled: [{name: Early}, {name: Cheapest}]}}": false,
		"{multiPoint: {enabled: [{name: Chooser}]}}":                 false,
	} {
		c, err := completeWith(compiledIn, "profiles: [{plugins: "+plugins+"}]\n")
		if err != nil {
			t.Fatalf("%s: %v", plugins, err)
		}
		if got := slices.Contains(c.Profiles[0].Weights, early); got != want {
			t.Errorf("%s: weights %v, with %v: want %t", plugins, c.Profiles[0].Weights, early, want)
		}
	}
}

func TestPluginsThatAreCompiledInTakeSteps(t *testing.T) {
	for _, tt := range []struct {
		plugins string
		want    map[string]config.Steps
	}{
		{"{multiPoint: {enabled: [{name: Cheapest}]}}", map[string]config.Steps{}},
		{"{multiPoint: {enabled: [{name: Gang}]}}", map[string]config.Steps{"default-scheduler": {Reserve: []string{"Gang"}, Permit: []string{"Gang"}}}},
		{"{permit: {enabled: [{name: Sorter}, {name: Gang}]}}", map[string]config.Steps{"default-scheduler": {Permit: []string{"Sorter", "Gang"}}}},
		{"{bind: {disabled: [{name: '*'}], enabled: [{name: Binder}, {name: DefaultBinder}]}}", map[string]config.Steps{"default-scheduler": {Bind: []string{"Binder"}, BindsRest: true}}},
		{"{bind: {disabled: [{name: DefaultBinder}], enabled: [{name: Binder}]}}", map[string]config.Steps{"default-scheduler": {Bind: []string{"Binder"}}}},
		{"{multiPoint: {enabled: [{name: Binder}]}}", map[string]config.Steps{}}, // it comes behind DefaultBinder, and is never asked
	} {
		c, err := completeWith(compiledIn, "profiles: [{plugins: "+tt.plugins+"}]\n")
		if err != nil {
			t.Fatalf("%s: %v", tt.plugins, err)
		}
		if diff := cmp.Diff(tt.want, c.Steps, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.plugins, diff)
		}
	}
}

// All profiles share one queue, which has one order.
func TestOnePluginSortsForAllProfiles(t *testing.T) {
	const sorts = "plugins: {queueSort: {enabled: [{name: Sorter}], disabled: [{name: '*'}]}}"
	for _, tt := range []struct{ profiles, want string }{
		{"[{schedulerName: a, " + sorts + "}, {schedulerName: b, " + sorts + "}]", ""},
		{"[{schedulerName: a, " + sorts + ", pluginConfig: [{name: Sorter, args: {by: x}}]}, {schedulerName: b, " + sorts + ", pluginConfig: [{name: Sorter, args: {by: x}}]}]", ""},
		{"[{schedulerName: a, " + sorts + "}, {schedulerName: b}]", "profiles[1].plugins.queueSort"},
		{"[{schedulerName: a}, {schedulerName: b, plugins: {multiPoint: {enabled: [{name: Sorter}], disabled: [{name: PrioritySort}]}}}]", `profiles[1].plugins.queueSort: Invalid value: "Sorter": must be the same for all profiles, as they share one queue: the first has ""`},
		{"[{schedulerName: a, " + sorts + ", pluginConfig: [{name: Sorter, args: {by: x}}]}, {schedulerName: b, " + sorts + ", pluginConfig: [{name: Sorter, args: {by: y}}]}]", `profiles[1].pluginConfig: Invalid value: "Sorter": its args must be the same for all profiles`},
		{"[{schedulerName: a, " + sorts + ", pluginConfig: [{name: Sorter, args: {by: x}}]}, {schedulerName: b, " + sorts + "}]", `profiles[1].pluginConfig: Invalid value: "Sorter": its args must be the same for all profiles`},
	} {
		c, err := completeWith(compiledIn, "profiles: "+tt.profiles+"\n")
		switch {
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.profiles, err, tt.want)
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.profiles, err)
		case tt.want == "" && (c.Profiles[0].QueueSort != "Sorter" || c.Profiles[1].QueueSort != "Sorter"):
			t.Errorf("%s: the queue is sorted by %q and %q", tt.profiles, c.Profiles[0].QueueSort, c.Profiles[1].QueueSort)
		}
	}
}

func TestWherePluginsThatAreCompiledInCannotRunIsNamed(t *testing.T) {
	for _, tt := range []struct{ plugins, want string }{
		{"multiPoint: {enabled: [{name: Cheapest}, {name: Grouper}]}", "profiles[0].plugins.multiPoint.enabled[1]: Forbidden: Grouper is compiled in, and runs at placementScore too"},
		{"multiPoint: {enabled: [{name: Sorter}]}", `profiles[0].plugins.queueSort: Invalid value: ["PrioritySort","Sorter"]: exactly one queue sort plugin is required: disable the others at this point`},
		{"multiPoint: {enabled: [{name: Sorter}]}, queueSort: {disabled: [{name: PrioritySort}]}", ""},
		{"preEnqueue: {enabled: [{name: Sorter}]}", ""},
		{"placementScore: {enabled: [{name: Grouper}]}", "profiles[0].plugins.placementScore.enabled[0]: Forbidden: Berth cannot run plugins that are compiled in, such as Grouper, at this point yet"},
		{"queueSort: {enabled: [{name: Sorter}], disabled: [{name: '*'}]}", ""},
		{"queueSort: {enabled: [{name: Cheapest}], disabled: [{name: '*'}]}", `"Cheapest": plugin does not extend QueueSortPlugin`},
		{"postFilter: {enabled: [{name: Sorter}]}", ""},
		{"multiPoint: {enabled: [{name: Sorter}]}, queueSort: {disabled: [{name: Sorter}]}, preEnqueue: {disabled: [{name: '*'}]}", "SchedulingGates"},
		{"multiPoint: {enabled: [{name: Early}, {name: Cheapest}]}", ""},
		{"filter: {enabled: [{name: Chooser}]}", `profiles[0].plugins.filter.enabled[0].name: Invalid value: "Chooser": plugin does not extend FilterPlugin`},
		{"filter: {enabled: [{name: Unknown}]}", `"Unknown": does not exist`},
		{"multiPoint: {enabled: [{name: Sorter}]}, preEnqueue: {disabled: [{name: Sorter}]}, queueSort: {disabled: [{name: Sorter}]}", ""},
	} {
		_, err := completeWith(compiledIn, "profiles:\n- plugins: {"+tt.plugins+"}\n")
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.plugins, err, tt.want)
		}
	}
}
