// Command bench is a Berth with the filter and the score of test/benchkube compiled in: once signed, so that what is said of a pod is taken for the next one alike, and once not. With kube-scheduler
// as its first argument it is a kube-scheduler with them, and with the original Yoda's rules.
package main

import (
	"context"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-scheduler/berth/berthapp"
	"github.com/berth-scheduler/berth/berthapp/bench/original"
	"github.com/berth-scheduler/berth/test/choice"
)

func main() {
	plain := func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }
	signed := func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return signed{}, nil }
	if len(os.Args) > 1 && os.Args[1] == "kube-scheduler" {
		os.Args = append(os.Args[:1:1], os.Args[2:]...)
		os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin("Choice", plain), app.WithPlugin("SignedChoice", signed), app.WithPlugin(original.Name, original.New))))
	}
	os.Exit(berthapp.Run(berthapp.NewCommand(berthapp.WithPlugin("Choice", plain), berthapp.WithPlugin("SignedChoice", signed))))
}

type plugin struct{}

func (plugin) Name() string { return "Choice" }

func (plugin) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if refused, _ := choice.Of(node.Node().Name); refused {
		return fwk.NewStatus(fwk.Unschedulable, "not chosen")
	}
	return nil
}

func (plugin) Score(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	_, score := choice.Of(node.Node().Name)
	return 10 * score, nil
}

func (plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// signed says that all pods are alike.
type signed struct{ plugin }

func (signed) Name() string { return "SignedChoice" }

func (signed) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: "SignedChoice", Value: true}}, nil
}
