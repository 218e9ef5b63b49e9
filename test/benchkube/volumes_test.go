package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// withClaims is a small run in which three pods are bound before.
func withClaims() config {
	cfg := small()
	cfg.nodes, cfg.pods, cfg.boundPods, cfg.kubeQPS = 8, 6, 3, 5000
	return cfg
}

func TestPodsWithClaimsAreBoundWithTheWritesOfAScheduler(t *testing.T) {
	built, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		workload, contender string
		bound               int     // before
		status, other       float64 // writes: nominations; of the scheduler, one for each claim that waits, and of the controllers
	}{
		{"volumes-migrated", kubeScheduler, 3, 0, 0},
		{"volumes-csi", nullBinder, 3, 0, 0},
		{"volumes-local", kubeScheduler, 0, 6, 12},
		{"volumes-local", nullBinder, 0, 6, 12},
		{"volumes-provision", kubeScheduler, 0, 6, 18},
		{"volumes-provision", nullBinder, 0, 6, 18},
	} {
		c, err := contenderNamed(tt.contender)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", t.TempDir())
		r, err := runOnce(t.Context(), withClaims(), workloadOf(t, tt.workload), c, built[kubetest.KubeScheduler], 1)
		if err != nil {
			t.Fatalf("%s: %v", tt.workload, err)
		}
		f := r.volumes
		if len(r.problems) > 0 || r.late != "" || r.bound != 6 || f == nil || f.bound != tt.bound || f.claims != 6+tt.bound || f.attached < 1 {
			t.Errorf("%s, %s: %+v, %+v, want 6 bound pods beside %d, each with its volume, and no problems", tt.workload, tt.contender, r, f, tt.bound)
		}
		if r.writes.binds != 6 || r.writes.events != 6 || r.writes.status != tt.status || r.writes.other != tt.other {
			t.Errorf("%s, %s: writes %+v, want 6 binds, 6 events, %v nominations and %v others", tt.workload, tt.contender, r.writes, tt.status, tt.other)
		}
	}
}

// The null binder without --claims binds pods whose claims wait.
func TestClaimsThatAreNotBoundFailAContenderThatIsNotBlind(t *testing.T) {
	careless := contender{name: "careless", commands: func(e environment) ([]command, error) {
		e.claims = false
		return nullCommands(e)
	}}
	r := runWith(t, withClaims(), workloadOf(t, "volumes-local"), careless)
	if len(r.problems) != 6 || !strings.Contains(r.problems[0], "its claim pod-000000 is not bound") {
		t.Errorf("problems = %q, want the six claims", r.problems)
	}
}

// The shapes are those of kube-scheduler's scheduler_perf: SchedulingInTreePVs, SchedulingMigratedInTreePVs and SchedulingCSIPVs.
func TestClaimsThatAreBoundBeforehandAreThoseOfSchedulerPerf(t *testing.T) {
	for name, tt := range map[string]struct {
		claims            claims
		csiNode, migrated bool
	}{
		"volumes-intree":   {claims{disk: inTreeDisk}, false, false},
		"volumes-migrated": {claims{disk: inTreeDisk, csiNode: true, migrated: true}, true, true},
		"volumes-csi":      {claims{disk: csiDisk, csiNode: true}, true, false},
	} {
		l := newLoad(config{pods: 1, classes: maxClasses, nodeCPU: 4}, workloadOf(t, name))
		pod := l.pod(0)
		claim, v := tt.claims.claimOf(pod.Name)
		if len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != claim.Name {
			t.Errorf("%s: volumes of the pod: %+v", name, pod.Spec.Volumes)
		}
		if claim.Spec.VolumeName != v.Name || claim.Annotations[volume.AnnBindCompleted] == "" || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Name != claim.Name {
			t.Errorf("%s: claim %+v and volume %+v are not bound to each other", name, claim, v)
		}
		if diff := cmp.Diff([]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, claim.Spec.AccessModes); diff != "" {
			t.Errorf("%s: access modes (-want +got):\n%s", name, diff)
		}
		if inTree := name != "volumes-csi"; inTree != (v.Spec.AWSElasticBlockStore != nil) || inTree == (v.Spec.CSI != nil) {
			t.Errorf("%s: volume %+v", name, v.Spec)
		}
		limit := l.node(0).Status.Allocatable["attachable-volumes-csi-"+csiDriver]
		if tt.csiNode != (limit.Value() == 39) {
			t.Errorf("%s: a node may attach %s", name, limit.String())
		}
		csiNode := tt.claims.csiNodeOf("node")
		if drivers := csiNode.Spec.Drivers; len(drivers) != 1 || drivers[0].Name != csiDriver || *drivers[0].Allocatable.Count != 39 {
			t.Errorf("%s: CSINode %+v", name, csiNode)
		}
		if tt.migrated != (csiNode.Annotations[corev1.MigratedPluginsAnnotationKey] == "kubernetes.io/aws-ebs") {
			t.Errorf("%s: annotations of the CSINode: %v", name, csiNode.Annotations)
		}
	}
}

func TestVolumesStandsForAllWorkloadsOfPodsWithClaims(t *testing.T) {
	found, err := workloadsNamed("affinity,volumes")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range found {
		names = append(names, w.name)
	}
	want := []string{"affinity", "volumes-intree", "volumes-migrated", "volumes-csi", "volumes-local", "volumes-provision"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
}
