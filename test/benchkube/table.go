package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// definitions says what the columns are.
const definitions = `
pods/s          pods bound per second from the first binding to the last, as a watch sees them
from start      pods bound per second from the start of the contender's first process to the last binding
CPU s, ms/pod   user and system time of all the contender's processes, from their start until its last write
peak MB         sum of the peak resident memory of all its processes
writes/pod      POST, PUT, PATCH, DELETE to the API server while the contender ran, without leases
refused         binds that were not answered with success
repeated        pods with more than one Scheduled event, each naming the pod's node
nodes, zones    nodes that have a pod; pods in the zone with the fewest and in that with the most
broken          pods where a required constraint forbids them to be, and zones with too many of a spread workload
check           ok: all pods are bound, each once, none where it must not be, and no node is overcommitted; a contender that
                binds blindly is only held to the first two
`

// stormDefinitions, and the others, say what the columns of a table of their own are.
const stormDefinitions = `
ratio           pods/s of the pods that fit to that of the run before, in which they are alone
fit nowhere     the other pods, all of which must have a condition and an event
condition s     from the last binding to the last such condition; negative: it came before
event s         and to the last such event, both at most 30
idle CPU        CPU seconds per second when nothing changes any more
`

const gatedDefinitions = `
events          node updates, and pods of others created and deleted, while the gated pods are there
CPU s, us/event user and system time for them
ratio           to that of the run before, without gated pods
all bound s     from the removal of the first gate (or the creation of the first pod) to the last binding; from start, above,
                counts from there too
`

const preemptionDefinitions = `
seconds         from the start of the contender's first process to the last binding
victims         pods that had to go; check also says whether one that had to go would still fit, has no preemptor of a
                higher priority on its node, was protected by a budget, or was not told by a condition
protected       victims that a budget protects
by priority     victims×priority; preemptors have 100000
                Kubelets are played: they take 1 s to stop a pod; their deletions are among the other writes, above.
`

// printTable prints one row per run, what its processes used, and its problems.
func printTable(out io.Writer, results []result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tcontender\tpods\tbound\tpods/s\tfrom start\tCPU s\tms/pod\tpeak MB\twrites/pod\tbind\tevent\tstatus\tother\trefused\trepeated\tnodes\tzones\tbroken\tcheck\t")
	for _, r := range results {
		cpu := cpuOf(r.usage)
		var peak int64
		for _, u := range r.usage {
			peak += u.PeakRSS
		}
		check := "ok"
		if n := len(r.problems); n > 0 {
			check = fmt.Sprintf("%d wrong", n)
		}
		perPod := func(n float64) string { return fmt.Sprintf("%.2f", n/float64(r.pods)) }
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%.1f\t%.2f\t%d\t%s\t%s\t%s\t%s\t%s\t%.0f\t%d\t%d\t%d-%d\t%d\t%s\t\n",
			r.workload, r.contender, r.pods, r.bound, rate(r.bound, r.binding), rate(r.bound, r.total),
			cpu.Seconds(), float64(cpu.Microseconds())/1000/float64(r.pods), peak>>20,
			perPod(r.writes.total()), perPod(r.writes.binds), perPod(r.writes.events), perPod(r.writes.status), perPod(r.writes.other),
			r.writes.refused, r.repeated, r.usedNodes, r.fewest, r.most, r.broken, check)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(definitions)
	if err := printScripts(&b, results); err != nil {
		return err
	}
	for _, r := range results {
		if len(r.usage) > 1 {
			fmt.Fprintf(&b, "\n%s, by process:", r.title())
			for _, u := range r.usage {
				fmt.Fprintf(&b, " %s %.1f s %d MB;", u.name, u.CPU.Seconds(), u.PeakRSS>>20)
			}
			b.WriteString("\n")
		}
		if len(r.killed) > 0 {
			fmt.Fprintf(&b, "%s, killed: %s\n", r.title(), strings.Join(r.killed, ", "))
		}
		for i, p := range r.problems {
			if i == 20 {
				fmt.Fprintf(&b, "%s: and %d more\n", r.title(), len(r.problems)-i)
				break
			}
			fmt.Fprintf(&b, "%s: %s\n", r.title(), p)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// printScripts prints a table for each workload with a script that has run.
func printScripts(out io.Writer, results []result) error {
	var storms, gated, preemptions [][]string
	for i, r := range results {
		base := baselineOf(results[:i], r)
		switch {
		case r.storm != nil:
			f := r.storm
			storms = append(storms, []string{r.contender, rate(r.bound, r.binding), ratio(r.perSecond(), base.perSecond()),
				fmt.Sprint(f.hopeless), seconds(f.lag(f.LastCondition)), seconds(f.lag(f.LastEvent)), fmt.Sprintf("%.3f", f.idle)})
		case r.gated != nil:
			f, before := r.gated, 0.0
			if base.gated != nil {
				before = base.gated.eventCPU.Seconds()
			}
			gated = append(gated, []string{r.workload, r.contender, fmt.Sprint(f.events), fmt.Sprintf("%.2f", f.eventCPU.Seconds()),
				fmt.Sprintf("%.0f", float64(f.eventCPU.Microseconds())/float64(f.events)), ratio(f.eventCPU.Seconds(), before), seconds(r.total)})
		case r.preemption != nil:
			f := r.preemption
			preemptions = append(preemptions, []string{r.contender, fmt.Sprint(r.bound), seconds(r.total),
				fmt.Sprint(f.Victims), fmt.Sprint(len(f.Protected)), f.priorities()})
		}
	}
	for _, table := range []struct {
		header      []string
		rows        [][]string
		definitions string
	}{
		{[]string{"storm", "pods/s", "ratio", "fit nowhere", "condition s", "event s", "idle CPU"}, storms, stormDefinitions},
		{[]string{"gated", "contender", "events", "CPU s", "us/event", "ratio", "all bound s"}, gated, gatedDefinitions},
		{[]string{"preemption", "preemptors", "seconds", "victims", "protected", "by priority"}, preemptions, preemptionDefinitions},
	} {
		if len(table.rows) == 0 {
			continue
		}
		fmt.Fprintln(out)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range append([][]string{table.header}, table.rows...) {
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if _, err := io.WriteString(out, table.definitions); err != nil {
			return err
		}
	}
	return nil
}

// baselineOf returns the last of the results that r is to be compared with; an empty one if there is none.
func baselineOf(results []result, r result) result {
	name := ""
	for _, w := range workloads() {
		if w.name == r.workload {
			name = w.baseline
		}
	}
	for i := len(results) - 1; i >= 0; i-- {
		if b := results[i]; b.workload == name && b.contender == r.contender {
			return b
		}
	}
	return result{}
}

// perSecond returns the rate of bindings; 0 when there is no interval to measure.
func (r *result) perSecond() float64 {
	if r.bound < 2 || r.binding <= 0 {
		return 0
	}
	return float64(r.bound) / r.binding.Seconds()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

// ratio returns a to b, or a dash when there is nothing to compare with.
func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// rate returns n per second, or a dash when there is no interval to measure.
func rate(n int, d time.Duration) string {
	if n < 2 || d <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(n)/d.Seconds())
}
