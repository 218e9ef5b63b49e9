package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/berth-scheduler/berth/test/measure"
)

// definitions says what the columns are.
const definitions = `
Figures are the median of the repetitions and, in parentheses, the least and the largest.

asked, reached   at least for decisions/s, at most for all others; the median counts
decisions/s      pods bound per second, from the first bind to the last; a bind is a placement in etcd
first bind s     from the start of the first process
last bind s      from there too: until all pods of a gang are bound
p50, p99 ms      over pods that come one by one: from when the call that creates the pod has returned until its placement is in
                 etcd; from the start of that call; and from its return until the gateway says where the pod will be bound
spans            that the collector got, which is a part of this program
why, what-if     from when it is asked until it is answered, while pods are placed; unanswered: refused, or not within 10 s;
                 health is a call beside each that costs nothing; the first one, for which the gateway copies the cluster, is told by itself
loss %           of binds per second while questions or changes come, compared with the times before and after, when none come
changes/s        of nodes that were stored per second while they came
CPU s            user and system time of all processes, from their start until the last bind, that of reading the cluster included
CPU us           the same per pod, from the first bind to the last
peak MB          sum of the peak resident memory of all processes, etcd's included
KB/node          peak resident memory, less that of a Berth without nodes, per node: of the process of a role that has most. Where
                 all are one process, etcd's is a part of it
check            ok: what is stored afterwards has each pod once, on a node that exists and has room, where its constraint lets it be
`

// rowsOf returns the cells of the table, the header first: of each workload a row for each figure, of all its runs together.
func rowsOf(results []result) [][]string {
	rows := [][]string{{"workload", "nodes", "pods", "figure", "asked", "measured", "reached", "runs", "first bind s", "CPU s", "CPU us", "peak MB", "check"}}
	var names []string
	for _, r := range results {
		if !slices.Contains(names, r.workload.name) {
			names = append(names, r.workload.name)
		}
	}
	for _, name := range names {
		runs := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.workload.name != name })
		w := runs[0].workload
		all := func(f figure) string { return sampleOf(runs, f).Format(f.verb()) }
		wrong := 0
		for _, r := range runs {
			wrong += len(r.problems)
		}
		for i, t := range w.targets {
			row := []string{"", "", "", string(t.figure), "", all(t.figure), "", ""}
			if t.asked > 0 {
				row[4], row[6] = fmt.Sprint(t.asked), t.reached(sampleOf(runs, t.figure))
			}
			if i == 0 {
				row[0], row[1], row[2], row[7] = w.name, fmt.Sprint(w.nodes), fmt.Sprint(w.pods), fmt.Sprint(len(runs))
				row = append(row, all(firstBind), all(cpuSeconds), all(cpuMicros), all(peakMB), check(wrong))
			} else {
				row = append(row, "", "", "", "", "")
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// byProcess tells what each process has used.
func (r *result) byProcess() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.usage)) {
		u := r.usage[name]
		part := fmt.Sprintf("%s %.1f s, %d MB", name, u.CPU.Seconds(), u.PeakRSS>>20)
		if each, ok := r.perNode[name]; ok {
			part += fmt.Sprintf(", %.2f KB/node", each)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// sampleOf returns a figure of those runs that have it.
func sampleOf(runs []result, f figure) measure.Sample {
	var s measure.Sample
	for _, r := range runs {
		if v, ok := r.figures[f]; ok {
			s = append(s, v)
		}
	}
	return s
}

// reached says whether what was measured is what is asked.
func (t target) reached(s measure.Sample) string {
	if len(s) > 0 && (t.figure.atLeast() && s.Median() >= t.asked || !t.figure.atLeast() && s.Median() <= t.asked) {
		return "yes"
	}
	return "no"
}

// printTable prints a header, the table, in Markdown if that is wanted, and what went wrong.
func printTable(out io.Writer, header string, results []result, markdown bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", header)
	rows := rowsOf(results)
	if markdown {
		for i, row := range rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "|%s\n", strings.Repeat(" --- |", len(row)))
			}
		}
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range rows {
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
		b.WriteString(definitions)
	}
	for _, r := range results {
		if r.workload.processes {
			fmt.Fprintf(&b, "\n%s, by process: %s\n", r.workload.name, r.byProcess())
		}
	}
	for _, r := range results {
		const most = 20
		for i, p := range r.problems[:min(len(r.problems), most)] {
			if i == 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "%s: %s\n", r.workload.name, p)
		}
		if n := len(r.problems) - most; n > 0 {
			fmt.Fprintf(&b, "%s: and %d more\n", r.workload.name, n)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
