package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

const gpu = "example.com/gpu"

// gpus is an extender that counts the GPUs of nodes by an annotation, as a scheduler would by itself: it refuses nodes that have too few left, prefers those that have
// the fewest left, and binds. It knows what it has bound.
type gpus struct {
	client kubernetes.Interface

	mu     sync.Mutex
	used   map[string]int // by node
	errors []string
	bound  map[string]string // by pod
}

func (g *gpus) fail(format string, args ...any) {
	g.errors = append(g.errors, fmt.Sprintf(format, args...))
}

func (g *gpus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var answer any
	if strings.HasSuffix(r.URL.Path, "/bind") {
		var args extenderv1.ExtenderBindingArgs
		if err := json.Unmarshal(body, &args); err != nil {
			g.fail("bind: %v", err)
		}
		err := g.client.CoreV1().Pods(args.PodNamespace).Bind(r.Context(), &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: args.Node},
		}, metav1.CreateOptions{})
		var out extenderv1.ExtenderBindingResult
		if err != nil {
			out.Error = err.Error()
		} else {
			g.bound[args.PodName] = args.Node
			g.used[args.Node]++
		}
		answer = out
	} else {
		var args extenderv1.ExtenderArgs
		if err := json.Unmarshal(body, &args); err != nil {
			g.fail("%s: %v", r.URL.Path, err)
		}
		// kube-scheduler sends nodes in full, and neither kinds nor managedFields of pods.
		if bytes.Contains(body, []byte(`"kind"`)) || args.Pod.ManagedFields != nil || args.NodeNames != nil || args.Pod.UID == "" {
			g.fail("%s of %s: %.300s", r.URL.Path, args.Pod.Name, body)
		}
		out, scores := extenderv1.ExtenderFilterResult{Nodes: new(corev1.NodeList), FailedNodes: extenderv1.FailedNodesMap{}}, extenderv1.HostPriorityList{}
		for _, n := range args.Nodes.Items {
			if n.ResourceVersion == "" || len(n.ManagedFields) == 0 {
				g.fail("node %s is not in full", n.Name)
			}
			var has int
			_, _ = fmt.Sscan(n.Annotations["gpus"], &has)
			left := has - g.used[n.Name]
			if left < 1 {
				out.FailedNodes[n.Name] = "no gpu left"
				continue
			}
			out.Nodes.Items = append(out.Nodes.Items, n)
			scores = append(scores, extenderv1.HostPriority{Host: n.Name, Score: int64(10 - left)})
		}
		answer = out
		if strings.HasSuffix(r.URL.Path, "/prioritize") {
			answer = scores
		}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		g.fail("answer: %v", err)
	}
}

// An extender of an API server's pods, asked as kube-scheduler would: it fills the node with the fewest GPUs first, though Berth's own plugins would spread.
func TestAnExtenderDecidesWhereItsPodsGoAndBindsThem(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	g := &gpus{client: cp.Client(), used: make(map[string]int), bound: make(map[string]string)}
	server := httptest.NewServer(g)
	defer server.Close()
	cfg, err := config.Decode([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: ` + server.URL + `/gpus
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  weight: 5
  managedResources:
  - {name: ` + gpu + `, ignoredByScheduler: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	completed, err := config.Complete(cfg, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	counts := []string{"3", "2", "0", ""}
	if err := cp.CreateNodes(ctx, len(counts), func(i int) *corev1.Node {
		n := kubetest.PlainNode(i)
		n.Annotations = map[string]string{"gpus": counts[i]}
		return n
	}); err != nil {
		t.Fatal(err)
	}
	client := cp.Client()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byGPUs := make(map[string]string)
	for _, n := range nodes.Items {
		byGPUs[n.Annotations["gpus"]] = n.Name
	}
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Profiles: completed.Profiles, Extenders: completed.Config.Extenders, Shards: 2})
	const wants = 6
	create := func(name string, change func(*corev1.Pod)) {
		t.Helper()
		if err := cp.CreatePods(ctx, 1, func(i int) *corev1.Pod {
			p := kubetest.PlainPod(i)
			p.Name, p.GenerateName = name, ""
			change(p)
			return p
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		create(fmt.Sprintf("plain-%d", i), func(*corev1.Pod) {})
	}
	// on returns where pods are whose names begin so, and what is told of those that are nowhere.
	on := func(ctx context.Context, prefix string) (at map[string]int, told []string) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		at = make(map[string]int)
		for _, p := range pods.Items {
			switch {
			case !strings.HasPrefix(p.Name, prefix):
			case p.Spec.NodeName != "":
				at[p.Spec.NodeName]++
			default:
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.PodScheduled {
						told = append(told, c.Message)
					}
				}
			}
		}
		return at, told
	}
	// One after the other: the extender counts what it has bound, which is behind the next pod's turn, as in kube-scheduler.
	for i := range wants {
		create(fmt.Sprintf("gpu-%d", i), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
		})
		berthtest.Await(t, berthtest.Patience, "it to be bound, if there is a GPU", func(ctx context.Context) error {
			at, _ := on(ctx, "gpu-")
			bound := 0
			for _, n := range at {
				bound += n
			}
			if bound < min(i+1, 5) {
				return fmt.Errorf("they are on %v", at)
			}
			return nil
		})
	}
	const want = "0/4 nodes are available: 4 no gpu left. no new claims to deallocate, preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod."
	berthtest.Await(t, berthtest.Patience, "five pods to have a GPU, and one to be told why it has none", func(ctx context.Context) error {
		at, told := on(ctx, "gpu-")
		if at[byGPUs["3"]] == 3 && at[byGPUs["2"]] == 2 && slices.Equal(told, []string{want}) {
			return nil
		}
		return fmt.Errorf("they are on %v; told %q", at, told)
	})
	berthtest.Await(t, berthtest.Patience, "the other pods to be placed", func(ctx context.Context) error {
		if at, _ := on(ctx, "plain-"); at[byGPUs["3"]]+at[byGPUs["2"]]+at[byGPUs["0"]]+at[byGPUs[""]] != 4 {
			return fmt.Errorf("they are on %v", at)
		}
		return nil
	})
	// A node gets a GPU: only the extender knows what that means, and nobody else reads annotations.
	if _, err := client.CoreV1().Nodes().Patch(ctx, byGPUs["0"], "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"gpus":"1"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, berthtest.Patience, "the last pod to have a GPU", func(ctx context.Context) error {
		if at, told := on(ctx, "gpu-"); at[byGPUs["0"]] != 1 {
			return fmt.Errorf("they are on %v; told %q", at, told)
		}
		return nil
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errors) > 0 {
		t.Errorf("the extender says: %q", g.errors)
	}
	boundOn := make(map[string]int)
	for _, node := range g.bound {
		boundOn[node]++
	}
	if diff := cmp.Diff(map[string]int{byGPUs["3"]: 3, byGPUs["2"]: 2, byGPUs["0"]: 1}, boundOn); diff != "" {
		t.Errorf("what it has bound (-want +got):\n%s", diff)
	}
}
