package yoda

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

func TestWholeCardsAreTheBestAndSharedOnesTheFullest(t *testing.T) {
	cards := []v1alpha1.Card{
		titan("a", 0),
		with(titan("b", 1), func(c *v1alpha1.Card) { c.CoreMHz++ }),
		titan("c", 3), titan("d", 2),
	}
	b := bookOf(cards...)
	wantChosen(t, b, &Request{Number: 1}, "b")
	wantChosen(t, b, &Request{Number: 2}, "a b")
	wantChosen(t, b, &Request{Number: 3}, "a b d")
	shared := &Request{Number: 1, MemoryMiB: 1000, Share: true}
	wantChosen(t, b, shared, "a")
	b.SetPod("p", "n", Grant{Cards: []string{"GPU-c"}, MemoryMiB: 11000})
	wantChosen(t, b, shared, "c")
	shared.Number = 2
	wantChosen(t, b, shared, "a c")
	b.SetPod("q", "n", Grant{Cards: []string{"GPU-c"}, MemoryMiB: 195})
	wantChosen(t, b, shared, "a b") // 999 MiB are left
	wantChosen(t, b, &Request{Number: 3}, "a b d")
}

func TestAmongEqualCardsTheLowestIndexGoesFirst(t *testing.T) {
	var cards []v1alpha1.Card
	want := ""
	for i := range int32(60) {
		c := titan("c"+strconv.Itoa(int(i)), i)
		if i%3 == 2 { // 20 of them are better
			c.CoreMHz++
		}
		if i%3 == 2 || i < 15 {
			want += " " + strings.TrimPrefix(c.ID, "GPU-")
		}
		cards = append(cards, c)
	}
	wantChosen(t, bookOf(cards...), &Request{Number: 30}, want[1:])
	for i := range cards {
		cards[i].FreeMemoryMiB -= cards[i].CoreMHz - 1911 // and fuller
	}
	wantChosen(t, bookOf(cards...), &Request{Number: 30, MemoryMiB: 1, Share: true}, want[1:])
}

func TestCardsThatDifferByLessThanAPercentDiffer(t *testing.T) {
	core := func(mhz int64) func(*v1alpha1.Card) { return func(c *v1alpha1.Card) { c.CoreMHz = mhz } }
	b := bookOf(with(titan("a", 0), core(10000)), with(titan("b", 1), core(5001)), with(titan("c", 2), core(5009)))
	wantChosen(t, b, &Request{Number: 2}, "a c")
}

func TestAmongCardsOfOneIndexTheLowestIDGoesFirst(t *testing.T) {
	var cards []v1alpha1.Card
	want := ""
	for i := range 60 {
		cards = append(cards, with(titan(strconv.Itoa(100+i), 7), func(c *v1alpha1.Card) { c.CoreMHz += int64(i % 2) }))
		if i%2 == 1 && i < 40 {
			want += " " + strconv.Itoa(100+i)
		}
	}
	slices.Reverse(cards)
	wantChosen(t, bookOf(cards...), &Request{Number: 20}, want[1:])
}

// TestWholeCardsAreRankedByTheWeightsOfAllFeatures: a card that has half of one feature goes after one that has half of another, if that weighs less.
func TestWholeCardsAreRankedByTheWeightsOfAllFeatures(t *testing.T) {
	halve := map[Feature]func(*v1alpha1.Card){
		Bandwidth: func(c *v1alpha1.Card) { c.BandwidthMBps /= 2 }, Clock: func(c *v1alpha1.Card) { c.ClockMHz /= 2 }, Core: func(c *v1alpha1.Card) { c.CoreMHz /= 2 },
		Power: func(c *v1alpha1.Card) { c.PowerWatts /= 2 }, FreeMemory: func(c *v1alpha1.Card) { c.FreeMemoryMiB /= 2 },
	}
	even := func(c *v1alpha1.Card) { // so that half is half
		c.BandwidthMBps, c.ClockMHz, c.CoreMHz, c.PowerWatts, c.TotalMemoryMiB, c.FreeMemoryMiB = 1<<14, 1<<13, 1<<11, 1<<8, 1<<14, 1<<14
	}
	for f, half := range halve {
		t.Run(f.String(), func(t *testing.T) {
			full := with(titan("full", 2), even)
			worse := with(with(titan("worse", 0), even), half)
			wantChosen(t, bookOf(worse, full), &Request{Number: 1}, "full")
			for g, other := range halve {
				if g == f {
					continue
				}
				want := "worse" // the lower index, for they weigh the same
				if f == FreeMemory {
					want = "other"
				}
				b := bookOf(worse, with(with(titan("other", 1), even), other), full)
				wantChosen(t, b, &Request{Number: 2}, map[string]string{"worse": "worse full", "other": "other full"}[want])
			}
		})
	}
	// All of the memory weighs one, and what is free of it two: of a card with three quarters of the memory, all of it free, and one with all, half of it free, the first is better.
	less := with(with(titan("less", 1), even), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 3<<12, 3<<12 })
	busy := with(with(titan("busy", 0), even), func(c *v1alpha1.Card) { c.FreeMemoryMiB /= 2 })
	wantChosen(t, bookOf(busy, less), &Request{Number: 1}, "less")
	// Total memory alone: both have as much free.
	wantChosen(t, bookOf(with(less, func(c *v1alpha1.Card) { c.Index, c.FreeMemoryMiB = 0, 1<<13 }), with(busy, func(c *v1alpha1.Card) { c.Index = 1 })), &Request{Number: 1}, "busy")
}

func TestCardsThatAreSharedAlreadyAreSharedFirst(t *testing.T) {
	b := bookOf(
		with(titan("used", 0), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 2000 }), // by somebody else, and no pod has it
		titan("some", 1), titan("more", 2), titan("none", 3),
	)
	b.SetPod("p", "n", gpuShares(10, "some"))
	b.SetPod("q", "n", gpuShares(20, "more"))
	for i, want := range []string{"more", "some more", "used some more", "used some more none"} {
		wantChosen(t, b, &Request{Number: int32(i) + 1, MemoryMiB: 1, Share: true}, want)
	}
}

func TestMemoryIsNotCountedTwiceByPodsThatHaveNotStarted(t *testing.T) {
	b := bookOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 10000, 6000 })) // 4000 are used by somebody else
	ask := func(mib int64) *Request { return &Request{Number: 1, MemoryMiB: mib, Share: true} }
	b.SetPod("p", "n", gpuShares(4000, "a"))
	wantRefused(t, b, ask(2001), ReasonMemory, false)
	wantChosen(t, b, ask(2000), "a")

	tell := func(free int64) {
		s := statusOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 10000, free }))
		s.Heartbeat = metav1.NewMicroTime(start.Add(time.Duration(free)))
		b.SetStatus("n", s, start)
	}
	tell(2000) // p has started, and is not taken off again
	wantChosen(t, b, ask(2000), "a")
	wantRefused(t, b, ask(2001), ReasonMemory, false)
	tell(5999) // it does not use all of it now, and may again
	wantChosen(t, b, ask(5999), "a")
	tell(10000)
	wantChosen(t, b, ask(6000), "a")
	wantRefused(t, b, ask(6001), ReasonMemory, false)
	tell(2000)
	b.Reserve(1, "p", "n", gpuShares(4000, "a")) // says what is known
	b.RemovePod("p")                             // and is as old
	b.SetPod("p", "n", gpuShares(4000, "a"))
	wantChosen(t, b, ask(2000), "a")
	b.SetPod("p", "n", gpuShares(4500, "a")) // of which 4000 were promised before
	wantChosen(t, b, ask(1500), "a")
	wantRefused(t, b, ask(1501), ReasonMemory, false)
	if c := b.View("n").Cards()[0]; c.SinceMiB != 500 || c.PromisedMiB != 4500 || c.Holders != 1 {
		t.Errorf("%+v, want 4500 MiB promised to one, and 500 of them since", c)
	}
}

func TestANodeIsUnresolvableOnlyIfEvictingCouldNotHelp(t *testing.T) {
	b := bookOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 10000, 1000 }))
	whole := func(mib int64) *Request { return &Request{Number: 1, MemoryMiB: mib} }
	wantRefused(t, b, whole(1001), ReasonMemory, true)
	b.SetPod("p", "n", gpuShares(3000, "a"))
	wantRefused(t, b, whole(4000), ReasonTaken, false)
	wantRefused(t, b, whole(4001), ReasonTaken, true)
	wantRefused(t, b, &Request{Number: 1, MemoryMiB: 4001, Share: true}, ReasonMemory, true)
	b.SetPod("p", "n", gpus("a"))
	wantRefused(t, b, whole(10000), ReasonTaken, false)
	wantRefused(t, b, whole(10001), ReasonSize, true)
	b.SetPod("p", "n", Grant{})
	wantRefused(t, b, whole(10000), ReasonAwaited, false)
	wantRefused(t, b, &Request{Number: 2}, ReasonAwaited, true)
}

func TestAViewWithoutPodsIsThatOfTheNodeWhenTheyAreGone(t *testing.T) {
	b := bookOf(
		with(titan("a", 0), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 5 }),
		with(titan("b", 1), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 2194 }),
		with(titan("c", 2), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 9000 }),
	)
	status := statusOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 5 }), with(titan("b", 1), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 2194 }), with(titan("c", 2), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 9000 }))
	status.Heartbeat = metav1.NewMicroTime(start.Add(1))
	b.SetPod("whole", "n", gpus("a"))
	b.Reserve(1, "whole", "n", gpus("a"))
	b.SetPod("part", "n", gpuShares(4000, "b"))
	b.SetPod("rest", "n", gpuShares(6000, "b"))
	b.SetStatus("n", status, start)
	b.SetPod("new", "n", gpuShares(1000, "c")) // has not started
	b.SetPod("awaited", "n", Grant{})
	v := b.View("n")
	for _, test := range []struct {
		pods      []types.UID
		want      string // available on each card
		unchanged bool
	}{
		{nil, "0 2194 8000", true}, {[]types.UID{"nobody"}, "0 2194 8000", true},
		{[]types.UID{"whole"}, "12194 2194 8000", false}, {[]types.UID{"part"}, "0 6194 8000", false},
		{[]types.UID{"part", "rest", "new"}, "0 12194 9000", false}, {[]types.UID{"new"}, "0 2194 9000", false},
	} {
		w := v.Without(test.pods...)
		got := ""
		for i := range w.Cards() {
			got += " " + strconv.FormatInt(w.Cards()[i].AvailableMiB(), 10)
		}
		if got[1:] != test.want || (w == v) != test.unchanged {
			t.Errorf("without %q, %s MiB are available, want %s", test.pods, got[1:], test.want)
		}
		if _, refusal := Choose(w, &Request{Number: 1}, nil, start); refusal == nil || refusal.Reason != ReasonAwaited {
			t.Errorf("without %q, and awaiting another pod: %+v", test.pods, refusal)
		}
	}
	if got, refusal := Choose(v.Without("whole", "awaited"), &Request{Number: 1, MemoryMiB: 12000}, nil, start); idsOf(got) != "a" {
		t.Errorf("got %s, %v", idsOf(got), refusal)
	}
	if v != b.View("n") || v.Cards()[0].FreeMemoryMiB != 5 || v.Cards()[0].Holders != 1 {
		t.Error("the view itself has changed")
	}
}

func TestRequestsThatNobodyCanMakeAreRefused(t *testing.T) {
	b := bookOf(titan("a", 0))
	for _, r := range []*Request{{}, {Number: -1}, {Number: MaxCards + 1}, {Number: 1, Share: true}, {Number: 1, Share: true, MemoryMiB: -1}} {
		wantRefused(t, b, r, ReasonRequest, true)
		if g, refusal := b.Give(1, "p", "n", r, nil, start); refusal == nil || len(g.Cards) > 0 {
			t.Errorf("%+v is given %v", r, g)
		}
	}
	if _, refusal := Choose(nil, &Request{Number: 1}, nil, start); refusal == nil || refusal.Reason != ReasonUnknown {
		t.Errorf("of no view: %+v", refusal)
	}
}
