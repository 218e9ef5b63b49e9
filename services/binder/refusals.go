package binder

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

const (
	// mostRefusals and maxRefusals bound what is told of refusals: so many reasons, and with their examples so many bytes in all. A reason may be
	// anybody's, and another one for each node, and is kept with the pod as long as it is unschedulable.
	mostRefusals = 100
	maxRefusals  = 16 << 10
)

// countRefusals counts nodes by what extenders and plugin services say of them, the most frequent reasons first, as many as mostRefusals and maxRefusals let; of more, the last stands
// for others.
func countRefusals(refused map[string]pluginhost.Refusal) []engine.VerdictCount {
	counts := make(map[pluginhost.Refusal]*engine.VerdictCount)
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		r := refused[name]
		r.Reason = extender.Short(r.Reason)
		c := counts[r]
		if c == nil {
			c = &engine.VerdictCount{Plugin: r.Plugin, Reason: r.Reason, Unresolvable: r.Unresolvable}
			counts[r] = c
		}
		if c.Count++; len(c.Examples) < 3 {
			c.Examples = append(c.Examples, extender.Short(name)) // it may be of no node
		}
	}
	out := make([]engine.VerdictCount, 0, len(counts))
	for _, c := range counts {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b engine.VerdictCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason), compareBools(a.Unresolvable, b.Unresolvable))
	})
	told, bytes := 0, 0
	for ; told < len(out); told++ {
		bytes += len(out[told].Reason)
		for _, name := range out[told].Examples {
			bytes += len(name)
		}
		if bytes > maxRefusals {
			break
		}
	}
	if told = min(told, mostRefusals); told == len(out) {
		return out
	}
	told = min(told, mostRefusals-1)
	others := engine.VerdictCount{Plugin: out[told].Plugin, Reason: "other reasons of extenders"}
	if others.Plugin != extender.Plugin {
		others.Reason = "other reasons of plugin services"
	}
	for _, c := range out[told:] {
		others.Count += c.Count
	}
	return append(out[:told:told], others)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
