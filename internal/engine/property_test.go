package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// cuts are random ranges that together are the whole node table.
func cuts(w *world) []cluster.Range {
	n := w.st.Nodes.Len()
	var out []cluster.Range
	for first := 0; first < n; {
		end := first + 64*(1+w.rng.IntN(3))
		if w.chance(10) {
			end = n + 1000
		}
		out = append(out, cluster.Range{First: cluster.NodeIndex(first), End: cluster.NodeIndex(end)})
		first = end
	}
	return out
}

// evaluate asks for the whole table by random ranges.
func evaluate(t fataler, e *Evaluator, w *world, id cluster.ClassID, limit int) (Feasibility, []Group) {
	all := Feasibility{Eligible: cluster.NewBitmap(w.st.Nodes.Len())}
	var verdicts [][]VerdictCount
	var groups [][]Group
	for _, r := range cuts(w) {
		f, ok := e.Filter(w.st, of(id), r)
		if !ok {
			t.Fatalf("Filter: class %d is not known", id)
		}
		shift(all.Eligible, f.Eligible, r.First)
		all.FeasibleCount += f.FeasibleCount
		all.Nodes += f.Nodes
		verdicts = append(verdicts, f.Verdicts)
		g, ok := e.Score(w.st, of(id), r, f.Eligible, limit)
		if !ok {
			t.Fatalf("Score: class %d is not known", id)
		}
		groups = append(groups, g)
	}
	all.Verdicts = MergeVerdicts(verdicts...)
	return all, MergeGroups(TieSeed(w.st, id), limit, groups...)
}

// expected is what the oracle finds.
func expected(o oracle, limit int) (Feasibility, []Group) {
	all := Feasibility{Eligible: cluster.NewBitmap(o.st.Nodes.Len())}
	var verdicts []VerdictCount
	for i := range cluster.NodeIndex(o.st.Nodes.Len()) {
		if !o.st.Nodes.Live.Has(i) {
			continue
		}
		all.Nodes++
		f := o.filter(i)
		if f == nil {
			all.Eligible.Set(i)
			all.FeasibleCount++
			continue
		}
		for _, reason := range f.reasons {
			k := slices.IndexFunc(verdicts, func(v VerdictCount) bool {
				return v.Plugin == f.plugin && v.Reason == reason && v.Unresolvable == f.unresolvable
			})
			if k < 0 {
				k = len(verdicts)
				verdicts = append(verdicts, VerdictCount{Plugin: f.plugin, Reason: reason, Unresolvable: f.unresolvable})
			}
			verdicts[k].Count++
			if len(verdicts[k].Examples) < 3 {
				verdicts[k].Examples = append(verdicts[k].Examples, o.st.Nodes.Spec[i].Name)
			}
		}
	}
	all.Verdicts = verdicts
	groups := o.groups()
	for k := range groups {
		groups[k].Nodes = groups[k].Nodes[:min(limit, len(groups[k].Nodes))]
	}
	return all, groups
}

var verdictsInAnyOrder = cmpopts.SortSlices(func(a, b VerdictCount) bool {
	if a.Reason != b.Reason {
		return a.Reason < b.Reason
	}
	return !a.Unresolvable && b.Unresolvable
})

func TestIncrementalEvaluationOverAnyRangesEqualsEvaluatingEveryNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 260).Draw(t, "width"), rapid.IntRange(1, 5).Draw(t, "classes"))
		e := NewEvaluator(EvaluatorConfig{Parallelism: rapid.IntRange(1, 3).Draw(t, "parallelism"), MaxEvaluations: rapid.IntRange(2, 8).Draw(t, "maxEvaluations")})
		e.spanNodes, e.reserve = 64, rapid.IntRange(1, 3).Draw(t, "reserve")
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			for range w.rng.IntN(12) {
				w.step(t, true)
			}
			if w.chance(20) {
				w.addClass(t)
			}
			for _, id := range w.classes {
				if w.chance(30) {
					continue // so that some classes have more to catch up with
				}
				limit := 1 + w.rng.IntN(50)
				o := oracle{w.st, &w.st.Class(id).Spec}
				wantF, wantG := expected(o, limit)
				gotF, gotG := evaluate(t, e, w, id, limit)
				if diff := cmp.Diff(wantF, gotF, cmpopts.EquateEmpty(), verdictsInAnyOrder); diff != "" {
					t.Fatalf("feasibility of class %d %+v (-want +got):\n%s", id, o.spec, diff)
				}
				if diff := cmp.Diff(wantG, gotG, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("groups of class %d %+v (-want +got):\n%s", id, o.spec, diff)
				}
			}
		}
	})
}

func TestPlacerChoosesTheBestNodeOfTheLiveState(t *testing.T) {
	var placed, retries, noFits int
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 100).Draw(t, "width"), rapid.IntRange(1, 4).Draw(t, "classes"))
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		limit := pick(w, 1, 3, 10, 1000)
		evaluated := w.st.Version().Seq
		nodesChange := rapid.Bool().Draw(t, "nodes change")
		var candidates []Candidates
		for _, id := range w.classes {
			_, groups := evaluate(t, e, w, id, limit)
			candidates = append(candidates, Candidates{Subject: of(id), Groups: groups})
			if w.chance(30) {
				w.step(t, nodesChange) // the next class is evaluated at a later version
			}
		}
		for range w.rng.IntN(20) {
			w.step(t, nodesChange)
		}
		p := NewPlacer(e, w.st, evaluated, candidates)
		for range rapid.IntRange(1, 25).Draw(t, "pods") {
			k := w.rng.IntN(len(w.classes))
			o := oracle{w.st, &w.st.Class(w.classes[k]).Spec}
			want := o.best()
			node, placement := p.Place(k)
			switch placement {
			case Placed:
				placed++
				if node != want {
					t.Fatalf("class %+v placed on %d, want %d; groups now:\n%scandidates:\n%s", o.spec, node, want, describe(o.groups()), describe(candidates[k].Groups))
				}
				pod := w.addPod(t, w.classes[k], "")
				apply(t, w.st, cluster.PodAssumed{ID: pod, Node: node, Attempt: 1})
			case NoFit:
				noFits++
				if want != cluster.NoNode {
					t.Fatalf("class %+v does not fit, want node %d", o.spec, want)
				}
			case Retry:
				retries++
				complete := !slices.ContainsFunc(candidates[k].Groups, func(g Group) bool { return g.truncated() })
				if complete {
					t.Fatalf("class %+v is to be retried, though its candidates are complete; want node %d", o.spec, want)
				}
			}
			if w.chance(20) {
				w.step(t, nodesChange && w.chance(10)) // somebody else's delta in between
			}
			if required := w.randomNode(); required != cluster.NoNode && w.chance(10) {
				want := Placed
				if (oracle{w.st, o.spec}).filter(required) != nil {
					want = NoFit
				}
				if got := p.PlaceOn(of(w.classes[k]), cluster.NoPod, required); got != want {
					t.Fatalf("class %+v required on %d: %v, want %v", o.spec, required, got, want)
				}
			}
		}
	})
	if placed == 0 || retries == 0 || noFits == 0 {
		t.Errorf("placed %d, retried %d, did not fit %d: want some of each", placed, retries, noFits)
	}
}

func TestImagesAndNodesThatChangeBetweenEvaluationAndCommitChangeNoChoice(t *testing.T) {
	var placed, moved, retries int
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(2, 60).Draw(t, "width"), 0)
		for range rapid.IntRange(1, 3).Draw(t, "classes") {
			w.addClassWithImages(t)
		}
		workers := []*Evaluator{NewEvaluator(EvaluatorConfig{Parallelism: 1}), NewEvaluator(EvaluatorConfig{Parallelism: 1})}
		binder := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		limit := pick(w, 1, 2, 5, 1000)
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			// 1. Each range is evaluated by a worker at a version of its own.
			evaluated := w.st.Version().Seq
			var candidates []Candidates
			for _, id := range w.classes {
				var parts [][]Group
				for _, r := range cuts(w) {
					e := pick(w, workers...)
					f, _ := e.Filter(w.st, of(id), r)
					groups, _ := e.Score(w.st, of(id), r, f.Eligible, limit)
					parts = append(parts, groups)
					w.churn(t)
				}
				candidates = append(candidates, Candidates{Subject: of(id), Groups: MergeGroups(TieSeed(w.st, id), limit, parts...)})
			}
			// 2. Pods are placed while images and nodes go on changing.
			p := NewPlacer(binder, w.st, evaluated, candidates)
			for range rapid.IntRange(1, 10).Draw(t, "pods") {
				for range w.rng.IntN(4) {
					w.churn(t)
				}
				k := w.rng.IntN(len(w.classes))
				o := oracle{w.st, &w.st.Class(w.classes[k]).Spec}
				want := o.best()
				node, placement := p.Place(k)
				truncated := slices.ContainsFunc(candidates[k].Groups, func(g Group) bool { return g.truncated() })
				switch {
				case placement == Placed && node == want:
					placed++
					for _, g := range o.groups() {
						was := slices.IndexFunc(candidates[k].Groups, func(h Group) bool { return h.Raw == g.Raw })
						if was >= 0 && candidates[k].Groups[was].OfImages != g.OfImages {
							moved++
							break
						}
					}
					apply(t, w.st, cluster.PodAssumed{ID: w.addPod(t, w.classes[k], ""), Node: node, Attempt: 1})
				case placement == NoFit && want == cluster.NoNode:
				case placement == Retry && truncated:
					retries++
				default:
					t.Fatalf("class %+v: %v on %d, want node %d; groups now:\n%scandidates:\n%s", o.spec, placement, node, want, describe(o.groups()), describe(candidates[k].Groups))
				}
			}
		}
	})
	if placed == 0 || moved == 0 || retries == 0 {
		t.Errorf("placed %d, of them %d after scores of images had moved, retried %d: want some of each", placed, moved, retries)
	}
}

func TestClassesOfManyImagesAreScoredAsThoseOfFew(t *testing.T) {
	for _, images := range []int{7, 8, 9, 16, 17, 128, 129, 300} {
		spec := cluster.ClassSpec{SchedulerName: "default", ImageContainers: int32(images)}
		for k := range images {
			spec.Images = append(spec.Images, fmt.Sprint("app-", k), "app-0")
		}
		w := newWorld(t, uint64(images), 40, 0)
		w.classes = []cluster.ClassID{10}
		apply(t, w.st, cluster.ClassDefined{ID: 10, Spec: spec})
		w.keepers[w.addPod(t, 10, "")] = true
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		for range 5 {
			for i := range cluster.NodeIndex(20) {
				node := cluster.Node{Name: fmt.Sprint("n", i), Allocatable: append(requests(4000, 4000), cluster.Quantity{Name: "pods", Value: 10})}
				for k := range images {
					if w.chance(50) {
						node.Images = append(node.Images, cluster.Image{Names: []string{fmt.Sprint("app-", k)}, Size: int64(k+1) * 90 * mib})
					}
				}
				apply(t, w.st, cluster.NodeSet{Index: i, Node: node})
				if _, want := expected(oracle{w.st, &spec}, 5); i%5 == 4 {
					if len(want) < 2 {
						t.Fatalf("%d groups, want some that differ in images", len(want))
					}
					if _, got := evaluate(t, e, w, 10, 5); !cmp.Equal(want, got, cmpopts.EquateEmpty()) {
						t.Fatalf("%d images: groups (-want +got):\n%s", images, cmp.Diff(want, got, cmpopts.EquateEmpty()))
					}
				}
			}
		}
	}
}
