package monitoring

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
	"sigs.k8s.io/yaml"
)

const (
	alertsFile = "../../deploy/prometheus/alerts.yaml"
	casesFile  = "../../deploy/prometheus/alerts_test.yaml"
	runbook    = "docs/runbook.md"
	repository = "https://github.com/berth-scheduler/berth/blob/main/" // an alert is read where no file of it is
)

// alerts parses the alert rules as Prometheus does.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation)
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s: no rules", alertsFile)
	}
	return all
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	page, err := os.ReadFile("../../" + runbook)
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^## (Berth\w+)$`).FindAllStringSubmatch(string(page), -1) {
		sections[m[1]] = true
	}
	seen := make(map[string]bool)
	for _, r := range alerts(t) {
		if seen[r.Alert] || r.Alert == "" {
			t.Errorf("a rule %q: want alerts, each once", r.Alert)
		}
		seen[r.Alert] = true
		if want := repository + runbook + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !sections[r.Alert] {
			t.Errorf("%s has no section in %s", r.Alert, runbook)
		}
		if r.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s: summary %q, severity %q", r.Alert, r.Annotations["summary"], r.Labels["severity"])
		}
	}
	for name := range sections {
		if !seen[name] {
			t.Errorf("%s has a section %s, and there is no such alert", runbook, name)
		}
	}
}

// cases is a file of promtool's unit tests, as far as it is used here.
type cases struct {
	Tests []struct {
		Name        string `json:"name"`
		InputSeries []struct {
			Series string `json:"series"`
			Values string `json:"values"`
		} `json:"input_series"`
		Expr []struct {
			EvalTime model.Duration `json:"eval_time"`
			Samples  []struct {
				Labels string `json:"labels"`
			} `json:"exp_samples"`
		} `json:"promql_expr_test"`
	} `json:"tests"`
}

// step is how often rules are evaluated, and series have samples.
const step = time.Minute

func TestAlertsFireWhenTheyShouldAndOnlyThen(t *testing.T) {
	text, err := os.ReadFile(casesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file cases
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	rules := alerts(t)
	ever := make(map[string]bool)
	for _, c := range file.Tests {
		t.Run(c.Name, func(t *testing.T) {
			storage := teststorage.New(t)
			defer storage.Close()
			app := storage.Appender(t.Context())
			for _, s := range c.InputSeries {
				metric, values, err := parser.ParseSeriesDesc(s.Series + " " + s.Values)
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range values {
					if _, err := app.Append(0, metric, int64(i)*step.Milliseconds(), v.Value); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
			engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: 5 * time.Minute})
			defer engine.Close()
			for _, e := range c.Expr {
				want := make(map[string]bool)
				for _, s := range e.Samples {
					metric, err := parser.ParseMetric(s.Labels)
					if err != nil {
						t.Fatal(err)
					}
					want[metric.Get("alertname")] = true
				}
				got := make(map[string]bool)
				for _, r := range rules {
					if fires(t, engine, storage, r, time.Duration(e.EvalTime)) {
						got[r.Alert], ever[r.Alert] = true, true
					}
				}
				if !maps.Equal(got, want) {
					t.Errorf("at %v: firing %v, want %v", e.EvalTime, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
				}
			}
		})
	}
	for _, r := range rules {
		if !ever[r.Alert] {
			t.Errorf("%s never fires", r.Alert)
		}
	}
}

// fires reports whether a rule fires at a time: some series was there at each evaluation since `for` ago.
func fires(t *testing.T, engine *promql.Engine, storage *teststorage.TestStorage, r rulefmt.Rule, at time.Duration) bool {
	t.Helper()
	since := make(map[uint64]time.Duration) // by series
	for now := time.Duration(0); now <= at; now += step {
		query, err := engine.NewInstantQuery(context.Background(), storage, nil, r.Expr, time.UnixMilli(now.Milliseconds()))
		if err != nil {
			t.Fatalf("%s: %v", r.Alert, err)
		}
		result := query.Exec(t.Context())
		vector, err := result.Vector()
		if err != nil {
			t.Fatalf("%s at %v: %v", r.Alert, now, err)
		}
		next := make(map[uint64]time.Duration)
		for _, s := range vector {
			key := labels.Labels(s.Metric).Hash()
			next[key] = now
			if earlier, ok := since[key]; ok {
				next[key] = earlier
			}
		}
		query.Close()
		since = next
	}
	for _, began := range since {
		if at-began >= time.Duration(r.For) {
			return true
		}
	}
	return false
}

// promtool is Debian's, which package prometheus has. CI installs it; where it is not, the tests above have parsed and run the
// same files with Prometheus' own packages.
func TestPromtoolAgrees(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no promtool: install Debian's prometheus")
		}
		t.Skip("there is no promtool: install Debian's prometheus. The rules were parsed and run with Prometheus' packages only")
	}
	for _, args := range [][]string{{"check", "rules", filepath.Base(alertsFile)}, {"test", "rules", filepath.Base(casesFile)}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Dir(alertsFile)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
