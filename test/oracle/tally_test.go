package oracle

import (
	"fmt"
	"testing"
)

// tally is how much has been compared.
type tally struct {
	decisions, verdicts, scores, infeasible, unscored, unjudged int
	batches, attempts, proven, nominated, noFit, retries        int
	sequences, severalShards, severalRanges                     int
	preemptions, candidates, violating, victims, ineligible     int
	evictions                                                   int // preemptions of whole Berths

	byPlugin map[string]int // verdicts by plugin, and scores that are not 0
	failed   *scene         // the last one that the schedulers differ about
}

// sum is the tally of all tests.
var sum tally

// count counts a decision of kube-scheduler that has been compared.
func (n *tally) count(d *decision, feasible int) {
	n.decisions++
	n.verdicts += len(d.Verdicts)
	n.scores += len(d.Scores)
	if feasible == 0 {
		n.infeasible++
	}
	if d.scoreError != nil {
		n.unscored++
	}
	if n.byPlugin == nil {
		n.byPlugin = make(map[string]int)
	}
	if p := d.Preemption; p != nil {
		n.preemptions++
		n.candidates += len(p.Candidates)
		for _, c := range p.Candidates {
			n.victims += len(c.Pods)
			if c.Violations > 0 {
				n.violating++
			}
		}
		if p.Ineligible != "" {
			n.ineligible++
		}
	}
	for _, v := range d.Verdicts {
		n.byPlugin[v.Plugin]++
	}
	for _, s := range d.Scores {
		for plugin := range s.Weighted {
			n.byPlugin["scored by "+plugin]++
		}
	}
}

// report says how much a test has compared, and fails if that was not worth much.
func (n *tally) report(t *testing.T) {
	t.Helper()
	t.Logf("%d decisions compared (%d of them without a feasible node), with %d verdicts on nodes that are not feasible and the scores of %d that are", n.decisions, n.infeasible, n.verdicts, n.scores)
	t.Logf("besides %d whose scores kube-scheduler fails on, %d that Berth says it cannot judge", n.unscored, n.unjudged)
	t.Logf("verdicts, and scores other than 0, by plugin: %v", n.byPlugin)
	t.Logf("%d searches for victims: %d candidates with %d victims, %d of them against a budget; %d pods may not preempt", n.preemptions, n.candidates, n.victims, n.violating, n.ineligible)
	if n.decisions >= 1000 && n.infeasible > n.decisions*3/4 {
		t.Error("the clusters are too full to compare scores")
	}
	if n.attempts > 0 {
		t.Logf("%d attempts in %d batches: %d placed on one of kube-scheduler's best nodes (%d of them where they were nominated), %d fit none, %d sent to the next batch", n.attempts, n.batches, n.proven, n.nominated, n.noFit, n.retries)
	}
	if n.sequences > 0 {
		t.Logf("%d sequences, %d of them over several shards, %d over several ranges; %d preemptions in them", n.sequences, n.severalShards, n.severalRanges, n.evictions)
	}
	sum.decisions += n.decisions
	sum.proven += n.proven
	sum.sequences += n.sequences
	sum.preemptions += n.preemptions
	sum.candidates += n.candidates
}

// print says how much all tests have compared.
func (n *tally) print(code int) {
	if code != 0 {
		fmt.Println("oracle: differences, see above")
		return
	}
	fmt.Printf("oracle: %d decisions, %d sequences by whole Berths of %d pods each, %d placements, %d searches for victims with %d candidates: 0 differences\n",
		n.decisions, n.sequences, sequenceLength, n.proven, n.preemptions, n.candidates)
}
