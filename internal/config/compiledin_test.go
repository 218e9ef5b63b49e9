package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
)

// compiledIn are plugins that a program has.
var compiledIn = config.Options{CompiledIn: map[string][]string{
	"Cheapest": {"preFilter", "filter", "score"}, "Chooser": {"preFilter"}, "Gang": {"preFilter", "permit", "reserve"}, "Early": {"preScore"}, "Idle": nil,
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

func TestWherePluginsThatAreCompiledInCannotRunIsNamed(t *testing.T) {
	for _, tt := range []struct{ plugins, want string }{
		{"multiPoint: {enabled: [{name: Cheapest}, {name: Gang}]}", "profiles[0].plugins.multiPoint.enabled[1]: Forbidden: Gang is compiled in, and runs at reserve, permit too"},
		{"permit: {enabled: [{name: Gang}]}", "profiles[0].plugins.permit.enabled[0]: Forbidden: Berth cannot run plugins that are compiled in, such as Gang, at this point yet"},
		{"multiPoint: {enabled: [{name: Gang}]}, permit: {disabled: [{name: Gang}]}", "runs at reserve too"},
		{"multiPoint: {enabled: [{name: Gang}]}, permit: {disabled: [{name: Gang}]}, reserve: {disabled: [{name: '*'}]}", "VolumeBinding"},
		{"multiPoint: {enabled: [{name: Early}]}", "profiles[0].plugins.preScore: Forbidden: Early is compiled in and runs here"},
		{"multiPoint: {enabled: [{name: Early}, {name: Cheapest}]}", ""},
		{"filter: {enabled: [{name: Chooser}]}", `profiles[0].plugins.filter.enabled[0].name: Invalid value: "Chooser": plugin does not extend FilterPlugin`},
		{"filter: {enabled: [{name: Unknown}]}", `"Unknown": does not exist`},
		{"multiPoint: {enabled: [{name: Gang}]}, permit: {disabled: [{name: Gang}]}, reserve: {disabled: [{name: Gang}]}", ""},
	} {
		_, err := completeWith(compiledIn, "profiles:\n- plugins: {"+tt.plugins+"}\n")
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.plugins, err, tt.want)
		}
	}
}
