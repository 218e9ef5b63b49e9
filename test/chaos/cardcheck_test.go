package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// tell has the collector of the node with cards of number i tell of them all, of which some, by their numbers, are sick or have vanished.
func (h *tale) tell(i int, bad map[int]Kind) {
	told := &Told{}
	for k := range cardsEach {
		if bad[k] != cardVanishes {
			told.Cards = append(told.Cards, ToldCard{cardID(i, k), bad[k] == "", cardMiB})
		}
	}
	h.add(Entry{Object: &Object{Revision: h.next(), Name: cardNode(i).Name, Told: told}})
}

// tellFor has it tell so for some time.
func (h *tale) tellFor(lasts time.Duration, i int, bad map[int]Kind) {
	for until := h.now + Micros(lasts/time.Microsecond); h.now < until; {
		h.tell(i, bad)
	}
}

// show stores a pod that is on the node with cards of number i, and what it says of its cards, by their numbers on that node.
func (h *tale) show(name string, i int, memory string, cards ...int) *Object {
	var ids []string
	for _, k := range cards {
		ids = append(ids, cardID(i, k))
	}
	o := &Object{Revision: h.next(), Name: "default/" + name, UID: name, On: cardNode(i).Name, Cards: strings.Join(ids, ","), CardsMemory: memory}
	h.add(Entry{Object: o})
	return o
}

// give has a pod bound, as it should be, to the node with cards of number i, and with some cards.
func (h *tale) give(p *corev1.Pod, i int, memory string, cards ...int) *Object {
	h.pod(p)
	h.record(h.newest(), 20+h.version, p.Name, cardNode(i).Name)
	h.bind(p.Name, cardNode(i).Name, Done)
	return h.show(p.Name, i, memory, cards...)
}

func TestEachKindOfViolationOfCardsIsFound(t *testing.T) {
	none := map[int]Kind{}
	sick, gone := map[int]Kind{2: cardSick}, map[int]Kind{2: cardVanishes}
	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"cards are given once", "", "", func(h *tale) {
			h.give(carded("d", 2, 0), 0, "0", 0, 1)
			h.give(carded("e", 1, 0), 0, "0", 2)
			h.give(carded("f", 1, leastShare), 0, "4096", 3)
		}},
		{"a card is given twice", RuleCard, "default/d (0 MiB), default/e (0 MiB)", func(h *tale) {
			h.give(carded("d", 2, 0), 0, "0", 0, 1)
			h.give(carded("e", 1, 0), 0, "0", 1)
		}},
		{"a card is given again when its pod has gone", "", "", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.remove("d")
			h.give(carded("e", 1, 0), 0, "0", 1)
		}},
		{"a card is given again when its pod has ended", "", "", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.show("d", 0, "0", 1).Ended = true
			h.give(carded("e", 1, 0), 0, "0", 1)
			h.show("d", 0, "0", 1).Ended = true
		}},
		{"a card that is whole is shared", RuleCard, "default/e (4096 MiB)", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.give(carded("e", 1, leastShare), 0, "4096", 1)
		}},
		{"all of a card is shared", "", "", func(h *tale) {
			for _, name := range []string{"d", "e", "f", "g"} {
				h.tell(0, nil)
				h.give(carded(name, 1, leastShare), 0, "4096", 1)
			}
		}},
		{"more of a card is shared than it has", RuleCard, "has 16384 MiB", func(h *tale) {
			for _, name := range []string{"d", "e", "f"} {
				h.give(carded(name, 1, otherShare), 0, "6144", 1)
			}
		}},
		{"a pod has too few cards", RuleGrant, "it has asked for 2", func(h *tale) { h.give(carded("d", 2, 0), 0, "0", 1) }},
		{"a pod has one card twice", RuleGrant, "not all different", func(h *tale) { h.give(carded("d", 2, 0), 0, "0", 1, 1) }},
		{"a pod is bound without cards", RuleGrant, "it has asked for 1", func(h *tale) { h.give(carded("d", 1, 0), 0, "") }},
		{"a pod that asks for no card has one", RuleGrant, "it has asked for 0", func(h *tale) {
			h.node(trimNode(node(0)))
			h.pod(pod(classPlain, "d", 10))
			h.record(h.newest(), 20, "d", node(0).Name)
			h.bind("d", node(0).Name, Done)
			h.store("d", node(0).Name, "")
			on := h.entries[len(h.entries)-1].Object
			on.Cards, on.CardsMemory = cardID(0, 0), "0"
		}},
		{"a pod that shares has cards whole", RuleGrant, "4096 MiB of each", func(h *tale) { h.give(carded("d", 1, leastShare), 0, "0", 1) }},
		{"memory of cards is no number", RuleGrant, "want MiB", func(h *tale) { h.give(carded("d", 1, 0), 0, "all", 1) }},
		{"a pod has cards of another node", RuleGrant, cardID(1, 0) + " is of node", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 0).Cards = cardID(1, 0)
		}},
		{"a pod has a card before it has a node", RuleGrant, "has no node", func(h *tale) {
			h.pod(carded("d", 1, 0))
			h.show("d", 0, "0", 1).On = ""
			h.remove("d")
		}},
		{"a pod's cards change", RuleGrant, "had the cards " + cardID(0, 1) + " 0, and has " + cardID(0, 2), func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.show("d", 0, "0", 2)
		}},
		{"a pod loses its cards", RuleGrant, "and has   at", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.show("d", 0, "")
		}},
		{"a pod's cards become those of another", RuleCard, "default/e", func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 1)
			h.give(carded("e", 1, 0), 0, "0", 2)
			h.show("d", 0, "0", 2)
		}},
		{"a sick card is given", RuleUnfit, cardID(0, 2), func(h *tale) {
			h.tellFor(20*time.Second, 0, sick)
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"another card than the sick one is given", "", "", func(h *tale) {
			h.tellFor(20*time.Second, 0, sick)
			h.give(carded("d", 1, 0), 0, "0", 1)
		}},
		{"a card is given that has just fallen sick", "", "", func(h *tale) {
			h.tell(0, sick)
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"a card is given that is well again", "", "", func(h *tale) {
			h.tellFor(20*time.Second, 0, sick)
			h.tell(0, none)
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"a card falls sick long before its bind and after the choice", "", "", func(h *tale) {
			h.pod(carded("d", 1, 0))
			h.record(h.newest(), 20, "d", cardNode(0).Name)
			h.tellFor(30*time.Second, 0, sick)
			h.bind("d", cardNode(0).Name, Done)
			h.show("d", 0, "0", 2)
		}},
		{"a card falls sick while word of it is late", "", "", func(h *tale) {
			h.add(Entry{Fault: &Fault{Number: 1, Kind: yodaCut, Phase: phaseBegin}})
			h.tellFor(20*time.Second, 0, sick)
			h.give(carded("d", 1, 0), 0, "0", 2)
			h.add(Entry{Fault: &Fault{Number: 1, Kind: yodaCut, Phase: phaseEnd}})
		}},
		{"the fault that makes a card sick excuses nothing", RuleUnfit, cardID(0, 2), func(h *tale) {
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cardSick, Phase: phaseBegin}})
			h.tellFor(20*time.Second, 0, sick)
			h.give(carded("d", 1, 0), 0, "0", 2)
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cardSick, Phase: phaseEnd}})
		}},
		{"a card is given that has vanished", RuleUnfit, cardID(0, 2), func(h *tale) {
			h.tellFor(20*time.Second, 0, gone)
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"a card is given to another when it has vanished and come back", RuleCard, cardID(0, 2), func(h *tale) {
			h.give(carded("d", 1, 0), 0, "0", 2)
			h.tellFor(20*time.Second, 0, gone)
			h.tell(0, none)
			h.give(carded("e", 1, 0), 0, "0", 2)
		}},
		{"a card is given whose collector is silent", RuleUnfit, cardID(0, 2), func(h *tale) {
			h.now += 20e6
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"a card is given whose collector has only just become silent", "", "", func(h *tale) {
			h.now += 8e6
			h.give(carded("d", 1, 0), 0, "0", 2)
		}},
		{"a pod is where there are no cards", RuleGrant, "is of node \"" + cardNode(0).Name, func(h *tale) {
			h.node(trimNode(seatNode(0)))
			h.give(carded("d", 1, 0), 0, "0", 0).On = seatNode(0).Name
		}},
		{"a pod with cards waits at the end", RuleLost, "would fit", func(h *tale) { h.pod(carded("d", 1, 0)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := good()
			for i := range 2 {
				h.node(trimNode(cardNode(i)))
				h.tell(i, nil)
			}
			h.tell(0, nil)
			tt.tell(h)
			h.finish()
			h.add(Entry{Mark: End})
			found := Check(h.entries)
			if tt.rule == "" {
				for _, v := range found {
					t.Errorf("found %s", v)
				}
				return
			}
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == tt.rule && strings.Contains(v.Text, tt.says) }) {
				t.Errorf("found %v, want %q with %q", found, tt.rule, tt.says)
			}
		})
	}
}

func TestCollectorsTellOfWhatBecomesOfCards(t *testing.T) {
	c := idleCollectors()
	c.see(&Object{Name: "default/d", UID: "d", On: cardNode(1).Name, Cards: cardID(1, 3), CardsMemory: "0"})
	c.see(&Object{Name: "default/e", UID: "e", On: cardNode(1).Name, Cards: cardID(1, 2), CardsMemory: "4096"})
	n := nemesis{collectors: c, yoda: &serviceProcess{}}
	var undo []func() error
	spoil := func(kind Kind, target string) {
		t.Helper()
		u, err := n.spoilCards(Fault{Kind: kind}, target)
		if err != nil {
			t.Fatal(err)
		}
		undo = append(undo, u)
	}
	spoil(cardSick, cardID(1, 0))
	spoil(cardVanishes, cardID(1, 1))
	spoil(collectorDies, cardNode(2).Name)
	got := c.tell(1, epoch)
	free, health := map[string]int64{}, map[string]scv.Health{}
	for _, card := range got.Cards {
		free[card.ID], health[card.ID] = card.FreeMemoryMiB, card.Health
	}
	if diff := cmp.Diff(map[string]scv.Health{cardID(1, 0): scv.Unhealthy, cardID(1, 2): scv.Healthy, cardID(1, 3): scv.Healthy}, health); diff != "" {
		t.Errorf("health of cards (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int64{cardID(1, 0): cardMiB, cardID(1, 2): cardMiB - 3072, cardID(1, 3): cardMiB / 2}, free); diff != "" {
		t.Errorf("free memory of cards (-want +got):\n%s", diff)
	}
	if got.CardNumber != 3 || got.HealthyNumber != 2 || got.TotalMemoryMiB != 2*cardMiB || got.FreeMemoryMiB != 3*cardMiB/2-3072 {
		t.Errorf("%d cards, %d healthy, %d of %d MiB free: want 3, 2, and the sums over healthy ones", got.CardNumber, got.HealthyNumber, got.FreeMemoryMiB, got.TotalMemoryMiB)
	}
	if c.tell(2, epoch) != nil {
		t.Error("a collector that has died tells")
	}
	if last := c.givenLast(); last != cardID(1, 2) {
		t.Errorf("the card given last is %s, want %s", last, cardID(1, 2))
	}
	for _, u := range undo {
		if err := u(); err != nil {
			t.Fatal(err)
		}
	}
	c.see(&Object{Name: "default/d", Deleted: true})
	c.see(&Object{Name: "default/e", UID: "e", On: cardNode(1).Name, Cards: cardID(1, 2), CardsMemory: "4096", Ended: true})
	if got := c.tell(1, epoch); got.HealthyNumber != cardsEach || got.FreeMemoryMiB != cardsEach*cardMiB {
		t.Errorf("%d cards are healthy and %d MiB free when all is over, want %d and all", got.HealthyNumber, got.FreeMemoryMiB, cardsEach)
	}
	if c.tell(2, epoch) == nil {
		t.Error("a collector that is there again tells nothing")
	}
}

func TestWhatIsToldOfCardsIsRead(t *testing.T) {
	c := idleCollectors()
	c.bad[cardID(0, 3)] = cardSick
	stored, err := json.Marshal(&scv.Scv{Status: *c.tell(0, epoch)})
	if err != nil {
		t.Fatal(err)
	}
	r := objectReader{seen: map[string]bool{}}
	name := cardNode(0).Name
	o, err := r.read(etcdEvent{KV: etcdKV{Key: []byte(registryScvs + name), Value: stored, Mod: 7}})
	if err != nil {
		t.Fatal(err)
	}
	want := &Object{Revision: 7, Name: name, Told: &Told{[]ToldCard{{cardID(0, 0), true, cardMiB}, {cardID(0, 1), true, cardMiB}, {cardID(0, 2), true, cardMiB}, {cardID(0, 3), false, cardMiB}}}}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("an Scv (-want +got):\n%s", diff)
	}
	if o.ofPod() {
		t.Error("it is taken for a pod")
	}
	if o, err = r.read(etcdEvent{Type: "DELETE", KV: etcdKV{Key: []byte(registryScvs + name), Mod: 8}}); err != nil || o.Told == nil || !o.Deleted {
		t.Errorf("an Scv that was deleted is %+v, %v", o, err)
	}
}

// TestTwoCardsAreFreeOnOneNodeAtTheEnd: else a pod that asks for two might wait for ever, wherever the others are.
func TestTwoCardsAreFreeOnOneNodeAtTheEnd(t *testing.T) {
	if finalCarded-2 >= cardNodes*(cardsEach-1) {
		t.Errorf("%d cards are asked for at the end, and %d nodes have %d", finalCarded, cardNodes, cardsEach)
	}
}

func TestDrawnPodsAskForCardsInEachWay(t *testing.T) {
	w := newWorkload(nil, nil, 1, 0)
	ways := map[[2]int64]int{}
	urgent := 0
	for range 200 {
		w.number++
		p := w.drawCarded()
		ways[[2]int64{int64(cardsAsked(p)), sharesOf(p)}]++
		if p.Spec.Priority != nil {
			urgent++
		}
	}
	if len(ways) != 5 || urgent == 0 || urgent > 100 {
		t.Errorf("200 pods ask in these ways: %v, and %d are urgent: want 1 and 2 cards, 1 and 2 in part, 1 in another part, and a few urgent ones", ways, urgent)
	}
}
