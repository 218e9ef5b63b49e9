package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// layout is what a table has: the workloads with a row in it, and its columns. The first two name the row.
type layout struct {
	has     func(*result) bool
	columns []column
	legend  string // what the columns are
}

var (
	workloadColumn  = same("workload", func(r *result) any { return r.workload })
	contenderColumn = same("contender", func(r *result) any { return r.contender })
)

// mainTable has what contenders are compared by.
var mainTable = layout{
	has: func(*result) bool { return true },
	columns: []column{
		workloadColumn, contenderColumn,
		same("nodes", func(r *result) any { return r.nodes }),
		median("pods", "%.0f", func(r *result) float64 { return float64(r.pods) }),
		median("pods/s", "%.0f", (*result).perSecond),
		ratio("ratio", (*result).perSecond, toKubeScheduler),
		median("from start", "%.0f", (*result).fromStart),
		median("ms/pod", "%.2f", (*result).cpuPerPod),
		ratio("CPU ratio", (*result).cpuPerPod, toKubeScheduler),
		median("peak MB", "%.0f", (*result).peakMB),
		median("writes/pod", "%.2f", func(r *result) float64 { return r.perPod(r.writes.total()) }),
		median("events s", "%.1f", (*result).eventSeconds),
		{"check", check},
	},
	legend: `
Figures are medians (least-largest) of the repetitions; ratios are medians of those to kube-scheduler in the same repetition.
pods/s          pods bound per second from the first binding to the last, as a watch sees them
from start      pods bound per second from the start of the contender's first process to the last binding
ms/pod          user and system time of all the contender's processes, from their start until its last write
peak MB         sum of the peak resident memory of all its processes
writes/pod      POST, PUT, PATCH, DELETE to the API server while the contender ran, without leases
events s        from the last binding until the last Scheduled event came
check           ok: all pods are bound, each once, none where it must not be, and no node is overcommitted; a contender that
                binds blindly is only held to the first two. late: it was not done within its time; figures are of what was
`,
}

// checkTable has what contenders wrote and where pods are.
var checkTable = layout{
	has: mainTable.has,
	columns: []column{
		workloadColumn, contenderColumn,
		median("bound", "%.0f", func(r *result) float64 { return float64(r.bound) }),
		median("bind", "%.2f", func(r *result) float64 { return r.perPod(r.writes.binds) }),
		median("event", "%.2f", func(r *result) float64 { return r.perPod(r.writes.events) }),
		median("status", "%.2f", func(r *result) float64 { return r.perPod(r.writes.status) }),
		median("other", "%.2f", func(r *result) float64 { return r.perPod(r.writes.other) }),
		median("refused", "%.0f", func(r *result) float64 { return r.writes.refused }),
		median("repeated", "%.0f", func(r *result) float64 { return float64(r.repeated) }),
		median("used nodes", "%.0f", func(r *result) float64 { return float64(r.usedNodes) }),
		{"zones", zones},
		median("broken", "%.0f", func(r *result) float64 { return float64(r.broken) }),
	},
	legend: `
bind ... other  writes per pod by what they are for
refused         binds that were not answered with success
repeated        pods with more than one Scheduled event, each naming the pod's node
used nodes      nodes that have a pod
zones           pods in the zone with the fewest and in that with the most
broken          pods where a required constraint forbids them to be, and zones with too many of a spread workload
`,
}

// scriptTables have what the scripts of some workloads measure.
var scriptTables = []layout{{
	has: func(r *result) bool { return r.storm != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("pods/s", "%.0f", (*result).perSecond),
		ratio("to alone", (*result).perSecond, toBaseline),
		median("fit nowhere", "%.0f", ofStorm(func(f *stormFigures) float64 { return float64(f.hopeless) })),
		median("condition s", "%.1f", ofStorm(func(f *stormFigures) float64 { return f.lagSeconds(f.LastCondition) })),
		median("event s", "%.1f", ofStorm(func(f *stormFigures) float64 { return f.lagSeconds(f.LastEvent) })),
		median("idle CPU", "%.3f", ofStorm(func(f *stormFigures) float64 { return f.idle })),
	},
	legend: `
to alone        pods/s of the pods that fit to that of the baseline, in which they are alone
fit nowhere     the other pods, all of which must have a condition and an event
condition s     from the last binding to the last such condition; negative: it came before
event s         and to the last such event, both at most 30
idle CPU        CPU seconds per second when nothing changes any more
`,
}, {
	has: func(r *result) bool { return r.gated != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("node and pod events", "%.0f", ofGated(func(f *gatedFigures) float64 { return float64(f.events) })),
		median("CPU s", "%.2f", ofGated(func(f *gatedFigures) float64 { return f.eventCPU.Seconds() })),
		median("us/event", "%.0f", ofGated(func(f *gatedFigures) float64 { return float64(f.eventCPU.Microseconds()) / float64(f.events) })),
		ratio("to baseline", ofGated(func(f *gatedFigures) float64 { return f.eventCPU.Seconds() }), toBaseline),
		median("all bound s", "%.1f", func(r *result) float64 { return r.total.Seconds() }),
	},
	legend: `
node and pod events  node updates, and pods of others created and deleted, while the gated pods are there
CPU s, us/event user and system time for them
to baseline     to that without gated pods
all bound s     from the removal of the first gate (or the creation of the first pod) to the last binding; from start, above,
                counts from there too
`,
}, {
	has: func(r *result) bool { return r.preemption != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("preemptors", "%.0f", func(r *result) float64 { return float64(r.bound) }),
		median("seconds", "%.1f", func(r *result) float64 { return r.total.Seconds() }),
		median("victims", "%.0f", ofPreemption(func(f *preemptionFigures) float64 { return float64(f.Victims) })),
		median("protected", "%.0f", ofPreemption(func(f *preemptionFigures) float64 { return float64(len(f.Protected)) })),
		{"by priority", victims},
	},
	legend: `
preemptors      that were bound
seconds         from the start of the contender's first process to the last binding
victims         pods that had to go; check also says whether one that had to go would still fit, has no preemptor of a
                higher priority on its node, was protected by a budget, or was not told by a condition
protected       victims that a budget protects
by priority     victims×priority; preemptors have 100000
                Kubelets are played: they take 1 s to stop a pod; their deletions are among the other writes, above.
`,
}, {
	has: func(r *result) bool { return r.churn != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("p50 ms", "%.1f", ofChurn(func(f *churnFigures) float64 { return f.latency.Quantile(0.5) })),
		median("p99 ms", "%.1f", ofChurn(func(f *churnFigures) float64 { return f.latency.Quantile(0.99) })),
		ratio("p99 ratio", ofChurn(func(f *churnFigures) float64 { return f.latency.Quantile(0.99) }), toKubeScheduler),
		median("CPU s", "%.2f", ofChurn(func(f *churnFigures) float64 { return f.cpu.Seconds() })),
		ratio("CPU ratio", ofChurn(func(f *churnFigures) float64 { return f.cpu.Seconds() }), toKubeScheduler),
		median("created/s", "%.0f", ofChurn(func(f *churnFigures) float64 { return f.created })),
		median("deleted/s", "%.0f", ofChurn(func(f *churnFigures) float64 { return f.deleted })),
		median("node updates/s", "%.0f", ofChurn(func(f *churnFigures) float64 { return f.updated })),
		median("kept %", "%.0f", ofChurn(func(f *churnFigures) float64 { return 100 * f.kept })),
	},
	legend: `
p50 ms, p99 ms  from when the call that creates a pod returns until a watch sees it bound, of the pods created in the window;
                +Inf: not bound
CPU s           user and system time of the contender in the window
created/s ...   what the generator of the load has reached in the window; it asks for 200 pods created, 200 deleted (if they are
                bound by then) and 500 nodes updated per second, one in ten of them with a change of its memory or an annotation
kept %          the least part of these that it has reached: below 95, the figures are not of this load
                Its writes are among the other writes, above; pods/s is what it creates.
`,
}, {
	has: func(r *result) bool { return r.restart != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("bound before", "%.0f", func(r *result) float64 { return float64(r.restart.bound) }),
		median("first bound s", "%.1f", func(r *result) float64 { return (r.total - r.binding).Seconds() }),
		median("all bound s", "%.1f", func(r *result) float64 { return r.total.Seconds() }),
		median("CPU s", "%.1f", func(r *result) float64 { return cpuOf(r.usage).Seconds() }),
		median("peak MB", "%.0f", (*result).peakMB),
	},
	legend: `
first bound s, all bound s  from the start of the contender's first process to the first and the last binding
`,
}, {
	has: func(r *result) bool { return r.volumes != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		ratio("to null", (*result).perSecond, toNullBinder),
		median("bound before", "%.0f", ofVolumes(func(f *volumesFigures) int { return f.bound })),
		median("claims", "%.0f", ofVolumes(func(f *volumesFigures) int { return f.claims })),
		median("most attached", "%.0f", ofVolumes(func(f *volumesFigures) int { return f.attached })),
	},
	legend: `
to null         pods/s, above, to the null binder's in the same repetition. It makes a scheduler's writes to volumes and claims,
                waits until they are bound, binds, and tells an event
claims          of all pods that have a node. Each is bound to a volume of its own, which the pod's node reaches
most attached   volumes of one node
                Controllers of volumes are played, without a limit of their rate; their writes are among the other writes, above.
`,
}, gpuTable, {
	has: func(r *result) bool { return r.contender == berthBefore },
	columns: []column{
		workloadColumn, contenderColumn,
		median("pods/s", "%.0f", (*result).perSecond),
		now("now to before", (*result).perSecond),
		median("ms/pod", "%.2f", (*result).cpuPerPod),
		now("CPU now to before", (*result).cpuPerPod),
	},
	legend: `
now to before   berth-all's figure to this one's in the same repetition
`,
}}

// layouts returns all tables that have a row for each run.
func layouts() []layout { return append([]layout{mainTable, checkTable}, scriptTables...) }

// table is what is printed.
type table struct {
	header []string
	rows   [][]string
	legend string
}

// of returns the table of the groups that belong in it.
func (l layout) of(s summary) table {
	t := table{legend: l.legend}
	for _, c := range l.columns {
		t.header = append(t.header, c.name)
	}
	for _, g := range s {
		if !slices.ContainsFunc(g, func(r result) bool { return l.has(&r) }) {
			continue
		}
		var row []string
		for _, c := range l.columns {
			row = append(row, c.cell(s, g))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// processTable returns what each process has used.
func processTable(s summary) table {
	t := table{header: []string{"workload", "contender", "process", "CPU s", "peak MB"}, legend: "\n"}
	for _, g := range s {
		for i, first := range g[0].usage {
			of := func(figure func(processUsage) float64) string {
				return told(g.sample(func(r *result) float64 {
					if i >= len(r.usage) {
						return math.NaN()
					}
					return figure(r.usage[i])
				}), "%.1f")
			}
			t.rows = append(t.rows, []string{g[0].workload, g[0].contender, first.name,
				of(func(u processUsage) float64 { return u.CPU.Seconds() }),
				of(func(u processUsage) float64 { return megabytes(u.PeakRSS) })})
		}
	}
	return t
}

// print writes the table: aligned, with its legend, or in Markdown. One without rows is left out.
func (t table) print(out io.Writer, markdown bool) error {
	if len(t.rows) == 0 {
		return nil
	}
	if markdown {
		var b strings.Builder
		line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
		line(t.header)
		line(append([]string{"---", "---"}, strings.Fields(strings.Repeat("---: ", len(t.header)-2))...))
		for _, row := range t.rows {
			line(row)
		}
		b.WriteString("\n")
		_, err := io.WriteString(out, b.String())
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{t.header}, t.rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, t.legend+"\n")
	return err
}

// printReport prints what was measured on what, the tables, and what went wrong.
func printReport(out io.Writer, header string, results []result, markdown bool) error {
	if _, err := io.WriteString(out, header+"\n"); err != nil {
		return err
	}
	s := summarize(results)
	tables := []table{mainTable.of(s)}
	for _, l := range scriptTables {
		tables = append(tables, l.of(s))
	}
	tables = append(tables, checkTable.of(s), processTable(s))
	for _, t := range tables {
		if err := t.print(out, markdown); err != nil {
			return err
		}
	}
	var b strings.Builder
	for i := range results {
		results[i].remarks(&b)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// maxProblems is how many problems of a run are shown.
const maxProblems = 20

// remarks writes what there is to say of a run that no table has.
func (r *result) remarks(b *strings.Builder) {
	if len(r.killed) > 0 {
		fmt.Fprintf(b, "%s, killed: %s\n", r.title(), strings.Join(r.killed, ", "))
	}
	if r.late != "" {
		fmt.Fprintf(b, "%s: %s\n", r.title(), r.late)
	}
	for i, p := range r.problems {
		if i == maxProblems {
			fmt.Fprintf(b, "%s: and %d more\n", r.title(), len(r.problems)-i)
			break
		}
		fmt.Fprintf(b, "%s: %s\n", r.title(), p)
	}
	for _, file := range r.profiles {
		fmt.Fprintf(b, "go tool pprof -top %s\n", file)
	}
}

// line returns the figures of one run.
func (r *result) line() string {
	parts := []string{r.title()}
	s := summary{group{*r}}
	for _, l := range layouts() {
		if !l.has(r) {
			continue
		}
		for _, c := range l.columns[2:] {
			if cell := c.cell(s, s[0]); cell != "-" {
				parts = append(parts, c.name+" "+cell)
			}
		}
	}
	return strings.Join(parts, ", ")
}
