package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// nullClaims has claims bound for the null binder: to the available volumes in turn, as long as there are any, and then to ones that are provisioned
// for the pod's node. It looks at nothing of them but at the node that reaches a volume. Its methods may be called concurrently.
type nullClaims struct {
	client *kubernetes.Clientset

	mu      sync.Mutex
	known   map[types.NamespacedName]*corev1.PersistentVolumeClaim
	waiters map[types.NamespacedName]chan struct{} // each is closed when its claim changes
	free    []corev1.PersistentVolume
}

// followClaims returns when it knows the claims and volumes that there are. It follows the claims in a goroutine of g until ctx ends.
func followClaims(ctx context.Context, g *errgroup.Group, client *kubernetes.Clientset) (*nullClaims, error) {
	c := &nullClaims{
		client: client,
		known:  map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, waiters: map[types.NamespacedName]chan struct{}{},
	}
	all, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	c.free = slices.DeleteFunc(all.Items, func(v corev1.PersistentVolume) bool {
		return v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable
	})
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(
			client.CoreV1().RESTClient(), "persistentvolumeclaims", "", fields.Everything()), client),
		ObjectType: &corev1.PersistentVolumeClaim{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    c.observe,
			UpdateFunc: func(_, obj any) { c.observe(obj) },
		},
	})
	g.Go(func() error {
		controller.RunWithContext(ctx)
		return nil
	})
	if !cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
		return nil, fmt.Errorf("watch claims: %w", ctx.Err())
	}
	return c, nil
}

// observe notes a claim, and tells who waits for it.
func (c *nullClaims) observe(obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[name] = claim
	if waiter := c.waiters[name]; waiter != nil {
		close(waiter)
		delete(c.waiters, name)
	}
}

// prepare has the claims of a pod bound, and returns the node for it: the given one, unless a volume is reached from another. Before it writes the first
// it tells the node as the pod's nomination.
func (c *nullClaims) prepare(ctx context.Context, pod *corev1.Pod, node string) (string, error) {
	nominated := false
	for _, source := range pod.Spec.Volumes {
		if source.PersistentVolumeClaim == nil {
			continue
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: source.PersistentVolumeClaim.ClaimName}
		claim, v := c.take(name)
		if claim == nil {
			return "", fmt.Errorf("bind claims of %s/%s: there is no claim %s", pod.Namespace, pod.Name, name.Name)
		}
		if bound(claim) {
			continue
		}
		if v != nil {
			node = nodeReaching(v)
		}
		if !nominated {
			nominated = true
			if err := c.nominate(ctx, pod, node); err != nil {
				return "", err
			}
		}
		if err := c.write(ctx, claim, v, node); err != nil {
			return "", err
		}
		if err := c.await(ctx, name); err != nil {
			return "", err
		}
	}
	return node, nil
}

// nominate tells which node a pod is to go to.
func (c *nullClaims) nominate(ctx context.Context, pod *corev1.Pod, node string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"nominatedNodeName":%q}}`, pod.UID, node)
	if _, err := c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("nominate %s/%s to %s: %w", pod.Namespace, pod.Name, node, err)
	}
	return nil
}

// take returns a claim and, if it is not bound, a volume for it that is nobody else's, if there is one. Nil: there is none.
func (c *nullClaims) take(name types.NamespacedName) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.known[name]
	if claim == nil || bound(claim) || len(c.free) == 0 {
		return claim, nil
	}
	v := &c.free[0]
	c.free = c.free[1:]
	return claim, v
}

// write says that a volume is for a claim or, without one, for which node one is to be provisioned.
func (c *nullClaims) write(ctx context.Context, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, node string) error {
	if v == nil {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":{%q:%q}}}`, claim.UID, claim.ResourceVersion, volume.AnnSelectedNode, node)
		if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("select node %s for claim %s/%s: %w", node, claim.Namespace, claim.Name, err)
		}
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":{%q:"yes"}},"spec":{"claimRef":{"kind":"PersistentVolumeClaim","apiVersion":"v1","namespace":%q,"name":%q,"uid":%q,"resourceVersion":%q}}}`,
		v.UID, v.ResourceVersion, volume.AnnBoundByController, claim.Namespace, claim.Name, claim.UID, claim.ResourceVersion)
	if _, err := c.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("bind volume %s to claim %s/%s: %w", v.Name, claim.Namespace, claim.Name, err)
	}
	return nil
}

// await returns nil when a claim is bound, or an error when ctx ends first.
func (c *nullClaims) await(ctx context.Context, name types.NamespacedName) error {
	for {
		c.mu.Lock()
		if bound(c.known[name]) {
			c.mu.Unlock()
			return nil
		}
		changed := c.waiters[name]
		if changed == nil {
			changed = make(chan struct{})
			c.waiters[name] = changed
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for claim %s: %w", name, ctx.Err())
		}
	}
}

// bound reports whether a controller has bound a claim.
func bound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// nodeReaching returns the node that reaches a local volume of this program.
func nodeReaching(v *corev1.PersistentVolume) string {
	return v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}
