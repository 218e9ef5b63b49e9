package kubetest

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
)

func TestVolumeControllerBindsWhatVolumesNameAndProvisionsForSelectedNodes(t *testing.T) {
	c := StartT(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	core := c.Client().CoreV1()
	claims := core.PersistentVolumeClaims("default")
	storage := resource.MustParse("1Gi")
	create := func(name, node string) *corev1.PersistentVolumeClaim {
		t.Helper()
		class := "late"
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage}},
		}}
		if node != "" {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, node)
		}
		made, err := claims.Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	offer := func(name string, to *corev1.ObjectReference) {
		t.Helper()
		_, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "late", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: storage}, ClaimRef: to, NodeAffinity: ReachedFrom("node-00000"),
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/d"}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	refTo := func(claim *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: claim.Name, UID: claim.UID}
	}

	// Some are there before, others come.
	early, other := create("early", ""), create("other", "")
	offer("for-early", refTo(early))
	ref := refTo(other)
	ref.UID = "another"
	offer("for-another", ref)
	offer("for-nobody", nil)
	controller, err := PlayVolumeController(ctx, c.Kubeconfig(), "csi.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := controller.Stop(); err != nil {
			t.Error(err)
		}
	}()
	late, made := create("late", ""), create("made", "node-00007")
	ref = refTo(late)
	ref.UID = "" // kept for whatever claim has the name
	offer("for-late", ref)

	want := map[string]string{"early": "for-early", "late": "for-late", "made": "pvc-" + string(made.UID), "other": ""}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%v; claims are not bound", err)
		}
		bound := 0
		for i := range list.Items {
			claim := &list.Items[i]
			if claim.Spec.VolumeName != want[claim.Name] && claim.Spec.VolumeName != "" {
				t.Fatalf("claim %s is bound to %s, want %q", claim.Name, claim.Spec.VolumeName, want[claim.Name])
			}
			if claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
				bound++
			}
		}
		if bound == 3 {
			break
		}
		<-tick.C
	}
	v, err := core.PersistentVolumes().Get(ctx, want["made"], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Spec.CSI == nil || v.Spec.CSI.Driver != "csi.example.com" || v.Spec.StorageClassName != "late" || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != made.UID {
		t.Errorf("what was provisioned: %+v", v.Spec)
	}
	for i := range 8 {
		if reached := volume.CheckNodeAffinity(v, PlainNode(i).Labels) == nil; reached != (i == 7) {
			t.Errorf("node %d reaches it: %v", i, reached)
		}
	}
}

// A patch that the API server gives up is tried again, and told if it comes to nothing; what is about another claim of the name is not.
func TestAConflictOfAClaimThatIsBoundIsTriedAgainOrTold(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "1"}}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c", errors.New("somebody has written to it"))
	for _, tt := range []struct {
		name      string
		is        *corev1.PersistentVolumeClaim // that there is; nil: none
		conflicts int
		patches   int
		bound     bool // to the volume, by whatever the controller notes
		fails     bool
	}{
		{"none", claim, 0, 1, true, false},
		{"a few", claim, bindTries - 1, bindTries, true, false},
		{"too many", claim, bindTries, bindTries, false, true},
		{"with another claim of the name", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "2"}}, bindTries, 1, false, false},
		{"with one that has gone", nil, bindTries, 1, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, patches := fake.NewClientset(), 0
			if tt.is != nil {
				client = fake.NewClientset(tt.is)
			}
			client.PrependReactor("patch", "persistentvolumeclaims", func(ktesting.Action) (bool, runtime.Object, error) {
				patches++
				return patches <= tt.conflicts, nil, conflict
			})
			c := &VolumeController{client: client, claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}}
			if err := c.bind(t.Context(), claim, "v"); (err != nil) != tt.fails || tt.fails && !apierrors.IsConflict(err) {
				t.Errorf("bind: %v", err)
			}
			if is := c.claims[nameOfClaim(claim)]; tt.bound != (is != nil && is.Spec.VolumeName == "v") || patches != tt.patches {
				t.Errorf("after %d patches, want %d, it is known as %+v", patches, tt.patches, is)
			}
		})
	}
}
