package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Summary is what a history shows in figures.
type Summary struct {
	Duration  time.Duration // until the last entry
	Scheduled int           // pods that were bound
	Faults    []FaultCount  // by kind
	Terms     int           // binders elected
	Calm      time.Duration // longest pause without faults
	Peaks     []Peak        // by role
	Injected  int           // faults in all
	Failed    int           // of them could not be done
}

// FaultCount is what is known of the faults of a kind.
type FaultCount struct {
	Kind  Kind
	Count int
	// Alone is the longest time without a bind that has to do with such a fault and with no other: some of it was while the
	// fault was there, or it began within the aftermath. Longest counts the times too when there was another fault.
	Alone, Longest time.Duration
}

// Peak is the most memory that a process of a role has used, in bytes.
type Peak struct {
	Role  string
	Bytes int64
}

// aftermath is how long after the end of a fault a pause is put down to it.
const aftermath = Micros(2 * time.Second / time.Microsecond)

// window is a time, of a fault if it has a kind.
type window struct {
	kind     Kind
	from, to Micros
}

func (w window) overlaps(from, to Micros) bool { return w.from < to && from < w.to }

// Summarize counts. It is a pure function.
func Summarize(entries []Entry) Summary {
	var s Summary
	var windows []window
	var gaps []window
	peaks := map[string]int64{}
	open := map[int]int{} // number of a fault → its window
	bound := map[string]bool{}
	faults := false
	var last Micros
	for _, e := range entries {
		s.Duration = e.At.Duration()
		switch f := e.Fault; {
		case f == nil:
		case f.Phase == phaseBegin:
			open[f.Number] = len(windows)
			windows = append(windows, window{f.Kind, e.At, math.MaxInt64})
			s.Injected++
		default:
			if i, began := open[f.Number]; began {
				windows[i].to = e.At + aftermath
			}
			if f.Error != "" {
				s.Failed++
			}
		}
		if u := e.Usage; u != nil {
			role := u.Name[:max(0, strings.LastIndexByte(u.Name, '-'))]
			peaks[role] = max(peaks[role], u.Peak)
		}
		switch e.Mark {
		case Calm:
			last = e.At
		case Faulty:
			faults = true
		case Healing: // no more work
			gaps = append(gaps, window{from: last, to: e.At})
			faults, last = false, 0
		}
		if e.Key != nil && e.Key.Name == keyLeader && !e.Key.Deleted {
			s.Terms++
		}
		if o := e.Object; o != nil && o.On != "" && !bound[o.UID] {
			bound[o.UID] = true
			s.Scheduled++
			if last > 0 {
				gaps = append(gaps, window{from: last, to: e.At})
				if !faults {
					s.Calm = max(s.Calm, (e.At - last).Duration())
				}
				last = e.At
			}
		}
	}
	for _, role := range slices.Sorted(maps.Keys(peaks)) {
		s.Peaks = append(s.Peaks, Peak{role, peaks[role]})
	}
	counts := map[Kind]*FaultCount{}
	for _, w := range windows {
		c := counts[w.kind]
		if c == nil {
			c = &FaultCount{Kind: w.kind}
			counts[w.kind] = c
		}
		c.Count++
		alone := true
		for _, other := range windows {
			alone = alone && (other == w || !other.overlaps(w.from, w.to))
		}
		for _, g := range gaps {
			if w.overlaps(g.from, g.to) {
				c.Longest = max(c.Longest, (g.to - g.from).Duration())
				if alone {
					c.Alone = max(c.Alone, (g.to - g.from).Duration())
				}
			}
		}
	}
	for _, c := range counts {
		s.Faults = append(s.Faults, *c)
	}
	slices.SortFunc(s.Faults, func(a, b FaultCount) int { return cmp.Compare(a.Kind, b.Kind) })
	return s
}

// seconds says a time; - if there was none.
func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// shown is how many violations of a rule are printed.
const shown = 10

// print writes the table and the violations.
func (s Summary) print(out io.Writer, violations []Violation) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "fault\tinjected\tlongest pause in binding\twith another fault\n")
	for _, f := range s.Faults {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", f.Kind, f.Count, seconds(f.Alone), seconds(f.Longest))
	}
	fmt.Fprintf(w, "all\t%d\t(without faults: %s)\t\n", s.Injected, seconds(s.Calm))
	w.Flush()
	if s.Failed > 0 {
		fmt.Fprintf(out, "%d of them could not be done\n", s.Failed)
	}
	fmt.Fprintf(out, "\n%d pods scheduled in %.0f s, %d terms of binders, %d violations\n", s.Scheduled, s.Duration.Seconds(), s.Terms, len(violations))
	var peaks []string
	for _, p := range s.Peaks {
		peaks = append(peaks, fmt.Sprintf("%s %d MiB", p.Role, p.Bytes>>20))
	}
	if len(peaks) > 0 {
		fmt.Fprintf(out, "peak memory of a process: %s\n", strings.Join(peaks, ", "))
	}
	byRule := map[Rule]int{}
	for _, v := range violations {
		if byRule[v.Rule]++; byRule[v.Rule] <= shown {
			fmt.Fprintln(out, strings.TrimSpace(v.String()))
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(byRule)) {
		if n := byRule[rule]; n > shown {
			fmt.Fprintf(out, "and %d more: %s\n", n-shown, rule)
		}
	}
}
