package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// known are the labels of each series that Berth has, by its name.
type known map[string]map[string]bool

func (k known) add(name, kind string, labels []string) {
	names := []string{name}
	if kind == "histogram" {
		names = []string{name + "_bucket", name + "_sum", name + "_count"}
	}
	for _, n := range names {
		if k[n] == nil {
			k[n] = map[string]bool{"job": true, "instance": true, "member": true} // the first two are Prometheus'
		}
		for _, l := range labels {
			k[n][l] = true
		}
		if strings.HasSuffix(n, "_bucket") {
			k[n]["le"] = true
		}
	}
}

var metricRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram)[^|]* \\| ([^|]*) \\|")

// documented adds those of docs/metrics.md, which another test holds against what roles register.
func (k known) documented(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := metricRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 40 {
		t.Fatalf("docs/metrics.md has %d rows of metrics", len(rows))
	}
	for _, row := range rows {
		k.add(row[1], row[2], strings.FieldsFunc(row[3], func(r rune) bool { return r == ',' || r == ' ' }))
	}
}

// scraped adds what a process serves. It returns false while a metric is not there that is waited for.
func (k known) scraped(t *testing.T, address string, documented known, want string) bool {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Contains(text, []byte(want)) {
		return false
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		kind := strings.ToLower(f.GetType().String())
		for _, m := range f.Metric {
			k.add(name, kind, labelNames(m))
		}
		of := name
		if kind == "histogram" {
			of += "_count"
		}
		ours := strings.HasPrefix(name, "berth_") || strings.HasPrefix(name, "scheduler_")
		if ours && documented[of] == nil && name != "berth_rpc_panics_total" {
			t.Errorf("%s serves %s, which is not in docs/metrics.md", address, name)
		}
	}
	return true
}

func labelNames(m *dto.Metric) []string {
	var names []string
	for _, l := range m.Label {
		names = append(names, l.GetName())
	}
	return names
}

// build returns the path of berth.
var build = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../.bin/test/berth-monitored")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/berth").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	return path, nil
})

// run starts a role, and returns where it serves its metrics.
func run(t *testing.T, role string, args ...string) (metrics string) {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	metrics = "127.0.0.1:" + ports[0]
	proc, err := kubetest.StartProcess(role, filepath.Join(t.TempDir(), "log"), append([]string{binary, role, "--metrics-listen", metrics}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proc.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", role, proc.LogTail(2<<10))
		}
	})
	return metrics
}

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// place has a pod placed through a gateway, so that every role is asked for something.
func place(t *testing.T, gateway string) {
	t.Helper()
	manifests := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(manifests, []byte(`{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {allocatable: {cpu: "8", memory: 8Gi, pods: "110"}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: pod-1}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	var last []byte
	defer func() {
		if t.Failed() {
			t.Logf("apply: %s", last)
		}
	}()
	await(t, "the gateway to take a pod", func() bool {
		last, err = exec.Command(binary, "apply", "--server", gateway, "-f", manifests).CombinedOutput()
		return err == nil
	})
}

// running returns what is documented, and what all roles serve, together and each alone.
func running(t *testing.T) known {
	t.Helper()
	documented := make(known)
	documented.documented(t)
	all := make(known)
	all.documented(t)
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	gateways := []string{"127.0.0.1:" + ports[0], "127.0.0.1:" + ports[1]}
	etcd := []string{"--etcd-endpoints", strings.Join(etcdtest.Start(t).Endpoints(), ",")}

	serve := map[string]string{ // what is there when a role has done its part, by where it serves
		run(t, "all", "--data-dir", t.TempDir(), "--listen", gateways[0], "--http-listen", ""): `grpc_client_handled_total{grpc_code="OK",grpc_method="Score"`,
		run(t, "binder", etcd...):        `grpc_server_handled_total{grpc_code="OK",grpc_method="Commit"`,
		run(t, "queue", etcd...):         `grpc_client_handled_total{grpc_code="OK",grpc_method="Score"`,
		run(t, "filter-worker", etcd...): `grpc_server_handled_total{grpc_code="OK",grpc_method="Filter"`,
		run(t, "score-worker", etcd...):  `grpc_server_handled_total{grpc_code="OK",grpc_method="Score"`,
		run(t, "gateway", append([]string{"--listen", gateways[1], "--http-listen", ""}, etcd...)...): `grpc_server_handled_total{grpc_code="OK",grpc_method="Apply"`,
	}
	for _, gateway := range gateways {
		place(t, gateway)
	}
	for address, want := range serve {
		await(t, address+" to serve "+want, func() bool { return all.scraped(t, address, documented, want) })
	}
	return all
}

// panel is what is read of a panel of the dashboard.
type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// expressions returns the dashboard's, by panel, with Grafana's variables filled in.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/berth.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct{ Panels []panel }
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	all, ids := make(map[string][]string), make(map[int]bool)
	for _, p := range board.Panels {
		if ids[p.ID] || p.Type != "row" && (len(p.Targets) == 0 || p.Title == "") || all[p.Title] != nil {
			t.Errorf("panel %d %q: want an id and a title of its own, and something to show", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(target.Expr)
			all[p.Title] = append(all[p.Title], expr)
		}
	}
	if len(all) == 0 {
		t.Fatal("the dashboard has no panels")
	}
	return all
}

func TestEveryExpressionReadsSeriesThatThereAre(t *testing.T) {
	all := running(t)
	exprs := expressions(t)
	for _, r := range alerts(t) {
		exprs[r.Alert] = append(exprs[r.Alert], r.Expr)
	}
	for where, list := range exprs {
		for _, expr := range list {
			parsed, err := parser.ParseExpr(expr)
			if err != nil {
				t.Errorf("%s: %v", where, err)
				continue
			}
			parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
				switch n := node.(type) {
				case *parser.VectorSelector:
					if all[n.Name] == nil {
						t.Errorf("%s: there is no metric %s", where, n.Name)
					}
					for _, m := range n.LabelMatchers {
						if m.Name != model.MetricNameLabel && all[n.Name] != nil && !all[n.Name][m.Name] {
							t.Errorf("%s: %s has no label %s", where, n.Name, m.Name)
						}
					}
				case *parser.AggregateExpr:
					for name := range selected(n.Expr) {
						for _, by := range n.Grouping {
							if !n.Without && all[name] != nil && !all[name][by] {
								t.Errorf("%s: grouped by %s, which %s does not have", where, by, name)
							}
						}
					}
				}
				return nil
			})
		}
	}
}

// selected returns the names of the series that an expression reads.
func selected(expr parser.Node) map[string]bool {
	names := make(map[string]bool)
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.VectorSelector); ok {
			names[n.Name] = true
		}
		return nil
	})
	return names
}
