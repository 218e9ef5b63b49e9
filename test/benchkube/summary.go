package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/test/measure"
)

// group is the results of one workload and contender, in the order of the repetitions; never empty in a summary.
type group []result

// summary is all results, in the order in which workloads and contenders ran.
type summary []group

func summarize(results []result) summary {
	var s summary
	for _, r := range results {
		at := slices.IndexFunc(s, func(g group) bool { return g[0].workload == r.workload && g[0].contender == r.contender })
		if at < 0 {
			s, at = append(s, nil), len(s)
		}
		s[at] = append(s[at], r)
	}
	return s
}

// group returns the results of a workload and contender; nil if there are none.
func (s summary) group(workload, contender string) group {
	for _, g := range s {
		if g[0].workload == workload && g[0].contender == contender {
			return g
		}
	}
	return nil
}

// sample returns a figure of each run. NaN is one that is not known.
func (g group) sample(figure func(*result) float64) measure.Sample {
	var sample measure.Sample
	for i := range g {
		sample = append(sample, figure(&g[i]))
	}
	return sample
}

// told returns the median of what is known and, if they are not the same as it is told, the least and the largest.
func told(s measure.Sample, verb string) string {
	s = slices.DeleteFunc(s, math.IsNaN)
	if len(s) > 0 && fmt.Sprintf(verb, slices.Min(s)) == fmt.Sprintf(verb, slices.Max(s)) {
		s = s[:1]
	}
	return s.Format(verb)
}

// column is a column of a table, with a cell for each group.
type column struct {
	name string
	cell func(s summary, g group) string
}

// same is a column of what all runs have in common.
func same(name string, of func(*result) any) column {
	return column{name, func(_ summary, g group) string { return fmt.Sprint(of(&g[0])) }}
}

// median is a column of a figure: its median, least and largest.
func median(name, verb string, figure func(*result) float64) column {
	return column{name, func(_ summary, g group) string { return told(g.sample(figure), verb) }}
}

// ratio is a column of a figure's ratio to that of another group in the same repetition.
func ratio(name string, figure func(*result) float64, to func(summary, group) group) column {
	return column{name, func(s summary, g group) string {
		return told(g.sample(figure).Ratios(to(s, g).sample(figure)), "%.2f")
	}}
}

// now is a column of the ratio of berth-all's figure to that of a group in the same repetition.
func now(name string, figure func(*result) float64) column {
	return column{name, func(s summary, g group) string {
		return told(s.group(g[0].workload, berthAll).sample(figure).Ratios(g.sample(figure)), "%.2f")
	}}
}

// toKubeScheduler is kube-scheduler with the same workload; nil for itself.
func toKubeScheduler(s summary, g group) group {
	if g[0].contender == kubeScheduler {
		return nil
	}
	return s.group(g[0].workload, kubeScheduler)
}

// toNullBinder is the null binder with the same workload; nil for itself.
func toNullBinder(s summary, g group) group {
	if g[0].contender == nullBinder {
		return nil
	}
	return s.group(g[0].workload, nullBinder)
}

// toBaseline is the same contender with the workload that its own is compared with.
func toBaseline(s summary, g group) group {
	for _, w := range workloads() {
		if w.name == g[0].workload {
			return s.group(w.baseline, g[0].contender)
		}
	}
	return nil
}

// check says how many runs were as they should be.
func check(_ summary, g group) string {
	var wrong, late int
	for i := range g {
		switch {
		case len(g[i].problems) > 0:
			wrong++
		case g[i].late != "":
			late++
		}
	}
	var parts []string
	if wrong > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d wrong", wrong, len(g)))
	}
	if late > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d late", late, len(g)))
	}
	if len(parts) == 0 {
		return "ok"
	}
	return strings.Join(parts, ", ")
}

// zones returns the pods in the zone with the fewest, and in that with the most, in any run.
func zones(_ summary, g group) string {
	fewest, most := g[0].fewest, g[0].most
	for i := range g {
		fewest, most = min(fewest, g[i].fewest), max(most, g[i].most)
	}
	return fmt.Sprintf("%d-%d", fewest, most)
}

// victims returns the median number of victims of each priority.
func victims(_ summary, g group) string {
	priorities := map[int32]bool{}
	for i := range g {
		if f := g[i].preemption; f != nil {
			for p := range f.Priorities {
				priorities[p] = true
			}
		}
	}
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(priorities)) {
		n := g.sample(ofPreemption(func(f *preemptionFigures) float64 { return float64(f.Priorities[p]) }))
		parts = append(parts, fmt.Sprintf("%s×%d", told(n, "%.0f"), p))
	}
	return strings.Join(parts, " ")
}

// The figures of a run that several columns are about. One that is not known is NaN.

// perSecond returns the rate of bindings from the first to the last.
func (r *result) perSecond() float64 {
	if r.bound < 2 || r.binding <= 0 {
		return math.NaN()
	}
	return float64(r.bound) / r.binding.Seconds()
}

// fromStart returns the rate of bindings from the start of the contender to the last.
func (r *result) fromStart() float64 {
	if r.bound < 1 || r.total <= 0 {
		return math.NaN()
	}
	return float64(r.bound) / r.total.Seconds()
}

// perPod returns what there is of n for each pod, or for each that was bound if not all could be.
func (r *result) perPod(n float64) float64 {
	pods := r.pods
	if r.late != "" {
		pods = r.bound
	}
	if pods == 0 {
		return math.NaN()
	}
	return n / float64(pods)
}

// cpuPerPod returns the CPU time of all processes in ms.
func (r *result) cpuPerPod() float64 { return r.perPod(cpuOf(r.usage).Seconds() * 1000) }

// peakMB returns the sum of the peak memory of all processes.
func (r *result) peakMB() float64 {
	var sum int64
	for _, u := range r.usage {
		sum += u.PeakRSS
	}
	return megabytes(sum)
}

// eventSeconds returns how long after the last binding its last Scheduled event came.
func (r *result) eventSeconds() float64 {
	if r.eventLag < 0 || r.writes.events == 0 {
		return math.NaN()
	}
	return r.eventLag.Seconds()
}

// ofStorm, and the others, return a figure of what a script measures. It is not known of a run that did not come so far.
func ofStorm(figure func(*stormFigures) float64) func(*result) float64 {
	return func(r *result) float64 { return orNaN(r.storm, figure) }
}

func ofGated(figure func(*gatedFigures) float64) func(*result) float64 {
	return func(r *result) float64 { return orNaN(r.gated, figure) }
}

func ofPreemption(figure func(*preemptionFigures) float64) func(*result) float64 {
	return func(r *result) float64 { return orNaN(r.preemption, figure) }
}

func ofChurn(figure func(*churnFigures) float64) func(*result) float64 {
	return func(r *result) float64 { return orNaN(r.churn, figure) }
}

func orNaN[F any](f *F, figure func(*F) float64) float64 {
	if f == nil {
		return math.NaN()
	}
	return figure(f)
}

// lagSeconds is lag in seconds, if the failure was told at all.
func (f *stormFigures) lagSeconds(told time.Time) float64 {
	if told.IsZero() {
		return math.NaN()
	}
	return f.lag(told).Seconds()
}

func megabytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
