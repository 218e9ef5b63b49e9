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
// Bits 0 to 7 are the code, bit 8 says unresolvable, and for codeFit bit 9+k says that the class's k-th resource is
// insufficient (see nodeResourcesFit.names).
type Verdict uint64

// Codes of verdicts, one per reason but for NodeResourcesFit.
const (
	codeFeasible Verdict = iota
	codeNodeUnschedulable
	codeNodeName
	codeTaintToleration
	codeNodeAffinity
	codeNodeAffinityEnforced
	codeNodeAffinityOutside
	codeNodeAffinityConflict
	codeNodePorts
	codeUnsupported
	codeSpread
	codeSpreadMissing
	codeAffinity
	codeAntiAffinity
	codeExistingAntiAffinity
	codeFeatures
	codeNodeUnsupported
	codeNoVictims // these two are of dry runs
	codeNotHelpful
	codeFit // the last: tally counts its resources behind it
)

const (
	codeMask         Verdict = 0xff
	unresolvable     Verdict = 1 << 8
	firstResourceBit         = 9
	maxFitResources          = 63 - firstResourceBit
	tallySlots               = int(codeFit) + maxFitResources
)

// Feasible reports whether the node can run the class.
func (v Verdict) Feasible() bool { return v == 0 }

// Unresolvable reports whether removing pods from the node would not help: kube-scheduler's
// UnschedulableAndUnresolvable.
func (v Verdict) Unresolvable() bool { return v&unresolvable != 0 }

func (v Verdict) code() Verdict { return v & codeMask }

// insufficient returns the mask of insufficient resources of a codeFit verdict.
func (v Verdict) insufficient() uint64 { return uint64(v >> firstResourceBit) }

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

// pluginOrder is kube-scheduler's default order of filter plugins, behind what Berth asks before.
var pluginOrder = []string{
	NodeUnsupported, NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, "VolumeRestrictions",
	"NodeVolumeLimits", "VolumeBinding", "VolumeZone", PodTopologySpread, InterPodAffinity, "DynamicResources",
	NodeDeclaredFeatures,
}

func pluginRank(name string) int {
	if i := slices.Index(pluginOrder, name); i >= 0 {
		return i
	}
	return len(pluginOrder)
}

// compareVerdicts orders by plugin in kube-scheduler's order, then by reason; resolvable ones first.
func compareVerdicts(a, b VerdictCount) int {
	if c := cmp.Or(
		cmp.Compare(pluginRank(a.Plugin), pluginRank(b.Plugin)),
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

// tally counts verdicts by reason: slot is the code, or codeFit plus the number of the resource.
type tally struct {
	counts [tallySlots][2]tallyCount // second index: 1 for unresolvable
}

type tallyCount struct {
	count int32
	nodes [maxExamples]cluster.NodeIndex
}

func (t *tally) add(v Verdict, i cluster.NodeIndex) {
	u := int(v >> 8 & 1)
	if v.code() != codeFit {
		t.counts[v.code()][u].add(i)
		return
	}
	for mask := v.insufficient(); mask != 0; mask &= mask - 1 {
		t.counts[int(codeFit)+bits.TrailingZeros64(mask)][u].add(i)
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
	for slot := range t.counts {
		for u := range t.counts[slot] {
			c := &t.counts[slot][u]
			if c.count == 0 {
				continue
			}
			v := VerdictCount{Unresolvable: u == 1, Count: c.count}
			v.Plugin, v.Reason = p.reason(slot)
			for _, i := range c.nodes[:min(c.count, maxExamples)] {
				v.Examples = append(v.Examples, st.Nodes.Spec[i].Name)
			}
			out = append(out, v)
		}
	}
	return out
}

// reason returns the plugin and the text of a tally slot.
func (p *program) reason(slot int) (plugin, reason string) {
	switch Verdict(slot) {
	case codeNodeUnschedulable:
		return NodeUnschedulable, ReasonUnschedulable
	case codeNodeUnsupported:
		return NodeUnsupported, ReasonNodeUnsupported
	case codeNodeName:
		return NodeName, ReasonNodeName
	case codeTaintToleration:
		return TaintToleration, ReasonUntoleratedTaint
	case codeNodeAffinity:
		return NodeAffinity, ReasonNodeAffinity
	case codeNodeAffinityEnforced:
		return NodeAffinity, ReasonNodeAffinityEnforced
	case codeNodeAffinityOutside:
		return NodeAffinity, ReasonNodeAffinityOutside
	case codeNodeAffinityConflict:
		return NodeAffinity, ReasonNodeAffinityConflict
	case codeNodePorts:
		return NodePorts, ReasonNodePorts
	case codeSpread:
		return PodTopologySpread, ReasonSpread
	case codeSpreadMissing:
		return PodTopologySpread, ReasonSpreadMissing
	case codeAffinity:
		return InterPodAffinity, ReasonAffinity
	case codeAntiAffinity:
		return InterPodAffinity, ReasonAntiAffinity
	case codeExistingAntiAffinity:
		return InterPodAffinity, ReasonExistingAntiAffinity
	case codeFeatures:
		return NodeDeclaredFeatures, ReasonFeatures
	case codeUnsupported:
		return p.unsupportedPlugin, p.unsupported
	case codeNoVictims:
		return "", ReasonNoVictims
	case codeNotHelpful:
		return "", ReasonNotHelpful
	}
	return NodeResourcesFit, p.fit.names[slot-int(codeFit)]
}
