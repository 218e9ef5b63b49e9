package schedulerplugins

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/paypal/load-watcher/pkg/watcher"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// configuration is that of both schedulers. WATCHER stands for the address of a load watcher. Of nodes that a plugin scores the same, NodeAffinity has one be the best: among equals, schedulers choose at random.
//
//go:embed config.yaml
var configuration string

// objects are what plugins read of their own kinds, besides a NodeResourceTopology of each node.
//
//go:embed objects.yaml
var objects []byte

const nodes = 8

const patience = 4 * time.Minute // after which something hangs

// cluster is an API server with nodes, and what plugins read.
type cluster struct {
	t       *testing.T
	cp      *kubetest.ControlPlane
	objects dynamic.Interface
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, cp: kubetest.StartT(t, kubetest.Options{})}
	config, err := clientcmd.BuildConfigFromFlags("", c.cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if c.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins").Output()
	if err != nil {
		t.Fatalf("find the module: %v", err)
	}
	for _, of := range []string{"coscheduling", "appgroup", "networktopology", "noderesourcetopology", "sysched"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "manifests", of, "crd.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		c.apply(text)
	}
	c.apply(objects)
	for i := range nodes {
		c.addNode(i)
	}
	// Pods that are about to go, which PodState likes.
	for i, node := range []string{"n3", "n3", "n5"} {
		p := podOf("", fmt.Sprint("goes-", i), "50m", "64Mi")
		p.Spec.NodeName, p.Finalizers = node, []string{"example.com/stays"}
		c.create(p)
		if err := c.cp.Client().CoreV1().Pods("default").Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	// Pods that run, with the system calls that they may make, of which SySched reads.
	for i, of := range []string{"few", "all", "some"} {
		p := podOf("", fmt.Sprint("runs-", i), "50m", "64Mi")
		p.Spec.NodeName, p.Spec.SecurityContext = fmt.Sprint("n", 2*i+1), calls(of)
		c.create(p)
		p.Status.Phase = v1.PodRunning
		if _, err := c.cp.Client().CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// calls is the security context of a pod that may make the system calls of a SeccompProfile.
func calls(profile string) *v1.PodSecurityContext {
	path := "security-profiles-operator.x-k8s.io/default/" + profile + ".json"
	return &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &path}}
}

// apply creates objects, of kinds that are there by then.
func (c *cluster) apply(text []byte) {
	c.t.Helper()
	kinds := map[string]schema.GroupVersionResource{
		"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		"NetworkTopology":          {Group: "networktopology.diktyo.x-k8s.io", Version: "v1alpha1", Resource: "networktopologies"},
		"AppGroup":                 {Group: "appgroup.diktyo.x-k8s.io", Version: "v1alpha1", Resource: "appgroups"},
		"PodGroup":                 {Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"},
		"SeccompProfile":           {Group: "security-profiles-operator.x-k8s.io", Version: "v1beta1", Resource: "seccompprofiles"},
		"NodeResourceTopology":     {Group: "topology.node.k8s.io", Version: "v1alpha2", Resource: "noderesourcetopologies"},
	}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := new(unstructured.Unstructured)
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			c.t.Fatal(err)
		}
		if len(object.Object) == 0 {
			continue
		}
		of, ok := kinds[object.GetKind()]
		if !ok {
			c.t.Fatalf("there is no kind %q", object.GetKind())
		}
		c.eventually(object.GetKind()+" "+object.GetName()+" is created", func() (bool, string) {
			var to dynamic.ResourceInterface = c.objects.Resource(of)
			if object.GetNamespace() != "" {
				to = c.objects.Resource(of).Namespace(object.GetNamespace())
			}
			_, err := to.Create(c.t.Context(), object.DeepCopy(), metav1.CreateOptions{})
			if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
				c.t.Fatal(err)
			}
			return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err) // its kind may not be served yet
		})
	}
}

// addNode adds the node of a number from 0 on. No two are alike.
func (c *cluster) addNode(i int) {
	c.t.Helper()
	name, zone := fmt.Sprint("n", i+1), i/2
	cpu, memory := 4+i, 8+3*i
	n := kubetest.PlainNode(0)
	n.GenerateName, n.Name = "", name
	n.Labels = map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprint("z", zone+1), v1.LabelTopologyRegion: []string{"west", "east"}[zone/2]}
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: *resource.NewQuantity(int64(cpu), resource.DecimalSI), v1.ResourceMemory: resource.MustParse(fmt.Sprintf("%dGi", memory)), v1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	if err := c.cp.CreateNodes(c.t.Context(), 1, func(int) *v1.Node { return n }); err != nil {
		c.t.Fatal(err)
	}
	half := fmt.Sprintf("[{name: cpu, capacity: '%d', allocatable: '%d', available: '%d'}, {name: memory, capacity: %dGi, allocatable: %dGi, available: %dGi}]", cpu/2, cpu/2, cpu/2, memory/2, memory/2, memory/2)
	c.apply(fmt.Appendf(nil, `
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: %s}
topologyPolicies: [SingleNUMANodeContainerLevel]
zones:
- {name: node-0, type: Node, resources: %s}
- {name: node-1, type: Node, resources: %s}
`, name, half, half))
}

// serveLoad serves what nodes are loaded with, as load-watcher does. What they are reported to be loaded with is of a time that is yet to come, so that nobody adds what has been placed since.
func serveLoad(t *testing.T) string {
	t.Helper()
	load := watcher.WatcherMetrics{Window: watcher.Window{Duration: watcher.FifteenMinutes, Start: 1, End: time.Now().Add(24 * time.Hour).Unix()}, Data: watcher.Data{NodeMetricsMap: make(map[string]watcher.NodeMetrics)}}
	for i, cpu := range []float64{55, 12, 31, 74, 46, 8, 23, 67} {
		load.Data.NodeMetricsMap[fmt.Sprint("n", i+1)] = watcher.NodeMetrics{Metrics: []watcher.Metric{
			{Type: watcher.CPU, Operator: watcher.Average, Value: cpu}, {Type: watcher.CPU, Operator: watcher.Std, Value: 30 - cpu/3},
			{Type: watcher.Memory, Operator: watcher.Average, Value: 90 - cpu}, {Type: watcher.Memory, Operator: watcher.Std, Value: cpu / 4},
		}}
	}
	text, err := json.Marshal(load)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	t.Cleanup(s.Close)
	return s.URL
}

func podOf(profile, name, cpu, memory string) *v1.Pod {
	p := kubetest.PlainPod(0)
	p.GenerateName, p.Name, p.Namespace, p.Spec.SchedulerName = "", name, "default", profile
	var prefers []v1.PreferredSchedulingTerm
	for i := range nodes {
		prefers = append(prefers, v1.PreferredSchedulingTerm{Weight: int32(1 + (7*i+3)%nodes), Preference: v1.NodeSelectorTerm{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("n", i+1)}}},
		}})
	}
	p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: prefers}}
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return p
}

func (c *cluster) create(p *v1.Pod) {
	c.t.Helper()
	if err := c.cp.CreatePods(c.t.Context(), 1, func(int) *v1.Pod { return p }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) eventually(what string, is func() (bool, string)) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		ok, found := is()
		if ok {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			c.t.Fatalf("not %s: %s", what, found)
		}
	}
}

// becomes waits until a pod is bound, and returns to which node; or until it is told why it is not, and returns that.
func (c *cluster) becomes(name string) (of string) {
	c.t.Helper()
	c.eventually(name+" is bound, or told why not", func() (bool, string) {
		p, err := c.cp.Client().CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		of = p.Spec.NodeName
		for _, condition := range p.Status.Conditions {
			if of == "" && condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable { // else it is tried again: the plugins are being made
				of = condition.Reason + ": " + condition.Message
			}
		}
		return of != "", "it is told nothing"
	})
	return of
}

// trial is what the pods of a profile are.
type trial struct {
	profile string
	pods    []*v1.Pod
}

func trials() (all []trial) {
	for _, profile := range []string{"target-load", "load-variation", "low-risk", "peaks", "allocatable", "pod-state"} {
		of := trial{profile: profile}
		for i, cpu := range []string{"100m", "700m", "250m", "1100m"} {
			p := podOf(profile, fmt.Sprint(profile, "-", i), cpu, fmt.Sprintf("%dMi", 100*(i+1)))
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
			of.pods = append(of.pods, p)
		}
		all = append(all, of)
	}
	numa := trial{profile: "numa"}
	for i, cpu := range []string{"2", "5", "3", "7"} { // the last one fits no half of a node
		p := podOf("numa", fmt.Sprint("numa-", i), cpu, "1Gi")
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
		numa.pods = append(numa.pods, p)
	}
	network := trial{profile: "network"}
	for i, workload := range []string{"back", "middle", "front", "middle", "front"} {
		p := podOf("network", fmt.Sprint("network-", i), "100m", "100Mi")
		p.Labels = map[string]string{"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": workload}
		network.pods = append(network.pods, p)
	}
	syscalls := trial{profile: "syscalls"}
	for i, of := range []string{"few", "some", "few", "all", "few", "some"} {
		p := podOf("syscalls", fmt.Sprint("syscalls-", i), "100m", "100Mi")
		p.Spec.SecurityContext = calls(of)
		syscalls.pods = append(syscalls.pods, p)
	}
	return append(all, numa, network, syscalls)
}

// scheduler is a command of the test binary that schedules.
type scheduler struct {
	name string
	args func(dir, kubeconfig, config string) []string
	all  string // the profile that all pods have; "": each its own
}

var schedulers = []scheduler{
	{theirs, func(_, kubeconfig, config string) []string {
		return []string{theirs, "--config", config, "--kubeconfig", kubeconfig, "--secure-port", "0", "--vmodule", "schedule_one=10"}
	}, ""},
	{"berth", berthArgs, ""},
	{"berth without plugins", berthArgs, "default-scheduler"},
}

func berthArgs(dir, kubeconfig, config string) []string {
	return []string{"all", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--http-listen", "", "--kubeconfig", kubeconfig, "--config", config, "--plugin-vmodule", "judge=10"}
}

// start starts a scheduler, which ends with the test. It returns the file that it logs to.
func (c *cluster) start(s scheduler, load string) (log string) {
	c.t.Helper()
	return c.startWith(s, strings.ReplaceAll(configuration, "WATCHER", load))
}

// startWith starts a scheduler with a configuration.
func (c *cluster) startWith(s scheduler, text string) (log string) {
	c.t.Helper()
	program, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	log = filepath.Join(dir, "log")
	if s.name == theirs {
		text += fmt.Sprintf("clientConnection: {kubeconfig: %q}\n", c.cp.Kubeconfig())
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	p, err := kubetest.StartProcess(s.name, log, slices.Concat([]string{program}, s.args(dir, c.cp.Kubeconfig(), config))...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		p.Stop()
		if c.t.Failed() {
			text, _ := os.ReadFile(log)
			c.t.Logf("log of %s:\n%s", s.name, text[max(0, len(text)-10<<10):])
		}
	})
	return log
}

// weight is what the plugins of scheduler-plugins weigh in the configuration: kube-scheduler logs scores times that.
const weight = 1000

var logged = regexp.MustCompile(`"Plugin scored node for pod" pod="default/([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)`)

// scores returns what the plugins that are compiled in scored each node for each pod when it was tried last, as a scheduler has logged it, by pod and node.
func (c *cluster) scores(s scheduler, log string) map[string]map[string]string {
	c.t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		c.t.Fatal(err)
	}
	of := make(map[string]map[string]string)
	for _, line := range logged.FindAllStringSubmatch(strings.ReplaceAll(string(text), `\"`, `"`), -1) {
		pod, plugin, node := line[1], line[2], line[3]
		if compiledIn[plugin] == nil {
			continue
		}
		score, err := strconv.Atoi(line[4])
		if err != nil {
			c.t.Fatal(err)
		}
		if s.name == theirs {
			score /= weight
		}
		if of[pod] == nil || of[pod][node] != "" { // it is tried again
			of[pod] = make(map[string]string)
		}
		of[pod][node] = fmt.Sprint(plugin, " ", score)
	}
	return of
}

// Each pod goes where it goes with kube-scheduler, by the same configuration, and is told the same if it goes nowhere; plugins refuse it the same nodes, and score the others the same. No plugin is there for nothing: without it, some pod goes elsewhere.
func TestPodsGoWhereTheyGoWithKubeScheduler(t *testing.T) {
	load := serveLoad(t)
	var became []map[string]map[string]string // by profile and pod
	var scored []map[string]map[string]string // by pod and node
	for _, s := range schedulers {
		t.Run(s.name, func(t *testing.T) {
			c := newCluster(t)
			log := c.start(s, load)
			of := make(map[string]map[string]string)
			for _, trial := range trials() {
				of[trial.profile] = make(map[string]string)
				for _, p := range trial.pods { // one after the other, so that each is placed in the same state
					if s.all != "" {
						p.Spec.SchedulerName = s.all
					}
					c.create(p)
					of[trial.profile][p.Name] = c.becomes(p.Name)
				}
			}
			became, scored = append(became, of), append(scored, c.scores(s, log))
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	if diff := cmp.Diff(became[0], became[1]); diff != "" {
		t.Errorf("(-kube-scheduler +Berth):\n%s", diff)
	}
	if diff := cmp.Diff(scored[0], scored[1]); diff != "" {
		t.Errorf("scores of nodes (-kube-scheduler +Berth):\n%s", diff)
	}
	nodes, says := 0, make(map[string]map[string]bool) // by plugin
	for _, pod := range slices.Sorted(maps.Keys(scored[1])) {
		t.Logf("%s: %v", pod, scored[1][pod])
		for _, of := range scored[1][pod] {
			nodes++
			plugin, score, _ := strings.Cut(of, " ")
			if says[plugin] == nil {
				says[plugin] = make(map[string]bool)
			}
			says[plugin][score] = true
		}
	}
	t.Logf("%d nodes are scored for %d pods", nodes, len(scored[1]))
	if len(says) != 9 {
		t.Errorf("%d plugins score, want 9", len(says))
	}
	for plugin, scores := range says {
		if len(scores) < 3 {
			t.Errorf("%s scores all nodes much alike: %v", plugin, scores)
		}
	}
	for _, profile := range slices.Sorted(maps.Keys(became[1])) {
		t.Logf("%s: %v", profile, became[1][profile])
		if maps.Equal(became[1][profile], became[2][profile]) {
			t.Errorf("%s: all pods go where they go without the plugin", profile)
		}
	}
}

// Three pods of a group are bound together, by both.
func TestAGangIsBoundTogether(t *testing.T) {
	for _, s := range schedulers[:2] {
		t.Run(s.name, func(t *testing.T) {
			c := newCluster(t)
			for i := range 5 {
				p := podOf("gang", fmt.Sprint("gang-", i), "100m", "100Mi")
				p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": map[bool]string{true: "three", false: "none"}[i < 3]}
				c.create(p)
			}
			c.start(s, serveLoad(t))
			for i := range 3 {
				name := fmt.Sprint("gang-", i)
				c.eventually(name+" is bound", func() (bool, string) {
					p, err := c.cp.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
					return err == nil && p.Spec.NodeName != "", fmt.Sprint(p.Status.Conditions, err)
				})
			}
			for _, name := range []string{"gang-3", "gang-4"} {
				if got := c.becomes(name); !strings.Contains(got, "PodGroup not found") {
					t.Errorf("%s of a group that there is not: %s", name, got)
				}
			}
		})
	}
}

// sorted are pods of which only one has room, the ones that come first first, and which of them two plugins sort to the front.
var sorted = map[string]struct {
	pods  []*v1.Pod
	first string
}{
	"QOSSort":         {[]*v1.Pod{wants("1", false), wants("2", false), wants("3", true)}, "wants-3"},
	"TopologicalSort": {[]*v1.Pod{of(wants("1", true), "back"), of(wants("2", true), "middle"), of(wants("3", true), "front")}, "wants-3"},
}

// wants returns a pod for the node with room for one.
func wants(name string, guaranteed bool) *v1.Pod {
	p := podOf("default-scheduler", "wants-"+name, "100m", "100Mi")
	p.Spec.Affinity, p.Spec.NodeSelector = nil, map[string]string{v1.LabelHostname: "one"}
	if guaranteed {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}
	return p
}

// of has a pod be one of a workload that others depend on, or that depends on others.
func of(p *v1.Pod, workload string) *v1.Pod {
	p.Labels = map[string]string{"appgroup.diktyo.x-k8s.io": "ordered", "appgroup.diktyo.x-k8s.io.workload": workload}
	return p
}

// Of pods that wait when a scheduler starts, the one that a plugin sorts to the front has the only place, though others have waited longer: with both schedulers, and not without the plugin.
func TestPluginsSortTheQueue(t *testing.T) {
	for name, tt := range sorted {
		for _, s := range schedulers {
			t.Run(name+"/"+s.name, func(t *testing.T) {
				c := newCluster(t)
				c.apply([]byte(`
apiVersion: appgroup.diktyo.x-k8s.io/v1alpha1
kind: AppGroup
metadata: {name: ordered, namespace: default}
spec:
  numMembers: 3
  topologySortingAlgorithm: KahnSort
  workloads:
  - workload: {kind: Deployment, name: front, selector: front, apiVersion: apps/v1, namespace: default}
status:
  topologyOrder:
  - {workload: {kind: Deployment, name: back, selector: back, apiVersion: apps/v1, namespace: default}, index: 3}
  - {workload: {kind: Deployment, name: front, selector: front, apiVersion: apps/v1, namespace: default}, index: 1}
  - {workload: {kind: Deployment, name: middle, selector: middle, apiVersion: apps/v1, namespace: default}, index: 2}
`))
				one := kubetest.PlainNode(0)
				one.GenerateName, one.Name, one.Labels = "", "one", map[string]string{v1.LabelHostname: "one"}
				one.Status.Allocatable[v1.ResourcePods] = resource.MustParse("1")
				one.Status.Capacity = one.Status.Allocatable
				if err := c.cp.CreateNodes(t.Context(), 1, func(int) *v1.Node { return one }); err != nil {
					t.Fatal(err)
				}
				for k, p := range tt.pods {
					if k > 0 { // creation times are whole seconds
						c.eventually("a second later", func() (bool, string) { return time.Now().Unix() > c.created(tt.pods[k-1].Name), "" })
					}
					c.create(p.DeepCopy())
				}
				config, want := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n", "wants-1"
				if s.all == "" {
					config += fmt.Sprintf("profiles:\n- plugins: {queueSort: {enabled: [{name: %s}], disabled: [{name: '*'}]}}\n  pluginConfig: [{name: TopologicalSort, args: {namespaces: [default]}}]\n", name)
					want = tt.first
				}
				c.startWith(s, config)
				bound := ""
				c.eventually("one is bound", func() (bool, string) {
					all, err := c.cp.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=one"})
					if err != nil || len(all.Items) == 0 {
						return false, fmt.Sprint(err)
					}
					bound = all.Items[0].Name
					return true, ""
				})
				if bound != want {
					t.Errorf("%s is bound, want %s", bound, want)
				}
			})
		}
	}
}

// created returns when a pod was created, in seconds since 1970.
func (c *cluster) created(name string) int64 {
	c.t.Helper()
	p, err := c.cp.Client().CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p.CreationTimestamp.Unix()
}
