package shadow

import (
	"iter"

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

// Look finds which of the pods that the scheduler has refused fit somewhere. A pod counts when that is so at two looks, one after the other: the scheduler may be about to try it again.
func (s *Shadow) Look(refused []Refused) {
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
		if s.fit[r.UID] != 1 {
			continue // it did not at the last look, or has been counted
		}
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
	for uid := range seen {
		s.fit[uid] = min(s.fit[uid]+1, 2)
	}
}

// Report returns what has been found so far.
func (s *Shadow) Report() Report {
	out := s.report
	out.Waited, out.Choosing = out.waited.quantiles(), out.choosing.quantiles()
	return out
}

// Nodes returns how many nodes there are, and of how many that can run a pod the first profile's scheduler thinks that they are enough.
func (s *Shadow) Nodes() (all, enough int) {
	all = s.state.Nodes.Count()
	return all, engine.NodesToFind(all, s.cfg.Settings.Profiles[0].PercentageOfNodesToScore)
}
