package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ReduceService reads the selector of a service. It is false, and only the names are set, if the service has none: it
// then says nothing about any pod, and is not to be told.
func ReduceService(service *v1.Service) (Selector, bool) {
	return mapSelector(cluster.KindService, &service.ObjectMeta, service.Spec.Selector)
}

// ReduceReplicationController reads the selector of a replication controller; false if it has none, as with a service.
func ReduceReplicationController(controller *v1.ReplicationController) (Selector, bool) {
	return mapSelector(cluster.KindReplicationController, &controller.ObjectMeta, controller.Spec.Selector)
}

// ReduceReplicaSet reads the selector of a replica set; false if it has none that can be parsed: kube-scheduler passes over
// such a controller.
func ReduceReplicaSet(set *appsv1.ReplicaSet) (Selector, bool) {
	return labelSelector(cluster.KindReplicaSet, &set.ObjectMeta, set.Spec.Selector)
}

// ReduceStatefulSet reads the selector of a stateful set; false if it has none that can be parsed, as with a replica set.
func ReduceStatefulSet(set *appsv1.StatefulSet) (Selector, bool) {
	return labelSelector(cluster.KindStatefulSet, &set.ObjectMeta, set.Spec.Selector)
}

func mapSelector(kind string, meta *metav1.ObjectMeta, labels map[string]string) (Selector, bool) {
	s := Selector{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}
	if len(labels) == 0 {
		return s, false
	}
	s.Selector = equalTo(labels)
	return s, true
}

func labelSelector(kind string, meta *metav1.ObjectMeta, selector *metav1.LabelSelector) (Selector, bool) {
	s := Selector{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}
	reduced, err := reduceLabelSelector(selector)
	if err != nil || reduced.Nothing {
		return s, false
	}
	s.Selector = reduced
	return s, true
}

// controllerOf returns the pod's controller if it is of a kind whose selector is read.
func controllerOf(pod *v1.Pod) cluster.Controller {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return cluster.Controller{}
	}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return cluster.Controller{}
	}
	switch version.WithKind(owner.Kind) {
	case v1.SchemeGroupVersion.WithKind(cluster.KindReplicationController),
		appsv1.SchemeGroupVersion.WithKind(cluster.KindReplicaSet),
		appsv1.SchemeGroupVersion.WithKind(cluster.KindStatefulSet):
		return cluster.Controller{Kind: owner.Kind, Name: owner.Name}
	}
	return cluster.Controller{}
}
