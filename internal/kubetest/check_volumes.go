package kubetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// VolumeReport is what the API server says about the claims of the pods that have a node. Lists are in the order of the pods.
type VolumeReport struct {
	Claims   int // of pods that have a node and have not ended
	Attached int // the most volumes that pods of one node have

	Unbound     []ClaimProblem // claims that are not bound, or to a volume that is not there, or that says otherwise
	Shared      []ClaimProblem // volumes that are another claim's too
	Unreachable []ClaimProblem // volumes that the pod's node does not reach
	Overfull    []Overfull     // nodes with more volumes than their CSINode allows
}

// ClaimProblem is what is wrong with a claim of a pod.
type ClaimProblem struct {
	Placement
	Claim string
	Why   string
}

// Overfull is a node with more volumes of a driver than it may have.
type Overfull struct {
	Node, Driver        string
	Volumes, Attachable int
}

// Problems returns a sentence for each thing in the report that a correct scheduler, with correct controllers, does not do.
func (r VolumeReport) Problems() []string {
	var problems []string
	for _, p := range slices.Concat(r.Unbound, r.Shared, r.Unreachable) {
		problems = append(problems, fmt.Sprintf("pod %s: on node %s, its claim %s %s", p.Pod, p.Node, p.Claim, p.Why))
	}
	for _, o := range r.Overfull {
		problems = append(problems, fmt.Sprintf("node %s: %d volumes of %s, %d attachable", o.Node, o.Volumes, o.Driver, o.Attachable))
	}
	return problems
}

// CheckVolumes reads the pods, nodes, claims, volumes and CSINodes of the cluster and judges whether each pod that has a node has
// the volumes it claims, each for itself, and reaches them. It makes sense when nothing is being bound, and of volumes of one writer.
func CheckVolumes(ctx context.Context, kubeconfig string) (VolumeReport, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return VolumeReport{}, fmt.Errorf("check volumes: %w", err)
	}
	var o volumeObjects
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return VolumeReport{}, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return VolumeReport{}, fmt.Errorf("list pods: %w", err)
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return VolumeReport{}, fmt.Errorf("list claims: %w", err)
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return VolumeReport{}, fmt.Errorf("list volumes: %w", err)
	}
	csiNodes, err := client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return VolumeReport{}, fmt.Errorf("list CSINodes: %w", err)
	}
	o.nodes, o.pods, o.claims, o.volumes, o.csiNodes = nodes.Items, pods.Items, claims.Items, volumes.Items, csiNodes.Items
	return checkVolumes(o), nil
}

// volumeObjects is what there is to judge.
type volumeObjects struct {
	objects
	claims   []corev1.PersistentVolumeClaim
	volumes  []corev1.PersistentVolume
	csiNodes []storagev1.CSINode
}

// ebsDriver is the CSI driver of in-tree disks of AWS.
const ebsDriver = "ebs.csi.aws.com"

// checkVolumes judges the objects.
func checkVolumes(o volumeObjects) VolumeReport {
	nodes, claims, volumes := map[string]*corev1.Node{}, map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, map[string]*corev1.PersistentVolume{}
	users := map[string][]types.NamespacedName{} // claims by the volume that they, or that itself, says is theirs
	for i := range o.nodes {
		nodes[o.nodes[i].Name] = &o.nodes[i]
	}
	use := func(volume string, claim types.NamespacedName) {
		if !slices.Contains(users[volume], claim) {
			users[volume] = append(users[volume], claim)
		}
	}
	for i := range o.claims {
		claim := &o.claims[i]
		claims[nameOfClaim(claim)] = claim
		if claim.Spec.VolumeName != "" {
			use(claim.Spec.VolumeName, nameOfClaim(claim))
		}
	}
	named := map[types.NamespacedName]int{} // volumes that name a claim
	for i := range o.volumes {
		v := &o.volumes[i]
		volumes[v.Name] = v
		if ref := v.Spec.ClaimRef; ref != nil {
			name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
			use(v.Name, name)
			named[name]++
		}
	}
	pods := slices.Clone(o.pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(nameOf(&a).String(), nameOf(&b).String()) })

	var r VolumeReport
	attached := map[string]map[string]*corev1.PersistentVolume{} // by node and name
	for i := range pods {
		pod := &pods[i]
		node := nodes[pod.Spec.NodeName]
		if node == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, source := range pod.Spec.Volumes {
			if source.PersistentVolumeClaim == nil {
				continue
			}
			r.Claims++
			name := types.NamespacedName{Namespace: pod.Namespace, Name: source.PersistentVolumeClaim.ClaimName}
			problem := func(why string, args ...any) ClaimProblem {
				return ClaimProblem{Placement{nameOf(pod), node.Name}, name.Name, fmt.Sprintf(why, args...)}
			}
			claim := claims[name]
			if claim == nil {
				r.Unbound = append(r.Unbound, problem("is not there"))
				continue
			}
			v := volumes[claim.Spec.VolumeName]
			switch ref := refOf(v); {
			case claim.Spec.VolumeName == "":
				r.Unbound = append(r.Unbound, problem("is not bound"))
				continue
			case v == nil:
				r.Unbound = append(r.Unbound, problem("is bound to %s, which is not there", claim.Spec.VolumeName))
				continue
			case !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted):
				r.Unbound = append(r.Unbound, problem("is not bound completely to %s", v.Name))
			case ref.Namespace != name.Namespace || ref.Name != name.Name || ref.UID != "" && ref.UID != claim.UID:
				r.Unbound = append(r.Unbound, problem("is bound to %s, which is not bound to it", v.Name))
			}
			if len(users[v.Name]) > 1 {
				r.Shared = append(r.Shared, problem("has %s, which is another's too", v.Name))
			}
			if named[name] > 1 {
				r.Shared = append(r.Shared, problem("has %s, and is named by another volume", v.Name))
			}
			if err := volume.CheckNodeAffinity(v, node.Labels); err != nil {
				r.Unreachable = append(r.Unreachable, problem("is bound to %s, which is not reached from there: %v", v.Name, err))
			}
			if attached[node.Name] == nil {
				attached[node.Name] = map[string]*corev1.PersistentVolume{}
			}
			attached[node.Name][v.Name] = v
			r.Attached = max(r.Attached, len(attached[node.Name]))
		}
	}
	slices.SortFunc(o.csiNodes, func(a, b storagev1.CSINode) int { return cmp.Compare(a.Name, b.Name) })
	for i := range o.csiNodes {
		r.Overfull = append(r.Overfull, overfull(&o.csiNodes[i], slices.Collect(maps.Values(attached[o.csiNodes[i].Name])))...)
	}
	return r
}

// refOf returns the claim that a volume names; the zero one if there is no such volume, or it names none.
func refOf(v *corev1.PersistentVolume) corev1.ObjectReference {
	if v == nil || v.Spec.ClaimRef == nil {
		return corev1.ObjectReference{}
	}
	return *v.Spec.ClaimRef
}

// overfull returns the drivers of which a node has more volumes than it may have.
func overfull(node *storagev1.CSINode, volumes []*corev1.PersistentVolume) []Overfull {
	var over []Overfull
	for _, driver := range node.Spec.Drivers {
		if driver.Allocatable == nil || driver.Allocatable.Count == nil {
			continue
		}
		n, most := 0, int(*driver.Allocatable.Count)
		for _, v := range volumes {
			csi, ebs := v.Spec.CSI, v.Spec.AWSElasticBlockStore
			if csi != nil && csi.Driver == driver.Name || ebs != nil && driver.Name == ebsDriver {
				n++
			}
		}
		if n > most {
			over = append(over, Overfull{node.Name, driver.Name, n, most})
		}
	}
	return over
}
