package shadow

import (
	"iter"
	"time"

	"github.com/berth-scheduler/berth/internal/engine"
)

// Refused is a pod that the scheduler says fits nowhere.
type Refused struct {
	UID, Namespace, Name string
	Why                  string // what it says
}

// Waiting returns the pods that wait for the scheduler, by namespace and name, with their uids.
func (s *Shadow) Waiting() iter.Seq2[[2]string, string] {
	return func(yield func([2]string, string) bool) {
		for uid, is := range s.waits {
			if !yield([2]string{is.pod.Namespace, is.pod.Name}, uid) {
				return
			}
		}
	}
}

// fitting is a pod that the scheduler has refused, and that fits somewhere.
type fitting struct {
	since time.Time
	told  bool
}

// steady is for how long a pod has to fit before it counts: the scheduler may be about to try it again, and backs off for 10 s at most by default.
const steady = 30 * time.Second

// Look finds which of the pods that the scheduler has refused fit somewhere, at a time, and have for a while, at each look.
func (s *Shadow) Look(refused []Refused, now time.Time) {
	fits := make(map[engine.Subject]bool)
	seen := make(map[string]bool)
	for _, r := range refused {
		id, ok := s.state.PodByUID(r.UID)
		if !ok {
			continue
		}
		row := s.state.Pod(id)
		if row.NodeName != "" || len(row.Gates) > 0 || row.Deleting || row.Nominated != "" || row.RequiredNode != "" {
			continue // it is not about to be tried, or waits for room that is made for it, or goes to one node only
		}
		subject := engine.SubjectOf(&row.Pod)
		can, known := fits[subject]
		if !known {
			s.totals, _, _ = s.evaluator.TotalsAmong(s.state, subject, nil, s.totals[:0])
			can = len(s.totals) > 0
			fits[subject] = can
		}
		if !can {
			continue
		}
		seen[r.UID] = true
		is, before := s.fit[r.UID]
		if !before {
			is.since = now
		}
		if s.fit[r.UID] = is; is.told || now.Sub(is.since) < steady {
			continue
		}
		s.fit[r.UID] = fitting{is.since, true}
		example := Example{Pod: r.Namespace + "/" + r.Name, Why: r.Why}
		if best, ok := s.best(subject); ok {
			example.Berth, example.Best = s.state.Nodes.Spec[best.Node].Name, best.Total
		}
		s.report.Places++
		s.report.say(&s.report.Examples.Places, example, s.cfg.Examples)
	}
	for uid := range s.fit {
		if !seen[uid] {
			delete(s.fit, uid)
		}
	}
}

// Report returns what has been found so far.
func (s *Shadow) Report(now time.Time) Report {
	out := s.report
	out.Behind = s.Behind(now).Seconds()
	out.Waited, out.Choosing = out.waited.quantiles(), out.choosing.quantiles()
	return out
}

// Nodes returns how many nodes there are, and of how many that can run a pod the first profile's scheduler thinks that they are enough.
func (s *Shadow) Nodes() (all, enough int) {
	all = s.state.Nodes.Count()
	return all, engine.NodesToFind(all, s.cfg.Settings.Profiles[0].PercentageOfNodesToScore)
}
