package yoda

import (
	"strconv"
	"time"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// What follows are rules of the first Yoda and the second, restated, by which tests show that a fact of this package is not one of theirs.

// originalPod is what the second Yoda reads of a pod.
type originalPod struct {
	number, memory, clock uint64
	asksMemory, asksClock bool
}

// originalUint reads a label: what it cannot read is 0, and what is negative wraps around.
func originalUint(text string) uint64 {
	n, _ := strconv.Atoi(text)
	return uint64(n)
}

func originalRead(labels map[string]string) originalPod {
	p := originalPod{number: 1}
	if text, ok := labels[LabelNumber]; ok {
		p.number = originalUint(text)
	}
	if text, ok := labels[LabelMemory]; ok {
		p.memory, p.asksMemory = originalUint(text), true
	}
	if text, ok := labels[LabelClock]; ok {
		p.clock, p.asksClock = originalUint(text), true
	}
	return p
}

// originalFits is its filter: it counts cards for memory, and counts again for the clock. It does not look at health if neither is asked for, knows nothing of what others were given, and not how old all this is.
func originalFits(cards []v1alpha1.Card, p originalPod) bool {
	if p.number > uint64(len(cards)) {
		return false
	}
	count := func(meets func(v1alpha1.Card) bool) (n uint64) {
		for _, c := range cards {
			if c.Health == v1alpha1.Healthy && meets(c) {
				n++
			}
		}
		return n
	}
	if p.asksMemory && count(func(c v1alpha1.Card) bool { return uint64(c.FreeMemoryMiB) >= p.memory }) < p.number {
		return false
	}
	return !p.asksClock || count(func(c v1alpha1.Card) bool { return uint64(c.ClockMHz) == p.clock }) >= p.number
}

// originalFilter is its filter of a node by what its collector has said, at some time.
func originalFilter(told *v1alpha1.Status, p originalPod, _ time.Time) bool {
	return originalFits(told.Cards, p)
}

// originalReason is what it says of a node that it refuses, and "" of one that it does not.
func originalReason(node string, cards []v1alpha1.Card, p originalPod) string {
	if originalFits(cards, p) {
		return ""
	}
	return "Node:" + node
}

// originalMost are the maxima over all cards of all nodes that meet a request, whatever else is the matter with the node.
func originalMost(p originalPod, nodes ...[]v1alpha1.Card) (most Maxima) {
	for _, cards := range nodes {
		for _, c := range cards {
			if uint64(c.FreeMemoryMiB) >= p.memory && uint64(c.ClockMHz) >= p.clock {
				most.Add(featuresOf(&Card{Card: c}))
			}
		}
	}
	return most
}

// originalCards is the part of its score that is about cards: a sum over all that meet the request, healthy or not, with the clock in proportion to the bandwidth.
func originalCards(cards []v1alpha1.Card, p originalPod, most Maxima) (sum int64) {
	part := func(value, most int64) int64 { return value * 100 / max(most, 1) }
	for _, c := range cards {
		if uint64(c.FreeMemoryMiB) >= p.memory && uint64(c.ClockMHz) >= p.clock {
			sum += part(c.BandwidthMBps, most[Bandwidth]) + part(c.ClockMHz, most[Bandwidth]) + part(c.CoreMHz, most[Core]) + part(c.PowerWatts, most[Power]) +
				2*part(c.FreeMemoryMiB, most[FreeMemory]) + part(c.TotalMemoryMiB, most[TotalMemory])
		}
	}
	return sum
}

// originalAllocate is what part of a node's memory it takes for not promised: the labels for memory of its pods count, once each.
func originalAllocate(total int64, pods ...originalPod) int64 {
	for _, p := range pods {
		total -= int64(p.memory)
	}
	return total
}

// originalActual is what part of a node's memory is free.
func originalActual(free, total int64) int64 { return free * 100 / total }
