package oracle

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Why tests of kube-scheduler's are no cases here.
const (
	aFunction    = "of the function that a score is made by: the nodes that are scored are cases"
	assumeCache  = "of the cache in which kube-scheduler assumes: the ledger has tests of its own"
	betweenCalls = "of what the plugin keeps between calls: a placement has its choice"
	wrongObject  = "a hint is given what is no object of its kind: here kinds are types"
	nilLists     = "a list that is nil: a placement has one list, and none without one"
	notThere     = "assumed is what is not there: what is chosen is chosen on the ledger that it is assumed on"
)

// notCases are the tests that are no cases, as the beginning of their name, and how many there are.
var notCases = map[string]map[string]int{
	aFunction: {"TestScore/": 3},
	assumeCache: {
		"TestPVAssumeCache": 1, "TestBasicCache": 1, "TestPVCacheWithIndex": 1, "TestAssume/": 6, "TestRestore": 1, "TestConcurrentAssume": 1,
		"TestAssumeUpdateCache": 1, "TestDelayedInformerEvent": 1,
	},
	betweenCalls: {"Test_PreBindPreFlight/": 4},
	wrongObject: {
		"TestIsSchedulableAfterCSIDriverChange/unexpected_objects_are_passed": 1, "TestIsSchedulableAfterCSINodeChange/unexpected_objects_are_passed": 1,
		"TestIsSchedulableAfterCSIStorageCapacityChange/type_conversion_error": 1, "TestIsSchedulableAfterPersistentVolumeClaimChange/type_conversion_error": 1,
		"TestIsSchedulableAfterStorageClassChange/type_conversion_error": 1,
		"TestIsSchedulableAfterPersistentVolumeChange/error-wrong":       2, "TestIsSchedulableAfterPersistentVolumeClaimAdded/error-wrong": 1,
		"TestIsSchedulableAfterStorageClassAdded/error-wrong": 1,
	},
	nilLists: {"TestBindAPIUpdate/nothing-to-bind-": 3, "TestCheckBindings/nothing-to-bind-": 3},
	notThere: {"TestAssumePodVolumes/tmpupdate-failed": 1, "TestAssumePodVolumes/one-binding,_one-provision-tmpupdate-failed": 1},
}

// TestEachOfUpstreamsTestsIsACase, or it is said why not.
func TestEachOfUpstreamsTestsIsACase(t *testing.T) {
	all, cases := make(map[string]bool), make(map[string]bool)
	scores, calls := 0, 0
	for k := range upstreamTables {
		table := &upstreamTables[k]
		for _, l := range table.told(t) {
			if all[l.Test] = true; l.Point == "Score" {
				scores++
			} else if l.Point != testBegins {
				calls++
			}
		}
		for _, c := range table.decisions(t) {
			cases[c.Test] = true
		}
		for _, c := range table.hintCases(t) {
			cases[c.Test] = true
		}
	}
	for _, c := range binderCalls(t, binderMethods...) {
		_, fails := assumesWhatIsNot[c.Test]
		if !fails && (c.Given != nil || c.Point == "FindPodVolumes" || c.Point == "GetPodVolumeClaims") {
			cases[c.Test] = true
		}
	}
	for test := range maps.Clone(all) { // those of which others are a part
		for k := range test {
			if test[k] == '/' {
				delete(all, test[:k])
			}
		}
	}
	got := make(map[string]map[string]int)
	for why := range notCases {
		got[why] = make(map[string]int)
	}
	compared := 0
	for _, test := range slices.Sorted(maps.Keys(all)) {
		if cases[test] {
			compared++
			continue
		}
		known := false
		for why, tests := range notCases {
			for beginning := range tests {
				if strings.HasPrefix(test, beginning) {
					known = true
					got[why][beginning]++
				}
			}
		}
		if !known {
			t.Errorf("%s has no case, and it is not said why", test)
		}
	}
	if diff := cmp.Diff(notCases, got); diff != "" {
		t.Errorf("tests that are no cases (-want +got):\n%s", diff)
	}
	if scores != scoredNodes {
		t.Errorf("%d nodes are scored by capacity, there were %d", scores, scoredNodes)
	}
	if compared != 344 {
		t.Errorf("%d of the tests are cases", compared)
	}
	t.Logf("%d of the tests are cases, with %d calls; besides %d nodes that are scored by capacity", compared, calls, scores)
	for _, why := range sortedKeys(got) {
		n := 0
		for _, tests := range got[why] {
			n += tests
		}
		t.Logf("%d tests are no cases: %s", n, why)
	}
}
