package main

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// The API server's objects are read from its etcd: that is the one history of them that an API server which stops, starts
// and forgets its watch cache does not interrupt, and its order is that of resource versions.
const (
	registry     = "/registry/"
	registryPods = registry + "pods/"
	registryNode = registry + "minions/"
	// These are between the others.
	registryVolumes = registry + "persistentvolumes/"
	registryClaims  = registry + "persistentvolumeclaims/"
	registryGroups  = registry + "podgroups/"

	registryScvs = registry + scv.Group + "/" + scv.Resource + "/"
)

// objectReader makes entries of what the API server stores.
type objectReader struct {
	seen map[string]bool // uids of pods that have been described
}

// read returns the object of a change; nil if it is of another kind.
func (r *objectReader) read(e etcdEvent) (*Object, error) {
	key := string(e.KV.Key)
	o := &Object{Revision: int64(e.KV.Mod), Deleted: e.Type == "DELETE"}
	var is bool
	if o.Name, is = strings.CutPrefix(key, registryPods); is {
	} else if o.Name, is = strings.CutPrefix(key, registryNode); is {
		o.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
	} else if o.Name, is = strings.CutPrefix(key, registryVolumes); is {
		o.Volume = &corev1.PersistentVolume{}
	} else if o.Name, is = strings.CutPrefix(key, registryClaims); is {
		o.Claim = &corev1.PersistentVolumeClaim{}
	} else if o.Name, is = strings.CutPrefix(key, registryGroups); is {
		o.Group = &schedulingv1alpha2.PodGroup{}
	} else if o.Name, is = strings.CutPrefix(key, registryScvs); is {
		o.Told = &Told{}
	} else {
		return nil, nil
	}
	if o.Deleted {
		return o, nil
	}
	if o.Told != nil {
		return o, readTold(e.KV.Value, o)
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.KV.Value, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	switch object := decoded.(type) {
	case *corev1.Pod:
		o.UID, o.On, o.Leaving = string(object.UID), object.Spec.NodeName, object.DeletionTimestamp != nil
		o.Ended = object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed
		o.Cards, o.CardsMemory = object.Annotations[annotationCards], object.Annotations[annotationCardsMemory]
		for _, c := range object.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				o.Reason = c.Reason
			}
		}
		if !r.seen[o.UID] {
			r.seen[o.UID] = true
			o.Pod = trimPod(object)
		}
	case *corev1.Node:
		o.UID, o.Node = string(object.UID), trimNode(object)
	case *corev1.PersistentVolume:
		o.UID, o.Volume = string(object.UID), trimVolume(object)
	case *corev1.PersistentVolumeClaim:
		o.UID, o.Claim = string(object.UID), trimClaim(object)
	case *schedulingv1alpha2.PodGroup:
		o.UID, o.Group = string(object.UID), trimGroup(object)
	}
	return o, nil
}

// readTold reads an Scv, which the API server stores as JSON.
func readTold(text []byte, o *Object) error {
	var is scv.Scv
	if err := json.Unmarshal(text, &is); err != nil {
		return fmt.Errorf("decode Scv %s: %w", o.Name, err)
	}
	o.UID = string(is.UID)
	for _, c := range is.Status.Cards {
		o.Told.Cards = append(o.Told.Cards, ToldCard{c.ID, c.Health == scv.Healthy, c.TotalMemoryMiB})
	}
	return nil
}

// trimVolume keeps what binding reads of a volume.
func trimVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: v.Name, UID: v.UID, Annotations: v.Annotations, DeletionTimestamp: v.DeletionTimestamp},
		Spec:       corev1.PersistentVolumeSpec{StorageClassName: v.Spec.StorageClassName, ClaimRef: v.Spec.ClaimRef, NodeAffinity: v.Spec.NodeAffinity},
		Status:     corev1.PersistentVolumeStatus{Phase: v.Status.Phase},
	}
}

// trimClaim keeps what binding reads of a claim.
func trimClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID, Annotations: c.Annotations, DeletionTimestamp: c.DeletionTimestamp},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: c.Spec.StorageClassName, VolumeName: c.Spec.VolumeName},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: c.Status.Phase},
	}
}

// trimGroup keeps what scheduling reads of a PodGroup.
func trimGroup(g *schedulingv1alpha2.PodGroup) *schedulingv1alpha2.PodGroup {
	return &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name, UID: g.UID, DeletionTimestamp: g.DeletionTimestamp}, Spec: g.Spec}
}

// trimPod keeps what scheduling reads of a pod but where it is.
func trimPod(p *corev1.Pod) *corev1.Pod {
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels}}
	if asks, ok := p.Annotations[annotationRequest]; ok {
		small.Annotations = map[string]string{annotationRequest: asks}
	}
	s := &p.Spec
	small.Spec = corev1.PodSpec{
		NodeSelector: s.NodeSelector, Affinity: s.Affinity, TopologySpreadConstraints: s.TopologySpreadConstraints,
		Tolerations: s.Tolerations, Overhead: s.Overhead, SchedulerName: s.SchedulerName, SchedulingGroup: s.SchedulingGroup,
	}
	for _, v := range s.Volumes {
		if v.PersistentVolumeClaim != nil {
			small.Spec.Volumes = append(small.Spec.Volumes, v)
		}
	}
	for _, c := range s.Containers {
		small.Spec.Containers = append(small.Spec.Containers, corev1.Container{
			Name: c.Name, Ports: c.Ports, Resources: corev1.ResourceRequirements{Requests: c.Resources.Requests},
		})
	}
	return small
}

// trimNode keeps what scheduling reads of a node but the images.
func trimNode(n *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels},
		Spec:       corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable},
	}
}
