package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// Pods with claims have nodes of their own, with more room than they ever ask for: whether one of them can be placed is a matter of its claims.
const (
	storageNodes = 6
	storagePool  = "storage"
	localEach    = 4 // local volumes of each of these nodes
)

// The storage classes: of local volumes; of volumes that are made where the first pod goes; of volumes that are made at once.
const (
	storageLocal = "local"
	storageMade  = "made"
	storageSoon  = "soon"
)

const provisioner = "csi.example.com"

// The classes of pods with claims.
const (
	classLocal     = "local"  // a local volume
	classPair      = "pair"   // two of one node
	classMade      = "made"   // a volume that is made where the pod goes
	classMixed     = "mixed"  // one of each
	classShared    = "shared" // two pods, one claim
	classSoon      = "soon"   // a volume that is made before the pod is placed
	classHeir      = "heir"   // the claims of a pod that has gone
	classLast      = "last"   // a local volume, when all is over
	classUnclaimed = "unclaimed"
)

// How many pods, or pairs of them, with claims there are, at most, and at the end.
const (
	mostClaiming  = 14
	finalClaiming = 6
)

// storageNode returns the node that has the local volumes of number i.
func storageNode(i int) *corev1.Node {
	n := node(plainNodes + probeNodes + i)
	n.Labels[pool] = storagePool
	n.Spec.Taints = []corev1.Taint{{Key: pool, Value: storagePool, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// storageClasses returns all of them; of an API server with what provisions.
func storageClasses() []*storagev1.StorageClass {
	late, soon := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	return []*storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: storageLocal}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late},
		{ObjectMeta: metav1.ObjectMeta{Name: storageMade}, Provisioner: provisioner, VolumeBindingMode: &late},
		{ObjectMeta: metav1.ObjectMeta{Name: storageSoon}, Provisioner: provisioner, VolumeBindingMode: &soon},
	}
}

// localVolumes returns the volumes that an administrator keeps on the nodes: one that is gone is made again, under its name.
func localVolumes() []*corev1.PersistentVolume {
	var out []*corev1.PersistentVolume
	for i := range storageNodes * localEach {
		v := emptyVolume(fmt.Sprintf("local-%02d", i), storageLocal, corev1.LabelHostname, storageNode(i%storageNodes).Name)
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		v.Spec.Local = &corev1.LocalVolumeSource{Path: "/" + v.Name}
		out = append(out, v)
	}
	return out
}

// madeVolume returns what a provisioner makes for a claim: a volume that can be reached from a zone.
func madeVolume(c *corev1.PersistentVolumeClaim, zone string) *corev1.PersistentVolume {
	v := emptyVolume("pvc-"+string(c.UID), *c.Spec.StorageClassName, corev1.LabelTopologyZone, zone)
	v.Annotations = map[string]string{volume.AnnDynamicallyProvisioned: provisioner}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: provisioner, VolumeHandle: v.Name}
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	return v
}

// emptyVolume returns a volume of 1 GiB without a source, for nodes with a label.
func emptyVolume(name, class, label, value string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
			}}}},
		},
	}
}

// claimOf returns a claim of 1 GiB of a storage class.
func claimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// claimant is pods that come together, and the claims that are made for them.
type claimant struct {
	pods   []*corev1.Pod
	claims []*corev1.PersistentVolumeClaim
}

// claiming returns a pod of a class that uses claims.
func claiming(class, name string, claims ...string) *corev1.Pod {
	p := pod(class, name, 10)
	p.Spec.NodeSelector = map[string]string{pool: storagePool}
	p.Spec.Tolerations = []corev1.Toleration{{Key: pool, Operator: corev1.TolerationOpExists}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

// newClaimant returns a pod, or two, of a class of pods with claims.
func newClaimant(class, name string) claimant {
	of := func(classes ...string) (out []*corev1.PersistentVolumeClaim) {
		for i, c := range classes {
			out = append(out, claimOf(fmt.Sprintf("%s-%d", name, i), c))
		}
		return out
	}
	a, b := name+"-0", name+"-1"
	switch class {
	case classPair:
		return claimant{[]*corev1.Pod{claiming(class, name, a, b)}, of(storageLocal, storageLocal)}
	case classMixed:
		return claimant{[]*corev1.Pod{claiming(class, name, a, b)}, of(storageLocal, storageMade)}
	case classMade:
		return claimant{[]*corev1.Pod{claiming(class, name, a)}, of(storageMade)}
	case classSoon:
		return claimant{[]*corev1.Pod{claiming(class, name, a)}, of(storageSoon)}
	case classShared:
		return claimant{[]*corev1.Pod{claiming(class, name+"-a", a), claiming(class, name+"-b", a)}, of(storageLocal)}
	}
	return claimant{[]*corev1.Pod{claiming(class, name, a)}, of(storageLocal)}
}

// unclaimed returns pods whose claims are never bound: one is of more than any volume has, and one does not exist.
func unclaimed() claimant {
	vast := claimOf("vast", storageLocal)
	vast.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Ti")
	return claimant{
		[]*corev1.Pod{claiming(classUnclaimed, "unclaimed-0", vast.Name), claiming(classUnclaimed, "unclaimed-1", "missing")},
		[]*corev1.PersistentVolumeClaim{vast},
	}
}

// claimNames returns the names of a pod's claims.
func claimNames(p *corev1.Pod) []string {
	var out []string
	for _, v := range p.Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil {
			out = append(out, c.ClaimName)
		}
	}
	return out
}

// claimsInUse returns the claims, by namespace and name, of pods that have a node.
func claimsInUse(pods []corev1.Pod) map[string]bool {
	using := map[string]bool{}
	for i := range pods {
		if p := &pods[i]; p.Spec.NodeName != "" {
			for _, name := range claimNames(p) {
				using[p.Namespace+"/"+name] = true
			}
		}
	}
	return using
}

// isBound reports whether a claim says that it is bound, and to which volume.
func isBound(c *corev1.PersistentVolumeClaim) bool {
	return c != nil && c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted)
}

// isFor reports whether a volume is a claim's.
func isFor(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	return v != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID
}

// stored is the volumes, by name, and the claims, by namespace and name, that there are at a time.
type stored struct {
	volumes map[string]*corev1.PersistentVolume
	claims  map[string]*corev1.PersistentVolumeClaim
}

// newStored returns what is in lists.
func newStored(volumes []corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) stored {
	s := stored{map[string]*corev1.PersistentVolume{}, map[string]*corev1.PersistentVolumeClaim{}}
	for i := range volumes {
		s.volumes[volumes[i].Name] = &volumes[i]
	}
	for i := range claims {
		s.claims[claims[i].Namespace+"/"+claims[i].Name] = &claims[i]
	}
	return s
}

// quiet reports whether who binds claims and keeps volumes has nothing left to do: nothing is to go but what is in use, and all local volumes are there.
func (s stored) quiet(pods []corev1.Pod) bool {
	using := claimsInUse(pods)
	byUID := map[types.UID]*corev1.PersistentVolumeClaim{}
	for _, c := range s.claims {
		byUID[c.UID] = c
		if c.DeletionTimestamp != nil && !using[c.Namespace+"/"+c.Name] {
			return false
		}
	}
	for _, v := range s.volumes {
		to := v.Spec.ClaimRef
		if to == nil && v.DeletionTimestamp != nil || to != nil && byUID[to.UID] == nil || to != nil && byUID[to.UID].Spec.VolumeName == "" {
			return false
		}
	}
	return !slices.ContainsFunc(localVolumes(), func(v *corev1.PersistentVolume) bool { return s.volumes[v.Name] == nil })
}

// admits reports whether the claims of a pod are bound, or can be, on one of the nodes for pods with claims. A pod without claims is admitted.
func (s stored) admits(p *corev1.Pod) bool {
	names := claimNames(p)
	if len(names) == 0 {
		return true
	}
	for i := range storageNodes {
		if s.admitsOn(p.Namespace, names, storageNode(i)) {
			return true
		}
	}
	return false
}

func (s stored) admitsOn(namespace string, names []string, on *corev1.Node) bool {
	free := 0
	reaches := func(v *corev1.PersistentVolume) bool { return volume.CheckNodeAffinity(v, on.Labels) == nil }
	for _, v := range s.volumes {
		if v.Spec.StorageClassName == storageLocal && v.Spec.ClaimRef == nil && v.Status.Phase == corev1.VolumeAvailable && v.DeletionTimestamp == nil && reaches(v) {
			free++
		}
	}
	for _, name := range names {
		c := s.claims[namespace+"/"+name]
		if c == nil || c.DeletionTimestamp != nil {
			return false
		}
		var kept *corev1.PersistentVolume
		for _, v := range s.volumes {
			if isFor(v, c) {
				kept = v
			}
		}
		selected := c.Annotations[volume.AnnSelectedNode]
		switch {
		case c.Spec.VolumeName != "":
			if v := s.volumes[c.Spec.VolumeName]; !isBound(c) || !isFor(v, c) || !reaches(v) {
				return false
			}
		case kept != nil && !reaches(kept):
			return false
		case kept != nil:
		case *c.Spec.StorageClassName == storageLocal:
			free--
		case *c.Spec.StorageClassName == storageSoon, selected != "" && selected != on.Name:
			return false
		}
	}
	return free >= 0
}

// addClaiming creates a pod with claims, or two, of a class that it draws, if there are not too many.
func (w *workload) addClaiming(ctx context.Context) {
	if len(w.claiming()) >= mostClaiming {
		return
	}
	w.number++
	classes := []string{classLocal, classLocal, classPair, classShared}
	if w.store.provisions() {
		classes = append(classes, classMade, classMade, classMixed, classMixed, classSoon)
	}
	class := classes[w.rng.IntN(len(classes))]
	w.createClaimant(ctx, newClaimant(class, fmt.Sprintf("%s-%d", class, w.number)))
}

// claiming returns which entries of live have claims, but for those that are never bound.
func (w *workload) claiming() (out []int) {
	for i, l := range w.live {
		if len(l.claims) > 0 && l.class != classUnclaimed {
			out = append(out, i)
		}
	}
	return out
}

// createClaimant creates claims and the pods that use them. Claims of which it does not know whether they exist are left to be removed.
func (w *workload) createClaimant(ctx context.Context, c claimant) {
	for _, claim := range c.claims {
		request, cancel := context.WithTimeout(ctx, requestMax)
		err := w.store.createClaim(request, claim)
		cancel()
		if err != nil {
			for _, made := range c.claims {
				w.unused = append(w.unused, made.Name)
			}
			return
		}
	}
	before := len(w.live)
	w.create(ctx, 0, c.pods...)
	if len(w.live) == before { // no pod
		w.unused = append(w.unused, claimNames(c.pods[0])...)
	}
}

// trimClaims deletes claims that nobody is to use any more, and sometimes a pod with claims, so that others come.
func (w *workload) trimClaims(ctx context.Context) {
	for len(w.unused) > 0 {
		if !w.deleteClaim(ctx, w.unused[0]) {
			return
		}
		w.unused = w.unused[1:]
	}
	there := w.claiming()
	if len(there) == 0 || len(there) < mostClaiming && w.rng.IntN(4) > 0 {
		return
	}
	i := there[w.rng.IntN(len(there))]
	if l := w.live[i]; w.delete(ctx, i) && w.rng.IntN(3) == 0 { // another one gets the claims, as in a StatefulSet
		w.number++
		w.unused = slices.DeleteFunc(w.unused, func(name string) bool { return slices.Contains(l.claims, name) })
		w.createClaimant(ctx, claimant{pods: []*corev1.Pod{claiming(classHeir, fmt.Sprintf("%s-%d", classHeir, w.number), l.claims...)}})
	}
}

// deleteClaim deletes a claim and reports whether it is known to be gone, or to go.
func (w *workload) deleteClaim(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	return w.store.outcome(w.store.deleteClaim(ctx, metav1.NamespaceDefault, name)) != Unknown
}

// claimRest creates as many pods as there are local volumes: each that is free is some pod's then, unless it is held for nobody, and the rest of the pods are told
// that there is none.
func (w *workload) claimRest(ctx context.Context) {
	for i := range storageNodes * localEach {
		w.createClaimant(ctx, newClaimant(classLast, fmt.Sprintf("%s-%d", classLast, i)))
	}
}

// sweepClaims deletes all claims that no pod uses, and reports whether it has.
func (w *workload) sweepClaims(ctx context.Context) bool {
	used := map[string]bool{}
	for _, l := range w.live {
		for _, name := range l.claims {
			used[name] = true
		}
	}
	claims, err := w.store.claims(ctx)
	if err != nil {
		return false
	}
	for i := range claims {
		if c := &claims[i]; !used[c.Name] && !w.deleteClaim(ctx, c.Name) {
			return false
		}
	}
	w.unused = nil
	return true
}
