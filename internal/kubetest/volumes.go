package kubetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/storage/volume"
)

// VolumeController plays the controllers that finish what a scheduler begins for claims: a claim that a volume names gets that
// volume, as scheduler_perf's StartFakePVController has it, and a claim that says for which node a volume is to be provisioned
// gets one made, which only that node reaches. It limits no rate, and works at many claims at once. Its methods may be called concurrently.
type VolumeController struct {
	client  kubernetes.Interface
	driver  string // of the volumes that are made
	queue   workqueue.TypedInterface[types.NamespacedName]
	workers sync.WaitGroup
	end     func()

	mu      sync.Mutex
	claims  map[types.NamespacedName]*corev1.PersistentVolumeClaim
	volumes map[types.NamespacedName]claimingVolume // by the claim
	err     error
}

// claimingVolume is a volume that names a claim.
type claimingVolume struct {
	name string
	uid  types.UID // of the claim; empty: any of its name
}

// volumeWorkers is how many claims are written at once.
const volumeWorkers = 32

// PlayVolumeController starts a VolumeController, and returns when it has seen the claims and volumes that exist. The volumes
// that it makes are the CSI driver's. It ends with ctx or Stop.
func PlayVolumeController(ctx context.Context, kubeconfig, driver string) (*VolumeController, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("play the controller of volumes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &VolumeController{
		client: client, driver: driver,
		queue:   workqueue.NewTyped[types.NamespacedName](),
		claims:  map[types.NamespacedName]*corev1.PersistentVolumeClaim{},
		volumes: map[types.NamespacedName]claimingVolume{},
	}
	for range volumeWorkers {
		c.workers.Go(func() { c.work(ctx) })
	}
	var unfollow []func()
	c.end = func() {
		cancel()
		for _, stop := range unfollow {
			stop()
		}
		c.queue.ShutDown()
		c.workers.Wait()
	}
	everything := fields.Everything()
	stop, err := follow(ctx, client, "persistentvolumeclaims", &corev1.PersistentVolumeClaim{}, everything, nil, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.observeClaim,
		UpdateFunc: func(_, obj any) { c.observeClaim(obj) },
	})
	if err != nil {
		c.end()
		return nil, err
	}
	unfollow = append(unfollow, stop)
	stop, err = follow(ctx, client, "persistentvolumes", &corev1.PersistentVolume{}, everything, nil, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.observeVolume,
		UpdateFunc: func(_, obj any) { c.observeVolume(obj) },
	})
	if err != nil {
		c.end()
		return nil, err
	}
	unfollow = append(unfollow, stop)
	return c, nil
}

// observeClaim notes a claim, and has it looked at.
func (c *VolumeController) observeClaim(obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	c.note(claim)
	c.queue.Add(nameOfClaim(claim))
}

// note remembers a claim as it is now.
func (c *VolumeController) note(claim *corev1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[nameOfClaim(claim)] = claim
}

// observeVolume notes which claim a volume names, and has that looked at.
func (c *VolumeController) observeVolume(obj any) {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil {
		return
	}
	name := types.NamespacedName{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}
	c.mu.Lock()
	c.volumes[name] = claimingVolume{v.Name, v.Spec.ClaimRef.UID}
	c.mu.Unlock()
	c.queue.Add(name)
}

// work finishes one claim after the other until the queue is shut down.
func (c *VolumeController) work(ctx context.Context) {
	for {
		name, ended := c.queue.Get()
		if ended {
			return
		}
		if err := c.finish(ctx, name); err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.err = errors.Join(c.err, err)
			c.mu.Unlock()
		}
		c.queue.Done(name)
	}
}

// finish does for a claim what there is to do.
func (c *VolumeController) finish(ctx context.Context, name types.NamespacedName) error {
	c.mu.Lock()
	claim, v := c.claims[name], c.volumes[name]
	c.mu.Unlock()
	switch {
	case claim == nil || claim.Spec.VolumeName != "":
		return nil
	case v.name != "" && (v.uid == "" || v.uid == claim.UID):
		return c.bind(ctx, claim, v.name)
	case claim.Annotations[volume.AnnSelectedNode] != "":
		return c.provision(ctx, claim)
	}
	return nil
}

// bindTries is how often a claim is given its volume while others write to it: the API server itself tries each patch several times.
const bindTries = 5

// bind gives a claim its volume, unless there is another claim of its name by now: that is going to be told.
func (c *VolumeController) bind(ctx context.Context, claim *corev1.PersistentVolumeClaim, volumeName string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:"yes"}},"spec":{"volumeName":%q}}`, claim.UID, volume.AnnBindCompleted, volumeName)
	claims := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	for try := 1; ; try++ {
		bound, err := claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			c.note(bound)
			return nil
		}
		err = fmt.Errorf("bind claim %s to volume %s: %w", nameOfClaim(claim), volumeName, err)
		if !apierrors.IsConflict(err) {
			return err
		}
		switch is, unread := claims.Get(ctx, claim.Name, metav1.GetOptions{}); {
		case apierrors.IsNotFound(unread), unread == nil && (is.UID != claim.UID || is.Spec.VolumeName != ""):
			return nil
		case unread != nil:
			return errors.Join(err, fmt.Errorf("read claim %s: %w", nameOfClaim(claim), unread))
		case try == bindTries:
			return fmt.Errorf("%d tries to %w", try, err)
		}
	}
}

// provision makes a volume for a claim, and for the node that was selected for it.
func (c *VolumeController) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := "pvc-" + string(claim.UID)
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: c.driver, VolumeHandle: name}},
			NodeAffinity:                  ReachedFrom(claim.Annotations[volume.AnnSelectedNode]),
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
	if claim.Spec.StorageClassName != nil {
		v.Spec.StorageClassName = *claim.Spec.StorageClassName
	}
	_, err := c.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("provision a volume for claim %s: %w", nameOfClaim(claim), err)
	}
	return nil
}

// Stop ends the VolumeController and waits for its end. An error says for which claims it could not do its part.
func (c *VolumeController) Stop() error {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ReachedFrom is the node affinity of a volume that one node reaches, by its hostname.
func ReachedFrom(node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
}

func nameOfClaim(claim *corev1.PersistentVolumeClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}
