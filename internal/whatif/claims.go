package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// ownClaim is a claim that each pod of a controller has for itself: of a StatefulSet's template, or of an ephemeral volume.
type ownClaim struct {
	prefix, suffix string // of its name, which has that of the pod between them
	ephemeral      bool
	shape          cluster.PersistentVolumeClaim // but for its name: a claim that is not bound
}

func (o *ownClaim) name(pod string) string { return o.prefix + pod + o.suffix }

// templated returns the claims of a StatefulSet's templates.
func templated(head *workloadHead) (own []ownClaim) {
	for k := range head.Spec.VolumeClaimTemplates {
		c := &head.Spec.VolumeClaimTemplates[k]
		own = append(own, ownClaim{prefix: c.Name + "-", shape: unboundClaim(*source.ReducePersistentVolumeClaim(c))})
	}
	return own
}

// ownClaimsOf returns the claims of a pod that others like it would have for themselves, as far as they are there: what they are named by says so.
func ownClaimsOf(st *cluster.State, pod *source.Pod) (own []ownClaim) {
	for _, by := range pod.Labels.Claims {
		claim := st.PersistentVolumeClaim(pod.Namespace, by.Name)
		if claim == nil {
			continue
		}
		prefix, ofSet := strings.CutSuffix(by.Name, "-"+pod.Name)
		suffix, ofPod := strings.CutPrefix(by.Name, pod.Name+"-")
		switch {
		case by.Ephemeral && ofPod:
			own = append(own, ownClaim{suffix: "-" + suffix, ephemeral: true, shape: unboundClaim(*claim)})
		case !by.Ephemeral && ofSet && pod.Labels.Controller.Kind == cluster.KindStatefulSet:
			own = append(own, ownClaim{prefix: prefix + "-", shape: unboundClaim(*claim)})
		}
	}
	return own
}

// unboundClaim returns a claim as its controller would make it again.
func unboundClaim(c cluster.PersistentVolumeClaim) cluster.PersistentVolumeClaim {
	c.Volume, c.Bound, c.Lost, c.Deleting, c.HasSelectedNode, c.SelectedNode = "", false, false, false, false, ""
	return c
}

// haveClaims returns a pod with claims of its own, which have the name as in their names where that of another pod like it was, and these claims.
func haveClaims(pod source.Pod, like, as string, own []ownClaim) (source.Pod, []*cluster.PersistentVolumeClaim) {
	pod.Labels.Claims = slices.Clone(pod.Labels.Claims)
	made := make([]*cluster.PersistentVolumeClaim, len(own))
	for k := range own {
		o := &own[k]
		claim := o.shape
		claim.Namespace, claim.Name, claim.Owner = pod.Namespace, o.name(as), ""
		claim.UID = "new:" + claim.Namespace + "/" + claim.Name
		if o.ephemeral {
			claim.Owner = pod.UID
		}
		made[k] = &claim
		for c := range pod.Labels.Claims {
			if by := &pod.Labels.Claims[c]; by.Name == o.name(like) && by.Ephemeral == o.ephemeral {
				by.Name = claim.Name
				if o.ephemeral {
					by.PodUID = pod.UID
				}
			}
		}
	}
	return pod, made
}

// AddClaims adds claims that a controller would make for pods, but those that there are.
func (w *World) AddClaims(claims []*cluster.PersistentVolumeClaim) error {
	for _, c := range claims {
		if w.State().PersistentVolumeClaim(c.Namespace, c.Name) != nil {
			continue
		}
		if err := w.make(c); err != nil {
			return err
		}
	}
	return nil
}

// applyClaim makes a claim of a manifest one of the World, as an API server would: what controllers have said of one that there is, and manifests do not say,
// stays. One that is new and is to be bound at once is.
func (w *World) applyClaim(claim *cluster.PersistentVolumeClaim) error {
	is := w.State().PersistentVolumeClaim(claim.Namespace, claim.Name)
	if is == nil {
		return w.make(claim)
	}
	applied := *claim
	applied.UID, applied.Owner, applied.Class = cmp.Or(claim.UID, is.UID), cmp.Or(claim.Owner, is.Owner), cmp.Or(claim.Class, is.Class)
	applied.Volume = cmp.Or(claim.Volume, is.Volume)
	applied.Bound = claim.Bound || is.Bound && applied.Volume == is.Volume
	applied.Lost, applied.Deleting = claim.Lost || is.Lost, claim.Deleting || is.Deleting
	if !claim.HasSelectedNode {
		applied.HasSelectedNode, applied.SelectedNode = is.HasSelectedNode, is.SelectedNode
	}
	return w.SetObject(&applied)
}

// make adds a claim that there is not. Of a class that has volumes provisioned at once it is bound to one: of the places where that can be,
// to any that suits the pod.
func (w *World) make(claim *cluster.PersistentVolumeClaim) error {
	class := w.State().StorageClass(claim.Class)
	if class == nil || class.Mode != cluster.BindImmediately || !class.Provisions() || claim.Volume != "" || !claim.Selector.Empty() {
		return w.SetObject(claim)
	}
	name := "new:" + claim.Namespace + "/" + claim.Name
	for w.State().PersistentVolume(name) != nil {
		name += "+"
	}
	bound := *claim
	bound.Volume, bound.Bound = name, true
	if err := w.SetObject(class.Volume(claim, name)); err != nil {
		return err
	}
	return w.SetObject(&bound)
}

// addCopy adds the k-th copy of a pod, with claims of its own. No object of an API server has such names.
func (w *World) addCopy(pod source.Pod, own []ownClaim, k int) (cluster.PodID, error) {
	if len(own) > 0 {
		var claims []*cluster.PersistentVolumeClaim
		pod, claims = haveClaims(pod, pod.Name, fmt.Sprintf("%s #%d", pod.Name, k), own)
		if err := w.AddClaims(claims); err != nil {
			return cluster.NoPod, err
		}
	}
	return w.AddPod(pod)
}

// maxCompared bounds what each claim of a pod, but those that are alike, may be compared with on each node: volumes of its class that are nobody's, and
// CSIStorageCapacities. It takes some 15 ms.
const maxCompared = 1 << 18

// MayCompare returns why pods with claims that wait for a consumer should not be tried, nil if they may: for each node there would be too much to do.
func (w *World) MayCompare(pods []source.Pod) error {
	st := w.State()
	var there map[string]int // by class
	var before []cluster.PodClaim
	for k := range pods {
		claims := pods[k].Labels.Claims
		if len(claims) < 2 || len(before) == len(claims) && &before[0] == &claims[0] {
			continue
		}
		if before = claims; there == nil {
			there = make(map[string]int)
			for v := range st.PersistentVolumes() {
				if v.Class != "" && !v.HasClaim {
					there[v.Class]++
				}
			}
			for c := range st.CSIStorageCapacities() {
				there[c.Class]++
			}
		}
		if err := w.Between(); err != nil {
			return err
		}
		sum, alike := 0, make(map[string]bool, len(claims))
		for _, by := range claims {
			claim := st.PersistentVolumeClaim(pods[k].Namespace, by.Name)
			if claim == nil || claim.Volume != "" {
				continue
			}
			if key := fmt.Sprint(claim.Class, claim.Mode, claim.AttributesClass, claim.AccessModes, claim.Selector); !alike[key] {
				alike[key] = true
				sum += there[claim.Class]
			}
		}
		if sum > maxCompared {
			return fmt.Errorf("%w: pod %s/%s: its claims would be compared with %d volumes and CSIStorageCapacities on each node, %d at most are possible: give it fewer claims that select by different labels",
				ErrTooMuch, pods[k].Namespace, pods[k].Name, sum, maxCompared)
		}
	}
	return nil
}
