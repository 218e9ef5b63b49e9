package yoda

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

func TestACardWithTooManyPodsIsFreeForNobodyAsLongAsItHas(t *testing.T) {
	b := bookOf(titan("a", 0), titan("b", 1))
	shared := &Request{Number: 2, MemoryMiB: 1, Share: true}
	b.SetPod("p", "n", gpus("a"))
	b.SetPod("q", "n", gpuShares(100, "a"))
	wantRefused(t, b, shared, ReasonTaken, false)
	if got := b.Conflicts(); len(got) != 1 || got[0].Node != "n" || got[0].Card != "GPU-a" || !slices.Equal(got[0].Pods, []types.UID{"p", "q"}) {
		t.Errorf("conflicts %+v, want p and q on a", got)
	}
	b.RemovePod("p")
	wantChosen(t, b, shared, "a b") // as after a restart, when nobody knows of p
	b.RemovePod("q")
	wantChosen(t, b, shared, "a b")
	if got := b.Conflicts(); len(got) != 0 {
		t.Errorf("conflicts %+v of pods that are gone", got)
	}

	b.SetPod("p", "n", gpuShares(12000, "b"))
	b.SetPod("q", "n", gpuShares(194, "b"))
	if got := b.Conflicts(); len(got) != 0 {
		t.Errorf("conflicts %+v of pods that have what there is", got)
	}
	b.SetPod("q", "n", gpuShares(195, "b"))
	if got := b.Conflicts(); len(got) != 1 {
		t.Errorf("conflicts %+v, want one of pods that have more than there is", got)
	}
	wantRefused(t, b, shared, ReasonTaken, false)
	b.SetPod("q", "n", gpuShares(193, "b"))
	wantChosen(t, b, shared, "a b")

	late := NewBook() // the pods are told of before the cards
	late.SetNode("n", Facts{})
	late.SetPod("p", "n", gpuShares(12000, "a"))
	late.SetPod("q", "n", gpuShares(12000, "a"))
	late.SetStatus("n", statusOf(titan("a", 0)), start)
	if got := late.Conflicts(); len(got) != 1 {
		t.Errorf("conflicts %+v, want one of pods that have more than the card turns out to have", got)
	}
}

func TestMemoryBelowZeroIsAllOfACard(t *testing.T) {
	b := bookOf(titan("a", 0))
	b.SetPod("p", "n", gpuShares(-5000, "a"))
	wantRefused(t, b, &Request{Number: 1, MemoryMiB: 1, Share: true}, ReasonTaken, false)
	if c := b.View("n").Cards()[0]; !c.Whole || c.PromisedMiB != 0 {
		t.Errorf("%+v, want it whole", c)
	}
	b.SetPod("q", "n", gpuShares(1<<62, "a"))
	if c := b.View("n").Cards()[0]; c.PromisedMiB != maxAmount {
		t.Errorf("%d MiB are promised, want %d", c.PromisedMiB, maxAmount)
	}
}

func TestNobodyFreesWhatIsHeldByAnother(t *testing.T) {
	one := &Request{Number: 1}
	type stream struct{ n int }
	x, y := stream{1}, stream{2}
	b := bookOf(titan("a", 0), titan("b", 1))
	for _, token := range []Token{x, y, x} {
		if g, refusal := b.Give(token, "p", "n", one, nil, start); refusal != nil || !g.Equal(gpus("a")) {
			t.Fatalf("p is given %v, %v, want a", g, refusal)
		}
	}
	if got := b.Conflicts(); len(got) != 0 {
		t.Errorf("conflicts %+v of one pod", got)
	}
	if c := b.View("n").Cards()[0]; c.Holders != 1 {
		t.Errorf("%d pods have a, want 1", c.Holders)
	}
	b.Release(x)
	wantChosen(t, b, one, "b")
	b.SetPod("p", "n", gpus("a"))
	b.Release(y)
	b.Release(y)
	wantChosen(t, b, one, "b")
	if g, refusal := b.Give(x, "p", "n", &Request{Number: 2}, nil, start); refusal != nil || !g.Equal(gpus("a")) {
		t.Errorf("p, which has a, is given %v, %v", g, refusal)
	}
	b.RemovePod("p")
	wantChosen(t, b, one, "b")
	b.Release(x)
	wantChosen(t, b, &Request{Number: 2}, "a b")

	b.Reserve(x, "p", "n", gpus("a"))
	b.SetPod("p", "n", gpus("b"))
	b.SetPod("p", "m", gpus("c")) // only b is free by that
	wantChosen(t, b, one, "b")
	wantRefused(t, b, &Request{Number: 2}, ReasonTaken, false)
	b.RemovePod("p")
	wantRefused(t, b, &Request{Number: 2}, ReasonTaken, false)
	if pod, node, g, ok := b.Reserved(x); pod != "p" || node != "n" || !g.Equal(gpus("a")) || !ok {
		t.Errorf("reserved is %v of %s for %s, %v", g, node, pod, ok)
	}
	b.Reserve(x, "q", "n", gpus("b")) // the token is used again
	wantChosen(t, b, one, "a")
}

func TestGiveChangesNothingIfItRefuses(t *testing.T) {
	b := bookOf(titan("a", 0))
	b.SetNode("m", Facts{})
	if g, refusal := b.Give(1, "p", "n", nil, nil, start); len(g.Cards) > 0 || refusal != nil {
		t.Errorf("a pod that asks for no card is given %v, %v", g, refusal)
	}
	if _, _, _, ok := b.Reserved(1); ok {
		t.Error("nothing is reserved, and noted")
	}
	g, _ := b.Give(1, "p", "n", &Request{Number: 1}, nil, start)
	g.Cards[0] = "GPU-b" // it is the caller's
	g, _ = b.Give(1, "p", "n", &Request{Number: 1}, nil, start)
	g.Cards[0] = "GPU-c"
	for node, reason := range map[string]string{"m": ReasonNoCollector, "elsewhere": ReasonUnknown} {
		if _, refusal := b.Give(1, "p", node, &Request{Number: 1}, nil, start); refusal == nil || refusal.Reason != reason {
			t.Errorf("%s refuses with %+v", node, refusal)
		}
	}
	if _, refusal := b.Give(2, "q", "n", &Request{Number: 1}, nil, start); refusal == nil || refusal.Reason != ReasonTaken {
		t.Errorf("q is refused with %+v", refusal)
	}
	if pod, node, g, ok := b.Reserved(1); pod != "p" || node != "n" || !ok || !g.Equal(gpus("a")) {
		t.Errorf("reserved is %v of %s for %s, %v", g, node, pod, ok)
	}
	if nodes, pods, reservations := b.Len(); nodes != 2 || pods != 0 || reservations != 1 {
		t.Errorf("%d nodes, %d pods and %d reservations", nodes, pods, reservations)
	}
	b.SetPod("r", "n", Grant{})
	if _, refusal := b.Give(3, "r", "n", &Request{Number: 1}, nil, start); refusal == nil || refusal.Reason != ReasonAwaited {
		t.Errorf("a pod that is awaited is refused with %+v", refusal)
	}
}

func TestGrantsOutliveWhatIsSaidOfTheirCards(t *testing.T) {
	b := bookOf(titan("a", 0))
	b.SetPod("p", "n", gpus("a", "gone"))
	b.SetStatus("n", statusOf(), start)
	b.RemoveStatus("n")
	b.RemoveNode("n")
	if nodes, pods, _ := b.Len(); nodes != 1 || pods != 1 {
		t.Errorf("%d nodes and %d pods, want one of each", nodes, pods)
	}
	b.SetNode("n", Facts{})
	b.SetStatus("n", statusOf(titan("a", 0), titan("gone", 1)), start)
	wantRefused(t, b, &Request{Number: 1}, ReasonTaken, false)
	if node, g, ok := b.Told("p"); !ok || node != "n" || !g.Equal(gpus("a", "gone")) {
		t.Errorf("p has %v of %s, %v", g, node, ok)
	}
}

func TestABookForgetsWhatIsGone(t *testing.T) {
	b := NewBook()
	for i := range 100 {
		node := "n" + strconv.Itoa(i%10)
		b.SetNode(node, Facts{})
		b.SetStatus(node, statusOf(titan("a", 0)), start)
		pod := types.UID("p" + strconv.Itoa(i))
		b.SetPod(pod, "n"+strconv.Itoa(i%7), Grant{})
		b.SetPod(pod, node, Grant{})
		b.SetPod(pod, node, gpuShares(int64(i%2), "a", "a", "x"))
		b.Reserve(i, pod, "n"+strconv.Itoa(i%3), gpus("a"))
	}
	count := 0
	for pod, node := range b.Pods() {
		if i, _ := strconv.Atoi(string(pod[1:])); node != "n"+strconv.Itoa(i%10) {
			t.Errorf("%s is on %s", pod, node)
		}
		b.RemovePod(pod)
		b.RemovePod(pod)
		count++
	}
	if count != 100 {
		t.Errorf("there were %d pods, want 100", count)
	}
	for i := range 100 {
		b.Release(i)
		b.Release(i)
	}
	for i := range 10 {
		node := "n" + strconv.Itoa(i)
		if e := b.nodes[node]; len(e.pods) != 0 {
			t.Errorf("%s still has %d pods", node, len(e.pods))
		}
		b.RemoveNode(node)
		b.RemoveStatus(node)
		b.RemoveNode(node)
	}
	if nodes, pods, reservations := b.Len(); nodes != 0 || pods != 0 || reservations != 0 || len(b.tellers) != 0 {
		t.Errorf("%d nodes, %d pods, %d reservations and %d cards are left", nodes, pods, reservations, len(b.tellers))
	}
}

func TestAPodOfWhichItIsKnownWhatItHasIsNotAwaited(t *testing.T) {
	b := bookOf(titan("a", 0), titan("b", 1))
	wantAwaited := func(want ...Awaited) {
		t.Helper()
		if got := b.Awaited(); !slices.Equal(got, want) {
			t.Errorf("awaited are %v, want %v", got, want)
		}
	}
	b.SetPod("p", "n", Grant{})
	b.SetPod("p", "n", Grant{MemoryMiB: -1})
	if node, g, ok := b.Told("p"); !ok || node != "n" || len(g.Cards) > 0 {
		t.Errorf("an awaited pod has %v of %s, %v", g, node, ok)
	}
	wantRefused(t, b, &Request{Number: 1}, ReasonAwaited, false)
	wantAwaited(Awaited{"n", "p"})
	b.Reserve(1, "p", "n", gpus("a")) // does not say who has placed it
	wantRefused(t, b, &Request{Number: 1}, ReasonAwaited, false)
	b.SetPod("p", "n", gpus("a"))
	wantChosen(t, b, &Request{Number: 1}, "b")
	wantAwaited()
	b.Release(1)
	b.SetPod("p", "n", Grant{})
	wantRefused(t, b, &Request{Number: 1}, ReasonAwaited, false)
	b.Reserve(1, "q", "n", Grant{}) // of no cards is as good as of any
	b.Reserve(2, "q", "n", Grant{})
	b.Reserve(3, "o", "n", Grant{})
	b.SetPod("p", "elsewhere", Grant{})
	wantAwaited(Awaited{"elsewhere", "p"}, Awaited{"n", "o"}, Awaited{"n", "q"})
	wantRefused(t, b, &Request{Number: 1}, ReasonAwaited, false)
	for token := range 4 {
		b.Release(token)
	}
	b.SetPod("p", "elsewhere", gpus("a"))
	wantChosen(t, b, &Request{Number: 2}, "a b")
}

func TestAViewDoesNotChange(t *testing.T) {
	b := bookOf(titan("a", 0))
	before := b.View("n")
	b.SetPod("p", "n", gpus("a"))
	if got, refusal := Choose(before, &Request{Number: 1}, nil, start); refusal != nil || idsOf(got) != "a" {
		t.Errorf("of a view that was taken before: %v, %v", idsOf(got), refusal)
	}
	if after := b.View("n"); after == before || after != b.View("n") {
		t.Error("a view is not made once after each change")
	}
	if got, refusal := Choose(b.View("n"), nil, nil, start); got != nil || refusal != nil {
		t.Errorf("a pod that asks for no card gets %v, %v", got, refusal)
	}
	two := b.View("n")
	b.SetPod("q", "n", gpuShares(5, "a"))
	b.RemovePod("p")
	if c := two.Without("q").Cards()[0]; c.Holders != 1 {
		t.Errorf("%d pods have a card of a view that was taken when one had it", c.Holders)
	}
	b.Reserve(1, "q", "n", gpuShares(6, "a"))
	b.Reserve(2, "q", "n", gpuShares(7, "a"))
	two = b.View("n")
	b.RemovePod("q")
	b.Release(1)
	if c := two.Without("p").Cards()[0]; c.PromisedMiB != 7 || c.Holders != 1 {
		t.Errorf("%d pods have %d MiB, want one, and the most that it had by any claim", c.Holders, c.PromisedMiB)
	}
	b.SetPod("o", "n", gpus("b"))
	if c := two.Without("q").Cards()[0]; c.PromisedMiB != 0 || c.Holders != 0 {
		t.Errorf("without the only one, %d pods have %d MiB", c.Holders, c.PromisedMiB)
	}
	two = b.View("n")
	b.Release(2)
	if c := two.Without("o").Cards()[0]; c.PromisedMiB != 7 {
		t.Errorf("%d MiB are promised in a view that was taken when 7 were", c.PromisedMiB)
	}
	var all sync.WaitGroup // that several may ask at a time the race detector sees
	for range 4 {
		all.Go(func() { b.View("n").Without("q"); b.Conflicts(); b.Stale("n", start) })
	}
	all.Wait()
}

// TestABookKnowsWhoHasWhatWhateverItIsTold compares it with lists, when grants overlap, pods move, and nodes, collectors and cards come and go.
func TestABookKnowsWhoHasWhatWhateverItIsTold(t *testing.T) {
	most := 0 // conflicts at a time
	rapid.Check(t, func(t *rapid.T) {
		type claimed struct {
			pod  types.UID
			node string
			Grant
		}
		b := NewBook()
		claims := map[any]claimed{} // of told pods by UID, and of reservations by token
		cards := map[string][]v1alpha1.Card{}
		exists := map[string]bool{}
		ids := []string{"a", "b", "c"}
		nodes := []string{"m", "n"}
		// has returns which pods have a card, how many of them all of it, and the memory of the others.
		has := func(node, id string) (pods []types.UID, whole int, sum int64) {
			for _, pod := range []types.UID{"p", "q", "r", "s"} {
				mib := int64(-1)
				for _, c := range claims {
					if c.pod == pod && c.node == node && slices.Contains(c.Cards, "GPU-"+id) {
						if c.MemoryMiB == 0 {
							mib = 1 << 40
						}
						mib = max(mib, c.MemoryMiB)
					}
				}
				if mib >= 0 {
					pods = append(pods, pod)
				}
				if mib == 1<<40 {
					whole++
				} else {
					sum += max(mib, 0)
				}
			}
			return pods, whole, sum
		}
		drawNode := func(t *rapid.T) string { return rapid.SampledFrom(nodes).Draw(t, "node") }
		drawPod := func(t *rapid.T) types.UID { return rapid.SampledFrom([]types.UID{"p", "q", "r", "s"}).Draw(t, "pod") }
		drawToken := func(t *rapid.T) int { return rapid.IntRange(1, 4).Draw(t, "token") }
		drawGrant := func(t *rapid.T) Grant {
			return gpuShares(rapid.SampledFrom([]int64{0, 1, 5000, 9000}).Draw(t, "MiB"), rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 0, 3, rapid.ID).Draw(t, "cards")...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"set pod": func(t *rapid.T) {
				c := claimed{drawPod(t), drawNode(t), drawGrant(t)}
				claims[c.pod] = c
				b.SetPod(c.pod, c.node, c.Grant)
			},
			"remove pod": func(t *rapid.T) {
				pod := drawPod(t)
				delete(claims, pod)
				b.RemovePod(pod)
			},
			"reserve": func(t *rapid.T) {
				token, c := drawToken(t), claimed{drawPod(t), drawNode(t), drawGrant(t)}
				claims[token] = c
				b.Reserve(token, c.pod, c.node, c.Grant)
			},
			"reserve what another claim says": func(t *rapid.T) {
				token, pod := drawToken(t), drawPod(t)
				if told, is := claims[pod]; is {
					claims[token] = told
					b.Reserve(token, pod, told.node, told.Grant)
				}
			},
			"be told what is reserved": func(t *rapid.T) {
				if c, is := claims[drawToken(t)]; is {
					claims[c.pod] = c
					b.SetPod(c.pod, c.node, c.Grant)
				}
			},
			"release": func(t *rapid.T) {
				token := drawToken(t)
				delete(claims, token)
				b.Release(token)
			},
			"give": func(t *rapid.T) {
				token, pod, node := drawToken(t), drawPod(t), drawNode(t)
				given, refusal := b.Give(token, pod, node, &Request{Number: 1, MemoryMiB: 3000, Share: true}, nil, start)
				if told := claims[pod]; told.node == node && len(told.Cards) > 0 {
					if refusal != nil || !told.Equal(given) {
						t.Fatalf("%s is told to have %v of %s, and is given %v, %v", pod, told.Cards, node, given, refusal)
					}
				} else if refusal == nil {
					for _, c := range claims { // of others
						if c.pod != pod && c.node == node && (len(c.Cards) == 0 || slices.Contains(c.Cards, given.Cards[0]) && c.MemoryMiB == 0) {
							t.Fatalf("%s is given %v of %s, of which %s has %v", pod, given.Cards, node, c.pod, c.Cards)
						}
					}
				}
				if refusal == nil {
					claims[token] = claimed{pod, node, given}
				}
			},
			"tell": func(t *rapid.T) {
				node, all := drawNode(t), []v1alpha1.Card{}
				for i, id := range ids[:rapid.IntRange(0, 3).Draw(t, "cards")] {
					c := titan(id, int32(i))
					c.TotalMemoryMiB = rapid.SampledFrom([]int64{12000, 8000}).Draw(t, "total")
					if rapid.IntRange(0, 5).Draw(t, "broken") == 0 {
						c.Health = v1alpha1.Unhealthy
					}
					all = append(all, c)
				}
				cards[node] = all
				b.SetStatus(node, statusOf(all...), start)
			},
			"silence": func(t *rapid.T) { node := drawNode(t); delete(cards, node); b.RemoveStatus(node) },
			"node":    func(t *rapid.T) { node := drawNode(t); exists[node] = true; b.SetNode(node, Facts{}) },
			"no node": func(t *rapid.T) { node := drawNode(t); delete(exists, node); b.RemoveNode(node) },
			"": func(t *rapid.T) {
				var want []string
				entries := 0
				for i, node := range nodes {
					awaited, there := false, exists[node] || cards[node] != nil
					for _, c := range claims {
						there = there || c.node == node
						awaited = awaited || c.node == node && len(c.Cards) == 0
					}
					if there {
						entries++
					}
					if got := b.View(node).awaited; got != awaited {
						t.Fatalf("%s awaits a pod: %v, want %v", node, got, awaited)
					}
					before := b.View(node)
					if e := b.nodes[node]; e != nil {
						e.view.Store(nil)
						if made := b.View(node); !before.Same(made) || !maps.EqualFunc(before.pods, made.pods, func(a, b []*claim) bool { return len(a) > 0 && len(b) > 0 }) {
							t.Fatalf("%s is %+v, and made anew %+v", node, before, made)
						}
						e.view.Store(before)
					}
					view := before.Cards()
					if len(view) != len(cards[node]) {
						t.Fatalf("%s has %d cards, want %d", node, len(view), len(cards[node]))
					}
					for k, id := range ids {
						pods, whole, sum := has(node, id)
						disputed := len(pods) > 1 && whole > 0
						if k < len(view) {
							c, elsewhere := view[k], k < len(cards[nodes[1-i]])
							disputed = disputed || c.Health == v1alpha1.Healthy && sum > cards[node][k].TotalMemoryMiB
							if c.Disputed != disputed || c.Holders != len(pods) || c.Whole != (whole > 0) || c.PromisedMiB != sum || c.Elsewhere != elsewhere {
								t.Fatalf("%s of %s is %+v, and %v have it, %d of them whole, and %d MiB; elsewhere %v", id, node, c, pods, whole, sum, elsewhere)
							}
							got, _ := Choose(&View{facts: &Facts{}, told: true, staleAt: start.Add(1), cards: []Card{c}}, &Request{Number: 1, MemoryMiB: 1, Share: true}, nil, start)
							if (c.Disputed || c.Elsewhere) && len(got) > 0 {
								t.Fatalf("%s of %s is given: %+v", id, node, c)
							}
						}
						if disputed {
							want = append(want, node+" GPU-"+id)
						}
					}
				}
				var got []string
				for _, c := range b.Conflicts() {
					got = append(got, c.Node+" "+c.Card)
					if pods, _, _ := has(c.Node, c.Card[len("GPU-"):]); !slices.Equal(c.Pods, pods) {
						t.Fatalf("%+v, and %v have the card", c, pods)
					}
				}
				most = max(most, len(got))
				if !slices.Equal(got, want) {
					t.Fatalf("conflicts %q, want %q", got, want)
				}
				if n, p, r := b.Len(); n != entries || p+r != len(claims) {
					t.Fatalf("%d nodes, %d pods and %d reservations are known, want %d and %d", n, p, r, entries, len(claims))
				}
			},
		})
	})
	if most < 2 {
		t.Errorf("there were %d conflicts at a time: the test tries next to nothing", most)
	}
}

// What is only reserved is given again if it could be given anew: it may be another pod's by now, or meet the request no more.
func TestWhatIsReservedIsGivenAgainOnlyIfItCouldBeGivenAnew(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(b *Book)
		ask    Request
		want   Grant
	}{
		"nothing has changed":            {func(*Book) {}, Request{Number: 1}, gpus("b")},
		"another pod is told to have it": {func(b *Book) { b.SetPod("q", "n", gpus("b")) }, Request{Number: 1}, gpus("a")},
		"the pod asks for more":          {func(*Book) {}, Request{Number: 2}, gpus("a", "b")},
		"the pod asks for a part":        {func(*Book) {}, Request{Number: 1, MemoryMiB: 100, Share: true}, Grant{gpus("a").Cards, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			b := bookOf(titan("a", 0), titan("b", 1))
			b.Reserve(1, "p", "n", gpus("b"))
			tt.change(b)
			if g, refusal := b.Give(2, "p", "n", &tt.ask, nil, start); refusal != nil || !g.Equal(tt.want) {
				t.Errorf("given %v, %v, want %v", g, refusal, tt.want)
			}
		})
	}
	b := bookOf(titan("a", 0), titan("b", 1))
	b.Reserve(1, "p", "n", gpus("b"))
	if g, refusal := b.Give(1, "p", "n", nil, nil, start); refusal != nil || len(g.Cards) > 0 {
		t.Errorf("of a pod that asks for none any more: %v, %v", g, refusal)
	}
	if _, _, _, ok := b.Reserved(1); ok {
		t.Error("it is reserved still")
	}
}

// What a view would be with a pod is what it is with it.
func TestAViewWithAPodIsThatOfABookThatHasIt(t *testing.T) {
	b := bookOf(titan("a", 0), titan("b", 1))
	before := b.View("n")
	b.Reserve("t", "p", "n", gpuShares(5000, "a"))
	with := before.With("p", gpuShares(5000, "a"))
	if !with.Same(b.View("n")) || with.Same(before) {
		t.Errorf("%+v\nwant %+v", with.Cards(), b.View("n").Cards())
	}
	if !with.Has("p") || before.Has("p") || with.With("q", gpus("b")).Without("p", "q").Cards()[1].Holders != 0 {
		t.Error("who is there is wrong")
	}
	if v := before.With("p", gpus("a")).With("q", gpus("a")); !v.Cards()[0].Disputed {
		t.Error("a card that two pods have is not disputed")
	}
}
