package yoda

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// oracle is a slow book that is obviously right as long as nobody else gives out cards: it has lists, looks at all of them each time, and knows how much of which card who uses. A pod uses all it was promised from the next time on that the collector of
// its node looks, and until it is gone.
type oracle struct {
	cards  map[string][]v1alpha1.Card // as the collector of each node tells of them
	seen   map[string]time.Time
	others map[string]int64 // MiB of each card that those use who are no pods
	grants map[types.UID]placed
}

type placed struct {
	node string
	Grant
	started bool
}

// does returns whether a card meets a request: if all that pods were promised were used, there would be room, and there is room if those that have not started use their part besides what was in use when the collector looked.
func (o *oracle) does(node string, c v1alpha1.Card, r *Request) bool {
	promised, used := int64(0), c.TotalMemoryMiB-c.FreeMemoryMiB
	for _, g := range o.grants {
		if g.node != node || !slices.Contains(g.Cards, c.ID) {
			continue
		}
		if g.MemoryMiB == 0 || !r.Share {
			return false
		}
		promised += g.MemoryMiB
		if !g.started {
			used += g.MemoryMiB
		}
	}
	return meets(c, r) && promised+r.MemoryMiB <= c.TotalMemoryMiB && used+r.MemoryMiB <= c.TotalMemoryMiB
}

// might returns whether a card might meet a request if all pods were gone: there is room besides that part of what was in use when the collector looked which no pod can have used.
func (o *oracle) might(node string, c v1alpha1.Card, r *Request) bool {
	used := c.TotalMemoryMiB - c.FreeMemoryMiB
	for _, g := range o.grants {
		if g.node == node && slices.Contains(g.Cards, c.ID) {
			if g.MemoryMiB == 0 {
				used = 0
			}
			used = max(0, used-g.MemoryMiB)
		}
	}
	return meets(c, r) && used+r.MemoryMiB <= c.TotalMemoryMiB
}

// meets returns whether a card is what a request asks for, whatever its memory is used for.
func meets(c v1alpha1.Card, r *Request) bool {
	return c.Health == v1alpha1.Healthy && (r.Model == "" || r.Model == c.Model) && (r.Level == NoLevel || r.Level == levels[c.Model]) && c.ClockMHz >= r.ClockMHz && c.CoreMHz >= r.CoreMHz
}

// look has the pods of a node start, and others use what they like of what is left, and returns the cards as they are then.
func (o *oracle) look(t *rapid.T, node string) []v1alpha1.Card {
	cards := drawCards(t, node)
	for pod, g := range o.grants {
		if g.node == node {
			g.started = true
			o.grants[pod] = g
		}
	}
	for i := range cards {
		c := &cards[i]
		left, whole := c.TotalMemoryMiB, false
		for _, g := range o.grants {
			if slices.Contains(g.Cards, c.ID) {
				left -= g.MemoryMiB
				whole = whole || g.MemoryMiB == 0
			}
		}
		if o.others[c.ID] > left && !whole {
			t.Fatalf("of %s with %d MiB, pods use all but %d, and others %d", c.ID, c.TotalMemoryMiB, left, o.others[c.ID])
		}
		c.FreeMemoryMiB = rapid.SampledFrom([]int64{left, left, left / 2, 0}).Draw(t, "free")
		if o.others[c.ID] = left - c.FreeMemoryMiB; whole {
			o.others[c.ID] = 0 // it is the pod
		}
	}
	return cards
}

// levels are those of the models, and levelArgs the arguments that say so.
var (
	levels    = map[string]Level{"A": High, "B": Low}
	levelArgs = &Args{Levels: []LevelRule{{"A", High}, {"B", Low}}}
)

func (o *oracle) count(node string, r *Request, does func(string, v1alpha1.Card, *Request) bool, now time.Time) (n int) {
	if now.Sub(o.seen[node]) >= 30*time.Second {
		return 0
	}
	for _, c := range o.cards[node] {
		if does(node, c, r) {
			n++
		}
	}
	return n
}

var drawRequest = rapid.Custom(func(t *rapid.T) *Request {
	r := &Request{
		Number: rapid.Int32Range(1, 4).Draw(t, "number"), MemoryMiB: 1000 * rapid.SampledFrom([]int64{0, 0, 1, 2, 4, 7}).Draw(t, "memory"),
		ClockMHz: rapid.SampledFrom([]int64{0, 0, 2, 3}).Draw(t, "clock"), CoreMHz: rapid.SampledFrom([]int64{0, 0, 1, 3}).Draw(t, "core"), Share: rapid.Bool().Draw(t, "share"),
		Model: rapid.SampledFrom([]string{"", "", "", "A", "B"}).Draw(t, "model"), Level: rapid.SampledFrom([]Level{NoLevel, NoLevel, NoLevel, High, Low}).Draw(t, "level"),
	}
	r.Share = r.Share && r.MemoryMiB > 0
	return r
})

// drawCards draws the cards of a node: each has its own model, memory and clocks for good, and else changes.
func drawCards(t *rapid.T, node string) (cards []v1alpha1.Card) {
	for i := range rapid.SampledFrom([]int32{8, 8, 6, 3, 0}).Draw(t, "cards") {
		c := v1alpha1.Card{
			ID: fmt.Sprintf("GPU-%s-%d", node, i), Index: 8 - i, Model: []string{"A", "B", "A", "C"}[i%4], Health: v1alpha1.Healthy,
			TotalMemoryMiB: 5000 + 1000*int64(i%5), ClockMHz: int64(i%3) + 1, CoreMHz: int64(i % 4), BandwidthMBps: int64(i), PowerWatts: 1,
		}
		c.FreeMemoryMiB = rapid.SampledFrom([]int64{c.TotalMemoryMiB, c.TotalMemoryMiB, c.TotalMemoryMiB / 2, 0}).Draw(t, "free")
		if rapid.IntRange(0, 7).Draw(t, "broken") == 0 {
			c.Health = v1alpha1.Unhealthy
		}
		cards = append(cards, c)
	}
	return cards
}

// tokenOf returns the token by which a pod was given cards: its number.
func tokenOf(pod types.UID) int {
	n, err := strconv.Atoi(string(pod[1:]))
	if err != nil {
		panic(err)
	}
	return n
}

// TestCardsAreGivenOnceAndANodeIsRefusedOnlyIfNoCardsDo plays pods that come and go, and collectors that tell and fall silent, and compares each choice with the oracle's.
func TestCardsAreGivenOnceAndANodeIsRefusedOnlyIfNoCardsDo(t *testing.T) {
	chosen, refused := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		b, now, beat := NewBook(), start, 0
		o := oracle{map[string][]v1alpha1.Card{}, map[string]time.Time{}, map[string]int64{}, map[types.UID]placed{}}
		nodes := rapid.SampledFrom([]string{"m", "n"})
		tell := func(t *rapid.T) {
			node := nodes.Draw(t, "node")
			o.cards[node], o.seen[node] = o.look(t, node), now
			beat++
			b.SetStatus(node, &v1alpha1.Status{Heartbeat: metav1.NewMicroTime(now.Add(time.Duration(beat))), HeartbeatSeconds: 10, Cards: o.cards[node]}, now)
		}
		b.SetNode("m", Facts{})
		b.SetNode("n", Facts{})
		tell(t)
		pods := 0
		place := func(t *rapid.T) {
			node, r := nodes.Draw(t, "node"), drawRequest.Draw(t, "request")
			_, told := o.cards[node]
			got, refusal := Choose(b.View(node), r, levelArgs, now)
			fit, without := o.count(node, r, o.does, now), o.count(node, r, o.might, now)
			if refusal != nil {
				refused[refusal.Reason]++
				if told && fit >= int(r.Number) {
					t.Fatalf("%+v is refused: %s, and %d cards do", r, refusal.Reason, fit)
				}
				if refusal.Unresolvable != (without < int(r.Number)) {
					t.Fatalf("%+v is refused: %s, unresolvable %v, and without pods %d cards would do", r, refusal.Reason, refusal.Unresolvable, without)
				}
				if cards, _ := Choose(b.View(node).Without(slices.Collect(maps.Keys(o.grants))...), r, levelArgs, now); cards != nil && refusal.Unresolvable {
					t.Fatalf("%+v is refused: %s, unresolvable, and without pods gets %s", r, refusal.Reason, idsOf(cards))
				}
				return
			}
			chosen++
			g := r.Grant(got)
			if len(got) != int(r.Number) || now.Sub(o.seen[node]) >= 30*time.Second {
				t.Fatalf("%+v gets %v at %v, of what was told at %v", r, g, now, o.seen[node])
			}
			for i, id := range g.Cards {
				at := slices.IndexFunc(o.cards[node], func(c v1alpha1.Card) bool { return c.ID == id })
				if at < 0 || slices.Contains(g.Cards[:i], id) || !o.does(node, o.cards[node][at], r) {
					t.Fatalf("%+v gets %v, of which %s does not do", r, g, id)
				}
			}
			pods++
			pod := types.UID(fmt.Sprint("p", pods))
			for range 2 {
				if given, refusal := b.Give(pods, pod, node, r, levelArgs, now); refusal != nil || !given.Equal(g) {
					t.Fatalf("%+v is given %v, %v, want %v", r, given, refusal, g)
				}
			}
			o.grants[pod] = placed{node, g, false}
		}
		t.Repeat(map[string]func(*rapid.T){
			"tell": tell,
			"place": func(t *rapid.T) {
				for range 5 {
					place(t)
				}
			},
			"time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 15).Draw(t, "s")) * time.Second) },
			"bound": func(t *rapid.T) {
				if len(o.grants) > 0 {
					pod := rapid.SampledFrom(slices.Sorted(maps.Keys(o.grants))).Draw(t, "pod")
					b.SetPod(pod, o.grants[pod].node, o.grants[pod].Grant)
					b.Release(tokenOf(pod))
				}
			},
			"release": func(t *rapid.T) {
				if len(o.grants) > 0 {
					pod := rapid.SampledFrom(slices.Sorted(maps.Keys(o.grants))).Draw(t, "pod")
					b.RemovePod(pod)
					b.Release(tokenOf(pod))
					delete(o.grants, pod)
				}
			},
			"": func(t *rapid.T) { // after each
				whole, sum := map[string]int{}, map[string]int64{}
				for pod, g := range o.grants {
					for _, id := range g.Cards {
						if sum[id] += g.MemoryMiB; g.MemoryMiB == 0 {
							whole[id]++
							sum[id] += 1 << 40
						}
					}
					node, got, ok := b.Told(pod)
					if !ok {
						_, node, got, ok = b.Reserved(tokenOf(pod))
					}
					if !ok || node != g.node || !got.Equal(g.Grant) {
						t.Fatalf("%s has %v of %s, %v, want %v of %s", pod, got, node, ok, g.Grant, g.node)
					}
				}
				for _, node := range []string{"m", "n"} {
					for _, c := range b.View(node).Cards() {
						if sum[c.ID] > c.TotalMemoryMiB && sum[c.ID] != 1<<40 || whole[c.ID] > 1 || c.PromisedMiB > c.TotalMemoryMiB {
							t.Fatalf("of %s with %d MiB, %d MiB are promised, and all of it %d times", c.ID, c.TotalMemoryMiB, c.PromisedMiB, whole[c.ID])
						}
					}
				}
				if c := b.Conflicts(); len(c) > 0 {
					t.Fatalf("conflicts %+v", c)
				}
				if n, p, r := b.Len(); n != 2 || p+r != len(o.grants) {
					t.Fatalf("%d nodes, %d pods and %d reservations are known, want 2 and %d in sum", n, p, r, len(o.grants))
				}
			},
		})
	})
	t.Logf("%d pods were placed, and nodes refused: %v", chosen, refused)
	for _, reason := range []string{ReasonNoCollector, ReasonStale, ReasonNoCards, ReasonNumber, ReasonHealth, ReasonModel, ReasonLevel, ReasonClock, ReasonCore, ReasonSize, ReasonTaken, ReasonMemory} {
		if refused[reason] == 0 {
			t.Errorf("no node was refused since it %q: the test does not try that", reason)
		}
	}
	if chosen < 100 {
		t.Errorf("%d pods were placed: the test tries next to nothing", chosen)
	}
}

// TestAChoiceDoesNotDependOnTheOrderInWhichCardsAreTold, nor on that in which pods are.
func TestAChoiceDoesNotDependOnTheOrderInWhichCardsAreTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards, r := drawCards(t, "n"), drawRequest.Draw(t, "request")
		took := map[types.UID]Grant{}
		for i, c := range cards {
			if rapid.Bool().Draw(t, "taken") {
				took[types.UID(fmt.Sprint("p", i))] = Grant{Cards: []string{c.ID}, MemoryMiB: rapid.Int64Range(0, 3000).Draw(t, "MiB")}
			}
		}
		choose := func(cards []v1alpha1.Card) (string, *Refusal) {
			b := NewBook()
			for _, pod := range rapid.Permutation(slices.Sorted(maps.Keys(took))).Draw(t, "pods") {
				b.SetPod(pod, "n", took[pod])
			}
			b.SetNode("n", Facts{})
			b.SetStatus("n", statusOf(cards...), start)
			got, refusal := Choose(b.View("n"), r, nil, start)
			return idsOf(got), refusal
		}
		ids, refusal := choose(cards)
		again, refusal2 := choose(rapid.Permutation(cards).Draw(t, "order"))
		if ids != again || (refusal == nil) != (refusal2 == nil) || refusal != nil && *refusal != *refusal2 {
			t.Fatalf("%q, %v, and in another order %q, %v", ids, refusal, again, refusal2)
		}
	})
}

func BenchmarkChoose(b *testing.B) {
	var cards []v1alpha1.Card
	for i := range int32(8) {
		cards = append(cards, titan(fmt.Sprint(i), i))
	}
	book := bookOf(cards...)
	book.SetPod("p", "n", Grant{Cards: []string{"GPU-3"}, MemoryMiB: 4000})
	v := book.View("n")
	for name, r := range map[string]*Request{
		"whole": {Number: 2, MemoryMiB: 8000, ClockMHz: 5000}, "shared": {Number: 2, MemoryMiB: 4000, Share: true}, "refused": {Number: 8},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Choose(v, r, nil, start)
			}
		})
	}
}
