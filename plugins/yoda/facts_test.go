package yoda

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Fault D1 of the original.
func TestTheClockIsMeasuredByTheHighestClock(t *testing.T) {
	slow, fast := titan("a", 0), with(titan("b", 0), func(c *v1alpha1.Card) { c.ClockMHz *= 2 })
	slow.BandwidthMBps, fast.BandwidthMBps = 1000000, 1000000
	labels := map[string]string{LabelNumber: "1"}
	p := originalRead(labels)
	most := originalMost(p, []v1alpha1.Card{slow}, []v1alpha1.Card{fast})
	if a, b := originalCards([]v1alpha1.Card{slow}, p, most), originalCards([]v1alpha1.Card{fast}, p, most); b-a > 1 {
		t.Fatalf("the original's scores are %d and %d: this input does not show its fault", a, b)
	}
	a, b := featuresOf(&Card{Card: slow}), featuresOf(&Card{Card: fast})
	var ours Maxima
	ours.Add(a)
	ours.Add(b)
	if got := Clock.percent(b[Clock], ours[Clock]); got != 100 {
		t.Errorf("the highest clock is %d%% of the highest", got)
	}
	if got := Clock.percent(a[Clock], ours[Clock]); got != 50 {
		t.Errorf("half of the highest clock is %d%% of the highest", got)
	}
	if Score(b, ours) <= Score(a, ours) {
		t.Errorf("twice the clock has score %d, and once %d", Score(b, ours), Score(a, ours))
	}
}

// Fault D2 of the original.
func TestAClockIsAMinimum(t *testing.T) {
	cards := []v1alpha1.Card{titan("a", 0)}
	labels := map[string]string{LabelClock: "5000"}
	if originalFits(cards, originalRead(labels)) {
		t.Fatal("the original finds a card: this input does not show its fault")
	}
	r, err := ParseRequest(labels, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantChosen(t, bookOf(cards...), r, "a")
	r.ClockMHz = 5705
	wantChosen(t, bookOf(cards...), r, "a")
	r.ClockMHz = 5706
	wantRefused(t, bookOf(cards...), r, ReasonClock, true)
}

// Fault D3 of the original.
func TestTheSameCardsMeetAllOfARequest(t *testing.T) {
	cards := []v1alpha1.Card{
		with(titan("big", 0), func(c *v1alpha1.Card) { c.ClockMHz = 1000 }),
		with(titan("fast", 1), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 10 }),
	}
	labels := map[string]string{LabelMemory: "8000", LabelClock: "5705"}
	if !originalFits(cards, originalRead(labels)) {
		t.Fatal("the original refuses: this input does not show its fault")
	}
	r, err := ParseRequest(labels, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, bookOf(cards...), r, ReasonMemory, true)
	wantChosen(t, bookOf(append(cards, titan("both", 2))...), r, "both")
}

// Fault D4 of the original.
func TestANodeIsScoredByTheCardsThatThePodWouldGet(t *testing.T) {
	better := []v1alpha1.Card{titan("x", 0)}
	var many []v1alpha1.Card
	for i := range int32(8) {
		many = append(many, with(titan("y"+strconv.Itoa(int(i)), i), func(c *v1alpha1.Card) { c.CoreMHz /= 2 }))
	}
	labels := map[string]string{LabelNumber: "1"}
	p := originalRead(labels)
	most := originalMost(p, better, many)
	if originalCards(many, p, most) <= originalCards(better, p, most) {
		t.Fatal("the original prefers the better card: this input does not show its fault")
	}
	r, _ := ParseRequest(labels, nil)
	var of [2]Features
	var ours Maxima
	for i, cards := range [][]v1alpha1.Card{better, many} {
		v := bookOf(cards...).View("n")
		chosen, _ := Choose(v, r, nil, start)
		of[i] = FeaturesOf(v, chosen)
		ours.Add(of[i])
	}
	if a, b := Score(of[0], ours), Score(of[1], ours); a <= b {
		t.Errorf("the better card has score %d, and eight that are worse %d", a, b)
	}
	if of[0][TotalMemory] != 12194 || of[1][TotalMemory] != 12194 {
		t.Errorf("one card has %d MiB, and one of eight %d", of[0][TotalMemory], of[1][TotalMemory])
	}
}

// Fault D5 of the original.
func TestAPodIsPromisedItsMemoryOfEachOfItsCards(t *testing.T) {
	cards := []v1alpha1.Card{titan("a", 0), titan("b", 1), titan("c", 2), titan("d", 3)}
	labels := map[string]string{LabelNumber: "4", LabelMemory: "6097"} // half of the node
	if got := originalAllocate(4*12194, originalRead(labels)) * 100 / (4 * 12194); got < 80 {
		t.Fatalf("the original has %d%% left: this input does not show its fault", got)
	}
	b := bookOf(cards...)
	b.SetPod("p", "n", Grant{Cards: []string{"GPU-a", "GPU-b", "GPU-c", "GPU-d"}, MemoryMiB: 6097})
	if got := FeaturesOf(b.View("n"), nil)[Allocate]; got != 50 {
		t.Errorf("of half of each card is left %d%%, want 50%%", got)
	}
	b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}})
	if got := FeaturesOf(b.View("n"), nil)[Allocate]; got != 75 {
		t.Errorf("of one whole card in four is left %d%%, want 75%%", got)
	}
}

// Fault D6 of the original.
func TestAnUnhealthyCardIsNeverChosen(t *testing.T) {
	cards := []v1alpha1.Card{with(titan("a", 0), func(c *v1alpha1.Card) { c.Health = v1alpha1.Unhealthy })}
	labels := map[string]string{LabelNumber: "1"}
	p := originalRead(labels)
	if !originalFits(cards, p) || originalCards(cards, p, originalMost(p, cards)) == 0 {
		t.Fatal("the original takes no notice of the card: this input does not show its fault")
	}
	r, _ := ParseRequest(labels, nil)
	wantRefused(t, bookOf(cards...), r, ReasonHealth, true)
	wantChosen(t, bookOf(append(cards, titan("b", 1))...), r, "b")
	cards[0].Health = "Probably"
	wantRefused(t, bookOf(cards...), r, ReasonHealth, true)
	if got := FeaturesOf(bookOf(cards...).View("n"), nil)[Actual]; got != 0 {
		t.Errorf("%d%% of a node without a healthy card is free", got)
	}
}

// Fault D7 of the original.
func TestANodeWithoutMemoryHasNoneFree(t *testing.T) {
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the original does not panic: this input does not show its fault")
			}
		}()
		t.Log(originalActual(0, 0))
	}()
	none := with(titan("a", 0), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 0, 0 })
	b := bookOf(none)
	of := FeaturesOf(b.View("n"), wantChosen(t, b, &Request{Number: 1}, "a"))
	if of[Actual] != 0 || of[Allocate] != 0 {
		t.Errorf("Actual is %d, and Allocate %d", of[Actual], of[Allocate])
	}
	if got := FeaturesOf(&View{}, nil); got != (Features{}) {
		t.Errorf("a node of which nothing is known has features %v", got)
	}
	Score(of, Maxima{}) // does not panic
}

// Fault D8 of the original.
func TestALabelThatIsNoNumberIsAnError(t *testing.T) {
	if p := originalRead(map[string]string{LabelMemory: "16Gi", LabelNumber: "-1"}); p.memory != 0 || p.number != 1<<64-1 {
		t.Fatalf("the original reads %+v: this input does not show its fault", p)
	}
	for _, name := range []string{LabelNumber, LabelNumberV1, LabelMemory, LabelMemoryV1, LabelClock} {
		for _, text := range []string{"", "-1", "+5", " 5", "5 ", "007", "00", "5.0", "1e3", "0x5", "5_0", "٥", "16Gi", "9223372036854775808", "4294967297", "2147483648", "99999999999999999999999"} {
			r, err := ParseRequest(map[string]string{name: text}, nil)
			if err == nil {
				t.Errorf("%s=%q is read as %+v", name, text, r)
			} else if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), strconv.QuoteToASCII(text)) || !strings.Contains(err.Error(), "want ") {
				t.Errorf("%s=%q: %v: want the label, the value, and what is right", name, text, err)
			}
		}
	}
	_, err := ParseRequest(map[string]string{LabelMemory: strings.Repeat("7", 1000)}, nil)
	if want := `label "scv/memory" is "` + strings.Repeat("7", 64) + `"…: want MiB, a whole number from 0 to 2147483647, in digits only`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if got := Refuse(errors.New("label is wrong")); got.Reason != "label is wrong" || !got.Unresolvable {
		t.Errorf("a pod with a wrong label is refused with %+v", got)
	}
}

// Fault D9 of the original.
func TestACardThatWasGivenIsNotGivenAgainBeforeItsCollectorSaysSo(t *testing.T) {
	cards := []v1alpha1.Card{titan("a", 0)}
	labels := map[string]string{LabelMemory: "8000"}
	b := bookOf(cards...)
	r, _ := ParseRequest(labels, nil)
	first := wantChosen(t, b, r, "a")
	b.SetPod("p", "n", r.Grant(first))
	if !originalFits(cards, originalRead(labels)) { // the pod has not started, so the collector says the same
		t.Fatal("the original refuses: this input does not show its fault")
	}
	wantRefused(t, b, r, ReasonTaken, false)
	b.RemovePod("p")
	wantChosen(t, b, r, "a")
}

// Fault D10 of the original.
func TestCardsOfASilentCollectorAreGivenToNobody(t *testing.T) {
	p, r := originalPod{number: 1}, &Request{Number: 1}
	told := statusOf(titan("a", 0))
	b := bookOf(titan("a", 0))
	for _, after := range []time.Duration{0, 30*time.Second - 1, 30 * time.Second, 365 * 24 * time.Hour} {
		if !originalFilter(told, p, start.Add(after)) {
			t.Fatalf("the original refuses after %v: this input does not show its fault", after)
		}
		got, refusal := Choose(b.View("n"), r, nil, start.Add(after))
		if stale := after >= 30*time.Second; stale && (refusal == nil || *refusal != (Refusal{ReasonStale, true})) || !stale && idsOf(got) != "a" {
			t.Errorf("after %v: cards %q, %+v", after, idsOf(got), refusal)
		} else if b.Stale("n", start.Add(after)) != stale {
			t.Errorf("after %v it is not stale: %v", after, stale)
		}
	}
	if got := b.View("n").StaleAt(); got != start.Add(30*time.Second) {
		t.Errorf("stale from %v on, want after 30 s", got)
	}
	b.SetStatus("n", statusOf(titan("a", 0)), start.Add(time.Minute)) // a list was read again
	if !b.Stale("n", start.Add(time.Minute)) {
		t.Error("the same status, seen again, is a sign of life")
	}
	again := statusOf(titan("a", 0))
	news := func(what string, seen time.Time, staleAfter time.Duration) {
		t.Helper()
		b.SetStatus("n", again, seen)
		if got := b.View("n").StaleAt(); got != seen.Add(staleAfter) {
			t.Errorf("%s: stale at %v, want %v after %v", what, got, staleAfter, seen)
		}
	}
	again.Heartbeat = metav1.NewMicroTime(start.Add(-time.Hour)) // by a clock that was set back
	news("another heartbeat", start.Add(time.Minute), 30*time.Second)
	again.Cards[0].FreeMemoryMiB--
	news("other cards", start.Add(2*time.Minute), 30*time.Second)
	for i, test := range []struct {
		seconds int32
		want    time.Duration
	}{{20, time.Minute}, {-5, 3 * time.Second}, {0, 3 * time.Second}, {1, 3 * time.Second}, {3600, 3 * time.Hour}, {3601, 3 * time.Hour}, {1<<31 - 1, 3 * time.Hour}} {
		again.HeartbeatSeconds = test.seconds // and nothing else
		news(fmt.Sprint(test.seconds, " s"), start.Add(time.Duration(i)*time.Hour), test.want)
	}
	if b.Stale("other", start) {
		t.Error("a collector that nobody has seen is stale")
	}
}

func TestWhatIsSeenFirstIsNoSignOfLifeIfItIsOld(t *testing.T) {
	for _, test := range []struct {
		age   time.Duration
		stale bool
	}{{-time.Hour, false}, {0, false}, {30 * time.Second, false}, {30*time.Second + time.Microsecond, true}, {365 * 24 * time.Hour, true}} {
		b := bookOf()
		b.RemoveStatus("n")
		s := statusOf(titan("a", 0))
		s.Heartbeat = metav1.NewMicroTime(start.Add(-test.age))
		for range 2 { // seen again, it is no news
			b.SetStatus("n", s, start)
			if got := b.Stale("n", start); got != test.stale {
				t.Errorf("%v old: stale is %v", test.age, got)
			}
		}
		s.Heartbeat = metav1.NewMicroTime(s.Heartbeat.Add(time.Microsecond)) // as old, but it has changed
		b.SetStatus("n", s, start)
		if b.Stale("n", start) || !b.Stale("n", start.Add(30*time.Second)) {
			t.Errorf("%v old, and changed: stale at %v", test.age, b.View("n").StaleAt())
		}
	}
	b := bookOf(titan("a", 0))
	b.SetStatus("n", nil, start)
	wantRefused(t, b, &Request{Number: 1}, ReasonNoCollector, true)
}

// Fault D11 of the original.
func TestARefusalSaysWhatIsMissing(t *testing.T) {
	two := []v1alpha1.Card{titan("a", 0), titan("b", 1)}
	few, slow := originalReason("n1", two, originalPod{number: 3}), originalReason("n1", two, originalPod{number: 1, clock: 6000, asksClock: true})
	if few == "" || few != slow || few == originalReason("n2", two, originalPod{number: 3}) {
		t.Fatalf("the original says %q of too few cards, and %q of slow ones: this input does not show its fault", few, slow)
	}
	plain := func() *Book { return bookOf(titan("a", 0), titan("b", 1)) }
	facts := func(f Facts) *Book { b := plain(); b.SetNode("n", f); return b }
	one := Request{Number: 1}
	said := map[string]bool{}
	for _, test := range []struct {
		name         string
		book         *Book
		request      Request
		want         string
		unresolvable bool
	}{
		{"nothing known", NewBook(), one, ReasonUnknown, true},
		{"device plugin", facts(Facts{DevicePlugin: true}), one, ReasonDevicePlugin, true},
		{"DRA", facts(Facts{DRA: true}), one, ReasonDRA, true},
		{"no collector", func() *Book { b := plain(); b.RemoveStatus("n"); return b }(), one, ReasonNoCollector, true},
		{"no cards", bookOf(), one, ReasonNoCards, true},
		{"awaited", func() *Book { b := plain(); b.SetPod("p", "n", Grant{}); return b }(), one, ReasonAwaited, false},
		{"number", plain(), Request{Number: 3}, ReasonNumber, true},
		{"told twice", func() *Book { b := plain(); b.SetStatus("m", statusOf(titan("a", 0)), start); return b }(), Request{Number: 2}, ReasonTwice, true},
		{"request", plain(), Request{}, ReasonRequest, true},
		{"stale", func() *Book {
			b, s := NewBook(), statusOf(two...)
			s.Heartbeat = metav1.NewMicroTime(start.Add(-time.Hour))
			b.SetNode("n", Facts{})
			b.SetStatus("n", s, start)
			return b
		}(), one, ReasonStale, true},
		{"health", bookOf(titan("a", 0), v1alpha1.Card{ID: "GPU-b", Health: v1alpha1.Unhealthy}), Request{Number: 2}, ReasonHealth, true},
		{"model", plain(), Request{Number: 1, Model: "NVIDIA TITAN"}, ReasonModel, true},
		{"level", plain(), Request{Number: 1, Level: Low}, ReasonLevel, true},
		{"clock", plain(), Request{Number: 1, ClockMHz: 6000}, ReasonClock, true},
		{"core", plain(), Request{Number: 1, CoreMHz: 2000}, ReasonCore, true},
		{"size", plain(), Request{Number: 1, MemoryMiB: 12195}, ReasonSize, true},
		{"taken", func() *Book {
			b := plain()
			b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}, MemoryMiB: 1})
			return b
		}(), Request{Number: 2}, ReasonTaken, false},
		{"shared, taken", func() *Book { b := plain(); b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}}); return b }(), Request{Number: 2, MemoryMiB: 1, Share: true}, ReasonTaken, false},
		{"shared, promised", func() *Book {
			b := plain()
			b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}, MemoryMiB: 12000})
			return b
		}(), Request{Number: 2, MemoryMiB: 195, Share: true}, ReasonMemory, false},
		{"memory that others use", bookOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 5 })), Request{Number: 1, MemoryMiB: 6}, ReasonMemory, true},
		{"taken, and another one in use", func() *Book {
			b := bookOf(titan("a", 0), with(titan("b", 1), func(c *v1alpha1.Card) { c.FreeMemoryMiB = 5 }))
			b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}})
			return b
		}(), Request{Number: 2, MemoryMiB: 6}, ReasonTaken, true},
	} {
		t.Run(test.name, func(t *testing.T) { wantRefused(t, test.book, &test.request, test.want, test.unresolvable) })
		said[test.want] = true
	}
	for text := range said { // what is missing is said in words of its own, and nothing of which node it is: that is how equal ones are counted
		if strings.Contains(text, "Node:") || strings.Contains(text, "n1") {
			t.Errorf("%q names a node", text)
		}
	}
	if len(said) != 18 {
		t.Errorf("%d reasons are told apart, want 18", len(said))
	}
}

// Fault D12 of the original.
func TestMaximaAreThoseOfNodesThatCanRunThePod(t *testing.T) {
	giant := with(titan("g", 0), func(c *v1alpha1.Card) { c.BandwidthMBps *= 100 })
	books := map[string]*Book{"device plugin": bookOf(giant), "x": bookOf(titan("a", 0)), "y": bookOf(with(titan("a", 0), func(c *v1alpha1.Card) { c.BandwidthMBps /= 2 }))}
	books["device plugin"].SetNode("n", Facts{DevicePlugin: true})
	p := originalPod{number: 1}
	most := originalMost(p, []v1alpha1.Card{giant}, []v1alpha1.Card{titan("a", 0)})
	if got := titan("a", 0).BandwidthMBps * 100 / most[Bandwidth]; got > 1 {
		t.Fatalf("the original has bandwidth %d%%: this input does not show its fault", got)
	}
	of, ours := map[string]Features{}, Maxima{}
	for name, b := range books {
		v := b.View("n")
		if chosen, refusal := Choose(v, &Request{Number: 1}, nil, start); refusal == nil {
			of[name] = FeaturesOf(v, chosen)
			ours.Add(of[name])
		}
	}
	if len(of) != 2 {
		t.Fatalf("%d nodes can run the pod, want 2", len(of))
	}
	if a, b := Bandwidth.percent(of["x"][Bandwidth], ours[Bandwidth]), Bandwidth.percent(of["y"][Bandwidth], ours[Bandwidth]); a != 100 || b != 50 {
		t.Errorf("bandwidths are %d%% and %d%%, want 100%% and 50%%", a, b)
	}
}
