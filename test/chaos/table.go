package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Summary is what a history shows in figures.
type Summary struct {
	Duration  time.Duration // until the last entry
	Scheduled int           // pods that were bound
	Faults    []FaultCount  // by kind
	Claims    int           // claims that were bound
	Terms     int           // binders elected
	Calm      time.Duration // longest pause without faults
	Peaks     []Peak        // by role
	Injected  int           // faults in all
	Failed    int           // of them could not be done
	// Failovers are the times from the death of an active binder, when nothing else was done, to the first bind that was seen
	// after the next election.
	Failovers []time.Duration
	Seated    int       // seated pods that were bound
	Gangs     int       // gangs of which enough pods were bound at a time
	Ganged    int       // pods of gangs that were bound
	Carded    int       // carded pods that were bound
	Placing   []Placing // of probes: without a fault, and during each kind of fault to plugin services, if there was one
}

// Placing is how long it took to bind probes, who need no plugin service, that were created while there was a fault and no other; or none, nor the aftermath of one, if kind is
// empty. Of a probe that was deleted before, it is how long that took.
type Placing struct {
	Kind        Kind
	Count       int
	Median, P99 time.Duration
}

// FaultCount is what is known of the faults of a kind.
type FaultCount struct {
	Kind  Kind
	Count int
	// Alone is the longest time without a bind that has to do with such a fault and with no other: some of it was while the
	// fault was there, or it began within the aftermath. Median is the one of such faults, of which each has its longest.
	// Longest counts the times too when there was another fault.
	Alone, Median, Longest time.Duration
	Seen                   int // faults that the processes themselves say they have found out
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
	bound, claims, seated, carded := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	named := map[string]*window{} // those of probes, by name
	seen := map[Kind]int{}
	probes := map[string]*window{} // by uid: from its creation to its bind, or its end
	faults := false
	var last, killed, elected Micros
	for _, e := range entries {
		s.Duration = e.At.Duration()
		switch f := e.Fault; {
		case f == nil:
		case f.Phase == phaseBegin:
			open[f.Number] = len(windows)
			windows = append(windows, window{f.Kind, e.At, math.MaxInt64})
			s.Injected++
			if f.Kind == killActive && killed == 0 {
				killed, elected = e.At, 0
			}
		default:
			if i, began := open[f.Number]; began {
				windows[i].to = e.At + aftermath
			}
			if f.Error != "" {
				s.Failed++
				killed = 0
			}
			if f.Saw != "" {
				seen[f.Kind]++
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
			elected = e.At
		}
		if o := e.Object; o != nil && o.ofPod() {
			switch p := probes[o.UID]; {
			case o.Pod != nil && o.Pod.Labels[labelClass] == classSeated:
				seated[o.UID] = true
			case o.Pod != nil && o.Pod.Labels[labelClass] == classCarded:
				carded[o.UID] = true
			case o.Pod != nil && o.Pod.Labels[labelClass] == classProbe && last > 0:
				probes[o.UID] = &window{from: e.At}
				named[o.Name] = probes[o.UID]
			case o.On != "" && p != nil && p.to == 0:
				p.to = e.At
			}
			if p := named[o.Name]; o.Deleted && p != nil && p.to == 0 {
				p.to = e.At
			}
			if o.On != "" && seated[o.UID] && !bound[o.UID] {
				s.Seated++
			}
			if o.On != "" && carded[o.UID] && !bound[o.UID] {
				s.Carded++
			}
		}
		if o := e.Object; o != nil && isBound(o.Claim) && !claims[o.UID] {
			claims[o.UID] = true
			s.Claims++
		}
		if o := e.Object; o != nil && o.On != "" && !bound[o.UID] {
			bound[o.UID] = true
			s.Scheduled++
			if killed > 0 && elected > killed {
				s.Failovers = append(s.Failovers, (e.At - killed).Duration())
				killed = 0
			}
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
	pauses := map[Kind][]time.Duration{} // of each fault that was alone
	for _, w := range windows {
		c := counts[w.kind]
		if c == nil {
			c = &FaultCount{Kind: w.kind, Seen: seen[w.kind]}
			counts[w.kind] = c
		}
		c.Count++
		alone := true
		for _, other := range windows {
			alone = alone && (other == w || !other.overlaps(w.from, w.to))
		}
		var longest time.Duration
		for _, g := range gaps {
			if w.overlaps(g.from, g.to) {
				longest = max(longest, (g.to - g.from).Duration())
			}
		}
		c.Longest = max(c.Longest, longest)
		if alone {
			c.Alone = max(c.Alone, longest)
			pauses[w.kind] = append(pauses[w.kind], longest)
		}
	}
	for _, c := range counts {
		c.Median = median(pauses[c.Kind])
		s.Faults = append(s.Faults, *c)
	}
	s.Gangs, s.Ganged = gangsWhole(entries)
	s.Placing = placing(windows, slices.Collect(maps.Values(probes)))
	slices.SortFunc(s.Faults, func(a, b FaultCount) int { return cmp.Compare(a.Kind, b.Kind) })
	return s
}

// placing sums up how long probes took, by the faults that there were when they were created.
func placing(windows []window, probes []*window) (out []Placing) {
	ofPlugins := []Kind{pluginKill, pluginPause, pluginLie, yodaKill, yodaPause}
	if !slices.ContainsFunc(windows, func(w window) bool { return slices.Contains(ofPlugins, w.kind) }) {
		return nil
	}
	times := map[Kind][]time.Duration{}
	for _, p := range probes {
		var at []window
		for _, w := range windows {
			over := w.to
			if !slices.Contains(ofPlugins, w.kind) && over < math.MaxInt64-recovery { // a binder may be gone for longer than its fault
				over += recovery - aftermath
			}
			if w.from <= p.from && p.from < over {
				at = append(at, w)
			}
		}
		switch {
		case p.to == 0: // it was there at the end
		case len(at) == 0:
			times[""] = append(times[""], (p.to - p.from).Duration())
		case len(at) == 1 && p.from < at[0].to-aftermath:
			times[at[0].kind] = append(times[at[0].kind], (p.to - p.from).Duration())
		}
	}
	for _, kind := range append([]Kind{""}, ofPlugins...) {
		if t := times[kind]; len(t) > 0 {
			slices.Sort(t)
			out = append(out, Placing{kind, len(t), median(t), t[(len(t)*99+99)/100-1]})
		}
	}
	return out
}

// median returns the median of some times, 0 if there are none. It sorts them.
func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
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

// failoverLimit is how long after the death of the active binder the next one must bind.
const failoverLimit = leaseTTL + 2*time.Second

// print writes the table and the violations, as Markdown.
func (s Summary) print(out io.Writer, violations []Violation) {
	fmt.Fprintf(out, "| fault | injected | median pause in binding | longest | with another fault | found out |\n| --- | ---: | ---: | ---: | ---: | ---: |\n")
	for _, f := range s.Faults {
		found := "-"
		if f.Seen > 0 {
			found = fmt.Sprint(f.Seen)
		}
		fmt.Fprintf(out, "| %s | %d | %s | %s | %s | %s |\n", f.Kind, f.Count, seconds(f.Median), seconds(f.Alone), seconds(f.Longest), found)
	}
	fmt.Fprintf(out, "| all, of %d kinds | %d | | without faults: %s | | |\n\n", len(s.Faults), s.Injected, seconds(s.Calm))
	if s.Failed > 0 {
		fmt.Fprintf(out, "%d of them could not be done\n", s.Failed)
	}
	if n := len(s.Failovers); n > 0 {
		over := 0
		var each []string
		for _, f := range s.Failovers {
			each = append(each, fmt.Sprintf("%.1f", f.Seconds()))
			if f > failoverLimit {
				over++
			}
		}
		longest := slices.Max(s.Failovers)
		fmt.Fprintf(out, "active binder killed %d times: binding again after %s at most, %s in the median; %d later than %s (lease + 2 s): %s\n",
			n, seconds(longest), seconds(median(slices.Clone(s.Failovers))), over, seconds(failoverLimit), strings.Join(each, " "))
	}
	fmt.Fprintf(out, "%d pods scheduled in %.0f s, %d terms of binders, %d violations\n", s.Scheduled, s.Duration.Seconds(), s.Terms, len(violations))
	if s.Claims > 0 {
		fmt.Fprintf(out, "%d claims bound\n", s.Claims)
	}
	if s.Seated > 0 {
		fmt.Fprintf(out, "%d pods of plugin services bound\n", s.Seated)
	}
	if s.Ganged > 0 {
		fmt.Fprintf(out, "%d gangs placed, with %d pods\n", s.Gangs, s.Ganged)
	}
	if s.Carded > 0 {
		fmt.Fprintf(out, "%d pods with cards bound\n", s.Carded)
	}
	for _, p := range s.Placing {
		fmt.Fprintf(out, "probes, which need no plugin service, during %q: %d, bound after %.3f s in the median, %.3f s at the 99th percentile\n",
			cmp.Or(p.Kind, "no fault"), p.Count, p.Median.Seconds(), p.P99.Seconds())
	}
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
