package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// replicaSet returns the ReplicaSet of deployment d, which is what schedulers find by a pod's controller. No controller runs
// that would make pods of it.
func replicaSet(d int) *appsv1.ReplicaSet {
	name := fmt.Sprintf("deployment-%02d", d)
	labels := map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: fmt.Sprintf("%010x", d)}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", d))},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: kubetest.PlainPod(0).Spec},
		},
	}
}

// ofDeployments makes pods those of n deployments in turn, at most 100, each of which requests something else. The first
// requests what the pods do already.
func ofDeployments(n int) func(*corev1.Pod, int) {
	return func(pod *corev1.Pod, i int) {
		d := i % n
		set := replicaSet(d)
		pod.Labels = set.Labels
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		requests := pod.Spec.Containers[0].Resources.Requests
		requests[corev1.ResourceCPU] = resource.MustParse(fmt.Sprintf("%dm", 100+50*(d%10)))
		requests[corev1.ResourceMemory] = resource.MustParse(fmt.Sprintf("%dMi", 500+100*(d/10)))
	}
}

// ofDaemonSet makes the pod number i what the DaemonSet controller makes for node i: pinned to it by name, and tolerant of what
// befalls nodes.
func ofDaemonSet(pod *corev1.Pod, i int) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "daemon", UID: "00000000-0000-4000-9000-000000000000"}}
	pod.Labels = map[string]string{"app": set.Name, appsv1.DefaultDaemonSetUniqueLabelKey: "1"}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{kubetest.PlainNode(i).Name},
			}},
		}}},
	}}
	for _, taint := range []struct {
		key    string
		effect corev1.TaintEffect
	}{
		{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule},
	} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: taint.key, Operator: corev1.TolerationOpExists, Effect: taint.effect})
	}
}
