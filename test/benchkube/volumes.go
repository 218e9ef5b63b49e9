package main

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// volumes is pods with a claim each, beside others that are bound and have theirs. Controllers are played that bind claims to the volumes
// that name them, and provision for the node that is selected. As in scheduler_perf, but that volumes and claims which are bound beforehand
// have no status, which no scheduler reads, and that the pods beside were bound by nobody.
type volumes struct {
	claims     claims
	controller *kubetest.VolumeController
}

// claims is what the claims of a workload are made of.
type claims struct {
	// disk is what the volume is whose claim is bound to it beforehand, as in scheduler_perf. nil: claims wait for a consumer.
	disk func(name string) corev1.PersistentVolumeSource
	// local: of claims that wait, each node has a volume for one. Else they are provisioned.
	local bool
	// csiNode: nodes have a CSINode, with a limit.
	csiNode bool
	// migrated: it says that in-tree disks are the CSI driver's.
	migrated bool
}

// volumesFigures is what pods with claims gave.
type volumesFigures struct {
	bound    int // pods that were bound before
	claims   int // of all pods, in the end
	attached int // the most of one node
}

const (
	// csiDriver is the driver of CSI volumes, in-tree ones that are migrated among them, and of those that are provisioned.
	csiDriver = "ebs.csi.aws.com"
	// attachable is how many volumes of the driver a node may have.
	attachable = 39
	// waitingClass is the StorageClass of claims that wait for a consumer.
	waitingClass = "waiting"
)

func inTreeDisk(name string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: name}}
}

func csiDisk(name string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: name}}
}

// claiming returns a workload of pods with claims, which has room for no more than nodes may attach.
func claiming(name, about string, c claims) workload {
	w := workload{
		name: name, about: about, pods: constrainedPods, boundPods: claimingPods, claims: true,
		shape:     func(pod *corev1.Pod, _ int) { claim(pod) },
		newScript: func() script { return &volumes{claims: c} },
	}
	w.room = func(cfg config, perNode int) int {
		switch {
		case c.local:
			perNode = 1
		case c.csiNode:
			perNode = min(perNode, attachable)
		}
		return cfg.nodes*perNode - c.before(cfg)
	}
	if c.local {
		w.limit = shortLimit
	}
	if c.csiNode {
		w.shapeNode = func(node *corev1.Node) {
			count := *resource.NewQuantity(attachable, resource.DecimalSI)
			node.Status.Capacity["attachable-volumes-csi-"+csiDriver] = count
			node.Status.Allocatable["attachable-volumes-csi-"+csiDriver] = count
		}
	}
	return w
}

// before returns how many pods are bound before: none of those whose claims wait, for somebody would have to bind these.
func (c claims) before(cfg config) int {
	if c.disk == nil {
		return 0
	}
	return cfg.boundPods
}

// claim makes a pod use the claim that has its name.
func claim(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "vol", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pod.Name},
	}}}
}

// volumeOf returns a volume of 1 GiB.
func volumeOf(name, class string, source corev1.PersistentVolumeSource, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: class,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, PersistentVolumeSource: source,
		},
	}
}

// claimOf returns the claim of that name and, if it is bound beforehand, its volume.
func (c claims) claimOf(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	mode := corev1.ReadWriteOnce
	if c.disk != nil {
		mode = corev1.ReadOnlyMany
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if c.disk == nil {
		class := waitingClass
		claim.Spec.StorageClassName = &class
		return claim, nil
	}
	v := volumeOf("volume-"+name, "", c.disk("volume-"+name), mode)
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: metav1.NamespaceDefault, Name: name}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "true")
	claim.Spec.VolumeName = v.Name
	return claim, v
}

// localVolume returns the volume that one node has.
func localVolume(node string) *corev1.PersistentVolume {
	v := volumeOf("local-"+node, waitingClass, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}}, corev1.ReadWriteOnce)
	v.Spec.NodeAffinity = kubetest.ReachedFrom(node)
	return v
}

// class returns the StorageClass of claims that wait.
func (c claims) class() *storagev1.StorageClass {
	provisioner, mode := csiDriver, storagev1.VolumeBindingWaitForFirstConsumer
	if c.local {
		provisioner = "kubernetes.io/no-provisioner"
	}
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: waitingClass}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// csiNodeOf returns what a node says of its drivers.
func (c claims) csiNodeOf(node string) *storagev1.CSINode {
	count := int32(attachable)
	out := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: csiDriver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
		}}},
	}
	if c.migrated {
		out.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs"}
	}
	return out
}

func (v *volumes) prepare(ctx context.Context, s *stage) error {
	if err := v.prepareNodes(ctx, s); err != nil {
		return err
	}
	var err error
	if v.controller, err = kubetest.PlayVolumeController(ctx, s.plane.Kubeconfig(), csiDriver); err != nil {
		return err
	}
	s.atEnd(func() { _ = v.controller.Stop() }) // judge asks for its error
	s.r.volumes = &volumesFigures{bound: v.claims.before(s.config)}
	bound := func(i int) *corev1.Pod {
		pod := kubetest.PlainPod(i)
		pod.Name, pod.Spec.NodeName = fmt.Sprintf("bound-%06d", i), s.load.node(i%s.nodes).Name
		claim(pod)
		return pod
	}
	if err := v.createPods(ctx, s, s.r.volumes.bound, bound); err != nil {
		return err
	}
	return v.createPods(ctx, s, s.pods, s.load.pod)
}

// prepareNodes creates what there is of each node besides, and the class.
func (v *volumes) prepareNodes(ctx context.Context, s *stage) error {
	client := s.plane.Client()
	if v.claims.disk == nil {
		if _, err := client.StorageV1().StorageClasses().Create(ctx, v.claims.class(), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create storage class: %w", err)
		}
	}
	return kubetest.ForEach(ctx, s.nodes, func(ctx context.Context, i int) error {
		node := s.load.node(i).Name
		if v.claims.csiNode {
			if _, err := client.StorageV1().CSINodes().Create(ctx, v.claims.csiNodeOf(node), metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create CSINode %s: %w", node, err)
			}
		}
		if !v.claims.local {
			return nil
		}
		made, err := client.CoreV1().PersistentVolumes().Create(ctx, localVolume(node), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create volume of node %s: %w", node, err)
		}
		made.Status.Phase = corev1.VolumeAvailable // others are given to no claim
		if _, err := client.CoreV1().PersistentVolumes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("make volume of node %s available: %w", node, err)
		}
		return nil
	})
}

// createPods creates n pods, each after its claim and its volume.
func (v *volumes) createPods(ctx context.Context, s *stage, n int, template func(int) *corev1.Pod) error {
	client := s.plane.Client().CoreV1()
	return kubetest.ForEach(ctx, n, func(ctx context.Context, i int) error {
		pod := template(i)
		claim, volume := v.claims.claimOf(pod.Name)
		if _, err := client.PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create claim %s: %w", claim.Name, err)
		}
		if volume != nil {
			if _, err := client.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create volume %s: %w", volume.Name, err)
			}
		}
		if _, err := client.Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		return nil
	})
}

func (v *volumes) play(ctx context.Context, s *stage) error { return s.awaitBound(ctx, s.pods) }

func (v *volumes) judge(ctx context.Context, s *stage) (expected, error) {
	var problems []string
	if err := v.controller.Stop(); err != nil {
		problems = append(problems, err.Error())
	}
	report, err := kubetest.CheckVolumes(ctx, s.plane.Kubeconfig())
	if err != nil {
		return expected{}, err
	}
	s.r.volumes.claims, s.r.volumes.attached = report.Claims, report.Attached
	return expected{bound: s.r.volumes.bound + s.pods, problems: append(problems, report.Problems()...)}, nil
}

func ofVolumes(figure func(*volumesFigures) int) func(*result) float64 {
	return func(r *result) float64 {
		if r.volumes == nil {
			return math.NaN()
		}
		return float64(figure(r.volumes))
	}
}
