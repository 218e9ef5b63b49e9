package oracle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	storageinformers "k8s.io/client-go/informers/storage"
	storagev1informers "k8s.io/client-go/informers/storage/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	berthconfig "github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

// gates are the feature gates that are on, of those that are off by default and that Berth has.
type gates struct {
	scaling   bool // VolumeLimitScaling
	comparing bool // TaintTolerationComparisonOperators
	// shape is VolumeBinding's, with StorageCapacityScoring; nil without.
	shape []config.UtilizationShapePoint
}

// any reports whether one is on.
func (g gates) any() bool { return g.scaling || g.shape != nil || g.comparing }

// drawGates draws gates for a cluster with volumes.
func drawGates(t *rapid.T) gates {
	g := gates{scaling: oneIn(t, 3, "VolumeLimitScaling")}
	if oneIn(t, 3, "StorageCapacityScoring") {
		g.shape = pick(t, "shape", []config.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100}},
			[]config.UtilizationShapePoint{{Utilization: 10, Score: 2}, {Utilization: 50, Score: 9}, {Utilization: 90, Score: 4}})
	}
	return g
}

// amend gives an object what kube-scheduler dereferences, where it is nil, to score by it: the room of a CSIStorageCapacity that has a largest size alone, and a
// class that is not in an annotation.
func (g gates) amend(o metav1.Object) {
	switch o := o.(type) {
	case *storagev1.CSIStorageCapacity:
		if g.shape != nil && o.Capacity == nil {
			o.Capacity = new(resource.Quantity)
		}
	case *v1.PersistentVolumeClaim:
		if class, ok := o.Annotations[v1.BetaStorageClassAnnotation]; ok && g.shape != nil {
			delete(o.Annotations, v1.BetaStorageClassAnnotation)
			o.Spec.StorageClassName = &class
		}
	}
}

// upstream is a profile with what kube-scheduler needs of it with the gates: a shape, and no score where PreFilter does not run, as each would fail then.
func (g gates) upstream(p *config.KubeSchedulerProfile) *config.KubeSchedulerProfile {
	if g.shape == nil {
		return p
	}
	p = p.DeepCopy()
	for i := range p.PluginConfig {
		if args, ok := p.PluginConfig[i].Args.(*config.VolumeBindingArgs); ok {
			args.Shape = g.shape
		}
	}
	if disables(p.Plugins.PreFilter, names.VolumeBinding) {
		p.Plugins.PreScore.Disabled = append(p.Plugins.PreScore.Disabled, config.Plugin{Name: names.VolumeBinding})
		p.Plugins.Score.Disabled = append(p.Plugins.Score.Disabled, config.Plugin{Name: names.VolumeBinding})
	}
	return p
}

func disables(set config.PluginSet, plugin string) bool {
	return slices.ContainsFunc(set.Disabled, func(p config.Plugin) bool { return p.Name == plugin })
}

// profile is berthProfile with the gates.
func (g gates) profile(p *config.KubeSchedulerProfile) cluster.Profile {
	out := berthProfile(p)
	out.VolumeLimitScaling, out.TaintComparison = g.scaling, g.comparing
	if g.shape == nil {
		return out
	}
	for _, point := range g.shape {
		out.StorageShape = append(out.StorageShape, cluster.ShapePoint{Utilization: point.Utilization, Score: point.Score})
	}
	if p = g.upstream(p); !disables(p.Plugins.Score, names.VolumeBinding) {
		out.Weights = append(out.Weights, cluster.PluginWeight{Name: names.VolumeBinding, Weight: 1})
	}
	return out
}

// register has the plugins that read gates made with these.
func (g gates) register(registry frameworkruntime.Registry) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	features.EnableVolumeLimitScaling, features.EnableStorageCapacityScoring, features.EnableTaintTolerationComparisonOperators = g.scaling, g.shape != nil, g.comparing
	registry[names.TaintToleration] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		return tainttoleration.New(ctx, args, h, features)
	}
	registry[names.PodTopologySpread] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		return podtopologyspread.New(ctx, args, h, features)
	}
	if g.shape != nil {
		registry[names.VolumeBinding] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			return volumebinding.New(ctx, args, mostRoomFirst{Handle: h}, features)
		}
	}
	if !g.scaling {
		return
	}
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

// mostRoomFirst has VolumeBinding look at the CSIStorageCapacities with the most room first. kube-scheduler takes any that will do, as the order of a Go map
// has it, and Berth the one with the most room.
type mostRoomFirst struct{ fwk.Handle }

func (h mostRoomFirst) SharedInformerFactory() informers.SharedInformerFactory {
	return roomFactory{h.Handle.SharedInformerFactory()}
}

type roomFactory struct {
	informers.SharedInformerFactory
}

func (f roomFactory) Storage() storageinformers.Interface {
	return roomStorage{f.SharedInformerFactory.Storage()}
}

type roomStorage struct{ storageinformers.Interface }

func (s roomStorage) V1() storagev1informers.Interface { return roomV1{s.Interface.V1()} }

type roomV1 struct{ storagev1informers.Interface }

func (v roomV1) CSIStorageCapacities() storagev1informers.CSIStorageCapacityInformer {
	return roomInformer{v.Interface.CSIStorageCapacities()}
}

type roomInformer struct {
	storagev1informers.CSIStorageCapacityInformer
}

func (i roomInformer) Lister() storagelisters.CSIStorageCapacityLister {
	return roomLister{i.CSIStorageCapacityInformer.Lister()}
}

type roomLister struct {
	storagelisters.CSIStorageCapacityLister
}

func (l roomLister) List(s labels.Selector) ([]*storagev1.CSIStorageCapacity, error) {
	all, err := l.CSIStorageCapacityLister.List(s)
	slices.SortFunc(all, func(a, b *storagev1.CSIStorageCapacity) int {
		least := ptr.Deref(a.Capacity, resource.Quantity{})
		return ptr.To(ptr.Deref(b.Capacity, resource.Quantity{})).Cmp(least)
	})
	return all, err
}

// gateRead matches where kube-scheduler's code names a feature gate.
var gateRead = regexp.MustCompile(`\b\w*features\.([A-Z]\w+)`)

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
	has := map[string]bool{"StorageCapacityScoring": true, "VolumeLimitScaling": true, "TaintTolerationComparisonOperators": true}
	for _, name := range []string{"GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"} { // PodGroups are followed wherever they are served
		has[name] = true
	}
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
	added := featuregate.NewFeatureGate() // as a process adds them when it starts
	if err := errors.Join(logsapi.AddFeatureGates(added), metricsfeatures.AddFeatureGates(added)); err != nil {
		t.Fatal(err)
	}
	maps.Copy(known, added.GetAll())
	for _, g := range new(berthconfig.Options).Gates() {
		if spec, ok := known[featuregate.Feature(g.Name)]; ok && (g.On != spec.Default || g.Stage != string(spec.PreRelease)) {
			t.Errorf("%+v, where kube-scheduler has %v, %q", g, spec.Default, spec.PreRelease)
		} else if !ok {
			t.Errorf("%s: kube-scheduler has no such gate", g.Name)
		}
	}
	if taken < 30 {
		t.Errorf("only %d gates are read", taken)
	}
	t.Logf("%d gates", taken)
}
