package deploy

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// cluster applies objects as kubectl apply --server-side --validate=strict does.
type cluster struct {
	*kubetest.ControlPlane
	objects dynamic.Interface
	mapper  meta.RESTMapper
}

func startCluster(t *testing.T, o kubetest.Options) *cluster {
	t.Helper()
	c := &cluster{ControlPlane: kubetest.StartT(t, o)}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	if c.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	c.apply(t, definitions()...)
	return c
}

// discover reads again which kinds there are.
func (c *cluster) discover(t *testing.T) {
	t.Helper()
	resources, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClient(c.Client().RESTClient()))
	if err != nil {
		t.Fatal(err)
	}
	c.mapper = restmapper.NewDiscoveryRESTMapper(resources)
}

// within returns a context for one step.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await looks until there is no error.
func await(t *testing.T, what string, look func(ctx context.Context) error) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("wait for %s: %v", what, err)
		case <-tick.C:
		}
	}
}

// apply applies objects in their order, strictly.
func (c *cluster) apply(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		var last error
		await(t, o.GetKind()+" "+o.GetName()+" to be taken", func(ctx context.Context) error {
			last = c.applyOne(ctx, t, o)
			if meta.IsNoMatchError(last) { // a kind that has just been defined
				return last
			}
			return nil
		})
		if last != nil {
			t.Errorf("%s %s is refused: %v", o.GetKind(), o.GetName(), last)
		}
	}
}

func (c *cluster) applyOne(ctx context.Context, t *testing.T, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	if c.mapper == nil {
		c.discover(t)
	}
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		c.mapper = nil
		return err
	}
	force := true
	var resource dynamic.ResourceInterface = c.objects.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = c.objects.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	data, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = resource.Patch(ctx, o.GetName(), applyPatch, data, metav1.PatchOptions{
		FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict,
	})
	if apierrors.IsNotFound(err) && foreign[kind.Kind] == kind.GroupVersion() {
		return &meta.NoKindMatchError{GroupKind: kind.GroupKind()} // defined, and not served yet
	}
	return err
}

// foreign are the kinds of cert-manager and the Prometheus operator that deploy uses.
var foreign = map[string]schema.GroupVersion{
	"Certificate":    {Group: "cert-manager.io", Version: "v1"},
	"Issuer":         {Group: "cert-manager.io", Version: "v1"},
	"PodMonitor":     {Group: "monitoring.coreos.com", Version: "v1"},
	"PrometheusRule": {Group: "monitoring.coreos.com", Version: "v1"},
}

// definitions returns definitions of the foreign kinds, which take everything.
func definitions() []*unstructured.Unstructured {
	var definitions []*unstructured.Unstructured
	for kind, in := range foreign {
		plural := strings.ToLower(kind) + "s"
		definitions = append(definitions, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + "." + in.Group},
			"spec": map[string]any{
				"group": in.Group, "scope": "Namespaced",
				"names": map[string]any{"kind": kind, "plural": plural},
				"versions": []any{map[string]any{
					"name": in.Version, "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				}},
			},
		}})
	}
	return definitions
}
