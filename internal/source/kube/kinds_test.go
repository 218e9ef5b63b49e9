package kube

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/source"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// unconnected returns a source whose API server nobody asks.
func unconnected(t *testing.T) *Source {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return &Source{resources: followed(client, nil, podKind(nil, nil, nil, nil), nodeKind(false, false))}
}

func TestEveryKindThatIsReducedIsFollowed(t *testing.T) {
	follows := map[string]bool{}
	for _, r := range unconnected(t).resources {
		follows[r.kubernetesKind().Kind] = true
		if r.kind.reduce == nil || r.kind.gone == nil {
			t.Errorf("of %s nothing is told", r.name)
		}
		if r.kind.reduce(r.example) == nil {
			t.Errorf("%s are not reduced", r.name)
		}
	}
	for kind := range source.Reductions {
		if !follows[kind] {
			t.Errorf("%s is not followed", kind)
		}
	}
	if want := len(source.Reductions) + 3; len(follows) != want { // nodes, namespaces and pods
		t.Errorf("%d kinds are followed, want %d", len(follows), want)
	}
}

func TestAnEventRefersToItsObjectInTheAPIVersionOfItsKind(t *testing.T) {
	s := unconnected(t)
	for kind, want := range map[string]string{
		"Node": "v1", "Namespace": "v1", "Service": "v1", "ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1",
		"PodDisruptionBudget": "policy/v1", "PersistentVolume": "v1", "PersistentVolumeClaim": "v1", "StorageClass": "storage.k8s.io/v1",
		"CSINode": "storage.k8s.io/v1", "CSIDriver": "storage.k8s.io/v1", "CSIStorageCapacity": "storage.k8s.io/v1",
		"VolumeAttachment": "storage.k8s.io/v1",
	} {
		ref := s.objectReference(source.Unsupported{Kind: kind, Namespace: "a", Name: "b"})
		if ref.APIVersion != want || ref.Kind != kind || ref.Namespace != "a" || ref.Name != "b" || (ref.UID == "b") != (kind == "Node") {
			t.Errorf("%s: %+v, want version %s", kind, ref, want)
		}
	}
}
