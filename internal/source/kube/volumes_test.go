package kube

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

func choosing(node string, choices ...cluster.VolumeChoice) source.VolumeBinding {
	return source.VolumeBinding{UID: "u", Namespace: sourcetest.Namespace, Name: "p", Node: node, Choices: choices}
}

// TestWhatIsWrittenForClaimsIsWhatKubeSchedulerWrites, and is not written twice.
func TestWhatIsWrittenForClaimsIsWhatKubeSchedulerWrites(t *testing.T) {
	c := startCluster(t)
	c.SetObject(t, sourcetest.LateClass())
	c.SetObject(t, sourcetest.Volume("free", nil))
	c.SetObject(t, sourcetest.Volume("kept", &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: sourcetest.Namespace, Name: "second"}))
	uids := make(map[string]string)
	s := newSource(t, c.config())
	r := sourcetest.Record(t, s)
	for _, name := range []string{"first", "second", "made"} {
		c.SetObject(t, sourcetest.Claim(name))
		r.Await("claim "+name, func(v sourcetest.View) bool { return v.ClaimOf(name) != nil })
		r.View(func(v sourcetest.View) { uids[name] = v.ClaimOf(name).UID })
	}
	r.Synced()
	choice := func(claim, volume string) cluster.VolumeChoice {
		return cluster.VolumeChoice{Claim: claim, UID: uids[claim], Volume: volume}
	}
	all := choosing("one", choice("made", ""), choice("first", "free"), choice("second", "kept"))
	var versions []string
	for range 2 {
		if o := s.BindVolumes(t.Context(), coord.Cond{}, all); o.Result != source.BindDone {
			t.Fatalf("%+v", o)
		}
		for _, name := range []string{"free", "kept"} {
			pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			claim := map[string]string{"free": "first", "kept": "second"}[name]
			to := pv.Spec.ClaimRef
			if to == nil || to.Kind != "PersistentVolumeClaim" || to.APIVersion != "v1" || to.Namespace != sourcetest.Namespace || to.Name != claim ||
				to.UID != types.UID(uids[claim]) || to.ResourceVersion == "" {
				t.Errorf("%s has the claim %+v", name, to)
			}
			if got, want := metav1.HasAnnotation(pv.ObjectMeta, volume.AnnBoundByController), name == "free"; got != want {
				t.Errorf("%s says that a controller has bound it: %v, want %v", name, got, want)
			}
			versions = append(versions, pv.ResourceVersion)
		}
		claim, err := c.client.CoreV1().PersistentVolumeClaims(sourcetest.Namespace).Get(t.Context(), "made", metav1.GetOptions{})
		if err != nil || claim.Annotations[volume.AnnSelectedNode] != "one" {
			t.Fatalf("%v, %v", claim.Annotations, err)
		}
		versions = append(versions, claim.ResourceVersion)
		r.View(func(v sourcetest.View) {
			if v.ClaimOf("made").SelectedNode != "one" {
				t.Error("it has not been told")
			}
		})
	}
	for k := range 3 {
		if versions[k] != versions[3+k] {
			t.Errorf("object %d has been written again", k)
		}
	}
	if o := s.BindVolumes(t.Context(), coord.Cond{}, choosing("two", choice("made", ""))); o.Result != source.BindRefused {
		t.Errorf("for another node: %+v", o)
	}
	// A provisioner that cannot do it takes the node away.
	_, err := c.client.CoreV1().PersistentVolumeClaims(sourcetest.Namespace).Patch(t.Context(), "made", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Await("the claim without a node", func(v sourcetest.View) bool { return !v.ClaimOf("made").HasSelectedNode })
	again := choosing("one", choice("made", ""))
	again.Written = true
	if o := s.BindVolumes(t.Context(), coord.Cond{}, again); o.Result != source.BindRefused || o.Err.Error() != `binding volumes: provisioning failed for PVC "made"` {
		t.Errorf("%+v", o)
	}
	ended := source.WithEnd(t.Context(), func() bool { return true })
	if o := s.BindVolumes(ended, coord.Cond{}, choosing("one", choice("made", ""))); o.Result != source.BindUnknown {
		t.Errorf("behind the term: %+v", o)
	}
	if claim, err := c.client.CoreV1().PersistentVolumeClaims(sourcetest.Namespace).Get(t.Context(), "made", metav1.GetOptions{}); err != nil || claim.Annotations[volume.AnnSelectedNode] != "" {
		t.Errorf("%v, %v", claim.Annotations, err)
	}
}

// TestAWriteOfWhatIsKnownNoMoreReadsItFirst: the watch may lag. What somebody else has written is not overwritten.
func TestAWriteOfWhatIsKnownNoMoreReadsItFirst(t *testing.T) {
	c := startCluster(t)
	c.SetObject(t, sourcetest.LateClass())
	for _, name := range []string{"labelled", "taken"} {
		c.SetObject(t, sourcetest.Volume(name, nil))
	}
	c.SetObject(t, sourcetest.Claim("first"))
	cfg := c.config()
	cfg.RequestTimeout = 2 * time.Second
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	var uid string
	r.View(func(v sourcetest.View) { uid = v.ClaimOf("first").UID })
	r.Stop()
	for name, patch := range map[string]string{
		"labelled": `{"metadata":{"labels":{"a":"b"}}}`,
		"taken":    `{"spec":{"claimRef":{"kind":"PersistentVolumeClaim","namespace":"other","name":"claim"}}}`,
	} {
		if _, err := c.client.CoreV1().PersistentVolumes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// It is written, and not known to have been told.
	o := s.BindVolumes(t.Context(), coord.Cond{}, choosing("one", cluster.VolumeChoice{Claim: "first", UID: uid, Volume: "labelled"}))
	if pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), "labelled", metav1.GetOptions{}); o.Result != source.BindUnknown || err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != types.UID(uid) {
		t.Errorf("%+v; %v, %v", o, pv.Spec.ClaimRef, err)
	}
	o = s.BindVolumes(t.Context(), coord.Cond{}, choosing("one", cluster.VolumeChoice{Claim: "first", UID: uid, Volume: "taken"}))
	if pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), "taken", metav1.GetOptions{}); o.Result != source.BindRefused || err != nil || pv.Spec.ClaimRef.Namespace != "other" {
		t.Errorf("%+v; %v, %v", o, pv.Spec.ClaimRef, err)
	}
}
