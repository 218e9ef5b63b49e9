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

// printTable prints one row per run, what its processes used, and its problems.
func printTable(out io.Writer, results []result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tcontender\tpods\tbound\tpods/s\tfrom start\tCPU s\tms/pod\tpeak MB\twrites/pod\tbind\tevent\tstatus\tother\trefused\trepeated\tnodes\tzones\tbroken\tcheck\t")
	for _, r := range results {
		var cpu time.Duration
		var peak int64
		for _, u := range r.usage {
			cpu += u.CPU
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

// rate returns n per second, or a dash when there is no interval to measure.
func rate(n int, d time.Duration) string {
	if n < 2 || d <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(n)/d.Seconds())
}
