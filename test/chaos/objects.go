package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// The API server's objects are read from its etcd: that is the one history of them that an API server which stops, starts
// and forgets its watch cache does not interrupt, and its order is that of resource versions.
const (
	registry     = "/registry/"
	registryPods = registry + "pods/"
	registryNode = registry + "minions/"
)

// objectReader makes entries of what the API server stores.
type objectReader struct {
	seen map[string]bool // uids of pods that have been described
}

// read returns the object of a change; nil if it is neither a pod nor a node.
func (r *objectReader) read(e etcdEvent) (*Object, error) {
	key := string(e.KV.Key)
	isPod, isNode := strings.HasPrefix(key, registryPods), strings.HasPrefix(key, registryNode)
	if !isPod && !isNode {
		return nil, nil
	}
	o := &Object{Revision: int64(e.KV.Mod), Name: strings.TrimPrefix(strings.TrimPrefix(key, registryPods), registryNode)}
	if e.Type == "DELETE" {
		o.Deleted = true
		if isNode {
			o.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
		}
		return o, nil
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.KV.Value, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	switch object := decoded.(type) {
	case *corev1.Pod:
		o.UID, o.On, o.Leaving = string(object.UID), object.Spec.NodeName, object.DeletionTimestamp != nil
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
	}
	return o, nil
}

// trimPod keeps what scheduling reads of a pod but where it is.
func trimPod(p *corev1.Pod) *corev1.Pod {
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels}}
	s := &p.Spec
	small.Spec = corev1.PodSpec{
		NodeSelector: s.NodeSelector, Affinity: s.Affinity, TopologySpreadConstraints: s.TopologySpreadConstraints,
		Tolerations: s.Tolerations, Overhead: s.Overhead, SchedulerName: s.SchedulerName,
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
