package integration

import (
	"flag"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/test/schedulerplugins/scheduler"
)

var only = flag.String("only", ".", "which of the tests of scheduler-plugins to run: a regular expression")

// left are files that are not compiled, and why.
var left = map[string]string{
	"capacity_scheduling_test.go":     "CapacityScheduling does not compile with Kubernetes 1.36",
	"elasticquota_controller_test.go": "CapacityScheduling does not compile with Kubernetes 1.36",
	"preemption_toleration_test.go":   "PreemptionToleration does not compile with Kubernetes 1.36",
}

// notAsked are tests that say nothing of another scheduler, and why.
var notAsked = map[string]string{
	"TestQOSPluginSuite":                "it takes pods out of the scheduler's queue itself",
	"TestTopologicalSortPlugin":         "it takes pods out of the scheduler's queue itself",
	"TestTopologyMatchPluginValidation": "it makes a kube-scheduler itself, and looks at the error",
}

// Why tests fail with Berth, or may.
const (
	// Pods of two groups or three come in turn, and there is room for one group.
	groupsMeet = "the first pod of a group that waits at Permit activates its siblings, which kube-scheduler has done before it takes the next pod, and Berth a moment later: pods of the groups are tried in turn, and none has room to become complete"
)

// known are tests that pass with kube-scheduler and not with Berth, or not always.
var known = map[string]string{
	"TestCoschedulingPlugin": "those in it that do not",
	"TestCoschedulingPlugin/equal_priority,_not_sequentially_pg1_meet_min_and_pg2_not_meet_min":   groupsMeet,
	"TestCoschedulingPlugin/equal_priority,_not_sequentially_pg1_meet_min_and_p2_p3_not_meet_min": groupsMeet,
}

// The integration tests of scheduler-plugins pass with Berth if they pass with kube-scheduler.
func TestSchedulerPluginsOwnIntegrationTests(t *testing.T) {
	u := build(t)
	for _, file := range slices.Sorted(maps.Keys(left)) {
		t.Logf("not compiled: %s: %s", file, left[file])
	}
	u.compare(t, notAsked, known)
}

// compare runs tests with kube-scheduler and with Berth. Where they do not pass with Berth, and Berth has less than the test's configuration says, a kube-scheduler that has no more shows what that alone makes of it. Of some
// tests is known why they are not asked, or need not pass.
func (u *upstream) compare(t *testing.T, notAsked, known map[string]string) {
	t.Helper()
	which := regexp.MustCompile(*only)
	t.Log("with kube-scheduler, with one that has no more than Berth, and with Berth:")
	seen := make(map[string]bool)
	for _, test := range u.tests(t) {
		if !which.MatchString(test) {
			continue
		}
		seen[test] = true
		theirs, saidTheirs := u.run(t, test)
		if u.sure && theirs[test] != passes {
			t.Errorf("%s does not pass with kube-scheduler:\n%s", test, saidTheirs)
		}
		if why := notAsked[test]; why != "" {
			t.Logf("%-8s%-8s%-8s%s: %s", theirs.of(test), none, none, test, why)
			continue
		}
		ours, said := u.run(t, test, u.berth...)
		unexpected := !strings.Contains(said, scheduler.Started)
		if unexpected {
			t.Errorf("%s has started no Berth", test)
		}
		var less outcomes
		otherwise := differs(said)
		if len(otherwise) > 0 && slices.ContainsFunc(namesOf(theirs), func(name string) bool { return theirs.of(name) == passes && ours.of(name) != passes }) {
			less, _ = u.run(t, test, scheduler.AsBerth+"=1")
		}
		for _, name := range namesOf(theirs, less, ours) {
			seen[name] = true
			why := known[name]
			t.Logf("%-8s%-8s%-8s%s %s", theirs.of(name), less.of(name), ours.of(name), name, why)
			if theirs.of(name) == passes && ours.of(name) != passes && why == "" {
				unexpected = true
				t.Errorf("%s passes with kube-scheduler, and not with Berth", name)
			}
		}
		for _, what := range otherwise {
			t.Logf("%24s%s: %s%s", "", test, scheduler.Differs, what)
		}
		if unexpected {
			t.Logf("%s with Berth:\n%s", test, said)
		}
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(notAsked)), slices.Sorted(maps.Keys(known))) {
		if test, _, _ := strings.Cut(name, "/"); !seen[name] && which.MatchString(test) {
			t.Errorf("there is no test %s, of which something is known", name)
		}
	}
}
