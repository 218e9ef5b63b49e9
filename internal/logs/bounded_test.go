package logs_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestLinesOfOnePlaceAreBoundedAndThoseLeftOutCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		log := logs.Bounded(slog.New(logs.Text(&b, logs.Options{}))).With("epoch", 3)
		refused := func(pods int) (lines []string) {
			b.Reset()
			for i := range pods {
				log.With("node", "n").Warn("pod refused", "pod", fmt.Sprint("default/", i)) // a logger that is made of it counts with it
			}
			return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		}
		lines := refused(1000)
		if n := len(lines); n != 100 || strings.Contains(b.String(), "omitted") {
			t.Errorf("%d lines at first: %s", n, b.String())
		}
		log.Warn("of another place")
		if !strings.Contains(b.String(), "of another place") {
			t.Error("what one place logs keeps another one from it")
		}
		time.Sleep(time.Minute) // of the bubble's clock, as is the next: they take no time
		if lines = refused(1000); len(lines) != 6 || !strings.HasSuffix(lines[0], ` pod="default/0" omitted=900`) || strings.Contains(strings.Join(lines[1:], ""), "omitted") {
			t.Errorf("after a minute: %q", lines)
		}
		time.Sleep(time.Hour)
		if lines = refused(1000); len(lines) != 100 || !strings.HasSuffix(lines[0], " omitted=994") {
			t.Errorf("%d lines after an hour: %q", len(lines), lines[0])
		}
	})
}

func TestNothingIsLeftOutWhereMoreIsLoggedThanOperatorsHaveToKnow(t *testing.T) {
	for name, c := range map[string]struct {
		level   slog.Level
		modules string
		want    int
	}{
		"at 0": {0, "", 100}, "at 1": {-logs.Failures, "", 1000}, "this file": {0, "bounded_test=1", 1000}, "another file": {0, "handler_test=9", 100}, "errors alone": {slog.LevelError, "", 0},
	} {
		modules, err := logs.ParseModules([]string{c.modules})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		log := logs.Bounded(slog.New(logs.JSON(&b, logs.Options{Level: c.level, Modules: modules})))
		for range 1000 {
			log.Warn("pod refused")
		}
		if n := strings.Count(b.String(), "\n"); n != c.want {
			t.Errorf("%s: %d lines, want %d", name, n, c.want)
		}
		b.Reset()
		for range 1000 {
			if log := logs.V(log, logs.Failures); log != nil {
				log.Info("pod refused")
			}
		}
		if n := strings.Count(b.String(), "\n"); n != 1000 && c.want == 1000 || n != 0 && c.want != 1000 {
			t.Errorf("%s: %d lines of verbosity 1", name, n)
		}
	}
}
