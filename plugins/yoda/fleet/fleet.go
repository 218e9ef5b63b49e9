// Package fleet plays nodes with cards, and the collectors that tell of them, on an API server where there are none: for tests and demonstrations.
package fleet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	scvs        = schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.Resource}
)

// Model is a kind of card.
type Model struct {
	Name                         string
	MemoryMiB, ClockMHz, CoreMHz int64
	BandwidthMBps, PowerWatts    int64
}

// Models are five kinds of cards, as their makers tell of them.
var Models = []Model{
	{"Tesla T4", 15360, 5001, 1590, 15760, 70},
	{"Tesla P100-PCIE-16GB", 16280, 715, 1328, 15760, 250},
	{"Tesla V100-SXM2-16GB", 16160, 877, 1530, 15760, 300},
	{"Tesla V100-SXM2-32GB", 32510, 877, 1530, 15760, 300},
	{"NVIDIA A10", 23028, 6251, 1695, 31520, 150},
}

// Fleet is some nodes, and what their collectors tell. It is safe for concurrent use.
type Fleet struct {
	client dynamic.Interface
	every  int32 // HeartbeatSeconds

	mu    sync.Mutex
	cards map[string][]v1alpha1.Card // by node
	quiet map[string]bool            // nodes whose collector says nothing
}

// New returns a fleet without nodes, on an API server in which it makes the custom resource of a file with its definition. Collectors tell something each so many seconds.
func New(ctx context.Context, cfg *rest.Config, definition string, every int32) (*Fleet, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	text, err := os.ReadFile(definition)
	if err != nil {
		return nil, err
	}
	crd := new(unstructured.Unstructured)
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return nil, fmt.Errorf("%s: %w", definition, err)
	}
	if _, err := client.Resource(definitions).Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("make the custom resource: %w", err)
	}
	f := &Fleet{client: client, every: every, cards: make(map[string][]v1alpha1.Card), quiet: make(map[string]bool)}
	for { // until it is served
		_, err := client.Resource(scvs).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return f, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Add makes a node with cards of a model, room for all pods, and what its collector tells of it. The node's kubelet and device plugin have nothing to do with the cards.
func (f *Fleet) Add(ctx context.Context, name string, model Model, number int, change func(*corev1.Node)) error {
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("110")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(node)
	}
	node.Status.Capacity = node.Status.Allocatable
	if err := f.create(ctx, nodes, node); err != nil {
		return fmt.Errorf("make node %s: %w", name, err)
	}
	cards := make([]v1alpha1.Card, number)
	for i := range cards {
		cards[i] = v1alpha1.Card{
			ID: fmt.Sprintf("GPU-%s-%d", name, i), Index: int32(i), Model: model.Name, Health: v1alpha1.Healthy, TotalMemoryMiB: model.MemoryMiB, FreeMemoryMiB: model.MemoryMiB,
			ClockMHz: model.ClockMHz, CoreMHz: model.CoreMHz, BandwidthMBps: model.BandwidthMBps, PowerWatts: model.PowerWatts,
		}
	}
	if err := f.create(ctx, scvs, &bare{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: v1alpha1.Kind}, ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("make Scv %s: %w", name, err)
	}
	f.mu.Lock()
	f.cards[name] = cards
	f.mu.Unlock()
	return f.tell(ctx, name)
}

// bare is an Scv without a status.
type bare struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

func (f *Fleet) create(ctx context.Context, what schema.GroupVersionResource, object any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	_, err = f.client.Resource(what).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	return err
}

// Cards returns what the collector of a node tells of its cards.
func (f *Fleet) Cards(node string) []v1alpha1.Card {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.cards[node])
}

// Nodes returns the names of all nodes, in order.
func (f *Fleet) Nodes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.cards))
	for name := range f.cards {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Change has the collector of a node tell of something else.
func (f *Fleet) Change(ctx context.Context, node string, change func(cards []v1alpha1.Card)) error {
	f.mu.Lock()
	cards := slices.Clone(f.cards[node])
	change(cards)
	f.cards[node] = cards
	f.mu.Unlock()
	return f.tell(ctx, node)
}

// Silence has the collector of a node say nothing any more, or speak again.
func (f *Fleet) Silence(node string, quiet bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quiet[node] = quiet
}

// tell writes what the collector of a node tells.
func (f *Fleet) tell(ctx context.Context, node string) error {
	f.mu.Lock()
	status := v1alpha1.Status{Heartbeat: metav1.NowMicro(), HeartbeatSeconds: f.every, Driver: "550.54", Cards: slices.Clone(f.cards[node]), CardNumber: int32(len(f.cards[node]))}
	f.mu.Unlock()
	for _, c := range status.Cards {
		if c.Health == v1alpha1.Healthy {
			status.HealthyNumber++
			status.FreeMemoryMiB += c.FreeMemoryMiB
			status.TotalMemoryMiB += c.TotalMemoryMiB
		}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Status v1alpha1.Status `json:"status"`
	}{status})
	if err != nil {
		return err
	}
	patch, err := (&unstructured.Unstructured{Object: content}).MarshalJSON()
	if err != nil {
		return err
	}
	if _, err := f.client.Resource(scvs).Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("tell of the cards of node %s: %w", node, err)
	}
	return nil
}

// atOnce is how many collectors write at a time.
const atOnce = 16

// Run has all collectors write as often as they say, until ctx ends. An error is that one could not for a reason of its own.
func (f *Fleet) Run(ctx context.Context) error {
	beat := time.NewTicker(time.Duration(f.every) * time.Second)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
		g, beating := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for _, node := range f.Nodes() {
			f.mu.Lock()
			quiet := f.quiet[node]
			f.mu.Unlock()
			if !quiet {
				g.Go(func() error { return f.tell(beating, node) })
			}
		}
		if err := g.Wait(); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
