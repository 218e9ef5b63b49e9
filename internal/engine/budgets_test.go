package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// guarded is a cluster of full nodes whose pods have labels of their own, with so many budgets in their namespace, and a pod of a higher
// priority that fits nowhere. Everybody: each budget protects all pods; else those of one app.
func guarded(t fataler, nodes, podsOnEach, budgets int, everybody bool) (*cluster.State, cluster.PodID) {
	st := cluster.New(cluster.Version{Epoch: 1})
	profile := DefaultProfile("")
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}},
		cluster.ClassDefined{ID: testClass, Spec: cluster.ClassSpec{Requests: requests(1000, 100)}},
		cluster.ClassDefined{ID: otherClass, Spec: cluster.ClassSpec{Requests: requests(int64(1000/podsOnEach), 1)}})
	for i := range nodes {
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprint("node-", i), Allocatable: requests(1000, 1000, quantity("pods", 110))}})
		for k := range podsOnEach {
			id := st.FreePod()
			app := fmt.Sprint("app-", int(id)%max(budgets, 1))
			apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(id + 1), Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{
				{Key: "app", Value: app}, {Key: "pod", Value: fmt.Sprint(id)}}}},
				cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id), Name: fmt.Sprint("pod-", id), Namespace: "default", Class: otherClass, Labels: cluster.LabelsID(id + 1),
					NodeName: fmt.Sprint("node-", i), Started: int64(k)}})
		}
	}
	for k := range budgets {
		selector := selects("app", "In", fmt.Sprint("app-", k))
		if everybody {
			selector = selects("app", "NotIn", fmt.Sprint("never-", k))
		}
		apply(t, st, budget(fmt.Sprint("budget-", k), int32(k%3), selector))
	}
	id := st.FreePod()
	apply(t, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "urgent", Name: "urgent", Namespace: "other", Class: testClass, Priority: 10}})
	return st, id
}

// BenchmarkDryRunBesideManyBudgets looks for room for a pod on nodes of 10 pods each, with 10,000 budgets in their namespace.
func BenchmarkDryRunBesideManyBudgets(b *testing.B) {
	for name, everybody := range map[string]bool{"one for each app": false, "all for all": true} {
		b.Run(name, func(b *testing.B) {
			st, id := guarded(b, 200, 10, 10_000, everybody)
			for b.Loop() {
				b.StopTimer()
				apply(b, st, budget("another", 1, selects("app", "In", "nobody"))) // so that it is not remembered
				e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
				b.StartTimer()
				if out, _ := e.DryRun(st, id, everything(st), 1); out.Count != 200 {
					b.Fatalf("%+v", out)
				}
			}
		})
	}
}

func TestAPodIsComparedOnlyWithBudgetsThatAskForALabelOfIts(t *testing.T) {
	st, _ := guarded(t, 1, 1, 1000, false)
	apply(t, st, budget("whoever", 1, selects("pod", "Exists")))
	var b budgets
	space := b.space(st, "default")
	if got := len(space.candidates(st.Labels(1))); len(space.all) != 1001 || got != 2 {
		t.Errorf("of %d budgets %d are compared with a pod, want that of its app and the one for all", len(space.all), got)
	}
	if b.space(st, "default") != space {
		t.Error("the budgets are looked through again, though none has changed")
	}
	apply(t, st, budget("another", 1, selects("pod", "Exists")))
	if got := len(b.space(st, "default").selecting(st.Labels(1))); got != 3 {
		t.Errorf("%d budgets select the pod when another has come, want 3", got)
	}
}

// As each pod goes, every budget is asked.
func TestBudgetsAreChargedAsIfAllWereAskedOfEachPod(t *testing.T) {
	outcomes := make(map[bool]int)
	word := rapid.SampledFrom([]string{"a", "b", "c"})
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		apply(t, st, cluster.ClassDefined{ID: testClass})
		var pods []cluster.PodID
		for k := range rapid.IntRange(1, 8).Draw(t, "pods") {
			set := cluster.LabelSet{Namespace: rapid.SampledFrom([]string{"default", "other"}).Draw(t, "namespace")}
			for _, key := range slices.Sorted(slices.Values(rapid.SliceOfNDistinct(word, 0, 2, rapid.ID).Draw(t, "keys"))) {
				set.Labels = append(set.Labels, cluster.Label{Key: key, Value: word.Draw(t, "value")})
			}
			pods = append(pods, cluster.PodID(k))
			apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set}, cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{
				UID: fmt.Sprint(k), Name: word.Draw(t, "name"), Namespace: set.Namespace, Class: testClass, Labels: cluster.LabelsID(k + 1)}})
		}
		for k := range rapid.IntRange(0, 6).Draw(t, "budgets") {
			b := &cluster.Budget{Namespace: "default", Name: fmt.Sprint("budget-", k), Allowed: rapid.Int32Range(0, 2).Draw(t, "allowed")}
			b.Selector.Nothing = rapid.IntRange(0, 9).Draw(t, "nothing") == 0
			for range rapid.IntRange(0, 2).Draw(t, "requirements") {
				r := cluster.Requirement{Key: word.Draw(t, "key"), Operator: rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
				if r.Operator == "In" || r.Operator == "NotIn" {
					r.Values = rapid.SliceOfN(word, 1, 3).Draw(t, "values")
				}
				b.Selector.Requirements = append(b.Selector.Requirements, r)
			}
			if rapid.Bool().Draw(t, "counted") {
				b.Disrupted = []string{word.Draw(t, "disrupted")}
			}
			apply(t, st, cluster.ObjectSet{Object: b})
		}
		left := make(map[string]int32)
		for b := range st.Budgets("default") {
			left[b.Name] = b.Allowed
		}
		var account Disruptions
		for _, id := range pods {
			pod := st.Pod(id)
			var want, got []string
			for b := range st.Budgets("default") {
				if labels := st.Labels(pod.Labels); len(labels.Labels) > 0 && b.Protects(pod.Name, &labels.LabelSet) {
					if left[b.Name] <= 0 {
						want = append(want, b.Name)
					}
					left[b.Name]--
				}
			}
			for _, b := range account.Charge(st, pod, nil) {
				got = append(got, b.Name)
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("pod %d is refused by (-want +got):\n%s", id, diff)
			}
			outcomes[len(got) > 0]++
		}
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}

// Readers hold two states while a new one is loaded, and there would be a third.
func TestAnEvaluatorKeepsNothingOfAStateThatItHasLeft(t *testing.T) {
	was, urgent := guarded(t, 3, 2, 4, false)
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	if out, _ := e.DryRun(was, urgent, everything(was), 1); out.Count != 3 || e.budgets.st != was {
		t.Fatalf("%+v, budgets of %p", out, e.budgets.st)
	}
	is := was.Clone()
	e.Filter(is, SubjectOf(&is.Pod(urgent).Pod), everything(is))
	if e.st != is || e.budgets.st != nil || e.budgets.spaces != nil {
		t.Errorf("it is of %p, and keeps budgets of %p", e.st, e.budgets.st)
	}
}
