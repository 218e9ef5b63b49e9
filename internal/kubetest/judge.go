package kubetest

import corev1 "k8s.io/api/core/v1"

// Judge judges placements that are not an API server's as Check does: those of pods, in their spec, on nodes. It sorts the
// pods by name. There are no events, and no namespaces with labels.
func Judge(nodes []corev1.Node, pods []corev1.Pod) Report {
	return check(objects{nodes: nodes, pods: pods})
}
