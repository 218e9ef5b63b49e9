package cluster

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// fleet returns a state with so many nodes, alike but for their zones, and a class and label set 1.
func fleet(t testing.TB, nodes int) *State {
	t.Helper()
	s := New(Version{Epoch: 1})
	asks := []Quantity{{"cpu", 100}, {"memory", 256 << 20}}
	deltas := []Delta{
		SettingsSet{Settings{Shards: 1}},
		ClassDefined{1, ClassSpec{Requests: asks, ScoreRequests: asks, NonZeroCPU: 100, NonZeroMemory: 256 << 20}},
		LabelsDefined{1, LabelSet{Namespace: "default", Labels: []Label{{"app", "web"}}}},
		PodSet{ID: 0, Pod: Pod{UID: "keeper", Class: 1, Labels: 1}}, // so that they stay
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		text := strings.Clone // as what reads the log makes a text of its own for each
		deltas = append(deltas, NodeSet{NodeIndex(i), Node{
			Name:        name,
			Labels:      []Label{{text("kubernetes.io/hostname"), text(name)}, {text("topology.kubernetes.io/zone"), fmt.Sprintf("zone-%d", i%10)}},
			Allocatable: []Quantity{{text("cpu"), 32_000}, {text("memory"), 128 << 30}, {text("pods"), 110}},
		}})
	}
	applyAll(t, s, deltas...)
	return s
}

func applyAll(t testing.TB, s *State, deltas ...Delta) {
	t.Helper()
	for _, d := range deltas {
		if err := s.Apply(d); err != nil {
			t.Fatalf("Apply(%#v): %v", d, err)
		}
	}
}

// life are the deltas of a pod that comes, is placed and bound, and goes.
func life(uid string, node NodeIndex) [4]Delta {
	const id = 1
	pod := Pod{UID: uid, Namespace: "default", Name: uid, Class: 1, Labels: 1, Created: 1}
	return [4]Delta{PodSet{ID: id, Pod: pod}, PodAssumed{ID: id, Node: node, Attempt: 1}, PodBound{ID: id}, PodRemoved{ID: id}}
}

// BenchmarkApply is what the four deltas of a pod's life cost together.
func BenchmarkApply(b *testing.B) {
	s := fleet(b, 5000)
	lives := make([][4]Delta, 4096)
	for k := range lives {
		lives[k] = life(fmt.Sprintf("pod-%d", k), NodeIndex(k))
	}
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		for _, d := range &lives[k%len(lives)] {
			if err := s.Apply(d); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func TestDeltasOfAPodsLifeAllocateNothing(t *testing.T) {
	s := fleet(t, 100)
	deltas := life("pod", 7)
	allocations := testing.AllocsPerRun(100, func() { applyAll(t, s, deltas[:]...) })
	if allocations != 0 {
		t.Errorf("a pod that comes, is assumed, bound and removed: %v allocations, want none", allocations)
	}
}

func TestChangedSinceFindsOneOfManyNodes(t *testing.T) {
	s := fleet(t, 10_000)
	for _, node := range []NodeIndex{0, 63, 64, 4095, 4096, 8191, 9999} {
		for _, r := range []Range{{0, 10_000}, {node, node + 1}, {node - node%64, 10_000}, {0, node + 1}, {max(node-5000, 0), 1 << 20}} {
			before := s.Version().Seq
			applyAll(t, s, PodSet{ID: 1, Pod: Pod{UID: "p", Class: 1, NodeName: s.Nodes.Spec[node].Name}})
			var found []NodeIndex
			s.Nodes.ChangedSince(before, r, func(i NodeIndex) { found = append(found, i) })
			if len(found) != 1 || found[0] != node {
				t.Errorf("node %d has changed, within %v: %v", node, r, found)
			}
			applyAll(t, s, PodRemoved{ID: 1})
		}
	}
}

func TestANodeTakesLittleMemory(t *testing.T) {
	const nodes, limit = 20_000, 380 // bytes; it is 300 or so, by how much room the columns have left
	before := heap()
	s := fleet(t, nodes)
	if each := (heap() - before) / nodes; each > limit {
		t.Errorf("a node takes %d bytes, want at most %d", each, limit)
	}
	runtime.KeepAlive(s)
}

func TestNodesThatHaveTheSameShareIt(t *testing.T) {
	node := func(name, cpu string, taint ...Taint) Node {
		n := Node{Name: name, Labels: []Label{{"b", name}, {"a", "x"}}, Taints: taint, Images: []Image{{Names: []string{"i"}, Size: 1}}}
		n.Allocatable = []Quantity{{strings.Clone("cpu"), int64(len(cpu))}}
		return n
	}
	s := New(Version{Epoch: 1})
	applyAll(t, s,
		NodeSet{0, node("zero", "big")}, NodeSet{1, node("one", "big")},
		NodeSet{2, node("two", "bigger")}, NodeSet{3, node("three", "big", Taint{Key: "t"})}, NodeSet{4, node("four", "big")})
	shapes := map[*NodeShape][]string{}
	for i := range s.Nodes.Spec {
		spec := &s.Nodes.Spec[i]
		shapes[spec.NodeShape] = append(shapes[spec.NodeShape], spec.Name)
	}
	if got := shapes[s.Nodes.Spec[0].NodeShape]; len(shapes) != 3 || !slices.Equal(got, []string{"zero", "one", "four"}) {
		t.Errorf("shapes are shared by %v", shapes)
	}
	want := node("three", "big", Taint{Key: "t"})
	slices.Reverse(want.Labels) // by key
	if got := s.Node(3); !reflect.DeepEqual(got, want) {
		t.Errorf("node 3 is %+v, want %+v", got, want)
	}
}

func TestShapesThatDifferInAnythingAreNotShared(t *testing.T) {
	shape := func(change func(*NodeShape)) *NodeShape {
		s := &NodeShape{
			Taints: []Taint{{"k", "v", "e"}}, Allocatable: []Quantity{{"cpu", 1}},
			Images: []Image{{Names: []string{"i"}, Size: 1}}, Features: []string{"f"},
		}
		change(s)
		return s
	}
	same := shape(func(*NodeShape) {})
	if !same.equal(shape(func(*NodeShape) {})) {
		t.Error("equal shapes differ")
	}
	for name, change := range map[string]func(*NodeShape){
		"taint":         func(s *NodeShape) { s.Taints[0].Value = "" },
		"unschedulable": func(s *NodeShape) { s.Unschedulable = true },
		"allocatable":   func(s *NodeShape) { s.Allocatable[0].Value = 2 },
		"image's size":  func(s *NodeShape) { s.Images[0].Size = 2 },
		"image's name":  func(s *NodeShape) { s.Images[0].Names[0] = "" },
		"feature":       func(s *NodeShape) { s.Features = nil },
	} {
		if same.equal(shape(change)) {
			t.Errorf("shapes that differ in %s are equal", name)
		}
	}
}

// BenchmarkMemory is what a node without pods, and what a pod, takes in a state.
func BenchmarkMemory(b *testing.B) {
	const nodes = 100_000
	for b.Loop() {
		before := heap()
		s := fleet(b, nodes)
		empty := heap()
		for k := range nodes {
			name := fmt.Sprintf("pod-%d", k)
			applyAll(b, s, PodSet{ID: PodID(k + 1), Pod: Pod{
				UID: "01234567-0123-0123-0123-" + name, Namespace: strings.Clone("default"), Name: name, Class: 1, Labels: 1,
				NodeName: strings.Clone(s.Nodes.Spec[k].Name),
			}})
		}
		b.ReportMetric(float64(empty-before)/nodes, "B/node")
		b.ReportMetric(float64(heap()-empty)/nodes, "B/pod")
		runtime.KeepAlive(s)
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkApplyClaims is what the four deltas of a pod's life cost that has claims of its own, on nodes to each of which so many volumes
// are attached.
func BenchmarkApplyClaims(b *testing.B) {
	for _, attached := range []int{0, 30, 300} {
		b.Run(fmt.Sprintf("attached=%d", attached), func(b *testing.B) {
			const nodes = 200
			s := fleet(b, nodes)
			for i := range nodes {
				for k := range attached {
					name := fmt.Sprintf("pv-%d-%d", i, k)
					applyAll(b, s,
						ObjectSet{Object: &PersistentVolume{Name: name, Driver: "d", Handle: "vol-" + name}},
						ObjectSet{Object: &VolumeAttachment{Name: "va-" + name, Attacher: "d", Node: s.Nodes.Spec[i].Name, Volume: name}})
				}
			}
			lives := make([][4]Delta, 512)
			for k := range lives {
				name := fmt.Sprintf("data-%d", k)
				applyAll(b, s,
					ObjectSet{Object: &PersistentVolume{Name: "pv-" + name, Driver: "d", Handle: "vol-pv-" + name}},
					ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: name, Volume: "pv-" + name, Bound: true}},
					LabelsDefined{LabelsID(k + 2), LabelSet{Namespace: "default", Claims: []PodClaim{{Name: name}}}},
					PodSet{ID: PodID(k + 2), Pod: Pod{UID: "keeper-" + name, Class: 1, Labels: LabelsID(k + 2)}})
				lives[k] = life(fmt.Sprintf("pod-%d", k), NodeIndex(k%nodes))
				set := lives[k][0].(PodSet)
				set.Pod.Labels = LabelsID(k + 2)
				lives[k][0] = set
			}
			b.ReportAllocs()
			for k := 0; b.Loop(); k++ {
				for _, d := range &lives[k%len(lives)] {
					if err := s.Apply(d); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// shared returns a state in which so many pods on 5,000 nodes use one claim, each beside one of its own.
func shared(b *testing.B, pods int) *State {
	const nodes = 5000
	s := fleet(b, nodes)
	applyAll(b, s,
		ObjectSet{Object: &StorageClass{Name: "fast", Provisioner: "d"}},
		ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: "shared", Class: "fast", Volume: "pv"}})
	for k := range pods {
		own := fmt.Sprintf("data-%d", k)
		applyAll(b, s,
			ObjectSet{Object: &PersistentVolume{Name: "pv-" + own, Driver: "d", Handle: "vol-" + own}},
			ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: own, Class: "fast", Volume: "pv-" + own}},
			LabelsDefined{LabelsID(k + 2), LabelSet{Namespace: "default", Claims: []PodClaim{{Name: own}, {Name: "shared"}}}},
			PodSet{ID: PodID(k + 2), Pod: Pod{UID: own, Namespace: "default", Class: 1, Labels: LabelsID(k + 2), NodeName: s.Nodes.Spec[k%nodes].Name}})
	}
	return s
}

// BenchmarkSharedVolume is what one delta costs about what so many pods use.
func BenchmarkSharedVolume(b *testing.B) {
	volume := func(handle string, capacity int64) Delta {
		return ObjectSet{Object: &PersistentVolume{Name: "pv", Driver: "d", Handle: handle, Capacity: capacity}}
	}
	gone := ObjectRemoved{ObjectKey{PersistentVolumeKind, "", "pv"}}
	for _, pods := range []int{1000, 10_000, 100_000} {
		s := shared(b, pods)
		class := func(provisioner string) Delta {
			return ObjectSet{Object: &StorageClass{Name: "fast", Provisioner: provisioner}}
		}
		pod := PodSet{ID: 1, Pod: Pod{UID: "one", Namespace: "default", Class: 1, Labels: 2, NodeName: "node-7"}}
		for _, c := range []struct {
			name   string
			before Delta
			deltas [2]Delta
		}{
			{"handle", nil, [2]Delta{volume("a", 1), volume("b", 1)}},
			{"capacity", nil, [2]Delta{volume("a", 1), volume("a", 2)}},
			{"class", gone, [2]Delta{class("d"), class("e")}},
			{"class-of-bound", volume("a", 1), [2]Delta{class("d"), class("e")}},
			{"pod", nil, [2]Delta{pod, PodRemoved{1}}},
		} {
			b.Run(fmt.Sprintf("pods=%d/%s", pods, c.name), func(b *testing.B) {
				if c.before != nil {
					applyAll(b, s, c.before)
				}
				b.ReportAllocs()
				for k := 0; b.Loop(); k++ {
					if err := s.Apply(c.deltas[k%2]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkVolumeOfManyClaims is what one delta costs about a volume that all claims name which each of 200 pods of one label set uses.
func BenchmarkVolumeOfManyClaims(b *testing.B) {
	const pods, claims = 200, 256 // no pod has more that count
	s := fleet(b, pods)
	set := LabelSet{Namespace: "default"}
	for k := range claims {
		name := fmt.Sprintf("data-%d", k)
		set.Claims = append(set.Claims, PodClaim{Name: name})
		applyAll(b, s, ObjectSet{Object: &PersistentVolumeClaim{Namespace: "default", Name: name, Class: "fast", Volume: "pv"}})
	}
	applyAll(b, s, LabelsDefined{2, set})
	for k := range pods {
		applyAll(b, s, PodSet{ID: PodID(k + 2), Pod: Pod{UID: fmt.Sprint(k), Namespace: "default", Class: 1, Labels: 2, NodeName: s.Nodes.Spec[k].Name}})
	}
	handles := [2]string{"a", "b"}
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		applyAll(b, s, ObjectSet{Object: &PersistentVolume{Name: "pv", Driver: "d", Handle: handles[k%2]}})
	}
}
