// Command plugin-compiled-in is an example of a Berth with plugins of its own, in one program: it has all commands of berth.
//
// Licences lets so many pods at a time that have the label example.com/licensed onto each node as its label example.com/licences says.
// "berth all --config FILE" runs it if a profile of the file enables it, and "berth plugin serve licences --listen ADDRESS" serves it to another Berth.
package main

import (
	"context"
	"os"
	"strconv"

	"github.com/berth-scheduler/berth/app"
	"github.com/berth-scheduler/berth/plugin"
)

const (
	licensed = "example.com/licensed" // a label of pods
	licences = "example.com/licences" // a label of nodes
)

func main() {
	os.Exit(app.Run(app.NewCommand(app.WithService(app.Service{Name: "licences", Make: makeLicences}))))
}

// makeLicences makes the plugins. One that talks to the API server gets a client by env.Kubeconfig, and follows it in Made.Run.
func makeLicences(app.Environment) (*app.Made, error) {
	return &app.Made{Plugins: []plugin.Plugin{
		{Name: "Licences", Filter: free, Depends: plugin.Dependencies{Pods: true}},
	}}, nil
}

// free refuses nodes all of whose licences are taken.
func free(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
	if _, ok := kind.Labels[licensed]; !ok {
		return nil, nil
	}
	left, err := strconv.Atoi(node.Labels[licences])
	if err != nil {
		return &plugin.Refusal{Reason: "node(s) had no licences", Unresolvable: true}, nil
	}
	for _, pod := range node.Pods {
		if _, ok := pod.Kind.Labels[licensed]; ok {
			left--
		}
	}
	if left <= 0 {
		return &plugin.Refusal{Reason: "node(s) had all licences taken"}, nil
	}
	return nil, nil
}
