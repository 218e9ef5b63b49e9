package oracle

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // as cmd/kube-scheduler does
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var rewrite = flag.Bool("rewrite", false, "write the files that are held against kube-scheduler")

// held holds a file against what it should have, or writes it.
func held(t *testing.T, file, want string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what kube-scheduler has; run with -rewrite", file)
	}
}

// TestTheFlagsAreKubeSchedulers holds the list of kube-scheduler's flags, which berth kube-scheduler is tested against, against kube-scheduler's own.
func TestTheFlagsAreKubeSchedulers(t *testing.T) {
	c := app.NewSchedulerCommand()
	c.InitDefaultHelpFlag()
	var want strings.Builder
	c.Flags().VisitAll(func(f *pflag.Flag) {
		fmt.Fprintf(&want, "%s|%s|%s|%s\n", f.Name, f.Shorthand, f.Value.Type(), f.DefValue)
	})
	held(t, "../../internal/command/testdata/kube-scheduler-flags.txt", want.String())
}

// TestTheGatesAreThoseOfKubernetes holds internal/config/gates.txt against the feature gates that kube-scheduler takes.
func TestTheGatesAreThoseOfKubernetes(t *testing.T) {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	added := featuregate.NewFeatureGate() // as a process adds them when it starts
	if err := errors.Join(logsapi.AddFeatureGates(added), metricsfeatures.AddFeatureGates(added)); err != nil {
		t.Fatal(err)
	}
	maps.Copy(known, added.GetAll())
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(known)) {
		spec, is, stage, locked := known[name], "off", "GA", ""
		if spec.Default {
			is = "on"
		}
		if spec.PreRelease != featuregate.GA {
			stage = string(spec.PreRelease)
		}
		if spec.LockToDefault {
			locked = " locked"
		}
		fmt.Fprintf(&want, "%s %s %s%s\n", name, is, stage, locked)
	}
	held(t, "../../internal/config/gates.txt", want.String())
}
