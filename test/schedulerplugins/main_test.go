package schedulerplugins

import (
	"os"
	"strings"
	"testing"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // arguments of plugins
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/networkaware/networkoverhead"
	"sigs.k8s.io/scheduler-plugins/pkg/networkaware/topologicalsort"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesources"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesourcetopology"
	"sigs.k8s.io/scheduler-plugins/pkg/podstate"
	"sigs.k8s.io/scheduler-plugins/pkg/qos"
	"sigs.k8s.io/scheduler-plugins/pkg/sysched"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/loadvariationriskbalancing"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/lowriskovercommitment"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/peaks"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/targetloadpacking"

	"github.com/berth-scheduler/berth/berthapp"
)

// compiledIn are the plugins of scheduler-plugins that compile with Kubernetes 1.36: all but CapacityScheduling and PreemptionToleration, which call preemption.NewEvaluator as 1.35 has it.
var compiledIn = map[string]frameworkruntime.PluginFactory{
	coscheduling.Name:               coscheduling.New,
	networkoverhead.Name:            networkoverhead.New,
	topologicalsort.Name:            topologicalsort.New,
	noderesources.AllocatableName:   noderesources.NewAllocatable,
	noderesourcetopology.Name:       noderesourcetopology.New,
	podstate.Name:                   podstate.New,
	qos.Name:                        qos.New,
	sysched.Name:                    sysched.New,
	targetloadpacking.Name:          targetloadpacking.New,
	loadvariationriskbalancing.Name: loadvariationriskbalancing.New,
	lowriskovercommitment.Name:      lowriskovercommitment.New,
	peaks.Name:                      peaks.New,
}

// theirs is the command by which the test binary is a kube-scheduler with the plugins.
const theirs = "kube-scheduler"

// TestMain is a kube-scheduler with the plugins, or a Berth with them, too, if its first argument is a command.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == theirs:
		var options []app.Option
		for name, factory := range compiledIn {
			options = append(options, app.WithPlugin(name, factory))
		}
		os.Args = append(os.Args[:1:1], os.Args[2:]...)
		os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
	case len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-"):
		var options []berthapp.Option
		for name, factory := range compiledIn {
			options = append(options, berthapp.WithPlugin(name, factory))
		}
		os.Exit(berthapp.Run(berthapp.NewCommand(options...)))
	}
	os.Exit(m.Run())
}
