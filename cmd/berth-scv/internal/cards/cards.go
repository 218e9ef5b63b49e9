// Package cards knows what the cards of a node are, from what their driver says one time after the other, and when that is to be written.
// It is pure: it asks nobody, writes nowhere, has no clock and no goroutine.
package cards

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Why a card is unhealthy, as its Reason has it: each goes on from "the card", but for those that are about the driver, and so about all cards.
const (
	ReasonLost          = "has fallen off the bus"
	ReasonPartitioned   = "is partitioned (MIG)"
	ReasonReset         = "needs a reset"
	ReasonECC           = "has had uncorrected memory errors (ECC) since the driver was loaded"
	ReasonPagesPending  = "has pages of memory that are retired with the next reset"
	ReasonRowsPending   = "has rows of memory that are remapped with the next reset"
	ReasonRemapFailed   = "has a row of memory that could not be remapped"
	ReasonTwice         = "has the same ID as another card"
	ReasonMissed        = "may have had critical errors (XID) that the driver could not tell of"
	ReasonNotLoaded     = "the driver is not loaded"
	ReasonNoLibrary     = "the driver's library (libnvidia-ml.so.1) is not there"
	ReasonMismatch      = "the driver is of another version than its library"
	reasonTooManyToTell = ", and more"
)

const (
	// most is how many cards are told of, as the resource's definition says; maxReason how many bytes of a reason.
	most      = 64
	maxReason = 512
	// maxXIDs is how many critical errors of a card are told apart.
	maxXIDs = 8
)

// Reading is what the driver said at one time.
type Reading struct {
	// Absent is why there is no driver to ask, "" if there is one. Then there is nothing else.
	Absent string
	// Mismatch: the library that this process has is of another version than the driver. Only another process can find the right one.
	Mismatch bool
	// Unseen: the driver is loaded, and this process has no library of it. One in a new container may be given one.
	Unseen bool
	// Driver is its version, "" if it is not known.
	Driver string
	// Load is another number whenever the driver has been loaded anew.
	Load int
	// Cards are those that the driver names, in its order.
	Cards []Card
	// XIDs are the errors that the driver has told of since the reading before.
	XIDs []XID
	// Missed: there may have been others.
	Missed bool
	// Notes are what could not be asked and is no fault of a card that has a name: for the log.
	Notes []string
}

// Card is a card as the driver tells of it. Its Health is not set: it is unhealthy if it has a Reason.
type Card struct {
	scv.Card
	// Partial: not all could be read, and what is known of before holds.
	Partial bool
}

// XID is an error that the driver has told of.
type XID struct {
	Card string // its ID; "" if the driver names none that is known
	Code uint64
}

// Critical returns whether an XID says that its card is unhealthy. Errors of programs do not: the list is that of NVIDIA's k8s-device-plugin (internal/rm/health.go,
// ignoredXids), which takes them from https://docs.nvidia.com/deploy/xid-errors.
func Critical(code uint64) bool {
	switch code {
	case 13, // graphics engine exception
		31,  // memory page fault
		43,  // processing stopped
		45,  // preemptive cleanup
		68,  // video processor exception
		109: // context switch timeout
		return false
	}
	return true
}

// missedFor is in how many readings in a row of a card, each without anything missed or wrong, it is taken for sound again that may have had an error of which the driver could not tell: 5 minutes, with an interval of a second. A card that falls off its bus is
// such a time for all others, and a new start of the collector would forget it, too.
const missedFor = 300

// Known is what is known of the cards of a node since the collector has begun. The zero value knows of none.
type Known struct {
	cards  []*known
	driver string
	load   int
	absent string
}

type known struct {
	card  scv.Card // as it was read last
	lost  bool     // the driver does not name it any more
	twice bool     // the driver names two by its ID

	// Since the driver was loaded:
	xids   []uint64 // critical ones
	strays []uint64 // critical ones that may be its own: the driver named no card that is known
	missed int      // there may have been others: in how many more readings that miss none it is to be named
}

// Fold adds a reading. A card that the driver names no more stays, and is lost until it is named again.
func (k *Known) Fold(r Reading) {
	if k.absent = r.Absent; k.absent != "" {
		return
	}
	k.driver = r.Driver
	if k.load != r.Load {
		k.load = r.Load
		for _, c := range k.cards {
			c.xids, c.strays, c.missed = nil, nil, 0
		}
	}
	for _, c := range k.cards {
		c.lost, c.twice = true, false
	}
	for _, c := range r.Cards {
		at := k.find(c.ID)
		if at != nil && !at.lost { // in this reading
			at.twice = true
			continue
		}
		if at == nil {
			at = &known{card: c.Card}
			k.cards = append(k.cards, at)
		}
		if at.lost = false; c.Partial {
			at.card.Index, at.card.Reason = c.Index, c.Reason
		} else {
			at.card = c.Card
		}
	}
	for _, x := range r.XIDs {
		at := k.find(x.Card)
		switch {
		case !Critical(x.Code):
		case at != nil:
			at.xids = with(at.xids, x.Code)
		default: // it may be of any, as for NVIDIA's k8s-device-plugin, and so may those that were missed
			for _, c := range k.cards {
				c.strays = with(c.strays, x.Code)
			}
		}
	}
	for _, c := range k.cards {
		switch {
		case r.Missed:
			c.missed = missedFor
		case c.missed > 0 && !c.lost && c.card.Reason == "":
			c.missed--
		}
	}
	slices.SortFunc(k.cards, func(a, b *known) int {
		return cmp.Or(cmp.Compare(a.card.Index, b.card.Index), cmp.Compare(a.card.ID, b.card.ID))
	})
	// Those that there is no room for are forgotten, if they are lost.
	for i := len(k.cards) - 1; i >= 0 && len(k.cards) > most; i-- {
		if k.cards[i].lost {
			k.cards = slices.Delete(k.cards, i, i+1)
		}
	}
}

// with adds a code to those that are sorted.
func with(codes []uint64, code uint64) []uint64 {
	at, there := slices.BinarySearch(codes, code)
	if there {
		return codes
	}
	return slices.Insert(codes, at, code)
}

func (k *Known) find(id string) *known {
	for _, c := range k.cards {
		if c.card.ID == id {
			return c
		}
	}
	return nil
}

// Status returns what there is to tell, but for the heartbeat. If the driver has not answered for a time, which is not 0, no card is healthy.
func (k *Known) Status(silence time.Duration) scv.Status {
	s := scv.Status{Driver: k.driver, Cards: []scv.Card{}}
	for _, c := range k.cards[:min(len(k.cards), most)] {
		card := c.card
		card.Reason = k.reason(c, silence)
		if card.Health = scv.Healthy; card.Reason != "" {
			card.Health = scv.Unhealthy
		} else {
			s.HealthyNumber++
			s.FreeMemoryMiB += card.FreeMemoryMiB
			s.TotalMemoryMiB += card.TotalMemoryMiB
		}
		s.Cards = append(s.Cards, card)
	}
	s.CardNumber = int32(len(s.Cards))
	return s
}

// reason returns why a card is unhealthy, "" if it is healthy. It does not change while nothing does, but for the steps of silence.
func (k *Known) reason(c *known, silence time.Duration) string {
	switch {
	case silence > 0:
		return fmt.Sprintf("the driver has not answered for more than %s", coarse(silence))
	case k.absent != "":
		return k.absent
	case c.lost || c.card.Reason == ReasonLost:
		return ReasonLost
	}
	var all []string
	if len(c.xids) > 0 {
		all = append(all, "has had critical errors since the driver was loaded ("+codes(c.xids)+")")
	}
	if len(c.strays) > 0 {
		all = append(all, "may have had critical errors that the driver names no card for ("+codes(c.strays)+")")
	}
	if c.missed > 0 {
		all = append(all, ReasonMissed)
	}
	if c.twice {
		all = append(all, ReasonTwice)
	}
	if c.card.Reason != "" {
		all = append(all, c.card.Reason)
	}
	reason := strings.Join(all, "; ")
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

// codes returns errors in words.
func codes(xids []uint64) string {
	n := len(xids)
	text := "XID " + strings.ReplaceAll(strings.Trim(fmt.Sprint(xids[:min(n, maxXIDs)]), "[]"), " ", ", ")
	if n > maxXIDs {
		text += reasonTooManyToTell
	}
	return text
}

// coarse returns the last of a few times that has passed, in words, so that a reason with it is written a few times and not each second.
func coarse(d time.Duration) string {
	steps := []struct {
		after time.Duration
		text  string
	}{
		{24 * time.Hour, "a day"}, {6 * time.Hour, "6 hours"}, {time.Hour, "an hour"}, {15 * time.Minute, "15 minutes"}, {5 * time.Minute, "5 minutes"},
		{time.Minute, "a minute"}, {30 * time.Second, "30 seconds"}, {10 * time.Second, "10 seconds"}, {5 * time.Second, "5 seconds"},
	}
	for _, s := range steps {
		if d >= s.after {
			return s.text
		}
	}
	return "a second"
}
