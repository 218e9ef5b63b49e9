package engine

import (
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// VolumesBound reports whether the claims of a pod on a node are bound to what has been chosen for them, as of what has been written of that. An
// error says that they will not be, and the pod is to be placed anew. It is kube-scheduler's checkBindings, with its texts.
func VolumesBound(st *cluster.State, namespace, node string, choices []cluster.VolumeChoice) (bool, error) {
	i := st.Nodes.ByName(node)
	if i == cluster.NoNode {
		return false, fmt.Errorf("failed to get node %q: node %q not found", node, node)
	}
	all := true
	for k := range choices { // kube-scheduler does not look behind the first that is not bound yet
		bound := volumeBound
		if choices[k].Volume == "" {
			bound = volumeProvisioned
		}
		ok, err := bound(st, namespace, i, &choices[k])
		if err != nil {
			return false, err
		}
		all = all && ok
	}
	return all, nil
}

// volumeBound is VolumesBound of a claim that was given a volume.
func volumeBound(st *cluster.State, namespace string, i cluster.NodeIndex, c *cluster.VolumeChoice) (bool, error) {
	v, claim := st.PersistentVolume(c.Volume), st.PersistentVolumeClaim(namespace, c.Claim)
	switch {
	case v == nil:
		return false, fmt.Errorf("failed to check binding: persistentvolumes %q not found", c.Volume)
	case claim == nil || claim.UID != c.UID:
		return false, fmt.Errorf("failed to check binding: persistentvolumeclaims %q not found", namespace+"/"+c.Claim)
	}
	if err := reaches(st, i, v); err != nil {
		return false, err
	}
	switch to := v.Claim; {
	case !v.HasClaim || to.UID == "":
		return false, fmt.Errorf("ClaimRef got reset for pv %q", v.Name)
	case to.UID != c.UID: // kube-scheduler waits for nothing until its time is up
		return false, fmt.Errorf("pv %q is bound to claim %q", v.Name, to.Namespace+"/"+to.Name)
	case claim.Volume != "" && claim.Volume != v.Name: // the same
		return false, fmt.Errorf("claim %q is bound to pv %q", namespace+"/"+c.Claim, claim.Volume)
	}
	return claim.Volume != "" && claim.Bound, nil
}

// ErrNotProvisioned is what an error of VolumesBound is if a provisioner has said that it can provision no volume for the node.
var ErrNotProvisioned = errors.New("no volume can be provisioned for the node")

// notProvisioned is such an error, of a claim.
type notProvisioned string

func (e notProvisioned) Error() string {
	return fmt.Sprintf("provisioning failed for PVC %q", string(e))
}
func (notProvisioned) Is(target error) bool { return target == ErrNotProvisioned }

// volumeProvisioned is VolumesBound of a claim for which a volume is to be provisioned.
func volumeProvisioned(st *cluster.State, namespace string, i cluster.NodeIndex, c *cluster.VolumeChoice) (bool, error) {
	claim := st.PersistentVolumeClaim(namespace, c.Claim)
	switch {
	case claim == nil || claim.UID != c.UID:
		return false, fmt.Errorf("failed to check provisioning pvc: persistentvolumeclaims %q not found", namespace+"/"+c.Claim)
	case !claim.HasSelectedNode || claim.SelectedNode != st.Nodes.Spec[i].Name: // so a provisioner says that it cannot
		return false, notProvisioned(c.Claim)
	case claim.Volume == "":
		return false, nil
	}
	v := st.PersistentVolume(claim.Volume)
	if v == nil {
		return false, nil // it may be told later
	}
	if err := reaches(st, i, v); err != nil {
		return false, err
	}
	return claim.Bound, nil
}
