// Package app tests programs that are made with package app, and services that Berth runs itself, beside a real kube-apiserver.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	berthapp "github.com/berth-scheduler/berth/app"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// ownProcess is the argument by which this binary is a plugin service that knows nothing of package app.
const ownProcess = "own-service"

// TestMain is a Berth with services, too, if its first argument is one of its commands.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-"):
		os.Exit(m.Run())
	case os.Args[1] == ownProcess:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := plugin.Serve(ctx, plugin.Config{Plugins: []plugin.Plugin{labelled("Tagged", "tagged")}}); err != nil {
			fmt.Fprintln(os.Stderr, "own service:", err)
			os.Exit(1)
		}
	default:
		os.Exit(berthapp.Run(berthapp.NewCommand(
			berthapp.WithService(berthapp.Service{Name: "cards", Annotations: []string{"cards.example"}, Make: makeCards}),
			berthapp.WithService(berthapp.Service{Name: "broken", Make: makeBroken}),
			berthapp.WithService(berthapp.Service{Name: "near", Annotations: []string{"near.example"}, Make: makeNear, InProcess: true}),
		)))
	}
}

// labelled is a plugin that refuses nodes without a label.
func labelled(name, label string) plugin.Plugin {
	return plugin.Plugin{Name: name, Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
		if n.Labels[label] == "" {
			return &plugin.Refusal{Reason: "node(s) had no label " + label, Unresolvable: true}, nil
		}
		return nil, nil
	}}
}

// cards hand out numbers, each once, whoever asks.
type cards struct {
	name, prefix string
	of           berthapp.Environment
	given        prometheus.Counter
	breaks       chan struct{} // Run panics when it is told so

	mu   sync.Mutex
	next int
	ran  bool // Run has
}

func makeCards(of berthapp.Environment) (*berthapp.Made, error) {
	return makeNamed("Cards", "cards", of)
}

// broken says that Run has been told to panic, once in a process.
var broken atomic.Bool

// makeNear makes the same for Berth's own process.
func makeNear(of berthapp.Environment) (*berthapp.Made, error) { return makeNamed("Near", "near", of) }

func makeNamed(name, service string, of berthapp.Environment) (*berthapp.Made, error) {
	c := &cards{
		name: name, prefix: service + ".example/", of: of, given: prometheus.NewCounter(prometheus.CounterOpts{Name: service + "_given_total"}), breaks: make(chan struct{}, 1),
	}
	of.Metrics.MustRegister(c.given)
	return &berthapp.Made{Plugins: []plugin.Plugin{c.plugin(1)}, Run: c.run}, nil
}

// makeBroken makes plugins that none serves, unless no test asks for them.
func makeBroken(berthapp.Environment) (*berthapp.Made, error) {
	switch os.Getenv("BROKEN") {
	case "panic":
		panic("oh no")
	case "error":
		return nil, errors.New("it is broken")
	case "half":
		return &berthapp.Made{Plugins: []plugin.Plugin{{Name: "Half", Unreserve: func(context.Context, *plugin.Placement) {}}}}, nil
	}
	return &berthapp.Made{Plugins: []plugin.Plugin{labelled("Broken", "broken")}, Run: func(context.Context) error { return errors.New("it is broken") }}, nil
}

func (c *cards) run(ctx context.Context) error {
	c.mu.Lock()
	c.ran = true
	c.mu.Unlock()
	select {
	case <-c.breaks:
		panic("a pod says so")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plugin is the plugin that wants a node with so many cards at least.
func (c *cards) plugin(least int) plugin.Plugin {
	return plugin.Plugin{
		Name: c.name,
		Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			if has, _ := strconv.Atoi(n.Labels["cards"]); has < least {
				return &plugin.Refusal{Reason: "node(s) had too few cards", Unresolvable: true}, nil
			}
			return nil, nil
		},
		Reserve: func(_ context.Context, p *plugin.Placement) (*plugin.Rejection, error) {
			if p.Stands {
				return nil, nil
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if _, err := c.of.Kubeconfig(); err != nil || !c.ran {
				return nil, fmt.Errorf("reach the API server: %w; ran: %v", err, c.ran)
			}
			c.next++
			c.given.Inc()
			if p.Name == "breaks" && !broken.Swap(true) {
				c.breaks <- struct{}{}
			}
			return nil, errors.Join(p.Annotate(c.prefix+"card", strconv.Itoa(c.next)), p.Annotate(c.prefix+"process", strconv.Itoa(os.Getpid())), p.Annotate(c.prefix+"token", os.Getenv("BERTH_TOKEN")))
		},
		Unreserve: func(context.Context, *plugin.Placement) {},
		Configure: func(arguments json.RawMessage) (plugin.Plugin, error) {
			var args struct{ Least int }
			err := json.Unmarshal(arguments, &args)
			return c.plugin(args.Least), err
		},
	}
}

const configuration = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: any
  plugins: {multiPoint: {enabled: [{name: Cards}]}}
- schedulerName: many
  plugins: {multiPoint: {enabled: [{name: Cards}]}}
  pluginConfig: [{name: Cards, args: {least: 3}}]
- schedulerName: near
  plugins: {multiPoint: {enabled: [{name: Near}]}}
- schedulerName: tagged
  plugins: {filter: {enabled: [{name: Tagged}]}}
`

// put writes a file, and returns its path.
func put(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// services is a file with the service that this binary is.
func services(t *testing.T) string {
	t.Helper()
	return put(t, "services.yaml", "apiVersion: berth.dev/v1\nkind: PluginServices\nservices: [{name: own, run: {command: ["+program(t)+", "+ownProcess+"], memory: 500Mi}, plugins: [{name: Tagged, points: [filter]}]}]")
}

func program(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// carded is a Berth with services that it runs, on an API server.
type carded struct {
	t       *testing.T
	cp      *kubetest.ControlPlane
	all     *kubetest.Process
	metrics string // where they are served
}

func startCarded(t *testing.T, flags ...string) *carded {
	t.Helper()
	t.Setenv("BERTH_TOKEN", "secret") // which no plugin sees
	c := &carded{t: t, cp: kubetest.StartT(t, kubetest.Options{})}
	for i, label := range []map[string]string{{}, {"cards": "1", "tagged": "yes"}, {"cards": "4"}} {
		if err := c.cp.CreateNodes(t.Context(), 1, func(int) *corev1.Node {
			n := kubetest.PlainNode(i)
			n.Name, n.GenerateName, n.Labels = fmt.Sprint("n", i), "", label
			return n
		}); err != nil {
			t.Fatal(err)
		}
	}
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	c.metrics = "127.0.0.1:" + ports[0]
	c.all, err = kubetest.StartProcess("berth", filepath.Join(t.TempDir(), "log"), append([]string{program(t), "all", "--data-dir", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--http-listen", "",
		"--metrics-listen", c.metrics, "--kubeconfig", c.cp.Kubeconfig(), "--leader-elect=false", "--plugin-timeout", "10s", "--config", put(t, "config.yaml", configuration), "--plugin-services", services(t)}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.all.Stop()
		if t.Failed() {
			t.Logf("Berth:\n%s", c.all.LogTail(16<<10))
		}
	})
	return c
}

// placed creates a pod of a profile, and returns it once it is on a node.
func (c *carded) placed(profile, name string) (pod *corev1.Pod) {
	c.t.Helper()
	if err := c.cp.CreatePods(c.t.Context(), 1, func(i int) *corev1.Pod {
		p := kubetest.PlainPod(i)
		p.Name, p.GenerateName, p.Spec.SchedulerName = name, "", profile
		return p
	}); err != nil {
		c.t.Fatal(err)
	}
	berthtest.Await(c.t, berthtest.Patience, "pod "+name+" to be placed", func(ctx context.Context) (err error) {
		if pod, err = c.cp.Client().CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err == nil && pod.Spec.NodeName == "" {
			err = fmt.Errorf("it is nowhere: %v", pod.Status.Conditions)
		}
		return err
	})
	return pod
}

// chosen returns what the plugin of a service has chosen for a pod.
func chosen(t *testing.T, service string, pod *corev1.Pod) (card string, process int) {
	t.Helper()
	process, err := strconv.Atoi(pod.Annotations[service+".example/process"])
	if card = pod.Annotations[service+".example/card"]; err != nil || card == "" {
		t.Fatalf("pod %s has annotations %v", pod.Name, pod.Annotations)
	}
	return card, process
}

// kill ends a process at once.
func kill(t *testing.T, process int) {
	t.Helper()
	if err := syscall.Kill(process, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// awaitGone waits until there is no such process.
func awaitGone(t *testing.T, process int) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, fmt.Sprintf("process %d to be gone", process), func(context.Context) error {
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process)); err == nil && !strings.Contains(string(state), ") Z ") {
			return errors.New("it is there")
		}
		return nil
	})
}

func TestACompiledInServiceIsOneSupervisedProcessForAllProfiles(t *testing.T) {
	c := startCarded(t)
	first, second := c.placed("any", "a0"), c.placed("many", "b0")
	if first.Spec.NodeName == "n0" || second.Spec.NodeName != "n2" {
		t.Errorf("pods are on %s and %s, want n1 or n2, and n2", first.Spec.NodeName, second.Spec.NodeName)
	}
	card, process := chosen(t, "cards", first)
	if token := first.Annotations["cards.example/token"]; token != "" {
		t.Errorf("the plugins' process has Berth's token %q", token)
	}
	if other, is := chosen(t, "cards", second); other == card || is != process || process == c.all.PID() {
		t.Errorf("cards %s and %s, of processes %d and %d of Berth %d: want two of one process, which is not Berth's", card, other, process, is, c.all.PID())
	}
	if p := c.placed("tagged", "c0"); p.Spec.NodeName != "n1" {
		t.Errorf("the pod of the other service is on %s, want n1", p.Spec.NodeName)
	}
	c.awaitMeasured("cards", "cards_given_total 2")

	kill(t, process)
	for _, profile := range []string{"any", "many"} {
		if _, is := chosen(t, "cards", c.placed(profile, "late-"+profile)); is == process {
			t.Errorf("a pod is placed by process %d, which was killed", is)
		} else if profile == "many" {
			process = is
		}
	}
	c.all.Kill() // and what it has started ends with it, though nobody tells it to
	awaitGone(t, process)
}

// awaitMeasured waits until a service is said to measure something.
func (c *carded) awaitMeasured(service, line string) {
	c.t.Helper()
	berthtest.Await(c.t, berthtest.Patience, "what service "+service+" measures to be served", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.metrics+"/metrics/plugins/service/"+service, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && !strings.Contains("\n"+string(text), "\n"+line+"\n") {
			err = fmt.Errorf("%s: %s", response.Status, text)
		}
		return err
	})
}

// What panics beside the plugins ends neither Berth nor the pods that wait: they are placed by plugins that are made anew.
func TestACompiledInServiceMayBeServedInBerthsOwnProcess(t *testing.T) {
	c := startCarded(t)
	for _, name := range []string{"a", "breaks"} { // the second may be placed by the plugins that are made anew already
		p := c.placed("near", name)
		if _, process := chosen(t, "near", p); p.Spec.NodeName == "n0" || process != c.all.PID() {
			t.Errorf("pod %s is on %s, by process %d, want n1 or n2, and Berth's, %d", name, p.Spec.NodeName, process, c.all.PID())
		}
	}
	var given int
	for k := 1; ; k++ { // the first may be placed before they have ended
		card, process := chosen(t, "near", c.placed("near", fmt.Sprint("late-", k)))
		if process != c.all.PID() {
			t.Errorf("a pod is placed by process %d, want Berth's, %d", process, c.all.PID())
		}
		if given, _ = strconv.Atoi(card); given <= 2 { // which were given before
			break
		}
	}
	c.awaitMeasured("near", fmt.Sprint("near_given_total ", given))
	if p := c.placed("any", "other"); p.Spec.NodeName == "n0" {
		t.Errorf("the pod of the service with a process of its own is on %s", p.Spec.NodeName)
	}
}

func TestAnOperatorHasAServiceInAProcessOfItsOwnAllTheSame(t *testing.T) {
	c := startCarded(t, "--plugins-in-process=false")
	if card, process := chosen(t, "near", c.placed("near", "a")); card != "1" || process == c.all.PID() {
		t.Errorf("the pod has card %s, of process %d, want 1, and not Berth's, %d", card, process, c.all.PID())
	}
}

// written runs Berth as far as its configuration, and returns what it says is wrong, or the configuration.
func written(t *testing.T, broken, config string, flags ...string) (text, wrong string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.CommandContext(t.Context(), program(t), append([]string{"all", "--source", "local", "--write-config-to", out, "--config", put(t, "config.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+config)}, flags...)...)
	cmd.Env = append(os.Environ(), "BROKEN="+broken)
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", string(said)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), ""
}

func TestWhatIsWrongWithCompiledInServicesIsSaidAtTheStart(t *testing.T) {
	if text, wrong := written(t, "", "profiles: [{plugins: {multiPoint: {enabled: [{name: Cards}]}}}]"); wrong != "" || !strings.Contains(text, "name: Cards") {
		t.Fatalf("%s%s", wrong, text)
	}
	file := func(service, plugin string) string {
		return put(t, "services.yaml", "apiVersion: berth.dev/v1\nkind: PluginServices\nservices: [{name: "+service+", address: 'unix:///a', plugins: [{name: "+plugin+", points: [score]}]}]")
	}
	for _, tt := range []struct {
		broken, config, want string
		flags                []string
	}{
		{"", "profiles: [{plugins: {score: {enabled: [{name: Cards}]}}}]", "profiles[0].plugins.score.enabled[0].name: Invalid value: \"Cards\"", nil},
		{"", "", `compiled-in service cards.name: Duplicate value: "cards"`, []string{"--plugin-services", file("cards", "Other")}},
		{"", "", `compiled-in service cards.plugins[0].name: Duplicate value: "Cards"`, []string{"--plugin-services", file("other", "Cards")}},
		{"", "", `--plugin-memory: "some": want a quantity`, []string{"--plugin-memory", "some"}},
		{"", "", "--plugin-timeout: 0s: want a duration above 0", []string{"--plugin-timeout", "0s"}},
		{"panic", "", `compiled-in service "broken": make its plugins: panic: oh no`, nil},
		{"error", "", `compiled-in service "broken": make its plugins: it is broken`, nil},
		{"half", "", `compiled-in service "broken": plugin Half: it has one of Reserve and Unreserve`, nil},
	} {
		if _, wrong := written(t, tt.broken, tt.config, tt.flags...); !strings.Contains(wrong, tt.want) {
			t.Errorf("%s %q %v: says %q, want %q", tt.broken, tt.config, tt.flags, wrong, tt.want)
		}
	}
}

func TestPluginServeServesTheSameToABerthElsewhere(t *testing.T) {
	address := "unix://" + filepath.Join(t.TempDir(), "s")
	p, err := kubetest.StartProcess("cards", filepath.Join(t.TempDir(), "log"), program(t), "plugin", "serve", "cards", "--listen", address, "--metrics-listen", "127.0.0.1:0",
		"--kubeconfig", put(t, "kubeconfig", "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	var said []byte
	berthtest.Await(t, berthtest.Patience, "the service to answer as it has to", func(ctx context.Context) error {
		said, err = exec.CommandContext(ctx, program(t), "plugin", "test", address, "--args", `Cards={"least": 0}`).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return err
	})
	if !strings.Contains(string(said), "Cards") {
		t.Errorf("berth plugin test says nothing of the plugin:\n%s", said)
	}
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("it ends with %v, want nothing amiss", err)
	}
}

func TestPluginServeSaysWhatIsWrong(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"other --listen 127.0.0.1:0", `"other": no service of that name is compiled in: want one of cards, broken, near`},
		{"cards", "--listen: want where to serve"},
		{"cards --listen 0.0.0.0:0", "is not a loopback address, and there is no TLS"},
		{"cards --listen 127.0.0.1:0 --metrics-listen 0.0.0.0:0", "--metrics-listen: [::]:"},
		{"cards --listen 127.0.0.1:0 --tls-cert a", "want all three"},
		{"cards --listen 127.0.0.1:0 --log-level much", `--log-level: "much"`},
		{"broken --listen 127.0.0.1:0", `compiled-in service "broken": it is broken`}, // what runs beside it ends it
	} {
		said, err := exec.CommandContext(t.Context(), program(t), append([]string{"plugin", "serve"}, strings.Fields(tt.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(said), tt.want) {
			t.Errorf("plugin serve %s: %v, %s\nwant %s", tt.args, err, said, tt.want)
		}
	}
}
