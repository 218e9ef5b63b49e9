package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
)

// mood is what the provisioner does when it is asked for a volume for a node.
type mood int32

const (
	moodWilling mood = iota // it makes one, sometimes slowly
	moodRefuses             // of half of what it is asked for it says that it cannot
	moodSilent              // it does nothing
)

const (
	controllersTick = 100 * time.Millisecond
	slowProvision   = 1500 * time.Millisecond // for a quarter of the claims
)

// controllers plays who binds claims, provisions volumes and keeps local ones, by what the API server has stored: kube-controller-manager's
// controllers of volumes, an external provisioner, and an administrator. With the local source there is but the last. It reaches the API server
// itself, not by the way that faults meet; that it does not answer only delays it.
type controllers struct {
	store  store
	client kubernetes.Interface // nil: the local source, which binds claims itself
	seed   uint64
	mood   atomic.Int32

	asked map[types.UID]time.Time // since when a volume is to be made for a claim
}

// run acts again and again, until ctx ends.
func (c *controllers) run(ctx context.Context) {
	c.asked = map[types.UID]time.Time{}
	for ctx.Err() == nil {
		request, cancel := context.WithTimeout(ctx, 2*requestMax)
		_ = c.act(request) // the next time sees what is left
		cancel()
		sleep(ctx, controllersTick)
	}
}

// act does what is to be done now. All writes are of the version that was listed, so one that comes late is refused.
func (c *controllers) act(ctx context.Context) error {
	// Volumes first: a claim that a volume names, and that is in no later list, has gone.
	volumes, err := c.store.volumes(ctx)
	if err != nil {
		return err
	}
	claims, err := c.store.claims(ctx)
	if err != nil {
		return err
	}
	byUID, given := map[types.UID]*corev1.PersistentVolumeClaim{}, map[types.UID]bool{}
	for i := range claims {
		byUID[claims[i].UID] = &claims[i]
	}
	// 1. The administrator.
	there := map[string]bool{}
	for i := range volumes {
		there[volumes[i].Name] = true
	}
	for _, v := range localVolumes() {
		if there[v.Name] {
			continue
		}
		if err := c.store.createVolume(ctx, v); err != nil && c.store.outcome(err) == Unknown {
			return err
		}
	}
	for i := range volumes {
		v := &volumes[i]
		if to := v.Spec.ClaimRef; to != nil && to.UID != "" && byUID[to.UID] == nil && v.DeletionTimestamp == nil {
			if err := c.store.deleteVolume(ctx, v.Name, v.UID); err != nil && c.store.outcome(err) == Unknown {
				return err
			}
			c.status(ctx, v, corev1.VolumeReleased)
		}
	}
	if c.client == nil {
		return nil
	}
	// 2. The controllers of volumes.
	using, err := c.users(ctx, claims)
	if err != nil {
		return err
	}
	for i := range volumes {
		v := &volumes[i]
		to := v.Spec.ClaimRef
		switch {
		case v.DeletionTimestamp != nil && v.Status.Phase == corev1.VolumeBound && to != nil && byUID[to.UID] != nil: // it is in use
		case v.DeletionTimestamp != nil:
			v.Finalizers = nil
			_, _ = c.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
			continue
		case to == nil || to.UID == "":
			c.status(ctx, v, corev1.VolumeAvailable)
			continue
		}
		claim := byUID[to.UID]
		if claim == nil {
			continue
		}
		given[to.UID] = true
		switch claim.Spec.VolumeName {
		case "":
			if claim.DeletionTimestamp == nil {
				c.bind(ctx, v, claim)
			}
		case v.Name:
			c.status(ctx, v, corev1.VolumeBound)
			c.claimStatus(ctx, claim, corev1.ClaimBound)
		default: // it has another one
			if metav1.HasAnnotation(v.ObjectMeta, volume.AnnBoundByController) {
				v.Spec.ClaimRef = nil
				_, _ = c.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
			} else {
				_ = c.store.deleteVolume(ctx, v.Name, v.UID)
			}
		}
	}
	for i := range claims {
		claim := &claims[i]
		node := claim.Annotations[volume.AnnSelectedNode]
		switch class := *claim.Spec.StorageClassName; {
		case claim.DeletionTimestamp != nil:
			c.release(ctx, claim, using)
		case given[claim.UID]:
			delete(c.asked, claim.UID)
		case claim.Spec.VolumeName != "" && !there[claim.Spec.VolumeName]:
			c.claimStatus(ctx, claim, corev1.ClaimLost)
		case claim.Spec.VolumeName == "" && (class == storageSoon || class == storageMade && node != ""):
			c.provision(ctx, claim, node)
		}
	}
	return nil
}

// status writes the phase of a volume, if it is another.
func (c *controllers) status(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	if c.client == nil || v.Status.Phase == phase {
		return
	}
	v = v.DeepCopy()
	v.Status.Phase = phase
	_, _ = c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
}

// claimStatus writes the phase of a claim, if it is another.
func (c *controllers) claimStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) {
	if claim.Status.Phase == phase {
		return
	}
	claim = claim.DeepCopy()
	claim.Status.Phase = phase
	_, _ = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
}

// bind binds a claim to the volume that names it.
func (c *controllers) bind(ctx context.Context, v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = v.Name
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBoundByController, "yes")
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err == nil {
		c.status(ctx, v, corev1.VolumeBound)
	}
}

// users returns the claims, by namespace and name, that pods use which have a node, if any claim is deleted.
func (c *controllers) users(ctx context.Context, claims []corev1.PersistentVolumeClaim) (map[string]bool, error) {
	if !slices.ContainsFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil }) {
		return nil, nil
	}
	pods, err := c.store.pods(ctx)
	return claimsInUse(pods), err
}

// release lets a claim go that is deleted, when no pod that has a node uses it.
func (c *controllers) release(ctx context.Context, claim *corev1.PersistentVolumeClaim, using map[string]bool) {
	if using[claim.Namespace+"/"+claim.Name] {
		return
	}
	claim = claim.DeepCopy()
	claim.Finalizers = nil
	_, _ = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
}

// provision makes a volume for a claim, which can be reached from the zone of a node, or from one that is drawn if that is empty; or says that it cannot, by
// taking the node away.
func (c *controllers) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s/%s", c.seed, claim.UID, node)
	drawn := h.Sum64() >> 13
	since, asked := c.asked[claim.UID]
	if !asked {
		since = time.Now()
		c.asked[claim.UID] = since
	}
	now := mood(c.mood.Load())
	switch {
	case now == moodSilent, drawn&3 == 0 && time.Since(since) < slowProvision:
		return
	case now == moodRefuses && node != "" && drawn&4 == 0:
		claim = claim.DeepCopy()
		delete(claim.Annotations, volume.AnnSelectedNode)
		_, _ = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		delete(c.asked, claim.UID)
		return
	}
	zone := fmt.Sprintf("zone-%d", drawn%zones)
	if node != "" {
		for i := range storageNodes {
			if n := storageNode(i); n.Name == node {
				zone = n.Labels[corev1.LabelTopologyZone]
			}
		}
	}
	_ = c.store.createVolume(ctx, madeVolume(claim, zone)) // the name is the claim's: there can be but one
}
