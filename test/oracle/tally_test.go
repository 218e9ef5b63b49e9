package oracle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
)

// tally is how much has been compared.
type tally struct {
	reserved                                                    int // placements of whole Berths with something chosen for claims
	choices, provisions                                         int // what has been chosen for claims, and compared; how many of it are volumes that are to be provisioned
	decisions, verdicts, scores, infeasible, unscored, unjudged int
	batches, attempts, proven, nominated, noFit, retries        int
	sequences, severalShards, severalRanges                     int
	preemptions, candidates, violating, victims, ineligible     int
	evictions                                                   int // preemptions of whole Berths
	attached                                                    int // volumes that both count on nodes

	byPlugin map[string]int // verdicts by plugin, and scores that are not 0
	apart    map[string]int // decisions that were not compared, by why
	// failures are attempts of kube-scheduler's that have failed, by error without names; apartFailures those that were not compared.
	failures, apartFailures map[string]int
	// byText are the decisions by what plugins that read volumes have said in them, without names; apartByText those that were not
	// compared.
	byText, apartByText map[string]int
	// helped are the decisions by what such plugins have said of nodes where preemption helps.
	helped map[string]int
	// met are the decisions by what they are a case of, see supplyCases.
	met    map[string]int
	looks  map[string]int // of the controller of volumes in sequences, see script.looks
	failed *scene         // the last one that the schedulers differ about
	why    string         // how they differ about it

	differences []string // of sum: test and why, of each test that has failed
	repeats     []string // of sum: the commands that run these cases again
}

// enoughSequences is how many sequences there have to be until it is a defect of the test if something that few have is in none.
const enoughSequences = 60

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
	n.byText = d.countTexts(n.byText, anywhere)
	for what, is := range d.met {
		if is {
			n.met = increment(n.met, what, 1)
		}
	}
	if n.byPlugin == nil {
		n.byPlugin = make(map[string]int)
	}
	n.countHelped(d)
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

// countAny counts a decision of kube-scheduler's as it has been treated: apart says why it has not been compared.
func (n *tally) countAny(apart string, d *decision, feasible int) {
	switch {
	case apart != "":
		n.countApart(apart, d)
	case d.failed != nil:
		n.countFailed(d)
	default:
		n.count(d, feasible)
	}
}

// countApart counts a decision of kube-scheduler that has not been compared.
func (n *tally) countApart(why string, d *decision) {
	n.apart = increment(n.apart, why, 1)
	if d.failed != nil {
		n.apartFailures = increment(n.apartFailures, nameless(d.failed.Error()), 1)
		return
	}
	n.apartByText = d.countTexts(n.apartByText, anywhere)
}

// countFailed counts an attempt that kube-scheduler fails at.
func (n *tally) countFailed(d *decision) {
	n.failures = increment(n.failures, nameless(d.failed.Error()), 1)
}

func increment(of map[string]int, what string, by int) map[string]int {
	if of == nil {
		of = make(map[string]int)
	}
	of[what] += by
	return of
}

// countHelped counts what plugins have said of nodes where preemption helps.
func (n *tally) countHelped(d *decision) {
	if d.Preemption != nil {
		n.helped = d.countTexts(n.helped, func(node string) bool { _, ok := d.Preemption.Candidates[node]; return ok })
	}
}

func anywhere(string) bool { return true }

// countTexts counts once each text by which a plugin that reads volumes has refused a node, or all of them, of those that are of.
func (d *decision) countTexts(in map[string]int, of func(node string) bool) map[string]int {
	said := make(map[string]bool)
	for node, v := range d.Verdicts {
		for _, reason := range v.Reasons {
			if slices.Contains(volumePlugins, v.Plugin) && of(node) {
				said[v.Plugin+": "+nameless(reason)] = true
			}
		}
	}
	for text := range said {
		in = increment(in, text, 1)
	}
	return in
}

// aName is what stands for an object in a text: its name in quotes, or namespace and name.
var aName = regexp.MustCompile(`"[^"]*"|\b[-a-z0-9]+/[-a-z0-9]+\b|\(aws://[^)]*\)|volume\([^)]*\)`)

// nameless is a text without the names of objects.
func nameless(text string) string {
	if strings.HasSuffix(text, engine.ReasonNoDriver) {
		return "…" + engine.ReasonNoDriver
	}
	return aName.ReplaceAllString(text, "…")
}

// report says how much a test has compared, and fails if that was not worth much.
func (n *tally) report(t *testing.T) {
	t.Helper()
	t.Logf("%d decisions compared (%d of them without a feasible node), with %d verdicts on nodes that are not feasible and the scores of %d that are", n.decisions, n.infeasible, n.verdicts, n.scores)
	t.Logf("besides %d whose scores kube-scheduler fails on, %d that Berth says it cannot judge", n.unscored, n.unjudged)
	t.Logf("verdicts, and scores other than 0, by plugin: %v", n.byPlugin)
	for _, what := range []struct {
		name string
		of   map[string]int
	}{
		{"decisions that were not compared", n.apart}, {"attempts of kube-scheduler's that fail, for which Berth finds nothing either", n.failures},
		{"those of them that were not compared", n.apartFailures},
		{"decisions by what plugins that read volumes say in them", n.byText},
		{"decisions by what they say of nodes where preemption helps", n.helped},
		{"the same of those that were not compared", n.apartByText},
		{"decisions about claims that wait", n.met},
		{"times that the controller of volumes has found", n.looks},
	} {
		for _, key := range sortedKeys(what.of) {
			t.Logf("%s: %d: %s", what.name, what.of[key], key)
		}
	}
	t.Logf("%d searches for victims: %d candidates with %d victims, %d of them against a budget; %d pods may not preempt", n.preemptions, n.candidates, n.victims, n.violating, n.ineligible)
	if n.decisions >= 1000 && n.infeasible > n.decisions*3/4 {
		t.Error("the clusters are too full to compare scores")
	}
	if n.attached > 0 {
		t.Logf("%d volumes attached to nodes are counted the same", n.attached)
	}
	if n.choices > 0 {
		t.Logf("%d times the same is chosen for a claim on a node: %d volumes, and %d that are to be provisioned", n.choices, n.choices-n.provisions, n.provisions)
	}
	if n.attempts > 0 {
		t.Logf("%d attempts in %d batches: %d placed on one of kube-scheduler's best nodes (%d of them where they were nominated), %d fit none, %d sent to the next batch", n.attempts, n.batches, n.proven, n.nominated, n.noFit, n.retries)
	}
	if n.sequences > 0 {
		t.Logf("%d sequences, %d of them over several shards, %d over several ranges; %d preemptions in them, %d placements with something chosen for claims",
			n.sequences, n.severalShards, n.severalRanges, n.evictions, n.reserved)
		if n.sequences >= enoughSequences && n.reserved == 0 {
			t.Error("no placement of a whole Berth has something chosen for claims")
		}
		for _, what := range lookCases {
			if n.sequences >= enoughSequences && n.looks[what] == 0 {
				t.Errorf("it never comes in a sequence that %s", what)
			}
		}
	}
	for why, count := range n.apart {
		sum.apart = increment(sum.apart, why, count)
	}
	sum.decisions += n.decisions
	sum.proven += n.proven
	sum.sequences += n.sequences
	sum.preemptions += n.preemptions
	sum.candidates += n.candidates
	sum.choices += n.choices
	sum.reserved += n.reserved
}

// print says how much all tests have compared.
func (n *tally) print(code int) {
	if code != 0 {
		fmt.Println("oracle: differences, see above")
		return
	}
	fmt.Printf("oracle: %d decisions, %d sequences by whole Berths of %d pods each, %d placements, %d choices for claims, %d placements of whole Berths with such, %d searches for victims with %d candidates: 0 differences\n",
		n.decisions, n.sequences, sequenceLength, n.proven, n.choices, n.reserved, n.preemptions, n.candidates)
	for _, why := range sortedKeys(n.apart) {
		fmt.Printf("oracle: besides %d decisions that were not compared: %s\n", n.apart[why], why)
	}
}
