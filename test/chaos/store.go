package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// store is where pods and nodes are kept, for those who make and remove them: an API server, or Berth's local source. Its
// methods may be called concurrently. An error of one means what outcome says.
type store interface {
	// prepare makes what pods refer to.
	prepare(ctx context.Context) error
	// pods returns all pods, with their nodes and conditions.
	pods(ctx context.Context) ([]corev1.Pod, error)
	createPod(ctx context.Context, p *corev1.Pod) (types.UID, error)
	// deletePod removes a pod at once, unless it is another one by now.
	deletePod(ctx context.Context, namespace, name string, uid types.UID) error
	createNode(ctx context.Context, n *corev1.Node) error
	// changeNode changes a node, its status too.
	changeNode(ctx context.Context, name string, change func(*corev1.Node)) error
	// labelNode sets a label, by one small request.
	labelNode(ctx context.Context, name, key, value string) error
	deleteNode(ctx context.Context, name string) error
	// claims and volumes return all that there are.
	claims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error)
	volumes(ctx context.Context) ([]corev1.PersistentVolume, error)
	createClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error
	deleteClaim(ctx context.Context, namespace, name string) error
	// createVolume makes a volume, which is available if it is nobody's.
	createVolume(ctx context.Context, v *corev1.PersistentVolume) error
	// deleteVolume removes a volume, unless it is another one by now.
	deleteVolume(ctx context.Context, name string, uid types.UID) error
	// groups returns all PodGroups that there are.
	groups(ctx context.Context) ([]schedulingv1alpha2.PodGroup, error)
	createGroup(ctx context.Context, g *schedulingv1alpha2.PodGroup) error
	// deleteGroup removes a PodGroup at once.
	deleteGroup(ctx context.Context, namespace, name string) error
	// provisions reports whether volumes are made for claims.
	provisions() bool
	outcome(error) Outcome
}

// kubeStore is the store that an API server is.
type kubeStore struct{ client *kubernetes.Clientset }

func (s kubeStore) prepare(ctx context.Context) error {
	urgent := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: classUrgent}, Value: urgentPriority}
	if _, err := s.client.SchedulingV1().PriorityClasses().Create(ctx, urgent, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, class := range storageClasses() {
		if _, err := s.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	tenant := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace}}
	_, err := s.client.CoreV1().Namespaces().Create(ctx, tenant, metav1.CreateOptions{})
	return err
}

func (s kubeStore) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (s kubeStore) createPod(ctx context.Context, p *corev1.Pod) (types.UID, error) {
	made, err := s.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.UID, nil
}

func (s kubeStore) deletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	return s.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(uid)),
	})
}

func (s kubeStore) createNode(ctx context.Context, n *corev1.Node) error {
	_, err := s.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

func (s kubeStore) changeNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	nodes := s.client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	change(n)
	status := n.Status
	if n, err = nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	n.Status = status
	_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}

func (s kubeStore) labelNode(ctx context.Context, name, key, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	_, err := s.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (s kubeStore) deleteNode(ctx context.Context, name string) error {
	return s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}

func (s kubeStore) claims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	list, err := s.client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (s kubeStore) volumes(ctx context.Context) ([]corev1.PersistentVolume, error) {
	list, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (s kubeStore) createClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	_, err := s.client.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
	return err
}

func (s kubeStore) deleteClaim(ctx context.Context, namespace, name string) error {
	return s.client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func (s kubeStore) createVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	made, err := s.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if err != nil || v.Spec.ClaimRef != nil {
		return err
	}
	made.Status.Phase = corev1.VolumeAvailable
	_, err = s.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func (s kubeStore) deleteVolume(ctx context.Context, name string, uid types.UID) error {
	return s.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))})
}

// groups returns none if the API server does not serve PodGroups.
func (s kubeStore) groups(ctx context.Context) ([]schedulingv1alpha2.PodGroup, error) {
	list, err := s.client.SchedulingV1alpha2().PodGroups(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (s kubeStore) createGroup(ctx context.Context, g *schedulingv1alpha2.PodGroup) error {
	_, err := s.client.SchedulingV1alpha2().PodGroups(g.Namespace).Create(ctx, g, metav1.CreateOptions{})
	return err
}

// deleteGroup takes away what keeps a PodGroup while pods name it, too: nobody here would do so later, and pods are to meet that it has gone.
func (s kubeStore) deleteGroup(ctx context.Context, namespace, name string) error {
	groups := s.client.SchedulingV1alpha2().PodGroups(namespace)
	if err := groups.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := groups.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (s kubeStore) provisions() bool { return true }

func (s kubeStore) outcome(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return Refused
	}
	return Unknown
}
