package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/collector"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver/drivertest"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/resource"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

const (
	// hung is after how long something hangs.
	hung     = 5 * time.Minute
	poll     = 20 * time.Millisecond
	manifest = "../../deploy/kustomize/"
	// node has the collector whose token the tests have, and other is another node.
	node, other = "node-00000", "node-00001"
)

// auditPolicy writes down what service accounts of Berth ask for.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:berth"]
  - level: None
`

var scvs = schema.GroupVersionResource{Group: scv.Group, Version: scv.Version, Resource: scv.Resource}

// cluster is an API server with the manifests of the collector, and a pod of it on a node.
type cluster struct {
	*kubetest.ControlPlane
	admin     dynamic.Interface
	collector *rest.Config // with the token of the collector of node
	audit     string       // a file
}

func start(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	c := &cluster{audit: filepath.Join(dir, "audit.log")}
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c.ControlPlane = kubetest.StartT(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: []string{
		"--audit-policy-file=" + policy, "--audit-log-path=" + c.audit, "--audit-log-mode=blocking",
	}})
	config := try(clientcmd.BuildConfigFromFlags("", c.Kubeconfig()))(t)
	config.QPS = -1
	c.admin = try(dynamic.NewForConfig(config))(t)
	if err := c.CreateNodes(t.Context(), 2, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	var daemon appsv1.DaemonSet
	for _, file := range []string{"base/namespace.yaml", "base/priorityclass.yaml", "components/yoda/crd.yaml", "components/yoda/collector.yaml"} {
		for _, o := range objects(t, file) {
			resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
			try(c.admin.Resource(resource).Namespace(o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{FieldValidation: "Strict"}))(t)
			if o.GetKind() == "DaemonSet" {
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &daemon); err != nil {
					t.Fatal(err)
				}
			}
		}
	}

	// The DaemonSet's controller would make the pod, and the kubelet its token.
	pod := &corev1.Pod{ObjectMeta: daemon.Spec.Template.ObjectMeta, Spec: daemon.Spec.Template.Spec}
	pod.Name, pod.Spec.NodeName = "scv-1", node
	pod = try(c.Client().CoreV1().Pods("berth").Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	token := try(c.Client().CoreV1().ServiceAccounts("berth").CreateToken(t.Context(), daemon.Spec.Template.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{}))(t)
	c.collector = rest.AnonymousClientConfig(config)
	c.collector.BearerToken = token.Status.Token

	await(t, "the resource to be served", func(ctx context.Context) error {
		_, err := c.admin.Resource(scvs).List(ctx, metav1.ListOptions{})
		return err
	})
	return c
}

// objects returns the objects of a manifest.
func objects(t *testing.T, file string) (all []*unstructured.Unstructured) {
	t.Helper()
	content := try(os.ReadFile(manifest + file))(t)
	for d := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
		o := new(unstructured.Unstructured)
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

// try returns a function that returns a value, or fails the test because of an error.
func try[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// await waits until there is no error.
func await(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	for tick := time.NewTicker(poll); ; {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("wait for %s: %v", what, err)
		case <-tick.C:
		}
	}
}

// get returns the Scv of the node.
func (c *cluster) get(ctx context.Context) (*scv.Scv, error) {
	o, err := c.admin.Resource(scvs).Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := new(scv.Scv)
	return s, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, s, true)
}

func TestOnARealAPIServer(t *testing.T) {
	c := start(t)
	client := try(dynamic.NewForConfig(c.collector))(t)

	t.Run("the cards of a DGX are written as they are, with exactly the rights that the manifests give", func(t *testing.T) {
		m := drivertest.DGX()
		m.Cards[3].MigMode = 1
		write := func() *scv.Scv {
			t.Helper()
			cfg := collector.Config{
				Driver: driver.New(m, func() bool { return true }), Writer: resource.New(client, node, hung, slog.New(slog.DiscardHandler)), Interval: time.Second, Timeout: hung, Heartbeat: time.Hour,
				Random: func() float64 { return 1 }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			}
			before, err := c.get(t.Context())
			if err != nil {
				before = new(scv.Scv)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done, collector := make(chan struct{}), try(collector.New(cfg))(t)
			go func() { defer close(done); collector.Run(ctx) }()
			var after *scv.Scv
			await(t, "a write", func(ctx context.Context) error {
				if after, err = c.get(ctx); err == nil && !after.Status.Heartbeat.After(before.Status.Heartbeat.Time) {
					err = errors.New("there is none since")
				}
				return err
			})
			cancel()
			<-done
			return after
		}
		got := write()
		uid := try(c.Client().CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t).UID
		if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}, got.OwnerReferences); diff != "" {
			t.Errorf("owners (-want +got):\n%s", diff)
		}
		if s := got.Status; s.CardNumber != 8 || s.HealthyNumber != 7 || s.Cards[3].Reason != cards.ReasonPartitioned || s.FreeMemoryMiB != 7*40000 || s.HeartbeatSeconds != 3600 {
			t.Errorf("status %+v, want 7 healthy cards of 8", s)
		}

		// Of one that somebody has made, it becomes the owner.
		bare := try(c.admin.Resource(scvs).Get(t.Context(), node, metav1.GetOptions{}))(t)
		bare.SetOwnerReferences(nil)
		try(c.admin.Resource(scvs).Update(t.Context(), bare, metav1.UpdateOptions{}))(t)
		if got := write(); len(got.OwnerReferences) != 1 {
			t.Errorf("owners %v, want the node", got.OwnerReferences)
		}
		if diff := cmp.Diff(c.granted(t), c.used(t)); diff != "" {
			t.Errorf("rights (-granted +used):\n%s", diff)
		}
	})

	t.Run("a collector writes no other node's cards", func(t *testing.T) {
		foreign := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scv.Group + "/" + scv.Version, "kind": scv.Kind, "metadata": map[string]any{"name": other}}}
		// A policy is followed some time after it has been made.
		await(t, "a refusal", func(ctx context.Context) error {
			_, err := client.Resource(scvs).Create(ctx, foreign, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil {
				return errors.New("it may")
			}
			if !strings.Contains(err.Error(), "a collector writes the Scv of its own node") {
				t.Fatal(err)
			}
			return nil
		})
		made := try(c.admin.Resource(scvs).Create(t.Context(), foreign, metav1.CreateOptions{}))(t)
		made.Object["status"] = try(runtime.DefaultUnstructuredConverter.ToUnstructured(&scv.Status{Heartbeat: metav1.NowMicro(), HeartbeatSeconds: 60, Cards: []scv.Card{}}))(t)
		if _, err := client.Resource(scvs).UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "a collector writes the Scv of its own node") {
			t.Errorf("error %v, want a refusal", err)
		}
	})

	t.Run("what cannot be is refused", func(t *testing.T) { c.refuses(t) })

	t.Run("the program writes, serves, and ends", func(t *testing.T) { c.runs(t) })
}

// granted returns the rights that the manifests give, as "get nodes".
func (c *cluster) granted(t *testing.T) (all []string) {
	t.Helper()
	for _, o := range objects(t, "components/yoda/collector.yaml") {
		if o.GetKind() != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, verb+" "+resource)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// used returns the rights that the collector has used.
func (c *cluster) used(t *testing.T) []string {
	t.Helper()
	rights := make(map[string]bool)
	for lines := bufio.NewScanner(bytes.NewReader(try(os.ReadFile(c.audit))(t))); lines.Scan(); {
		var event struct {
			Verb      string `json:"verb"`
			ObjectRef struct {
				Resource, Subresource string
			} `json:"objectRef"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		rights[strings.TrimSuffix(event.Verb+" "+event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/")] = true
	}
	return slices.Sorted(maps.Keys(rights))
}

func (c *cluster) refuses(t *testing.T) {
	good := func() *scv.Status {
		return &scv.Status{
			Heartbeat: metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)), HeartbeatSeconds: 60, Driver: "550.54.15",
			CardNumber: 2, HealthyNumber: 1, FreeMemoryMiB: 10, TotalMemoryMiB: 20, Cards: []scv.Card{
				{ID: "GPU-0", Model: "A100", Health: scv.Healthy, FreeMemoryMiB: 10, TotalMemoryMiB: 20},
				{ID: "GPU-1", Index: 1, Model: "A100", Health: scv.Unhealthy, Reason: "has fallen off the bus", FreeMemoryMiB: 10, TotalMemoryMiB: 20},
			},
		}
	}
	write := func(s *scv.Status) error {
		o := try(c.admin.Resource(scvs).Get(t.Context(), node, metav1.GetOptions{}))(t)
		o.Object["status"] = try(runtime.DefaultUnstructuredConverter.ToUnstructured(s))(t)
		_, err := c.admin.Resource(scvs).UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
		return err
	}
	full := good()
	full.Cards, full.CardNumber, full.HealthyNumber = nil, 64, 0
	for i := range 64 {
		full.Cards = append(full.Cards, scv.Card{
			ID: fmt.Sprintf("GPU-%092d", i), Index: int32(i), Model: strings.Repeat("m", 96), Health: scv.Unhealthy, Reason: strings.Repeat("r", 512), FreeMemoryMiB: 1 << 40, TotalMemoryMiB: 1 << 40,
		})
	}
	empty := &scv.Status{Heartbeat: good().Heartbeat, HeartbeatSeconds: 1, Cards: []scv.Card{}}
	for name, s := range map[string]*scv.Status{"two cards": good(), "as many and as long as may be": full, "none": empty} {
		if err := write(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*scv.Status){
		"health of another name":      func(s *scv.Status) { s.Cards[0].Health = "Good" },
		"no health":                   func(s *scv.Status) { s.Cards[0].Health = "" },
		"unhealthy without a reason":  func(s *scv.Status) { s.Cards[1].Reason = "" },
		"healthy with a reason":       func(s *scv.Status) { s.Cards[0].Reason = "none" },
		"more free than there is":     func(s *scv.Status) { s.Cards[0].FreeMemoryMiB = 21 },
		"more free in all":            func(s *scv.Status) { s.FreeMemoryMiB = 21 },
		"negative memory":             func(s *scv.Status) { s.Cards[0].FreeMemoryMiB = -1 },
		"a negative index":            func(s *scv.Status) { s.Cards[0].Index = -1 },
		"a negative clock":            func(s *scv.Status) { s.Cards[0].ClockMHz = -1 },
		"negative power":              func(s *scv.Status) { s.Cards[0].PowerWatts = -1 },
		"negative bandwidth":          func(s *scv.Status) { s.Cards[0].BandwidthMBps = -1 },
		"two of a name":               func(s *scv.Status) { s.Cards[1].ID = "GPU-0" },
		"one without a name":          func(s *scv.Status) { s.Cards[1].ID = "" },
		"a long reason":               func(s *scv.Status) { s.Cards[1].Reason = strings.Repeat("r", 513) },
		"a long name":                 func(s *scv.Status) { s.Cards[1].ID = strings.Repeat("i", 97) },
		"a higher number of cards":    func(s *scv.Status) { s.CardNumber = 3 },
		"more healthy than there are": func(s *scv.Status) { s.HealthyNumber = 2 },
		"fewer healthy than are told": func(s *scv.Status) { s.HealthyNumber = 0 },
		"a lower number of cards":     func(s *scv.Status) { s.CardNumber = 1 },
		"no list":                     func(s *scv.Status) { s.Cards, s.CardNumber, s.HealthyNumber = nil, 0, 0 },
		"no heartbeat":                func(s *scv.Status) { s.Heartbeat = metav1.MicroTime{} },
		"a heartbeat of no time":      func(s *scv.Status) { s.HeartbeatSeconds = 0 },
		"a heartbeat after two hours": func(s *scv.Status) { s.HeartbeatSeconds = 7200 },
		"65 cards": func(s *scv.Status) {
			for i := range 63 {
				s.Cards = append(s.Cards, scv.Card{ID: fmt.Sprint(i), Health: scv.Healthy})
			}
			s.CardNumber, s.HealthyNumber = 65, 64
		},
	} {
		s := good()
		change(s)
		if err := write(s); !apierrors.IsInvalid(err) {
			t.Errorf("%s: error %v, want that it is invalid", name, err)
		}
	}
}

// runs has the program itself run, on a DGX.
func (c *cluster) runs(t *testing.T) {
	dgx := driver.New(drivertest.DGX(), func() bool { return true })
	before := try(c.get(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, writer := io.Pipe()
	ended := make(chan error, 1)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: c.collector.Host, CertificateAuthority: c.collector.CAFile}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"a": {Token: c.collector.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "a"}}, CurrentContext: "x",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	go func() {
		ended <- run(ctx, []string{"--kubeconfig=" + kubeconfig, "--listen=127.0.0.1:0", "--interval=100ms", "--driver-timeout=" + hung.String(), "--request-timeout=" + hung.String()}, node, dgx, io.Discard, writer)
		writer.Close()
	}()
	lines := bufio.NewScanner(log)
	address := ""
	for address == "" && lines.Scan() {
		if m := regexp.MustCompile(`http=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	var rest strings.Builder
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
			fmt.Fprintln(&rest, lines.Text())
		}
	}()
	await(t, "a write", func(ctx context.Context) error {
		after, err := c.get(ctx)
		if err == nil && !after.Status.Heartbeat.After(before.Status.Heartbeat.Time) {
			err = errors.New("there is none since")
		}
		return err
	})
	if got := try(c.get(t.Context()))(t).Status; got.HealthyNumber != 8 {
		t.Errorf("status %+v, want 8 healthy cards", got)
	}
	get := func(path string) string {
		request := try(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil))(t)
		response := try(http.DefaultClient.Do(request))(t)
		defer response.Body.Close()
		return response.Status + "\n" + string(try(io.ReadAll(response.Body))(t))
	}
	if got := get("/healthz"); got != "200 OK\nok\n" {
		t.Errorf("/healthz: %q", got)
	}
	documented := regexp.MustCompile(`(?m)^//\t(berth_scv_\w+)`).FindAllStringSubmatch(string(try(os.ReadFile("doc.go"))(t)), -1)
	if len(documented) != 6 {
		t.Errorf("%d metrics are documented, want 6", len(documented))
	}
	metrics := get("/metrics")
	for _, m := range documented {
		if name := m[1]; name != "berth_scv_xids_total" && !strings.Contains(metrics, "# TYPE "+name+" ") {
			t.Errorf("/metrics has no %s", name)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-drained
	if strings.Contains(rest.String(), "level=ERROR") || strings.Contains(rest.String(), "level=WARN") {
		t.Errorf("it warns:\n%s", rest.String())
	}
}

func TestFlagsAreThoseOfTheDocumentation(t *testing.T) {
	var help bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, "", nil, io.Discard, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	names := func(pattern, text string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	documented := names(`(?m)^//\t--([a-z-]+)`, string(try(os.ReadFile("doc.go"))(t)))
	if diff := cmp.Diff(names(`(?m)^  -([a-z-]+)`, help.String()), documented); diff != "" {
		t.Errorf("flags (-are +documented):\n%s", diff)
	}
}

// TestItSaysWhatItWasBuiltFrom compiles it as the Makefile, the Dockerfile and a release do.
func TestItSaysWhatItWasBuiltFrom(t *testing.T) {
	program := filepath.Join(t.TempDir(), "berth-scv")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-X main.version=v1.2.3 -X main.revision=abc", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || string(out) != "berth-scv v1.2.3 abc\n" {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestWhatCannotRunIsSaid(t *testing.T) {
	for want, args := range map[string][]string{
		"no node":                  {},
		"want flags only":          {"--node=a", "b"},
		"find the API server":      {"--node=a", "--kubeconfig=/nowhere"},
		"--request-timeout 0s":     {"--node=a", "--request-timeout=0s"},
		"flag provided but not":    {"--no-such-flag"},
		"unable to load in-cluste": {"--node=a"},
	} {
		if err := run(t.Context(), args, "", nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
}

func TestMetricsAreOnThePageOfMetrics(t *testing.T) {
	page := string(try(os.ReadFile("../../docs/metrics.md"))(t))
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^//\t(berth_scv_\w+)(?:\{([\w,]+)\})? `).FindAllStringSubmatch(string(try(os.ReadFile("doc.go"))(t)), -1) {
		found++
		labels := strings.Split(m[2], ",")
		slices.Sort(labels)
		row := regexp.MustCompile("(?m)^\\| `" + m[1] + "` \\| [^|]+ \\| " + strings.Join(labels, ", ") + " \\| collector \\|")
		if !row.MatchString(page) {
			t.Errorf("docs/metrics.md has no row of %s with the labels %q", m[1], labels)
		}
	}
	if on := strings.Count(page, "| `berth_scv_"); found == 0 || on != found {
		t.Errorf("there are %d metrics, and docs/metrics.md has %d", found, on)
	}
}
