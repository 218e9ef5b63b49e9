package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// supplied is a state with so many nodes, and volumes of the class "late" that all of them reach.
func supplied(t *testing.T, nodes, volumes int) *cluster.State {
	t.Helper()
	st := cluster.New(start)
	for k := range nodes {
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(k), Node: cluster.Node{Name: fmt.Sprint("n", k)}})
	}
	apply(t, st, cluster.ClassDefined{ID: 1})
	for _, class := range []string{"late", "other"} {
		apply(t, st, set(&cluster.StorageClass{Name: class, Mode: cluster.BindToFirstConsumer})...)
	}
	for k := range volumes {
		apply(t, st, set(freeVolume(k))...)
	}
	return st
}

func freeVolume(k int) *cluster.PersistentVolume {
	return &cluster.PersistentVolume{Name: fmt.Sprint("v", k), Class: "late", Capacity: 5, Mode: "Filesystem", Available: true}
}

func waitingClaim(name, class string) *cluster.PersistentVolumeClaim {
	return &cluster.PersistentVolumeClaim{Namespace: "shop", Name: name, UID: "uid-" + name, Class: class, HasRequest: true, Request: 5, Mode: "Filesystem"}
}

// askingPod is a pod with a label set of its own, which names claims.
func askingPod(id int, names ...string) []cluster.Delta {
	var claims []cluster.PodClaim
	for _, name := range names {
		claims = append(claims, cluster.PodClaim{Name: name})
	}
	labels := cluster.LabelsID(id + 1)
	return []cluster.Delta{
		cluster.LabelsDefined{ID: labels, Set: cluster.LabelSet{Namespace: "shop", Claims: claims}},
		cluster.PodSet{ID: cluster.PodID(id), Pod: cluster.Pod{UID: fmt.Sprint("uid-", id), Namespace: "shop", Name: fmt.Sprint("pod-", id), Class: 1, Labels: labels}},
	}
}

func numbered(prefix string, n int) (names []string) {
	for k := range n {
		names = append(names, fmt.Sprint(prefix, k))
	}
	return names
}

// changedBy returns how many nodes count as changed by deltas.
func changedBy(t *testing.T, st *cluster.State, deltas ...cluster.Delta) (n int) {
	t.Helper()
	before := st.Version().Seq
	apply(t, st, deltas...)
	st.Nodes.ChangedSince(before, cluster.Range{End: cluster.MaxIndex}, func(cluster.NodeIndex) { n++ })
	return n
}

// promised promises the volume v<id> to the claim c<id> of the pod of that id, and reports how many nodes count as changed.
func promised(t *testing.T, st *cluster.State, id int) int {
	t.Helper()
	claim := fmt.Sprint("c", id)
	return changedBy(t, st, cluster.PodAssumed{
		ID: cluster.PodID(id), Node: cluster.NodeIndex(id), Attempt: 1,
		Volumes: []cluster.VolumeChoice{{Claim: claim, UID: "uid-" + claim, Volume: fmt.Sprint("v", id)}},
	})
}

// A pod with many claims that has gone, or whose claims are of other classes, are bound or do not exist, makes no volume matter.
func TestOnlyClaimsThatWaitOfPodsThatAreThereMakeVolumesMatter(t *testing.T) {
	const nodes, volumes, many, placements, one = 100, 150, 140, 20, 99
	of := numbered("m", many)
	all := func(change func(*cluster.PersistentVolumeClaim)) (out []cluster.Delta) {
		for _, name := range of {
			claim := waitingClaim(name, "late")
			change(claim)
			out = append(out, set(claim)...)
		}
		return out
	}
	gone := []cluster.Delta{cluster.PodRemoved{ID: one}}
	waiting := all(func(*cluster.PersistentVolumeClaim) {})
	elsewhere := all(func(c *cluster.PersistentVolumeClaim) { c.Class = "other" })
	bound := all(func(c *cluster.PersistentVolumeClaim) { c.Volume = "m" })
	var removed []cluster.Delta
	for _, name := range of {
		removed = append(removed, cluster.ObjectRemoved{ObjectKey: waitingClaim(name, "").Key()})
	}
	pod := askingPod(one, of...)
	for _, tt := range []struct {
		name   string
		deltas [][]cluster.Delta
		every  int // how many nodes each placement changes
	}{
		{"claims that there are not", [][]cluster.Delta{pod}, 1},
		{"claims that there are not, of a pod that has gone", [][]cluster.Delta{pod, gone}, 1},
		{"claims that no pod names", [][]cluster.Delta{waiting}, 1},
		{"claims that wait", [][]cluster.Delta{waiting, pod}, nodes},
		{"claims that wait, and come last", [][]cluster.Delta{pod, waiting}, nodes},
		{"claims that waited, of a pod that has gone", [][]cluster.Delta{pod, waiting, gone}, 1},
		{"claims of another class", [][]cluster.Delta{pod, elsewhere}, 1},
		{"claims that are of another class now", [][]cluster.Delta{pod, waiting, elsewhere}, 1},
		{"claims that are of the class now", [][]cluster.Delta{pod, elsewhere, waiting}, nodes},
		{"claims that have got volumes", [][]cluster.Delta{pod, waiting, bound}, 1},
		{"claims that have lost their volumes", [][]cluster.Delta{pod, waiting, bound, waiting}, nodes},
		{"claims that have gone", [][]cluster.Delta{pod, waiting, removed}, 1},
		{"fewer claims than there are volumes", [][]cluster.Delta{pod, waiting, removed[:many/2]}, 1},
		{"one claim that is named often", [][]cluster.Delta{waiting, askingPod(one, slices.Repeat([]string{"m0"}, many)...)}, nodes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := supplied(t, nodes, volumes)
			for k := range placements {
				apply(t, st, set(waitingClaim(fmt.Sprint("c", k), "late"))...)
				apply(t, st, askingPod(k, fmt.Sprint("c", k))...)
			}
			for _, d := range tt.deltas {
				apply(t, st, d...)
			}
			for who, st := range map[string]*cluster.State{"that followed the log": st, "that was restored": restored(t, st), "that is a clone": st.Clone()} {
				got, want := 0, 0
				for k := range placements {
					got += promised(t, st, k)
					if left := volumes - k - 1; tt.every == 1 || left >= many {
						want++
					} else {
						want += tt.every
					}
				}
				if got != want {
					t.Errorf("in a state %s %d placements change %d nodes, want %d", who, placements, got, want)
				}
			}
		})
	}
}

// What mattered for none while no pod had so many claims may matter for one that has: it counts as changed when that comes.
func TestWhenAPodWithMoreClaimsComesWhatDidNotMatterBeforeCountsAsChanged(t *testing.T) {
	const nodes, one = 10, 9
	two := askingPod(one, "m0", "m1")
	claims := set(waitingClaim("m0", "late"), waitingClaim("m1", "late"))
	gone := cluster.ObjectRemoved{ObjectKey: freeVolume(0).Key()}
	for _, tt := range []struct {
		name    string
		before  []cluster.Delta // with three volumes
		between []cluster.Delta
		deltas  []cluster.Delta
		want    int
	}{
		{"nothing has changed", nil, nil, slices.Concat(claims, two), 0},
		{"a volume has gone, two are left", nil, []cluster.Delta{gone}, slices.Concat(claims, two), 0},
		{"two volumes have gone", nil, []cluster.Delta{gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}}, slices.Concat(claims, two), nodes},
		{"the pod comes first", two, []cluster.Delta{gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}}, claims, nodes},
		{"and its claims are of another class", two, []cluster.Delta{gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}}, set(waitingClaim("m0", "other"), waitingClaim("m1", "other")), 0},
		{"one claim has its volume back", slices.Concat(two, set(waitingClaim("m0", "late")), set(func() *cluster.PersistentVolumeClaim {
			c := waitingClaim("m1", "late")
			c.Volume = "m"
			return c
		}())), []cluster.Delta{gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}}, claims, nodes},
		{"as many have come as have gone", nil, []cluster.Delta{
			gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}, cluster.ObjectSet{Object: freeVolume(0)}, cluster.ObjectSet{Object: freeVolume(1)},
		}, slices.Concat(claims, two), nodes},
		{"a volume has come", nil, []cluster.Delta{
			gone, cluster.ObjectRemoved{ObjectKey: freeVolume(1).Key()}, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1}}, cluster.ObjectSet{Object: freeVolume(0)},
		}, slices.Concat(claims, two), nodes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := supplied(t, nodes, 3)
			apply(t, st, set(waitingClaim("c0", "late"))...)
			apply(t, st, askingPod(0, "c0")...)
			apply(t, st, tt.before...)
			if n := changedBy(t, st, tt.between...); n != 0 {
				t.Errorf("%d nodes count as changed while pods have one claim at most", n)
			}
			clone, other := st.Clone(), st.Clone()
			other.Restore(other.Version())
			for who, st := range map[string]*cluster.State{"that followed the log": st, "that is a clone": clone} {
				if n := changedBy(t, st, tt.deltas...); n != tt.want {
					t.Errorf("in a state %s %d nodes count as changed when a pod has two claims, want %d", who, n, tt.want)
				}
			}
			if n := changedBy(t, other, tt.deltas...); n != 0 {
				t.Errorf("%d nodes count as changed though all do since the snapshot was loaded", n)
			}
			// And not again, once they have.
			if n := changedBy(t, st, slices.Concat([]cluster.Delta{cluster.PodRemoved{ID: one}}, two)...); n != 0 {
				t.Errorf("%d nodes count as changed when it comes again", n)
			}
		})
	}
}

// demandOf is what cluster.DemandOf has to be: all that pods which are there ask for, and nothing else.
type demandOf struct {
	Sets   map[string][]int
	Asked  map[string]map[cluster.LabelsID]int
	Naming map[[2]string][]cluster.LabelsID
}

func keptDemand(st *cluster.State) (d demandOf) {
	d.Sets, d.Asked, d.Naming = cluster.DemandOf(st)
	return d
}

// readDemand counts it.
func readDemand(st *cluster.State) demandOf {
	d := demandOf{make(map[string][]int), make(map[string]map[cluster.LabelsID]int), make(map[[2]string][]cluster.LabelsID)}
	for _, l := range st.LabelSets() {
		for _, by := range l.Claims {
			if key := [2]string{l.Namespace, by.Name}; !slices.Contains(d.Naming[key], l.ID) {
				d.Naming[key] = append(d.Naming[key], l.ID)
			}
			if claim := st.PersistentVolumeClaim(l.Namespace, by.Name); claim != nil && claim.Volume == "" && claim.Class != "" {
				if d.Asked[claim.Class] == nil {
					d.Asked[claim.Class] = make(map[cluster.LabelsID]int)
				}
				d.Asked[claim.Class][l.ID]++
			}
		}
	}
	for class, of := range d.Asked {
		for n := 1; n <= slices.Max(slices.Collect(maps.Values(of))); n++ {
			sets := 0
			for _, asked := range of {
				if asked == n {
					sets++
				}
			}
			d.Sets[class] = append(d.Sets[class], sets)
		}
	}
	return d
}

// TestDemandIsThatOfThePodsThatAreThere: whatever the way to a state, it knows the same of what pods ask for, and keeps nothing of those that have gone.
func TestDemandIsThatOfThePodsThatAreThere(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, st *cluster.State, d cluster.Delta) (most int) {
		want := readDemand(st)
		states := map[string]*cluster.State{"": st}
		if st.Version().Seq%10 == 0 {
			states = map[string]*cluster.State{"": st, "restored": restored(t, st), "a clone": st.Clone()}
		}
		for what, st := range states {
			if diff := cmp.Diff(want, keptDemand(st)); diff != "" {
				t.Fatalf("after %+v, %s (-want +got):\n%s", d, what, diff)
			}
		}
		for _, sets := range want.Sets {
			most = max(most, len(sets))
		}
		return most
	}
	rapid.Check(t, func(t *rapid.T) {
		walk(t, nothing, func(st *cluster.State, d cluster.Delta, _ struct{}) { check(t, st, d) })
	})
	// And a long way, on which some ask for several.
	random, most := rand.New(rand.NewPCG(7, 8)), 0
	st := cluster.New(start)
	for range 5000 {
		d := clustertest.Delta(random.IntN, st)
		apply(t, st, d)
		most = max(most, check(t, st, d))
	}
	if most < 2 {
		t.Errorf("no pod asks for more than %d volumes of a class", most)
	}
}
