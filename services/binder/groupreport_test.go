package binder

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// gangOf tells the ledger of a gang and its pods.
func gangOf(t testing.TB, term *term, name string, minCount int32, pods ...source.Pod) {
	t.Helper()
	observe(t, term, source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{
		Namespace: "default", Name: name, UID: "uid of " + name, Gang: true, MinCount: minCount,
	}})
	for _, p := range pods {
		p.Group = name
		observe(t, term, p)
	}
}

// tryGang has the pods of a gang placed.
func tryGang(t testing.TB, term *term, name string, attempt int32) *binderv1.PlaceGroupResponse {
	t.Helper()
	req := &binderv1.PlaceGroupRequest{ShardRevision: 1, Namespace: "default", Name: name}
	term.ledger.read(func(st *cluster.State) {
		req.Version = wire.ToVersion(st.Version())
		for _, id := range st.GroupPods(cluster.GroupKey{Namespace: "default", Name: name}) {
			req.Pods = append(req.Pods, &binderv1.PodAttempt{Id: int32(id), Uid: st.Pod(id).UID, Attempt: attempt})
		}
	})
	response, err := term.placeGroup(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestWhatHasComeOfAPodGroupIsReported(t *testing.T) {
	of := func(name, reason, message string) source.Report {
		return source.Report{UID: "uid of " + name, Namespace: "default", Name: name, Reason: reason, Message: message, Group: true}
	}
	var log strings.Builder
	term := pureTerm(t, newFakeSource(), func(c *termConfig) {
		c.Settings.Profiles = append(c.Settings.Profiles, engine.DefaultProfile("own"))
		c.Log = slog.New(logs.Text(&log, logs.Options{Level: slog.LevelInfo - logs.Outcomes}))
	})
	observe(t, term, node("a", 1000))
	gangOf(t, term, "small", 2, pod("small-0", 100), pod("small-1", 100))
	gangOf(t, term, "large", 2, pod("large-0", 100), pod("large-1", 5000))
	gangOf(t, term, "mixed", 2, pod("mixed-0", 100), own(pod("mixed-1", 100)))
	for _, c := range []struct {
		name string
		want source.Report
		line string
	}{
		{"large", of("large", "Unschedulable", "pod group is unschedulable: 1 of at least 2 pods fit"),
			`"Unable to schedule a pod group" podGroup="default/large" unschedulablePods=2 why="pod group is unschedulable: 1 of at least 2 pods fit"`},
		{"small", of("small", "Scheduled", ""), `"Successfully scheduled a pod group" podGroup="default/small" scheduledPods=2 unschedulablePods=0`},
		{"mixed", of("mixed", "SchedulerError", `all pods in a single pod group should have the same .spec.schedulerName set, got: "default-scheduler" and "own"`), `podGroup="default/mixed" errorPods=2`},
	} {
		log.Reset()
		tryGang(t, term, c.name, 1)
		if !strings.Contains(log.String(), c.line) {
			t.Errorf("of %s it is logged:\n%swant %s", c.name, log.String(), c.line)
		}
		r, ok := term.reports.next()
		if diff := cmp.Diff(c.want, r.Report); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if _, ok := term.reports.waits(r.Report); !ok {
			t.Errorf("the report of %s is not written", c.name)
		}
		term.reports.written(r.UID)
	}
	tryGang(t, term, "small", 2) // somebody asks again who has not heard
	if n := term.reports.depth(); n > 0 {
		t.Errorf("of an attempt without a pod to place there are %d reports", n)
	}
	// A pod more that has no room takes nothing back.
	late := pod("small-2", 5000)
	late.Group = "small"
	observe(t, term, late)
	tryGang(t, term, "small", 1)
	if r, ok := term.reports.next(); !ok || r.Report != of("small", "Scheduled", "") {
		t.Errorf("of a gang that is placed, and a pod more, is reported %+v", r.Report)
	}
	term.reports.written("uid of small")
	// Of a group that was replaced nothing is written.
	observe(t, term, source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "large", UID: "another"}})
	if _, ok := term.reports.waits(of("large", "Unschedulable", "")); ok {
		t.Error("the report of a group that is gone is written to another one")
	}
}

// Who may write to a group is who may place its pods.
func TestAReportOfAPodGroupOfASharedNameIsWrittenInAStintAlone(t *testing.T) {
	term := pureTerm(t, newFakeSource(), withNames, func(c *termConfig) { c.Settings.Profiles = append(c.Settings.Profiles, engine.DefaultProfile("own")) })
	gangOf(t, term, "shared", 1, pod("shared-0", 100))
	gangOf(t, term, "own", 1, own(pod("own-0", 100)))
	may := func(name string) (until time.Time, ok bool) {
		return term.reports.waits(source.Report{UID: "uid of " + name, Namespace: "default", Name: name, Group: true})
	}
	for _, c := range []struct {
		holds       bool
		shared, own string
	}{{false, "false, no end", "true, no end"}, {true, "true, an end", "true, no end"}} {
		if c.holds {
			term.names.mu.Lock()
			term.names.stint, term.names.begun, term.names.until = 1, true, time.Now().Add(time.Minute)
			term.names.mu.Unlock()
		}
		for name, want := range map[string]string{"shared": c.shared, "own": c.own} {
			until, ok := may(name)
			end := "an end"
			if until.IsZero() {
				end = "no end"
			}
			if got := fmt.Sprintf("%v, %s", ok, end); got != want {
				t.Errorf("the lease is held: %v; a report of %s: %s, want %s", c.holds, name, got, want)
			}
		}
	}
}

// A group that was placed stays Scheduled, whichever report comes first to be written.
func TestAReportThatAPodGroupIsPlacedIsNotReplaced(t *testing.T) {
	l := newReportLane(reportLaneConfig{limit: 10, binds: new(bound)})
	for _, reason := range []string{"Unschedulable", "Scheduled", "Unschedulable", "SchedulerError"} {
		l.add(source.Report{UID: "g", Namespace: "default", Name: "g", Reason: reason, Group: true})
	}
	if r, _ := l.next(); r.Reason != "Scheduled" || l.depth() != 0 {
		t.Errorf("%q is written, and %d more wait", r.Reason, l.depth())
	}
}
