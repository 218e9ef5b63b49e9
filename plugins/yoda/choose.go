package yoda

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Why a node cannot run a pod, in the order in which it is looked at. People are told each of these with the number of nodes of which it is said, so there is nothing in it that only one node is.
//
// Of cards, those are counted that meet all that is looked at before. What pods have, and what they use, comes last: what comes before no eviction changes.
const (
	ReasonRequest      = "the pod asks for no number of cards from 1 to 64, or for a share without memory"
	ReasonUnknown      = "node(s) were not known to Yoda yet"
	ReasonDevicePlugin = "node(s) gave out their cards by a device plugin (nvidia.com/gpu or nvidia.com/mig)"
	ReasonDRA          = "node(s) gave out their cards by dynamic resource allocation"
	ReasonNoCollector  = "node(s) had no collector that tells of their cards"
	ReasonStale        = "node(s) had a collector that has not told of their cards for too long"
	ReasonNoCards      = "node(s) had no cards"
	ReasonAwaited      = "node(s) had a pod of which it is not known yet which cards it has"

	ReasonNumber = "node(s) had too few cards"
	ReasonHealth = "node(s) had too few healthy cards"
	ReasonTwice  = "node(s) had too few cards that no other node tells of too"
	ReasonModel  = "node(s) had too few cards of that model"
	ReasonLevel  = "node(s) had too few cards of that level"
	ReasonClock  = "node(s) had too few cards with that memory clock"
	ReasonCore   = "node(s) had too few cards with that core clock"
	ReasonSize   = "node(s) had too few cards with that much memory"
	ReasonTaken  = "node(s) had too few cards that no other pod has"
	ReasonMemory = "node(s) had too few cards with that much free memory"
)

// reasons are why nodes give no card, whatever is asked for.
var reasons = map[State]string{
	Unknown: ReasonUnknown, DevicePlugin: ReasonDevicePlugin, DRA: ReasonDRA, NoCollector: ReasonNoCollector, Stale: ReasonStale, NoCards: ReasonNoCards,
}

// Refusal says why a node cannot run a pod.
type Refusal struct {
	// Reason is a constant of this package, or the error of a request that is wrong.
	Reason string
	// Unresolvable: nothing would change if pods were evicted from the node. False: enough cards might do if no pod had any part of one, and what its pods were promised was free. So it is for ReasonAwaited too: the pod that is awaited may have been placed by
	// somebody who never says which cards it has, and then evicting it is the only way. Evicting others is of no use, as [View.Without] shows.
	Unresolvable bool
}

// Refuse returns the refusal of every node to a pod whose request is wrong: the error of [ParseRequest].
func Refuse(err error) *Refusal { return &Refusal{err.Error(), true} }

// criterion is a thing that a card has to meet, in the order in which they are looked at.
type criterion int

const (
	healthy criterion = iota
	lone
	model
	level
	clock
	core
	size
	taken
	memory
	all // met
)

// Choose returns the cards of a node that a pod gets by its request, in the order of their index, or why the node has none for it. A pod that asks for no card gets none.
//
// Each card meets all of the request. Of cards that nobody else may use, those are chosen that are best by the weights of a [Feature], each feature in proportion to the most of any card of the node that meets the request. Of cards that are shared, those
// that pods share already, so that others stay free to be had whole; and of them, and then of the others, those with the least available. Among equals the lower index goes first, then the lower ID.
func Choose(v *View, r *Request, args *Args, now time.Time) ([]*Card, *Refusal) {
	if r == nil {
		return nil, nil
	}
	switch {
	case r.Number < 1, r.Number > MaxCards, r.Share && r.MemoryMiB < 1:
		return nil, &Refusal{ReasonRequest, true}
	}
	state := v.State(now)
	if reason := reasons[state]; reason != "" {
		return nil, &Refusal{reason, true}
	}
	var on [16]candidate // of more cards, it grows
	fit := on[:0]
	var failed [all]int // cards, by the first criterion that they fail
	unheld := 0         // cards that might do if no pod had any part of one
	for i := range v.cards {
		c := &v.cards[i]
		fails := v.fails(c, r, args)
		if fails == all {
			fit = append(fit, candidate{card: c})
		} else {
			failed[fails]++
		}
		// What its pods use goes with them; what others use stays. How much a pod uses that has all of it, or that is awaited, is not known. Of the others it is taken to be what they were promised, even if that was after the collector looked: whoever has read
		// the statuses before the pods does not know better.
		if fails >= taken && (v.awaited || c.Whole || c.FreeMemoryMiB+c.PromisedMiB >= r.MemoryMiB) {
			unheld++
		}
	}
	number := int(r.Number)
	if state == Waits {
		return nil, &Refusal{ReasonAwaited, unheld < number}
	}
	if len(fit) < number {
		return nil, &Refusal{reason(len(v.cards), &failed, r), unheld < number}
	}
	if r.Share {
		for i := range fit {
			if fit[i].rank = fit[i].card.AvailableMiB(); fit[i].card.Holders == 0 {
				fit[i].rank += maxAmount + 1
			}
		}
	} else {
		rank(fit)
	}
	slices.SortFunc(fit, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), byIndex(a.card, b.card))
	})
	chosen := make([]*Card, number)
	for i := range chosen {
		chosen[i] = fit[i].card
	}
	slices.SortFunc(chosen, byIndex)
	return chosen, nil
}

// fails returns the first criterion that a card does not meet.
func (v *View) fails(c *Card, r *Request, args *Args) criterion {
	switch {
	case c.Health != v1alpha1.Healthy:
		return healthy
	case c.Elsewhere:
		return lone
	case r.Model != "" && c.Model != r.Model:
		return model
	case r.Level != NoLevel && v.level(c, args) != r.Level:
		return level
	case c.ClockMHz < r.ClockMHz:
		return clock
	case c.CoreMHz < r.CoreMHz:
		return core
	case c.TotalMemoryMiB < r.MemoryMiB:
		return size
	case c.Disputed || c.Whole || (!r.Share && c.Holders > 0):
		return taken
	case r.Share && c.AvailableMiB() < r.MemoryMiB, c.FreeMemoryMiB < r.MemoryMiB:
		return memory
	}
	return all
}

// level returns the level of a card: the node's, or else that of its model.
func (v *View) level(c *Card, args *Args) Level {
	if v.facts.Level != NoLevel {
		return v.facts.Level
	}
	return args.level(c.Model)
}

// reason returns why there are not as many cards as are asked for.
func reason(cards int, failed *[all]int, r *Request) string {
	number := int(r.Number)
	if cards < number {
		return ReasonNumber
	}
	for i, n := range failed {
		if cards -= n; cards < number {
			return [all]string{ReasonHealth, ReasonTwice, ReasonModel, ReasonLevel, ReasonClock, ReasonCore, ReasonSize, ReasonTaken, ReasonMemory}[i]
		}
	}
	return ReasonMemory // not reached: what fails nothing is enough
}

// candidate is a card that meets a request. The lowest rank is the best.
type candidate struct {
	card *Card
	rank int64
}

func byIndex(a, b *Card) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID)) }

// rank ranks cards that nobody else may use.
func rank(fit []candidate) {
	var most Maxima
	for i := range fit {
		most.Add(featuresOf(fit[i].card))
	}
	for i := range fit {
		of := featuresOf(fit[i].card)
		fit[i].rank = 0
		for f := range Allocate {
			// Finer than a percentage, so that cards that differ do so here too. A feature is less than 2^31, so this is less than 2^52.
			fit[i].rank -= f.Weight() * (of[f] << 20 / max(most[f], 1))
		}
	}
}
