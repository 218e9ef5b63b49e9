package monitoring

import (
	"context"
	"fmt"
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
	branch     = "/blob/main/" // of URLs, which who pins a release puts its tag into: docs/runbook.md says how
)

// repository returns where the files of the branch are read: an alert is read where no file of it is. It is what the module is got from.
func repository(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	module := regexp.MustCompile(`(?m)^module (github\.com/[^/\s]+/[^/\s]+)$`).FindStringSubmatch(string(text))
	if module == nil {
		t.Fatal("go.mod names no repository of GitHub's")
	}
	return "https://" + module[1] + branch
}

// anchors returns where a page's headings are, as GitHub makes them: in lower case, without what is neither letter, digit, space, hyphen nor underscore, with hyphens for
// spaces, and a number from the second of a name on.
func anchors(page string) map[string]bool {
	all := make(map[string]bool)
	seen := make(map[string]int)
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		heading := regexp.MustCompile(`^#{1,6} +(.*?)\s*$`).FindStringSubmatch(line)
		if heading == nil || fenced {
			continue
		}
		name := regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		name = strings.ReplaceAll(name, " ", "-")
		if n := seen[name]; n > 0 {
			all[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			all[name] = true
		}
		seen[name]++
	}
	return all
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	got := anchors("# A page\n\n## BerthStandsBy\n```\n# no heading\n```\n## Etcd: full, `again`?\n## BerthStandsBy\n#hash\n")
	for _, want := range []string{"a-page", "berthstandsby", "etcd-full-again", "berthstandsby-1"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("%v", got)
	}
}

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
	repository, headings := repository(t), anchors(string(page))
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
		if _, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#"); !headings[anchor] {
			t.Errorf("%s: %s has no heading for #%s", r.Alert, runbook, anchor)
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

// What logs tell people to read is there, too.
func TestLogsSendNobodyToWhereNothingIs(t *testing.T) {
	found := 0
	for _, dir := range []string{"internal", "services", "gateway", "cmd", "plugins"} {
		err := filepath.WalkDir("../../"+dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range regexp.MustCompile(`see (docs/[a-z-]+\.md)#([a-z0-9_-]+)`).FindAllStringSubmatch(string(text), -1) {
				found++
				page, err := os.ReadFile("../../" + m[1])
				if err != nil {
					return err
				}
				if !anchors(string(page))[m[2]] {
					t.Errorf("%s: %s has no heading for #%s", path, m[1], m[2])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 2 {
		t.Errorf("%d are found: does this see them?", found)
	}
}

// Who runs a release may have alerts lead to its runbook, by what docs/runbook.md says.
func TestARunbookOfAReleaseIsOneReplacementAway(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../" + runbook)
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^sed (-i )?'(s#[^']*)' (deploy/prometheus/alerts\.yaml)$`).FindStringSubmatch(string(page))
	if command == nil {
		t.Fatalf("%s does not say how", runbook)
	}
	out, err := exec.Command("sed", command[2], alertsFile).Output()
	if err != nil {
		t.Fatal(err)
	}
	all, pinned := strings.Count(string(text), "runbook_url: "), strings.Count(string(out), strings.TrimSuffix(repository(t), branch)+"/blob/v1.2.3/"+runbook+"#")
	if all == 0 || pinned != all || strings.Contains(string(out), branch) {
		t.Errorf("of %d alerts, %d lead to the release's runbook", all, pinned)
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
