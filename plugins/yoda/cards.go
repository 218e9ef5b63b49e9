package yoda

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// maxCardsOfNode is how many cards of a node are looked at: the first that its collector tells of.
const maxCardsOfNode = 256

// Facts are what is known of a node besides its cards. Whether pods may be put on it at all (spec.unschedulable, taints) is not among them: that is looked at before.
type Facts struct {
	// Level is that of all cards of the node. NoLevel: each has its model's. See [FactsOf].
	Level Level
	// DevicePlugin: the kubelet gives out the node's cards, as resources of a device plugin. DRA: a driver gives them out as devices of ResourceSlices. Nobody may give out cards that another one gives out, so such a node gives none here.
	DevicePlugin, DRA bool
}

// FactsOf returns what a node says of itself: its labels, status.allocatable and status.capacity. Whether it gives devices by DRA it does not say.
//
// A label for the level that is none of the three levels is one that no request is met by. A resource of a device plugin counts even if there is none of it: so a kubelet that has just begun says, before its plugin has come back. One whose plugin is gone for
// good says so too, until the resource is removed from its status.
func FactsOf(labels map[string]string, allocatable, capacity map[string]int64) Facts {
	f := Facts{DevicePlugin: hasDevicePlugin(allocatable) || hasDevicePlugin(capacity)}
	if text, ok := labels[LabelNodeLevel]; ok {
		if f.Level, ok = ParseLevel(text); !ok {
			f.Level = otherLevel
		}
	}
	return f
}

// hasDevicePlugin reports whether any resource is one of NVIDIA's device plugin: whole cards, cards that are shared in time (nvidia.com/gpu.shared), or parts of them.
func hasDevicePlugin(resources map[string]int64) bool {
	for name := range resources {
		if strings.HasPrefix(name, "nvidia.com/gpu") || strings.HasPrefix(name, "nvidia.com/mig-") {
			return true
		}
	}
	return false
}

// otherLevel is what no request can ask for.
const otherLevel Level = "other"

// Card is a card of a node, and what pods have of it. All numbers are between 0 and 2147483647, and no more is free than there is, whatever its collector has said.
type Card struct {
	v1alpha1.Card

	// Holders is how many pods have the card, or part of it. Whole: one of them has all of it.
	Holders int
	Whole   bool
	// PromisedMiB is how much memory those have that share it, and SinceMiB how much of that was promised since what is said of the card was seen.
	PromisedMiB, SinceMiB int64
	// Disputed: pods have more of it than there is. See [Conflict].
	Disputed bool
	// Elsewhere: another node tells of a card with this ID too. Which of them has it is not known, so neither gives it.
	Elsewhere bool
}

// AvailableMiB returns how much of the card's memory a pod can be given that shares it: what is not promised, and no more than what was free when the collector looked, less what was promised since, for that was free then and will be used.
//
// Memory that was promised before, and not in use yet when the collector looked, counts as free if somebody else than Yoda's pods uses some too: who uses what is not known here, and to take off all that is promised would count what is in use twice.
func (c *Card) AvailableMiB() int64 {
	if c.Whole || c.Disputed || c.Elsewhere {
		return 0
	}
	return max(0, min(c.TotalMemoryMiB-c.PromisedMiB, c.FreeMemoryMiB-c.SinceMiB))
}

// View is what is known of a node at some time. It never changes, so it may be kept and used by several goroutines.
type View struct {
	facts   *Facts // nil: it is not known whether there is such a node
	told    bool   // its collector has said something
	staleAt time.Time
	seen    uint64
	pods    map[types.UID][]*claim
	cards   []Card // in the order of Index, then ID
	awaited bool   // some pod is

	scratch atomic.Value
}

// hold notes what pods have.
func (v *View) hold(holds map[string]*hold) {
	for i := range v.cards {
		c := &v.cards[i]
		h := holds[c.ID]
		if h == nil {
			h = new(hold)
		}
		c.Holders, c.Whole, c.PromisedMiB, c.SinceMiB, c.Disputed = len(h.pods), h.whole, h.promised, h.since, h.disputed(&c.Card)
	}
	v.awaited = false
	for _, claims := range v.pods {
		v.awaited = v.awaited || slices.ContainsFunc(claims, (*claim).awaited)
	}
}

// Without returns the view as it would be if some pods had nothing, by any claim, and used nothing: for pods that might be evicted, and for the pod that is placed. What such a pod was promised before the collector looked counts as free, and all of a card that it
// has whole. What a pod uses of which it is not known which cards it has, is not known either, and does not become free.
func (v *View) Without(pods ...types.UID) *View {
	left := make(map[types.UID][]*claim, len(v.pods))
	for pod, claims := range v.pods {
		if !slices.Contains(pods, pod) {
			left[pod] = claims
		}
	}
	if len(left) == len(v.pods) {
		return v
	}
	w := v.having(left)
	for i := range w.cards {
		c, was := &w.cards[i], &v.cards[i]
		if was.Whole && !c.Whole {
			c.FreeMemoryMiB = c.TotalMemoryMiB
		} else {
			c.FreeMemoryMiB = min(c.TotalMemoryMiB, c.FreeMemoryMiB+was.PromisedMiB-was.SinceMiB-c.PromisedMiB+c.SinceMiB)
		}
	}
	return w
}

// With returns the view as it would be if a pod had a grant, besides what it has, since now: for pods that might be placed.
func (v *View) With(pod types.UID, grant Grant) *View {
	more := maps.Clone(v.pods)
	if more == nil {
		more = make(map[types.UID][]*claim)
	}
	c := newClaim(pod, "", grant)
	c.since = math.MaxUint64
	more[pod] = append(slices.Clone(more[pod]), c)
	return v.having(more)
}

// having returns the view with other pods.
func (v *View) having(pods map[types.UID][]*claim) *View {
	w := &View{facts: v.facts, told: v.told, staleAt: v.staleAt, seen: v.seen, pods: pods, cards: slices.Clone(v.cards)}
	w.hold(holdsOf(pods, v.seen))
	return w
}

// Has reports whether it is known of a pod that it is on the node, and asks for cards.
func (v *View) Has(pod types.UID) bool { return len(v.pods[pod]) > 0 }

// Pods returns the pods of which it is known that they are on the node, and ask for cards, in no order.
func (v *View) Pods() iter.Seq[types.UID] { return maps.Keys(v.pods) }

// Known reports whether there is such a node, as far as is known.
func (v *View) Known() bool { return v != nil && v.facts != nil }

// State is what can be said of a node as a whole.
type State string

// What can be said of nodes: the first that is so.
const (
	Unknown      State = "unknown"       // there is no such node, as far as is known
	DevicePlugin State = "device_plugin" // its cards are given out by a device plugin
	DRA          State = "dra"           // or by a driver, as devices
	NoCollector  State = "no_collector"  // nobody tells of its cards
	Stale        State = "stale"         // its collector has been silent for too long
	NoCards      State = "no_cards"      // it has none
	Waits        State = "awaited"       // there is a pod of which it is not known which it has
	Good         State = "good"          // it gives cards
)

// State returns what can be said of the node.
func (v *View) State(now time.Time) State {
	switch {
	case !v.Known():
		return Unknown
	case v.facts.DevicePlugin:
		return DevicePlugin
	case v.facts.DRA:
		return DRA
	case !v.told:
		return NoCollector
	case v.Stale(now):
		return Stale
	case len(v.cards) == 0:
		return NoCards
	case v.awaited:
		return Waits
	}
	return Good
}

// Same reports whether two views say the same of a node, but for when its collector was heard: what is chosen of the one is chosen of the other, as long as none of them is stale.
func (v *View) Same(w *View) bool {
	if v == nil || w == nil || v.facts == nil || w.facts == nil {
		return (v == nil || v.facts == nil) && (w == nil || w.facts == nil)
	}
	return *v.facts == *w.facts && v.told == w.told && v.awaited == w.awaited && slices.Equal(v.cards, w.cards)
}

// Scratch is for what a reader makes of the view, so that it need not be made twice. It goes with the view, and is safe for concurrent use.
func (v *View) Scratch() *atomic.Value { return &v.scratch }

// Cards returns the cards of the node, in the order of their index. It is only to be read.
func (v *View) Cards() []Card { return v.cards }

// StaleAt returns from when on what the collector has said is stale, unless it says something again. The zero time: there is nothing that could become stale.
func (v *View) StaleAt() time.Time { return v.staleAt }

// Stale reports whether the collector has not been seen to say anything for three times as long as it may be silent.
func (v *View) Stale(now time.Time) bool { return v.told && !now.Before(v.staleAt) }

// cardsOf returns the cards that a collector tells of, as [Card] has them. What no honest collector says makes a card unhealthy: an ID that no grant could name, or that two cards have.
func cardsOf(told []v1alpha1.Card) []v1alpha1.Card {
	cards := slices.Clone(told[:min(len(told), maxCardsOfNode)])
	for i := range cards {
		c := &cards[i]
		for _, n := range []*int64{&c.TotalMemoryMiB, &c.FreeMemoryMiB, &c.ClockMHz, &c.CoreMHz, &c.BandwidthMBps, &c.PowerWatts} {
			*n = min(max(*n, 0), maxAmount)
		}
		c.FreeMemoryMiB = min(c.FreeMemoryMiB, c.TotalMemoryMiB)
		if !validID(c.ID) {
			c.Health, c.Reason = v1alpha1.Unhealthy, "its ID cannot be told to a pod"
		}
	}
	slices.SortStableFunc(cards, func(a, b v1alpha1.Card) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	first := make(map[string]int, len(cards))
	for i := range cards {
		if k, twice := first[cards[i].ID]; twice {
			cards[i].Health, cards[i].Reason = v1alpha1.Unhealthy, "another card has its ID"
			cards[k].Health, cards[k].Reason = cards[i].Health, cards[i].Reason
		} else {
			first[cards[i].ID] = i
		}
	}
	return cards
}
