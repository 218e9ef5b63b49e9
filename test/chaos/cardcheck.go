package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This file has what a history must not show of cards.

// grant is which cards a pod has got.
type grant struct {
	cards  []string // IDs
	memory int64    // of each of them, in MiB; 0: all of each
}

// readGrant reads what a pod says of its cards; nothing is in it if that is nothing.
func readGrant(o *Object) (grant, error) {
	if o.Cards == "" && o.CardsMemory == "" {
		return grant{}, nil
	}
	mib, err := strconv.ParseInt(o.CardsMemory, 10, 64)
	if err != nil || mib < 0 {
		return grant{}, fmt.Errorf("memory of cards %q: want MiB", o.CardsMemory)
	}
	return grant{strings.Split(o.Cards, ","), mib}, nil
}

// sharesOf returns how much of each card a pod asks for, in MiB; 0: all.
func sharesOf(p *corev1.Pod) int64 {
	var asks struct {
		Share  bool
		Memory resource.Quantity
	}
	if err := json.Unmarshal([]byte(p.Annotations[annotationRequest]), &asks); err != nil || !asks.Share {
		return 0
	}
	return asks.Memory.Value() >> 20
}

// cardsState is what a history tells of cards.
type cardsState struct {
	told    map[string][]toldVersion    // by node
	home    map[string]string           // the node of a card, by ID
	memory  map[string]int64            // by ID, in MiB
	holders map[string]map[string]grant // by ID, and uid of a pod
	late    []span                      // when who gives cards may have been late to know of them: all faults but those of the cards
}

// toldVersion is what was told of a node's cards, from some time on.
type toldVersion struct {
	from    Micros
	healthy map[string]bool // by ID; others are not
}

func newCardsState(entries []Entry) cardsState {
	others := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
		return e.Fault != nil && slices.Contains([]Kind{collectorDies, cardSick, cardVanishes}, e.Fault.Kind)
	})
	return cardsState{told: map[string][]toldVersion{}, home: map[string]string{}, memory: map[string]int64{}, holders: map[string]map[string]grant{}, late: faults(others)}
}

// tell notes what a collector has told. IDs do not go from one node to another here.
func (s *cardsState) tell(at Micros, o *Object) {
	v := toldVersion{at, map[string]bool{}}
	for _, c := range o.Told.Cards {
		s.home[c.ID], s.memory[c.ID] = o.Name, c.MiB
		v.healthy[c.ID] = c.Healthy
	}
	s.told[o.Name] = append(s.told[o.Name], v)
}

// cardLateness is how late who gives cards may hear of them, besides what may be so of all that is known (checker.around): by then, it may give what was so before. It is much more than it takes on a busy machine, and less than the faults of cards last.
const cardLateness = Micros(7 * time.Second / time.Microsecond)

// fit reports whether a card was told to be healthy, by a collector that was not silent for too long, at any time of a span.
func (s *cardsState) fit(node, id string, w span) bool {
	const stale = Micros(staleAfter / time.Microsecond)
	until := w.to
	for _, v := range slices.Backward(s.told[node]) {
		if v.healthy[id] && v.from <= w.to && min(until, v.from+stale) >= w.from {
			return true
		}
		if until = v.from; until < w.from {
			break // those before it were over by then
		}
	}
	return false
}

// release notes that a pod has no cards any more.
func (s *cardsState) release(uid string) {
	for _, pods := range s.holders {
		delete(pods, uid)
	}
}

// cards judges a change of a pod by what it says of its cards. A pod that has ended holds none.
func (c *checker) cards(at Micros, o *Object, p *podState) {
	if o.Ended {
		c.given.release(p.uid)
	}
	is := o.Cards + " " + o.CardsMemory
	switch on := p.pod.Spec.NodeName; {
	case on == "":
		if o.Cards != "" {
			c.report(RuleGrant, at, "pod %s has no node, and the cards %s, at resource version %d", p.name, o.Cards, o.Revision)
		}
		return
	case p.grant == "":
		p.grant = is
		c.judgeGrant(at, o, p)
	case p.grant == is:
		return
	default:
		c.report(RuleGrant, at, "pod %s on %s had the cards %s, and has %s at resource version %d", p.name, on, p.grant, is, o.Revision)
		p.grant = is
		c.given.release(p.uid)
	}
	if g, err := readGrant(o); err == nil && !o.Ended {
		c.hold(at, o.Revision, p, g)
	}
}

// judgeGrant judges the cards that a pod was bound with.
func (c *checker) judgeGrant(at Micros, o *Object, p *podState) {
	s, on := &c.given, p.pod.Spec.NodeName
	wrong := func(format string, args ...any) {
		c.report(RuleGrant, at, "pod %s was bound to %s at resource version %d with the cards %q: %s", p.name, on, o.Revision, p.grant, fmt.Sprintf(format, args...))
	}
	g, err := readGrant(o)
	number, share := cardsAsked(p.pod), sharesOf(p.pod)
	switch {
	case err != nil:
		wrong("%v", err)
	case len(g.cards) != number:
		wrong("it has asked for %d", number)
	case len(slices.Compact(slices.Sorted(slices.Values(g.cards)))) != number:
		wrong("they are not all different")
	case g.memory != share:
		wrong("it has asked for %d MiB of each (0: all)", share)
	}
	decided, recorded := c.intents[placement{p.uid, on}]
	if !recorded {
		decided = span{at, at}
	}
	known := span{around(s.late, decided.from).from - cardLateness, around(s.late, decided.to).to}
	for _, id := range g.cards {
		switch home := s.home[id]; {
		case home != on:
			wrong("%s is of node %q", id, home)
		case !s.fit(on, id, known):
			c.report(RuleUnfit, at, "pod %s was bound to %s at resource version %d with the cards %q, of which %s was not told to be healthy from %.3f s to %.3f s",
				p.name, on, o.Revision, p.grant, id, known.from.Duration().Seconds(), known.to.Duration().Seconds())
		}
	}
}

// hold notes that a pod has cards, and judges who has them too.
func (c *checker) hold(at Micros, revision int64, p *podState, g grant) {
	for _, id := range g.cards {
		pods := c.given.holders[id]
		if pods == nil {
			pods = map[string]grant{}
			c.given.holders[id] = pods
		}
		pods[p.uid] = g
		if len(pods) == 1 {
			continue
		}
		var sum int64
		var who []string
		whole := false
		for _, uid := range slices.Sorted(maps.Keys(pods)) {
			sum += pods[uid].memory
			whole = whole || pods[uid].memory == 0
			who = append(who, fmt.Sprintf("%s (%d MiB)", c.pods[uid].name, pods[uid].memory))
		}
		if whole || sum > c.given.memory[id] {
			c.report(RuleCard, at, "card %s of %s, which has %d MiB, is at resource version %d had by %s (0: all of it)", id, p.pod.Spec.NodeName, c.given.memory[id], revision, strings.Join(who, ", "))
		}
	}
}
