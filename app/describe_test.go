package app

import (
	"context"
	"testing"

	"github.com/berth-scheduler/berth/plugin"
)

// A service that is compiled in has no line of a file that says what it may be sent: it is what its plugins depend on.
func TestACompiledInServiceMayBeSentWhatItsPluginsDependOn(t *testing.T) {
	for _, tt := range []struct {
		depends plugin.Dependencies
		objects bool
	}{
		{plugin.Dependencies{Requested: true, Pods: true}, false},
		{plugin.Dependencies{Objects: true}, true},
		{plugin.Dependencies{Pod: true}, true},
		{plugin.Dependencies{Annotations: true}, true},
	} {
		p := plugin.Plugin{Name: "P", Depends: tt.depends}
		p.Filter = func(context.Context, *plugin.Kind, *plugin.Node) (*plugin.Refusal, error) { return nil, nil }
		all := &services{list: []Service{{Name: "s", Make: func(Environment) (*Made, error) {
			return &Made{Plugins: []plugin.Plugin{p, {Name: "Q", Filter: p.Filter}}}, nil
		}}}}
		got, err := all.describe("")
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Objects != tt.objects {
			t.Errorf("%+v: objects: %v, want %v", tt.depends, got[0].Objects, tt.objects)
		}
	}
}
