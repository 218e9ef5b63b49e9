package pluginhost

import (
	"fmt"
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// What a column follows is what each answer says by itself, whatever has changed: pods and nodes, the service, and which nodes it was asked about since.
func TestWhatIsFollowedIsWhatEachAnswerSays(t *testing.T) {
	for name, depends := range map[string]*pluginv1.Dependencies{"nothing": {}, "pods": {Pods: true}} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Depends: depends}}}
			s.answer = func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
				out := honest(r)
				for k, a := range out.Answers { // by nothing that it is told
					a.Refusals = []*pluginv1.Refusal{{Plugin: "P", Reason: "it is so"}}
					for n, i := range r.GetQuestions()[k].GetNodes() {
						a.Verdicts = append(a.Verdicts, uint32(bits.OnesCount64(uint64(i)*uint64(r.GetId()+1))&1))
						a.Scores[0].Scores[n] = i % 7
					}
				}
				return out, nil
			}
			h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
			zone := []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: "z"}}
			rapid.Check(t, func(rt *rapid.T) {
				h.End(0) // of the check before
				st, subjects := world(t, rapid.IntRange(1, 150).Draw(rt, "nodes"))
				apply := func(d cluster.Delta) {
					if err := st.Apply(d); err != nil {
						rt.Fatal(err)
					}
				}
				node := func() cluster.NodeIndex {
					return cluster.NodeIndex(rapid.IntRange(0, st.Nodes.Len()-1).Draw(rt, "node"))
				}
				apply(cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Labels: zone}})
				apply(cluster.LabelsDefined{ID: 2, Set: cluster.LabelSet{Labels: []cluster.Label{{Key: "app", Value: "web"}}}})
				for id := cluster.LabelsID(1); id <= 2; id++ { // so that the labels stay
					apply(cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint("has", id), Class: subjects[0].Class, Labels: id}})
				}
				placed := make(map[cluster.PodID]bool)
				for range rapid.IntRange(1, 20).Draw(rt, "steps") {
					for range rapid.IntRange(0, 3).Draw(rt, "changes") {
						switch i := node(); rapid.IntRange(0, 6).Draw(rt, "change") {
						case 0:
							id := st.FreePod()
							if st.Nodes.Live.Has(i) {
								apply(cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("on", st.Version().Seq), Class: subjects[0].Class, NodeName: st.Nodes.Spec[i].Name}})
								placed[id] = true
							}
						case 1:
							for id := range placed {
								delete(placed, id)
								apply(cluster.PodRemoved{ID: id})
								break
							}
						case 2:
							if st.Nodes.Live.Has(i) {
								apply(cluster.NodeRemoved{Index: i})
							} else {
								apply(cluster.NodeSet{Index: i, Node: cluster.Node{Name: fmt.Sprint("again", st.Version().Seq), Labels: zone}})
							}
						case 3:
							h.services[0].changes.hear([]string{st.Nodes.Spec[i].Name}, false)
						case 4:
							h.services[0].changes.hear(nil, rapid.IntRange(0, 9).Draw(rt, "all") == 0)
						case 5:
							free := st.Nodes.Free()
							apply(cluster.NodeSet{Index: free, Node: cluster.Node{Name: fmt.Sprint("new", st.Version().Seq), Labels: zone}})
						case 6:
							for id := range placed {
								pod := st.Pod(id).Pod
								pod.Labels = cluster.LabelsID(rapid.IntRange(0, 2).Draw(rt, "labels"))
								apply(cluster.PodSet{ID: id, Pod: pod})
								break
							}
						}
					}
					k, err := h.Begin(t.Context(), st.Version().Epoch, "default-scheduler")
					if err != nil {
						rt.Fatal(err)
					}
					var nodes []cluster.NodeIndex
					share := rapid.IntRange(0, 4).Draw(rt, "share")
					for i := range cluster.NodeIndex(st.Nodes.Len()) {
						if st.Nodes.Live.Has(i) && rapid.IntRange(0, 4).Draw(rt, "asked") < share {
							nodes = append(nodes, i)
						}
					}
					k.Collect(st, subjects[0], nodes)
					if rapid.Bool().Draw(rt, "meanwhile") && st.Nodes.Live.Has(0) {
						apply(cluster.NodeSet{Index: 0, Node: cluster.Node{Name: st.Nodes.Spec[0].Name, Unschedulable: rapid.Bool().Draw(rt, "unschedulable")}})
					}
					if err := k.Exchange(t.Context()); err != nil {
						rt.Fatal(err)
					}
					if rapid.Bool().Draw(rt, "nobody looks") {
						continue
					}
					k.notes(st)
					is, c := h.services[0].session, k.parts[0].kind.column
					if rapid.IntRange(0, 9).Draw(rt, "forgets") == 0 {
						is.forgetAnswers(c)
					}
					if !is.follow(c, st, k.now()) {
						rt.Fatal("it is not followed")
					}
					for i := range cluster.NodeIndex(st.Nodes.Len()) {
						holds := is.holds(c, st, i, k.now())
						refuses := holds && c.answers[i].verdict != 0
						if c.following.holds.Has(i) != holds || c.following.refuses.Has(i) != refuses {
							rt.Fatalf("node %d: holds %v and refuses %v, want %v and %v", i, c.following.holds.Has(i), c.following.refuses.Has(i), holds, refuses)
						}
					}
				}
			})
		})
	}
}

// Nodes that change for the service while nobody looks are found, however many they are.
func TestColumnsFollowHoweverMuchIsHeard(t *testing.T) {
	s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true}}}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	st, subjects := world(t, 3)
	for _, times := range []int{1, mostHeard - 1, mostHeard, mostHeard + 1, 2*mostHeard + 1} {
		k, err := judge(t, h, st, subjects[0])
		if err != nil {
			t.Fatal(err)
		}
		is, c := h.services[0].session, k.parts[0].kind.column
		if is.follow(c, st, k.now()); c.following.holds.Count() != 3 {
			t.Fatalf("%d answers hold, want 3", c.following.holds.Count())
		}
		for range times {
			h.services[0].changes.hear([]string{"n1"}, false)
			k.notes(st)
		}
		if is.follow(c, st, k.now()); c.following.holds.Has(1) {
			t.Errorf("%d times heard: the answer of before holds", times)
		}
		if n := len(is.heard); n > mostHeard {
			t.Errorf("%d times heard: %d are kept", times, n)
		}
	}
}
