package berthapp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-scheduler/berth/berthapp/example/cheapest"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// trouble is a plugin that does with a pod what its annotation "trouble" says.
type trouble struct{}

var leaked [][]byte

func (trouble) Name() string { return "Trouble" }

func (trouble) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
	switch pod.Annotations["trouble"] {
	case "panic":
		panic("trouble has come")
	case "hang":
		select {}
	case "leak":
		for {
			piece := make([]byte, 1<<20)
			for i := range piece {
				piece[i] = 1
			}
			leaked = append(leaked, piece)
		}
	case "error":
		return fwk.NewStatus(fwk.Error, "it is ill")
	case "wait": // until the file is there that an annotation names
		fmt.Fprintln(os.Stderr, "trouble waits")
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for range look.C {
			if _, err := os.Stat(pod.Annotations["for"]); err == nil {
				return nil
			}
		}
	}
	fmt.Fprintln(os.Stderr, "trouble looks at", pod.Name)
	return nil
}

// gang is a plugin that has pods wait until there are as many as their annotation "gang" says. Those with an annotation "needs" fit nowhere until there is a ConfigMap of that name, and those with "permitted-by" until there
// is a Permission of that name: it activates the ones itself, and registers the event for the others. Those with "enters-with" may not be tried before that.
type gang struct {
	handle      fwk.Handle
	configs     corelisters.ConfigMapLister
	permissions dynamic.NamespaceableResourceInterface
}

// permissions are a resource that Berth knows nothing of.
var permissions = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "permissions"}

// EventsToRegister registers that a Permission comes, for the pods that need it.
func (*gang) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event: fwk.ClusterEvent{Resource: "permissions.v1.example.com", ActionType: fwk.Add},
		QueueingHintFn: func(_ klog.Logger, pod *v1.Pod, _, is any) (fwk.QueueingHint, error) {
			name := is.(*unstructured.Unstructured).GetName()
			if pod.Annotations["permitted-by"] != name && pod.Annotations["enters-with"] != name {
				return fwk.QueueSkip, nil
			}
			fmt.Fprintln(os.Stderr, "gang has", pod.Name, "tried for", name)
			return fwk.Queue, nil
		},
	}}, nil
}

func newGang(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	configs := h.SharedInformerFactory().Core().V1().ConfigMaps()
	_, err := configs.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		pods, err := h.SharedInformerFactory().Core().V1().Pods().Lister().List(labels.Everything())
		if err != nil {
			return
		}
		wait := make(map[string]*v1.Pod)
		for _, pod := range pods {
			if pod.Annotations["needs"] == object.(*v1.ConfigMap).Name {
				wait[pod.Name] = pod
			}
		}
		h.Activate(klog.Background(), wait)
	}})
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(h.KubeConfig())
	if err != nil {
		return nil, err
	}
	return &gang{h, configs.Lister(), client.Resource(permissions)}, nil
}

func (*gang) Name() string { return "Gang" }

func (g *gang) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	name, ok := pod.Annotations["enters-with"]
	if !ok {
		return nil
	}
	if _, err := g.permissions.Namespace(pod.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, "gang keeps out", pod.Name)
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "nobody has let it in")
	}
	return nil
}

func (g *gang) Filter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
	if name, ok := pod.Annotations["permitted-by"]; ok {
		if _, err := g.permissions.Namespace(pod.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fwk.NewStatus(fwk.Unschedulable, "nobody has permitted it")
		}
	}
	name, ok := pod.Annotations["needs"]
	if !ok {
		return nil
	}
	if _, err := g.configs.ConfigMaps(pod.Namespace).Get(name); err != nil {
		return fwk.NewStatus(fwk.Unschedulable, "what the pod needs has not come")
	}
	return nil
}

// PostFilter evicts the pod that the annotation "instead-of" names, and has the pod go there.
func (g *gang) PostFilter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	name, ok := pod.Annotations["instead-of"]
	if !ok {
		return nil, fwk.NewStatus(fwk.Unschedulable, "gang evicts nobody for it")
	}
	other, err := g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if status := statuses.Get(other.Spec.NodeName); status.Code() != fwk.Unschedulable {
		return nil, fwk.NewStatus(fwk.Unschedulable, "gang evicts nobody in vain: "+status.Message())
	}
	if err := g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		return nil, fwk.AsStatus(err)
	}
	return framework.NewPostFilterResultWithNominatedNode(other.Spec.NodeName), fwk.NewStatus(fwk.Success)
}

func (*gang) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	fmt.Fprintln(os.Stderr, "gang has reserved", pod.Name)
	return nil
}

func (*gang) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	fmt.Fprintln(os.Stderr, "gang has given back", pod.Name)
}

func (g *gang) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	size, err := strconv.Atoi(pod.Annotations["gang"])
	if err != nil {
		return fwk.NewStatus(fwk.Unschedulable, "it says of no gang how many it has"), 0
	}
	var others []fwk.WaitingPod
	g.handle.IterateOverWaitingPods(func(is fwk.WaitingPod) { others = append(others, is) })
	if len(others)+1 < size {
		fmt.Fprintln(os.Stderr, "gang has wait", pod.Name)
		return fwk.NewStatus(fwk.Wait), 10 * time.Minute
	}
	for _, is := range others {
		is.Allow(g.Name())
	}
	return nil, 0
}

func (*gang) PreBindPreFlight(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}

func (g *gang) PreBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"goes-to":%q}}}`, node)
	_, err := g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return fwk.AsStatus(err)
}

func (*gang) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	fmt.Fprintln(os.Stderr, "gang has bound", pod.Name)
}

// TestMain is Berth with plugins, too, if its first argument is one of its commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(Run(NewCommand(WithPlugin(cheapest.Name, cheapest.New),
			WithPlugin("Trouble", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return trouble{}, nil }),
			WithPlugin("Picky", newPicky), WithPlugin("Sorter", newSorter), WithPlugin("Gang", newGang), WithPlugin("Turns", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return turns{}, nil }), WithPlugin("Dies", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { panic("oh no") }))))
	}
	os.Exit(m.Run())
}

const wholeConfig = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: cheap
  plugins:
    multiPoint:
      enabled:
      - {name: Cheapest, weight: 100}
- schedulerName: trouble
  plugins:
    multiPoint:
      enabled:
      - {name: Cheapest, weight: 100}
      - {name: Trouble}
- schedulerName: gang
  plugins:
    multiPoint:
      enabled:
      - {name: Gang}
      - {name: Trouble}
`

// whole is Berth with plugins in processes, and an API server.
type whole struct {
	t   *testing.T
	cp  *kubetest.ControlPlane
	log string
}

func startWhole(t *testing.T) *whole {
	t.Helper()
	return startWholeOf(t, wholeConfig)
}

func startWholeOf(t *testing.T, configuration string, flags ...string) *whole {
	t.Helper()
	w := &whole{t: t, cp: kubetest.StartT(t, kubetest.Options{}), log: filepath.Join(t.TempDir(), "log")}
	w.make(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "permissions.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "permissions", "kind": "Permission"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	})
	prices := []string{"30", "10", "20"}
	for i, price := range prices {
		n := kubetest.PlainNode(i)
		n.Name, n.GenerateName = "costs-"+price, ""
		n.Labels = map[string]string{cheapest.Price: price, v1.LabelHostname: n.Name}
		if err := w.cp.CreateNodes(t.Context(), 1, func(int) *v1.Node { return n }); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		program, "all", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--http-listen", "", "--kubeconfig", w.cp.Kubeconfig(),
		"--config", config, "--leader-elect=false", "--plugin-memory", "500Mi",
	}, flags...)
	p, err := kubetest.StartProcess("berth", w.log, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			text, _ := os.ReadFile(w.log)
			if len(text) > 20<<10 {
				text = text[len(text)-20<<10:]
			}
			t.Logf("log of Berth:\n%s", text)
		}
	})
	return w
}

// eventually looks until it is so.
func (w *whole) eventually(what string, is func() (bool, string)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 4*time.Minute)
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
			w.t.Fatalf("%s: %s", what, found)
		}
	}
}

// make makes an object of any resource.
func (w *whole) make(resource schema.GroupVersionResource, namespace string, object map[string]any) {
	w.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", w.cp.Kubeconfig())
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually("there are "+resource.Resource, func() (bool, string) { // a resource takes a moment to be served
		_, err := client.Resource(resource).Namespace(namespace).Create(w.t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

func (w *whole) create(name, scheduler string, annotations map[string]string) {
	w.t.Helper()
	w.createOf(name, scheduler, annotations, "")
}

// createOf creates a pod that requests so many CPUs; "": what they all do.
func (w *whole) createOf(name, scheduler string, annotations map[string]string, cpus string) {
	w.t.Helper()
	p := kubetest.PlainPod(0)
	if cpus != "" {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus)}
	}
	p.Name, p.GenerateName, p.Annotations, p.Spec.SchedulerName = name, "", annotations, scheduler
	if err := w.cp.CreatePods(w.t.Context(), 1, func(int) *v1.Pod { return p }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *whole) remove(name string) {
	w.t.Helper()
	if err := w.cp.Client().CoreV1().Pods("default").Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		w.t.Fatal(err)
	}
}

// awaitOn waits until a pod is on a node; "": on any.
func (w *whole) awaitOn(name, node string) {
	w.t.Helper()
	w.eventually(name+" is on "+node, func() (bool, string) {
		p, err := w.cp.Client().CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Spec.NodeName != "" && (node == "" || p.Spec.NodeName == node), fmt.Sprintf("it is on %q: %v", p.Spec.NodeName, p.Status.Conditions)
	})
}

// awaitTold waits until a pod's condition says something.
func (w *whole) awaitTold(name, text string) {
	w.t.Helper()
	w.eventually(name+" is told "+text, func() (bool, string) {
		p, err := w.cp.Client().CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodScheduled && strings.Contains(c.Message, text) {
				return true, ""
			}
		}
		return false, fmt.Sprint(p.Status.Conditions)
	})
}

// awaitLog waits until the log has a text more often than so many times, and returns how often.
func (w *whole) awaitLog(text string, more int) (n int) {
	w.t.Helper()
	w.eventually("the log says "+text, func() (bool, string) {
		n = w.logged(text)
		return n > more, fmt.Sprintf("%d times", n)
	})
	return n
}

func (w *whole) logged(text string) int {
	log, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Count(string(log), text)
}

func TestPodsGoWhereACompiledInPluginHasThem(t *testing.T) {
	w := startWhole(t)
	for i := range 3 { // to the same: what they cost weighs more than that there are others
		name := fmt.Sprint("cheap-", i)
		w.create(name, "cheap", nil)
		w.awaitOn(name, "costs-10")
	}
	w.create("budget", "cheap", map[string]string{cheapest.Budget: "5"})
	w.awaitTold("budget", "3 node(s) cost more than the pod may pay")
	w.create("wrong", "cheap", map[string]string{cheapest.Budget: "all"})
	w.awaitTold("wrong", `the pod's budget "all" is no number`)

	// Whatever its plugins do, pods of other profiles are placed, and those of its own when it is over.
	for _, tt := range []struct{ does, logged string }{
		{"panic", "trouble has come"}, {"hang", "plugins hang: nobody has waited"}, {"leak", "it has more memory than it may have"},
	} {
		name := "does-" + tt.does
		w.create("before-"+name, "trouble", nil)
		w.awaitOn("before-"+name, "costs-10")
		ended := w.logged("process has ended, and is started again")
		cheapEnded := w.logged("service=compiled-in/cheap")
		w.create(name, "trouble", map[string]string{"trouble": tt.does})
		w.create("default-beside-"+name, "", nil)
		w.awaitOn("default-beside-"+name, "")
		w.create("cheap-beside-"+name, "cheap", nil)
		w.awaitOn("cheap-beside-"+name, "costs-10")
		w.awaitLog(tt.logged, 0)
		w.awaitLog("process has ended, and is started again", ended)
		w.awaitTold(name, "compiled-in/trouble")
		w.remove(name)
		w.create("after-"+name, "trouble", nil)
		w.awaitOn("after-"+name, "costs-10")
		if n := w.logged("service=compiled-in/cheap"); n != cheapEnded {
			t.Errorf("%s: the log has %d lines more about the other profile's process", tt.does, n-cheapEnded)
		}
	}
	w.create("ill", "trouble", map[string]string{"trouble": "error"})
	w.awaitTold("ill", `running "Trouble" filter plugin: it is ill`)
}

// A gang's pods wait for each other in the plugin's process, and hold up nobody. If that ends, those that wait are given back, and wait again.
func TestACompiledInPluginTakesAllSteps(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	metrics := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w := startWholeOf(t, wholeConfig, "--plugin-vmodule", "judge=10", "--metrics-listen", metrics)
	w.create("scored", "cheap", nil)
	w.awaitOn("scored", "costs-10")
	w.awaitLog(`\"Plugin scored node for pod\" pod=\"default/scored\" plugin=\"Cheapest\" node=\"costs-10\" score=100`, 0)
	w.eventually("what its process measures is served", func() (bool, string) {
		response, err := http.Get("http://" + metrics + "/metrics/plugins/cheap")
		if err != nil {
			return false, err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return strings.Contains(string(text), `scheduler_plugin_evaluation_total{extension_point="Score",plugin="Cheapest",profile="cheap"} 3`), fmt.Sprint(err, string(text))
	})
	w.create("alone", "gang", nil)
	w.awaitTold("alone", "it says of no gang how many it has")
	w.remove("alone")
	// Nothing happens in the cluster that would have it tried again: the plugin activates it.
	w.create("needy", "gang", map[string]string{"gang": "1", "needs": "permission"})
	w.awaitTold("needy", "what the pod needs has not come")
	if _, err := w.cp.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "permission"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitOn("needy", "")
	w.create("permitted", "gang", map[string]string{"gang": "1", "permitted-by": "somebody"})
	w.awaitTold("permitted", "nobody has permitted it")
	for _, name := range []string{"nobody", "somebody"} {
		w.make(permissions, "default", map[string]any{"apiVersion": "example.com/v1", "kind": "Permission", "metadata": map[string]any{"name": name}})
	}
	w.awaitLog("gang has permitted tried for somebody", 0)
	w.awaitOn("permitted", "")
	// One that may not be tried is not, and nobody is told of it.
	w.create("kept", "gang", map[string]string{"gang": "1", "enters-with": "doorman"})
	w.awaitLog("gang keeps out kept", 0)
	w.make(permissions, "default", map[string]any{"apiVersion": "example.com/v1", "kind": "Permission", "metadata": map[string]any{"name": "doorman"}})
	w.awaitLog("gang has kept tried for doorman", 0)
	w.awaitOn("kept", "")
	failures, err := w.cp.Client().EventsV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range failures.Items {
		if e.Regarding.Name == "kept" {
			t.Errorf("people are told of it: %s", e.Note)
		}
	}
	// Pods that fit nowhere preempt nobody of their own priority; the plugin evicts one.
	w.createOf("fills", "gang", map[string]string{"gang": "1"}, "100")
	w.awaitTold("fills", "no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling., gang evicts nobody for it")
	w.remove("fills")
	for i := range 3 {
		name := fmt.Sprint("large-", i)
		w.createOf(name, "gang", map[string]string{"gang": "1"}, "3")
		w.awaitOn(name, "")
	}
	w.createOf("instead", "gang", map[string]string{"gang": "1", "instead-of": "large-1"}, "3")
	w.awaitOn("instead", "")
	for i := range 3 {
		name := fmt.Sprint("large-", i)
		_, err := w.cp.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if gone := apierrors.IsNotFound(err); gone != (i == 1) || err != nil && !gone {
			t.Errorf("%s: %v", name, err)
		}
		if i != 1 {
			w.remove(name)
		}
	}
	w.remove("instead")
	of3 := map[string]string{"gang": "3"}
	w.create("one", "gang", of3)
	w.awaitLog("gang has wait one", 0)
	w.create("two", "gang", of3)
	w.awaitLog("gang has wait two", 0)
	w.create("beside", "", nil)
	w.awaitOn("beside", "")
	w.create("boom", "gang", map[string]string{"trouble": "panic"})
	w.awaitLog("process has ended, and is started again", 0)
	w.remove("boom")
	w.awaitLog("gang has wait one", 1)
	w.awaitLog("gang has wait two", 1)
	for _, name := range []string{"one", "two"} {
		if p, err := w.cp.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil || p.Spec.NodeName != "" {
			t.Errorf("%s is on %q, %v: its gang is not complete", name, p.Spec.NodeName, err)
		}
	}
	w.create("three", "gang", of3)
	for _, name := range []string{"one", "two", "three"} {
		w.awaitOn(name, "")
		p, err := w.cp.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || p.Annotations["goes-to"] != p.Spec.NodeName {
			t.Errorf("%s: %v; before it was bound to %s, it was said to go to %q", name, err, p.Spec.NodeName, p.Annotations["goes-to"])
		}
		w.awaitLog("gang has bound "+name, 0)
	}
}

const wholeSorted = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    queueSort: {enabled: [{name: Turns}], disabled: [{name: '*'}]}
- schedulerName: trouble
  plugins:
    queueSort: {enabled: [{name: Turns}], disabled: [{name: '*'}]}
    multiPoint:
      enabled:
      - {name: Trouble}
`

// turns is a plugin that sorts by the annotation "turn".
type turns struct{}

func (turns) Name() string { return "Turns" }

func (turns) Less(a, b fwk.QueuedPodInfo) bool {
	x, y := a.GetPodInfo().GetPod().Annotations["turn"], b.GetPodInfo().GetPod().Annotations["turn"]
	return x < y || x == y && a.GetTimestamp().Before(b.GetTimestamp())
}

// While one pod is asked about, others come, the last one first: they are asked about in the order that the plugin has them in, though it runs in the process of another profile.
func TestACompiledInPluginSortsTheQueue(t *testing.T) {
	w := startWholeOf(t, wholeSorted, "--plugin-timeout", "1m")
	file := filepath.Join(t.TempDir(), "goes-on")
	w.create("first", "trouble", map[string]string{"trouble": "wait", "for": file})
	w.awaitLog("trouble waits", 0)
	for i := range 5 {
		w.create(fmt.Sprint("turn-", i), "trouble", map[string]string{"turn": fmt.Sprint(9 - i)})
	}
	w.awaitInFlight(6)
	w.create("beside", "", nil) // when it has been placed, so has been done what comes of the others at first
	w.awaitOn("beside", "")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		w.awaitOn(fmt.Sprint("turn-", i), "")
	}
	log, err := os.ReadFile(w.log)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for i := 4; i >= 0; i-- {
		at := strings.Index(string(log), fmt.Sprint("trouble looks at turn-", i))
		if at < last {
			t.Errorf("turn-%d is not asked about in its turn", i)
		}
		last = at
	}
}

// awaitInFlight waits until so many pods are in flight.
func (w *whole) awaitInFlight(pods int32) {
	w.t.Helper()
	var client schedulingv1.SchedulingServiceClient
	w.eventually("pods are in flight", func() (bool, string) {
		if client == nil {
			log, err := os.ReadFile(w.log)
			if err != nil {
				w.t.Fatal(err)
			}
			_, behind, _ := strings.Cut(string(log), `msg="public API" grpc=`)
			address, _, ok := strings.Cut(behind, " ")
			if !ok {
				return false, "it does not say where it serves"
			}
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { _ = conn.Close() })
			client = schedulingv1.NewSchedulingServiceClient(conn)
		}
		queue, err := client.GetQueue(w.t.Context(), &schedulingv1.GetQueueRequest{})
		if err != nil {
			return false, err.Error()
		}
		n := int32(0)
		for _, s := range queue.GetShards() {
			n += s.GetDepth().GetInFlight()
		}
		return n == pods && len(queue.GetShards()) == 1, queue.String()
	})
}
