package deploy

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const deployDir = "../../deploy"

// overlays are those that people apply.
var overlays = []string{"second-scheduler", "default-scheduler"}

// monitored is an overlay with the component that has Prometheus scrape it.
const monitored = "testdata/monitored"

// assigned is an overlay with the components that need no more than an API server.
const assigned = "testdata/assigned"

// ownScheduled is the one in kube-scheduler's place, with what its own pods need placed by the scheduler of its own pods.
const ownScheduled = "testdata/own-scheduler"

// These are the overlays with Yoda, the first one with what has Prometheus scrape it, too.
const (
	withYoda        = "testdata/yoda"
	defaultWithYoda = "testdata/yoda-default"
)

// kustomize renders an overlay.
func kustomize(t *testing.T, overlay string) []*unstructured.Unstructured {
	t.Helper()
	return render(t, filepath.Join(deployDir, "kustomize", "overlays", overlay))
}

// render renders a kustomization.
func render(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("kustomize %s: %v", dir, err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range made.Resources() {
		content, err := r.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		o := new(unstructured.Unstructured)
		if err := o.UnmarshalJSON(content); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

// of returns the objects of a kind, by name.
func of(objects []*unstructured.Unstructured, kind string) map[string]*unstructured.Unstructured {
	found := make(map[string]*unstructured.Unstructured)
	for _, o := range objects {
		if o.GetKind() == kind {
			found[o.GetName()] = o
		}
	}
	return found
}
