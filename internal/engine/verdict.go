package engine

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Verdict is why a node is not feasible for a class, packed so that a class can keep one per node. The zero Verdict
// says that the node is feasible. Its other values have a meaning only together with the class.
//
// Bits 0 to 7 are the code, bit 8 says unresolvable, and for codeDetailed bit 9+k says that the k-th of the program's details is
// a reason. Of codeNoDriver bits 9 and on are the place of the reason in the program's drivers. Of other codes, bits 9 to 16 are that of a second
// reason of the plugin, 0 if there is none.
type Verdict uint64

// Codes of verdicts, one per reason but for codeDetailed. Those of plugins are in their rows.
const (
	codeFeasible    Verdict = 0
	codeUnsupported Verdict = 9
	codeNoVictims   Verdict = 17 // these two are of dry runs
	codeNotHelpful  Verdict = 18
	codeDetailed    Verdict = 19 // of the plugin that has details: its reasons are named by bits
	codeNoDriver    Verdict = 28 // of the plugin that has drivers: its reason names one
	maxCodes                = 64 // tally counts details behind them
)

const (
	codeMask     Verdict = 0xff
	unresolvable Verdict = 1 << 8
	firstDetail          = 9
	maxDetails           = 63 - firstDetail
	tallySlots           = maxCodes + maxDetails
)

// Feasible reports whether the node can run the class.
func (v Verdict) Feasible() bool { return v == 0 }

// Unresolvable reports whether removing pods from the node would not help: kube-scheduler's
// UnschedulableAndUnresolvable.
func (v Verdict) Unresolvable() bool { return v&unresolvable != 0 }

func (v Verdict) code() Verdict { return v & codeMask }

// tabled returns the reason that the table has for a verdict, nil if there is none.
func (v Verdict) tabled() *Reason {
	code := v.code()
	if code >= maxCodes || code == codeDetailed || byCode[code] < 0 {
		return nil
	}
	of := &plugins[byCode[code]]
	return &of.reasons[code-of.code]
}

// and returns the verdict with a second reason, of the same plugin.
func (v Verdict) and(second Verdict) Verdict { return v | second.code()<<firstDetail }

// of returns codeNoDriver of a driver, by its place.
func (v Verdict) of(driver int) Verdict { return v | Verdict(driver)<<firstDetail }

// driver returns the place of the driver of codeNoDriver.
func (v Verdict) driver() int { return int(v >> firstDetail) }

// second returns the code of the second reason of a verdict that is neither codeDetailed nor codeNoDriver, 0 if there is none.
func (v Verdict) second() Verdict { return v >> firstDetail & codeMask }

// details returns the mask of the details of a codeDetailed verdict.
func (v Verdict) details() uint64 { return uint64(v >> firstDetail) }

// maxExamples is how many nodes a VerdictCount names.
const maxExamples = 3

// VerdictCount is a reason, and how many nodes have it.
type VerdictCount struct {
	Plugin       string
	Reason       string   // kube-scheduler's text
	Unresolvable bool     // removing pods would not help those nodes
	Count        int32    // nodes
	Examples     []string // names of the first of them by index, at most 3
}

// compareVerdicts orders by plugin in kube-scheduler's order, then by reason; resolvable ones first.
func compareVerdicts(a, b VerdictCount) int {
	if c := cmp.Or(
		cmp.Compare(rankOfPlugin(a.Plugin), rankOfPlugin(b.Plugin)),
		cmp.Compare(a.Plugin, b.Plugin),
		cmp.Compare(a.Reason, b.Reason),
	); c != 0 {
		return c
	}
	switch {
	case a.Unresolvable == b.Unresolvable:
		return 0
	case b.Unresolvable:
		return -1
	}
	return 1
}

// MergeVerdicts adds up the verdicts of several ranges, given in the order of the ranges, so that the examples stay
// the first by index. The result is sorted by plugin, in kube-scheduler's order, then by reason.
func MergeVerdicts(parts ...[]VerdictCount) []VerdictCount {
	var all []VerdictCount
	for _, part := range parts {
		all = append(all, part...)
	}
	slices.SortStableFunc(all, compareVerdicts)
	merged := all[:0]
	for _, v := range all {
		if k := len(merged) - 1; k >= 0 && compareVerdicts(merged[k], v) == 0 {
			merged[k].Count += v.Count
			more := min(len(v.Examples), maxExamples-len(merged[k].Examples))
			merged[k].Examples = slices.Concat(merged[k].Examples, v.Examples[:max(more, 0)])
			continue
		}
		merged = append(merged, v)
	}
	return merged
}

// The reasons why a node is no candidate for preemption, besides those of filters.
const (
	ReasonNoVictims  = "No preemption victims found for incoming pod"
	ReasonNotHelpful = "Preemption is not helpful for scheduling"
)

// tally counts verdicts by reason: slot is the code, or maxCodes plus the number of the detail.
type tally struct {
	counts  [tallySlots][2]tallyCount // second index: 1 for unresolvable
	drivers map[int]*tallyCount       // of codeNoDriver, by place
}

type tallyCount struct {
	count int32
	nodes [maxExamples]cluster.NodeIndex
}

func (t *tally) add(v Verdict, i cluster.NodeIndex) {
	u := int(v >> 8 & 1)
	if v.code() == codeNoDriver {
		if t.drivers == nil {
			t.drivers = make(map[int]*tallyCount)
		}
		c := t.drivers[v.driver()]
		if c == nil {
			c = new(tallyCount)
			t.drivers[v.driver()] = c
		}
		c.add(i)
		return
	}
	if v.code() != codeDetailed {
		t.counts[v.code()][u].add(i)
		if second := v.second(); second != 0 {
			t.counts[second][u].add(i)
		}
		return
	}
	for mask := v.details(); mask != 0; mask &= mask - 1 {
		t.counts[maxCodes+bits.TrailingZeros64(mask)][u].add(i)
	}
}

func (c *tallyCount) add(i cluster.NodeIndex) {
	if c.count < maxExamples {
		c.nodes[c.count] = i
	}
	c.count++
}

// verdicts returns what was counted, in no order.
func (t *tally) verdicts(st *cluster.State, p *program) []VerdictCount {
	var out []VerdictCount
	count := func(c *tallyCount, plugin, reason string, unresolvable bool) {
		v := VerdictCount{Plugin: plugin, Reason: reason, Unresolvable: unresolvable, Count: c.count}
		for _, i := range c.nodes[:min(c.count, maxExamples)] {
			v.Examples = append(v.Examples, st.Nodes.Spec[i].Name)
		}
		out = append(out, v)
	}
	for slot := range t.counts {
		for u := range t.counts[slot] {
			if c := &t.counts[slot][u]; c.count > 0 {
				plugin, reason := p.reason(slot)
				count(c, plugin, reason, u == 1)
			}
		}
	}
	for driver, c := range t.drivers {
		count(c, p.pluginOf(codeNoDriver), p.drivers[driver], false)
	}
	return out
}

// reason returns the plugin and the text of a tally slot.
func (p *program) reason(slot int) (plugin, reason string) {
	code := Verdict(slot)
	switch {
	case slot >= maxCodes:
		return plugins[byCode[codeDetailed]].Name, p.details[slot-maxCodes]
	case code == codeUnsupported:
		return p.unsupportedPlugin, p.unsupported
	case code == codeNoVictims:
		return "", ReasonNoVictims
	case code == codeNotHelpful:
		return "", ReasonNotHelpful
	}
	if text, own := p.texts[code]; own {
		return plugins[byCode[code]].Name, text
	}
	return plugins[byCode[code]].Name, reasonOf(code)
}

// pluginOf returns the plugin of a code.
func (p *program) pluginOf(code Verdict) string {
	if code == codeUnsupported {
		return p.unsupportedPlugin
	}
	return plugins[byCode[code]].Name
}

// reasonOf returns the text of a plugin's code.
func reasonOf(code Verdict) string {
	of := &plugins[byCode[code]]
	return of.reasons[code-of.code].Text
}
