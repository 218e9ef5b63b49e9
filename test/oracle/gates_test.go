package oracle

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	berthconfig "github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

// gates are the feature gates that are on, of those that are off by default and that Berth has.
type gates struct {
	scaling bool // VolumeLimitScaling
}

// drawGates draws gates for a cluster with volumes.
func drawGates(t *rapid.T) gates {
	return gates{scaling: oneIn(t, 3, "VolumeLimitScaling")}
}

// profile is berthProfile with the gates.
func (g gates) profile(p *config.KubeSchedulerProfile) cluster.Profile {
	out := berthProfile(p)
	out.VolumeLimitScaling = g.scaling
	return out
}

// register has the plugins that read gates made with these.
func (g gates) register(registry frameworkruntime.Registry) {
	if !g.scaling {
		return
	}
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	features.EnableVolumeLimitScaling = g.scaling
	registry[names.NodeVolumeLimits] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		plugin, err := nodevolumelimits.NewCSI(ctx, args, h, features)
		if err != nil {
			return nil, err
		}
		return firstMissing{plugin.(*nodevolumelimits.CSILimits)}, nil
	}
}

// firstMissing is NodeVolumeLimits, but of several drivers that a node has not it names the first. kube-scheduler names any: that which the order of a
// Go map brings first.
type firstMissing struct{ *nodevolumelimits.CSILimits }

func (p firstMissing) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	first := p.CSILimits.Filter(ctx, state, pod, node)
	if len(pod.Spec.Volumes) < 2 || !strings.HasSuffix(first.Message(), engine.ReasonNoDriver) {
		return first
	}
	for range 100 { // of three drivers one stays unseen once in 10^17 times
		if s := p.CSILimits.Filter(ctx, state, pod, node); s.Message() < first.Message() {
			first = s
		}
	}
	return first
}

// gateRead matches where kube-scheduler's code names a feature gate.
var gateRead = regexp.MustCompile(`\bfeatures\.([A-Z]\w+)`)

// TestFeatureGatesAreKubeSchedulers takes every gate that kube-scheduler's own code reads at its default, and no other way but for those that Berth has.
func TestFeatureGatesAreKubeSchedulers(t *testing.T) {
	module, err := run(t.Context(), ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	read := make(map[string]bool)
	for _, dir := range []string{"pkg/scheduler", "cmd/kube-scheduler"} {
		err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(module)), dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testing/") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, found := range gateRead.FindAllSubmatch(text, -1) {
				read[string(found[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	has := map[string]bool{"VolumeLimitScaling": true}
	taken := 0
	for name := range read {
		spec, ok := known[featuregate.Feature(name)]
		if !ok {
			continue // it is no gate
		}
		taken++
		for _, on := range []bool{true, false} {
			err := new(berthconfig.Options).SetGates([]string{fmt.Sprintf("%s=%t", name, on)})
			if takes := has[name] || on == spec.Default; takes != (err == nil) {
				t.Errorf("%s=%t, where the default is %t: %v", name, on, spec.Default, err)
			}
		}
	}
	if taken < 30 {
		t.Errorf("only %d gates are read", taken)
	}
	t.Logf("%d gates", taken)
}
