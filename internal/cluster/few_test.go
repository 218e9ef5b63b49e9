package cluster

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestASetIsTheSameWhetherItHasFewElementsOrMany(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sets, want := make(fews[string, int], 1), make(map[int]bool)
	var clone fews[string, int]
	var cloned []int
	for k := range 4000 {
		x := random.IntN(4 + 60*(k/500%2)) // it grows, and shrinks again
		if random.IntN(2) == 0 || x >= 4+60*((k/500+1)%2) && k%1000 > 700 {
			sets.add("s", x)
			want[x] = true
		} else {
			sets.remove("s", x)
			delete(want, x)
		}
		if k%1000 == 400 {
			for x := range 64 {
				sets.remove("s", x)
			}
			clear(want)
		}
		if got := slices.Sorted(slices.Values(sets.of("s"))); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("after %d changes: %v, want %v", k, got, want)
		}
		if (sets["s"] != nil) != (len(want) > 0) {
			t.Fatalf("after %d changes: an empty set is kept, or one that is not is missing: %v", k, want)
		}
		if k%100 == 50 {
			if got := slices.Sorted(slices.Values(clone.of("s"))); !slices.Equal(got, cloned) {
				t.Fatalf("a clone of %v is %v after changes of the original", cloned, got)
			}
			clone, cloned = sets.clone(), slices.Sorted(maps.Keys(want))
		}
	}
}

func TestNothingIsKeptOfVolumesThatNobodyUses(t *testing.T) {
	s := fleet(t, 2)
	claims := []PodClaim{{Name: "bound"}, {Name: "unbound"}, {Name: "gone"}, {Name: "ours", Ephemeral: true, PodUID: "p"}, {Name: "theirs", Ephemeral: true, PodUID: "p"}}
	disks := []Disk{{Migration: Migration{Driver: "d", Handle: "disk"}}, {Migration: Migration{Error: "why"}}}
	applyAll(t, s,
		ObjectSet{Object: &PersistentVolume{Name: "v", Driver: "d", Handle: "h"}}, ObjectSet{Object: &StorageClass{Name: "fast", Provisioner: "d"}},
		ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: "bound", Volume: "v"}},
		ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: "unbound", Class: "fast"}},
		ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: "ours", Volume: "w", Class: "fast", Owner: "p"}},
		ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: "theirs", Owner: "q"}},
		ObjectSet{Object: &CSINode{Name: "node-1"}}, ObjectSet{Object: &VolumeAttachment{Name: "a", Attacher: "d", Node: "node-1", Volume: "v"}},
		ClassDefined{2, ClassSpec{Disks: disks}}, LabelsDefined{2, LabelSet{Namespace: "default", Claims: claims}},
		PodSet{ID: 1, Pod: Pod{UID: "p", Class: 2, Labels: 2, NodeName: "node-1"}})
	v := &s.volumes
	if len(v.claims) != 5 || len(v.byVolume) != 2 || len(v.byClass) != 1 || len(v.used) != 4 || v.failing[1] != 2 {
		t.Fatalf("of a pod with five claims and two disks there is %+v", *v)
	}
	applyAll(t, s, PodRemoved{1}, ObjectRemoved{ObjectKey{VolumeAttachmentKind, "", "a"}})
	if len(v.claims)+len(v.byVolume)+len(v.byClass)+len(v.on)+len(v.of)+len(v.failing)+len(v.used) > 0 || v.attached[1] != nil {
		t.Errorf("of a pod that is gone there is %+v", *v)
	}
}
