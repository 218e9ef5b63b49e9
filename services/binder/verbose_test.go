package binder

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestReportsAreLoggedInKubeSchedulersWords(t *testing.T) {
	var lines logtest.Buffer
	term := pureTerm(t, newFakeSource(), func(c *termConfig) {
		c.Log = slog.New(logs.Text(&lines, logs.Options{Level: slog.Level(-logs.Outcomes)}))
	})
	report := func(name, reason, message string) source.Report {
		return source.Report{Namespace: "default", Name: name, Reason: reason, Message: message}
	}
	term.logReports([]source.Report{
		report("a", reasonUnschedulable, "0/3 nodes are available"), report("later", reasonUnschedulable, "0/3 nodes are available"), report("b", reasonUnschedulable, engine.NoNodes),
		report("c", reasonError, "no answer"), report("nominated", "", ""),
	}, []int{1})
	var got []string
	for line := range strings.Lines(lines.String()) {
		severity := line[:1]
		_, line, _ = strings.Cut(line, "] ")
		got = append(got, severity+" "+line)
	}
	want := `I "Unable to schedule pod; no fit; waiting" pod="default/a" err="0/3 nodes are available"
I "Unable to schedule pod; no nodes are registered to the cluster; waiting" pod="default/b"
E "Error scheduling pod; retrying" err="no answer" pod="default/c"
`
	if strings.Join(got, "") != want {
		t.Errorf("%s, want:\n%s", strings.Join(got, ""), want)
	}
}

// A broken controller makes pods as fast as it likes.
func TestPodsThatFailDoNotFillTheLog(t *testing.T) {
	for verbosity, want := range map[int]int{0: 100, logs.Failures: 1000} {
		var lines logtest.Buffer
		term := pureTerm(t, newFakeSource(), func(c *termConfig) { c.Log = slog.New(logs.Text(&lines, logs.Options{Level: slog.Level(-verbosity)})) })
		for i := range 1000 {
			term.logReports([]source.Report{{Namespace: "default", Name: fmt.Sprint("p", i), Reason: reasonError, Message: "no answer"}}, nil)
		}
		if n := strings.Count(lines.String(), "\n"); n != want {
			t.Errorf("at %d: %d lines, want %d", verbosity, n, want)
		}
	}
}
