package cards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// card is a healthy card of 40 GiB.
func card(index int32) Card {
	return Card{Card: scv.Card{
		ID: fmt.Sprintf("GPU-%d", index), Index: index, Model: "A100", TotalMemoryMiB: 40960, FreeMemoryMiB: 40000, ClockMHz: 1215, CoreMHz: 1410, BandwidthMBps: 31504, PowerWatts: 400,
	}}
}

func sick(index int32, reason string) Card {
	c := card(index)
	c.Reason = reason
	return c
}

// reasons returns the reasons of a status in the order of its cards, as "GPU-0: reason".
func reasons(s scv.Status) []string {
	var all []string
	for _, c := range s.Cards {
		all = append(all, c.ID+": "+c.Reason)
	}
	return all
}

func TestStatusSumsOverHealthyCards(t *testing.T) {
	var k Known
	k.Fold(Reading{Driver: "550.54.15", Cards: []Card{card(1), sick(0, ReasonECC), card(2)}})
	want := scv.Status{Driver: "550.54.15", CardNumber: 3, HealthyNumber: 2, FreeMemoryMiB: 80000, TotalMemoryMiB: 81920}
	for _, c := range []Card{sick(0, ReasonECC), card(1), card(2)} {
		if c.Health = scv.Healthy; c.Reason != "" {
			c.Health = scv.Unhealthy
		}
		want.Cards = append(want.Cards, c.Card)
	}
	if diff := cmp.Diff(want, k.Status(0)); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestANodeWithoutACardHasAListAndNoNull(t *testing.T) {
	var k Known
	k.Fold(Reading{Absent: ReasonNoLibrary})
	if s := k.Status(0); s.Cards == nil || len(s.Cards) != 0 || s.CardNumber != 0 {
		t.Errorf("status %+v, want an empty list of cards", s)
	}
}

func TestReasonsOfCards(t *testing.T) {
	all := []Card{card(0), card(1)}
	for name, c := range map[string]struct {
		readings []Reading
		silence  time.Duration
		want     []string
	}{
		"healthy": {[]Reading{{Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"a card that the driver does not name any more stays": {
			[]Reading{{Cards: all}, {Cards: all[:1]}, {Cards: all[:1]}}, 0, []string{"GPU-0: ", "GPU-1: has fallen off the bus"}},
		"a card that is back is healthy":      {[]Reading{{Cards: all}, {Cards: all[:1]}, {Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"all that is wrong is told":           {[]Reading{{Cards: []Card{sick(0, "a; b")}, XIDs: []XID{{"GPU-0", 48}}}}, 0, []string{"GPU-0: has had critical errors since the driver was loaded (XID 48); a; b"}},
		"of a card that is lost that alone":   {[]Reading{{Cards: []Card{sick(0, ReasonLost)}, XIDs: []XID{{"GPU-0", 79}}}}, 0, []string{"GPU-0: has fallen off the bus"}},
		"critical errors stay":                {[]Reading{{Cards: all, XIDs: []XID{{"GPU-1", 79}}}, {Cards: all, XIDs: []XID{{"GPU-1", 48}, {"GPU-1", 79}}}, {Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: has had critical errors since the driver was loaded (XID 48, 79)"}},
		"critical errors end with the driver": {[]Reading{{Cards: all, XIDs: []XID{{"GPU-1", 79}}}, {Load: 1, Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"errors of programs make nobody sick": {[]Reading{{Cards: all, XIDs: []XID{{"GPU-0", 13}, {"GPU-0", 31}, {"GPU-0", 43}, {"GPU-0", 45}, {"GPU-0", 68}, {"GPU-0", 109}}}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"errors of no card that is known are of any": {[]Reading{{Cards: all, XIDs: []XID{{"", 79}, {"GPU-7", 48}, {"", 31}}}, {Cards: all}}, 0, []string{
			"GPU-0: may have had critical errors that the driver names no card for (XID 48, 79)", "GPU-1: may have had critical errors that the driver names no card for (XID 48, 79)"}},
		"errors that were missed are of any": {[]Reading{{Cards: all, Missed: true}, {Cards: all}}, 0, []string{
			"GPU-0: may have had critical errors (XID) that the driver could not tell of", "GPU-1: may have had critical errors (XID) that the driver could not tell of"}},
		"errors of nobody end with the driver": {[]Reading{{Cards: all, XIDs: []XID{{"", 79}}, Missed: true}, {Load: 1, Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"two of an ID":                         {[]Reading{{Cards: []Card{card(0), card(1), card(0)}}}, 0, []string{"GPU-0: has the same ID as another card", "GPU-1: "}},
		"two of an ID, and then one":           {[]Reading{{Cards: []Card{card(0), card(1), card(0)}}, {Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"a driver that is gone":                {[]Reading{{Cards: all}, {Absent: ReasonNotLoaded}}, 0, []string{"GPU-0: the driver is not loaded", "GPU-1: the driver is not loaded"}},
		"a driver that is back":                {[]Reading{{Cards: all}, {Absent: ReasonNotLoaded}, {Load: 1, Cards: all}}, 0, []string{"GPU-0: ", "GPU-1: "}},
		"a silent driver":                      {[]Reading{{Cards: all[:1]}}, 10 * time.Second, []string{"GPU-0: the driver has not answered for more than 10 seconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			var k Known
			for _, r := range c.readings {
				k.Fold(r)
			}
			if diff := cmp.Diff(c.want, reasons(k.Status(c.silence))); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatCouldNotBeReadIsAsItWas(t *testing.T) {
	var k Known
	k.Fold(Reading{Cards: []Card{card(0)}})
	k.Fold(Reading{Cards: []Card{{Card: scv.Card{ID: "GPU-0", Index: 3, Reason: "does not tell its memory: Unknown Error"}, Partial: true}}})
	want := sick(3, "does not tell its memory: Unknown Error").Card
	want.ID, want.Health = "GPU-0", scv.Unhealthy
	if diff := cmp.Diff([]scv.Card{want}, k.Status(0).Cards); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
}

func TestTheReasonOfASilentDriverChangesAFewTimesADay(t *testing.T) {
	var k Known
	k.Fold(Reading{Cards: []Card{card(0)}})
	told := make(map[string]bool)
	for silence := time.Second; silence <= 24*time.Hour; silence += time.Second {
		told[k.Status(silence).Cards[0].Reason] = true
	}
	if len(told) != 10 {
		t.Errorf("%d reasons in a day, want 10: %v", len(told), told)
	}
}

// The resource's definition says how many cards there may be, and how long a reason.
func TestAStatusKeepsItsBounds(t *testing.T) {
	var k Known
	var first, second Reading
	for i := range int32(40) {
		first.Cards = append(first.Cards, card(i))
		second.Cards = append(second.Cards, sick(i+30, strings.Repeat("é", 400)))
	}
	for code := range uint64(200) {
		second.XIDs = append(second.XIDs, XID{"GPU-69", code})
	}
	k.Fold(first)
	k.Fold(second)
	s := k.Status(0)
	if len(s.Cards) != 64 || s.CardNumber != 64 {
		t.Errorf("%d cards of 70, want 64", len(s.Cards))
	}
	if last := s.Cards[63]; last.ID != "GPU-69" || !strings.Contains(last.Reason, "(XID 0, 1, 2, 3, 4, 5, 6, 7, and more)") {
		t.Errorf("the last is %s, because it %s; want GPU-69, and lost cards to go first", last.ID, last.Reason)
	}
	for _, c := range s.Cards {
		if len(c.Reason) > 512 || strings.ToValidUTF8(c.Reason, "") != c.Reason {
			t.Errorf("a reason of %d bytes, or no UTF-8: %q", len(c.Reason), c.Reason)
		}
	}
}

func TestLostCardsThatThereIsNoRoomForAreForgotten(t *testing.T) {
	var k Known
	for boot := range 100 {
		var r Reading
		for i := range 8 {
			c := card(int32(i))
			c.ID = fmt.Sprintf("GPU-%d-%d", boot, i)
			r.Cards = append(r.Cards, c)
		}
		k.Fold(r)
	}
	if len(k.cards) != 64 {
		t.Errorf("%d cards are known, want 64", len(k.cards))
	}
	if s := k.Status(0); s.HealthyNumber != 8 {
		t.Errorf("%d healthy cards, want the 8 that are there", s.HealthyNumber)
	}
}

// A card that may have had an error that was missed is sound again behind so many readings in which all was well.
func TestADoubtAboutMissedErrorsEnds(t *testing.T) {
	good, partial := Card{Card: scv.Card{ID: "GPU-0"}}, Card{Card: scv.Card{ID: "GPU-0", Reason: "does not tell its memory"}, Partial: true}
	var k Known
	healthy := func() bool { return k.Status(0).HealthyNumber == 1 }
	k.Fold(Reading{Cards: []Card{good}, Missed: true})
	for range missedFor - 1 {
		k.Fold(Reading{Cards: []Card{good}})
	}
	k.Fold(Reading{Cards: []Card{partial}}) // says nothing
	k.Fold(Reading{})                       // it is lost: neither
	if healthy() {
		t.Error("it is healthy too early")
	}
	k.Fold(Reading{Cards: []Card{good}})
	if !healthy() {
		t.Errorf("it is not healthy again: %+v", k.Status(0).Cards)
	}
	k.Fold(Reading{Cards: []Card{good}, Missed: true})
	k.Fold(Reading{Cards: []Card{good}, XIDs: []XID{{"GPU-0", 79}}})
	for range 2 * missedFor {
		k.Fold(Reading{Cards: []Card{good}})
	}
	if healthy() {
		t.Error("an error that was told is forgotten with one that may have been")
	}
}
