package keeper

import (
	"time"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/plugins/yoda"
)

// Stats are what is known at a time, in numbers.
type Stats struct {
	Cards        map[CardKind]int
	Nodes        map[string]int // by what can be said of them: good, no_cards, awaited, stale, no_collector, dra or device_plugin
	Conflicts    int            // cards of which pods have more than there is
	Awaited      int            // pods of which it is not known which cards they have
	Reservations int            // under way
	Unsettled    int            // reservations of pods that nobody places any more, of which it is not known yet whether they are bound
	Waiting      int            // pods without a node that ask for cards
	Counts       Counts
}

// CardKind tells kinds of cards apart.
type CardKind struct {
	Model string // OtherModels: one of those of which there are too many
	State string // free, shared, whole, disputed, unhealthy, stale or withheld: its node gives none
}

// OtherModels stands for the models beyond the first mostModels.
const (
	OtherModels = "other"
	mostModels  = 64
)

// Stats returns what is known now.
func (c *Cards) Stats(now time.Time) Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := Stats{Cards: make(map[CardKind]int), Nodes: make(map[string]int), Conflicts: len(c.book.Conflicts()), Awaited: len(c.book.Awaited()), Waiting: len(c.waiting), Counts: c.counts}
	for _, h := range c.by {
		if h.ended {
			out.Unsettled++
		} else {
			out.Reservations++
		}
	}
	models := make(map[string]bool)
	for node := range c.facts {
		v := c.book.View(node)
		is := v.State(now)
		out.Nodes[string(is)]++
		for i := range v.Cards() {
			card := &v.Cards()[i]
			model := card.Model
			if !models[model] && len(models) >= mostModels {
				model = OtherModels
			}
			models[model] = true
			out.Cards[CardKind{model, stateOf(card, is)}]++
		}
	}
	return out
}

// stateOf returns what can be said of a card of a node.
func stateOf(card *yoda.Card, node yoda.State) string {
	switch {
	case node == yoda.Stale:
		return "stale"
	case node != yoda.Good:
		return "withheld"
	case card.Health != v1alpha1.Healthy:
		return "unhealthy"
	case card.Disputed, card.Elsewhere:
		return "disputed"
	case card.Whole:
		return "whole"
	case card.Holders > 0:
		return "shared"
	}
	return "free"
}
