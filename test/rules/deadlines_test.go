package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shortest is the shortest time after which a test may say that something hangs.
const shortest = time.Minute

// tick is what a poll waits between two looks, at most.
const tick = 20 * time.Millisecond

// hurried are the functions that have a shorter deadline, with the reason: what they wait for is that time passes, or that
// nothing happens, and a machine that is slower finds the same.
var hurried = map[string]string{
	"gateway/fuzz_test.go FuzzJSON":                                                                  "a watch has no end: it is cut, and may have said nothing",
	"internal/coord/election_test.go TestCampaignEndsWithItsContextAndItsSession":                    "a campaign that is not won ends with its context",
	"internal/coord/election_test.go TestLeadershipPassesOnWhenTheLeaderDiesOrResigns":               "nobody else is elected meanwhile",
	"internal/coord/kv_test.go TestSlowReaderGetsTheNewestList":                                      "no list comes twice",
	"internal/coord/client_test.go TestRequestsEndWithTheirTimeoutWhileEtcdIsPaused":                 "etcd does not answer",
	"internal/coord/endpoint_test.go untilKnown":                                                     "the lease's time is the fact; a member that is silent is found out within a second of it",
	"internal/coord/etcdtest/etcdtest.go awaitHealth":                                                "of one try, after which comes the next",
	"internal/kubetest/build_test.go TestLockKeepsOthersOutUntilItIsReleased":                        "the lock is taken",
	"internal/kubetest/controlplane.go StartT":                                                       "it only says that it took long",
	"internal/kubetest/controlplane.go startAPIServer":                                               "of one try, after which comes the next",
	"internal/kubetest/etcd.go GetOK":                                                                "of one try, after which comes the next",
	"internal/kubetest/kubetest_test.go TestPausedAPIServerAnswersOnlyWhenItIsResumed":               "the API server does not answer",
	"internal/kubetest/process.go Stop":                                                              "then it is killed",
	"internal/kubetest/process_linux_test.go TestStopEndsAPausedProcess":                             "then it would have been killed, which is the fact",
	"internal/source/kube/kube_test.go TestABindDoesNotWaitForEvents":                                "the next event may be written in a quarter of an hour",
	"internal/source/kube/kube_test.go TestOutcomesFollowTheAPIServersAnswer":                        "the API server of this test does not answer",
	"internal/source/kube/preemption_test.go TestEvictionsAndBindsDoNotWaitForEachOtherNorForEvents": "the next eviction may be made in a quarter of an hour",
	"internal/source/local/local_test.go TestWatchWaitsForEtcdAndSaysSo":                             "nobody listens there",
	"services/binder/harness_test.go connect":                                                        "of one try, and tests with an etcd that is paused wait for its end",
	"services/binder/term_test.go TestNothingIsPlacedWhileEtcdIsAwayForLongerThanTheLease":           "twice the lease, which is the fact",
	"services/queue/floors_test.go WatchPriorityFloors":                                              "how often a neighbor that has nothing new says so",
	"test/rpcs/rpcs_test.go call":                                                                    "a stream that has nothing to say is cut",
	"test/system/garbage_test.go send":                                                               "a stream that has nothing to say is cut",
	"internal/coord/record_test.go TestRecordWithoutAnAnswerIsUnknownAndCanBeRepeated":               "etcd does not answer",
	"internal/coord/session_test.go TestNewSessionWaitsForEtcd":                                      "etcd does not answer",
	"internal/coord/session_test.go TestSessionIsOverWhenEtcdHasEndedItsLease":                       "by its clock it is over later: there are 16 s between them",
	"internal/coord/session_test.go TestSessionSurvivesAShortPauseAndARestart":                       "etcd does not answer",
}

// TestDeadlinesInTestsAreForHangsOnly: a test that fails because the machine was slow says nothing about Berth. What it waits for,
// it waits for minutes. Where time itself is the fact, it is that of package bubble, or given.
func TestDeadlinesInTestsAreForHangsOnly(t *testing.T) {
	constants := make(map[string]map[string]ast.Expr) // by directory
	parsed := make(map[string]*ast.File)
	set := token.NewFileSet()
	for _, name := range must(t, files) {
		if !strings.HasSuffix(name, "_test.go") && !(strings.HasSuffix(name, ".go") && waitsInTests(name)) {
			continue
		}
		f, err := parser.ParseFile(set, filepath.Join(rootDir(t), name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed[name] = f
		dir := filepath.Dir(name)
		if constants[dir] == nil {
			constants[dir] = make(map[string]ast.Expr)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
				for i, name := range v.Names {
					constants[dir][name.Name] = v.Values[i]
				}
			}
			return true
		})
	}
	used := make(map[string]bool)
	checked := 0
	for name, f := range parsed {
		known := constants[filepath.Dir(name)]
		for _, d := range f.Decls {
			of, ok := d.(*ast.FuncDecl)
			if !ok || of.Body == nil {
				continue
			}
			at := name + " " + of.Name.Name
			deadlines(of.Body, known, func(n ast.Node, what string, limit time.Duration) {
				checked++
				if limit >= shortest || limit < tick {
					return
				}
				if hurried[at] != "" {
					used[at] = true
					return
				}
				t.Errorf("%s: %s: %s of %v in %s: want at least %v, package bubble, or a reason in hurried", name, set.Position(n.Pos()), what, limit, of.Name.Name, shortest)
			})
		}
	}
	for at := range hurried {
		if !used[at] {
			t.Errorf("%s has no short deadline: it needs no exception", at)
		}
	}
	if checked < 50 {
		t.Errorf("found only %d deadlines to check", checked)
	}
}

// waitsInTests reports whether a file that is no test is part of them.
func waitsInTests(name string) bool {
	for _, dir := range []string{"test/berthtest/", "internal/kubetest/", "internal/coord/etcdtest/", "internal/source/sourcetest/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// deadlines calls found for each wait with a constant limit, but for those in a bubble of package bubble.
func deadlines(body ast.Node, known map[string]ast.Expr, found func(n ast.Node, what string, limit time.Duration)) {
	tell := func(n ast.Node, what string, limit ast.Expr) {
		if d, ok := duration(limit, known, 0); ok {
			found(n, what, d)
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.SelectorExpr:
				name = f.Sel.Name
				if x, ok := f.X.(*ast.Ident); ok {
					name = x.Name + "." + name
				}
			case *ast.Ident:
				name = f.Name
			}
			switch {
			case name == "bubble.Test":
				return false
			case (name == "context.WithTimeout" || name == "berthtest.Await" || name == "Await") && len(n.Args) > 1:
				tell(n, name, n.Args[1])
			case (name == "time.After" || name == "time.NewTimer") && len(n.Args) == 1:
				tell(n, name, n.Args[0])
			case len(n.Args) == 1 && strings.HasSuffix(name, "Add") && isNow(n.Fun):
				tell(n, "time.Now().Add", n.Args[0])
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Timeout" || key.Name == "RequestTimeout") {
				tell(n, key.Name, n.Value)
			}
		case *ast.BinaryExpr:
			if n.Op == token.GTR || n.Op == token.GEQ {
				if measured(n.X) {
					tell(n, "a limit on what was measured", n.Y)
				}
			}
		}
		return true
	})
}

// isNow reports whether a call's function is a method of time.Now().
func isNow(f ast.Expr) bool {
	s, ok := f.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	call, ok := s.X.(*ast.CallExpr)
	return ok && fmt.Sprint(call.Fun) == "&{time Now}"
}

// measured reports whether an expression is a time that has passed on a real clock.
func measured(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "took" || x.Name == "elapsed" || x.Name == "waited"
	case *ast.CallExpr:
		return fmt.Sprint(x.Fun) == "&{time Since}"
	}
	return false
}

// duration evaluates a constant duration. A negative one, or one that is not constant, is none.
func duration(x ast.Expr, known map[string]ast.Expr, depth int) (time.Duration, bool) {
	units := map[string]time.Duration{
		"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
	}
	if depth > 10 {
		return 0, false
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return duration(x.X, known, depth+1)
	case *ast.BasicLit:
		n, err := strconv.ParseInt(x.Value, 10, 64)
		return time.Duration(n), err == nil
	case *ast.SelectorExpr:
		if of, ok := x.X.(*ast.Ident); ok && of.Name == "time" && units[x.Sel.Name] > 0 {
			return units[x.Sel.Name], true
		}
	case *ast.Ident:
		if value := known[x.Name]; value != nil {
			return duration(value, known, depth+1)
		}
	case *ast.BinaryExpr:
		a, ok1 := duration(x.X, known, depth+1)
		b, ok2 := duration(x.Y, known, depth+1)
		switch {
		case !ok1 || !ok2:
		case x.Op == token.MUL:
			return a * b, true
		case x.Op == token.QUO && b != 0:
			return a / b, true
		case x.Op == token.ADD:
			return a + b, true
		case x.Op == token.SUB:
			return a - b, true
		}
	}
	return 0, false
}
