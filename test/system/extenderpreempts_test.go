package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// guardian has a say in who is evicted for pods with GPUs: nobody whose node is not named in leaves, by the preemptor's name.
type guardian struct {
	mu     sync.Mutex
	leaves map[string]string
	asked  map[string][]string // the nodes that it was told of first, by preemptor
	errors []string
}

func (g *guardian) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var args extenderv1.ExtenderPreemptionArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		g.errors = append(g.errors, err.Error())
		return
	}
	out := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: make(map[string]*extenderv1.MetaVictims)}
	var nodes []string
	for node, victims := range args.NodeNameToVictims {
		nodes = append(nodes, node)
		meta := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations}
		for _, p := range victims.Pods {
			meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			if p.Spec.NodeName != node || len(p.Spec.Containers) == 0 || p.ResourceVersion == "" || p.ManagedFields != nil || p.Kind != "" {
				g.errors = append(g.errors, fmt.Sprintf("victim %s is not as kube-scheduler sends it: %v", p.Name, p))
			}
		}
		if g.leaves[args.Pod.Name] == node {
			out.NodeNameToMetaVictims[node] = meta
		}
	}
	slices.Sort(nodes)
	if g.asked[args.Pod.Name] == nil {
		g.asked[args.Pod.Name] = nodes
	}
	_ = json.NewEncoder(w).Encode(out)
}

// An extender has a say in whom a pod of an API server preempts: it moves the choice to another node, and for another pod it leaves nobody.
func TestAnExtenderHasItsSayInWhoIsEvicted(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	g := &guardian{leaves: make(map[string]string), asked: make(map[string][]string)}
	server := httptest.NewServer(g)
	defer server.Close()
	cfg, err := config.Decode([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: ` + server.URL + `/guardian
  preemptVerb: preempt
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
	if err := cp.CreateNodes(ctx, 3, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	client := cp.Client()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]int32{"low": 1, "middle": 2, "above": 3, "high": 10}
	for name, value := range classes {
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name, class, node string, gpus bool) {
		t.Helper()
		if err := cp.CreatePods(ctx, 1, func(i int) *corev1.Pod {
			p := kubetest.PlainPod(i)
			p.Name, p.GenerateName, p.Spec.PriorityClassName, p.Spec.NodeName = name, "", class, node
			of := nodes.Items[0].Status.Allocatable.Cpu().DeepCopy()
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: of}
			p.Spec.Containers[0].Resources.Limits = nil
			if gpus {
				p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
			}
			no := int64(0)
			p.Spec.TerminationGracePeriodSeconds = &no
			return p
		}); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for i, class := range []string{"low", "middle", "above"} {
		create("runs-"+class, class, nodes.Items[i].Name, false)
		all = append(all, nodes.Items[i].Name)
	}
	slices.Sort(all)
	g.mu.Lock()
	g.leaves["moved"] = nodes.Items[2].Name // where the victim is that would be the last choice
	g.mu.Unlock()
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Profiles: completed.Profiles, Extenders: completed.Config.Extenders, Shards: 2})

	// 1. It leaves nobody: that is said, and nobody is evicted.
	create("refused", "high", "", true)
	const want = "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: no candidate node for preemption"
	berthtest.Await(t, berthtest.Patience, "the pod to be told that nobody goes for it", func(ctx context.Context) error {
		p, err := client.CoreV1().Pods("default").Get(ctx, "refused", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message == want {
				return nil
			}
		}
		return fmt.Errorf("it has %+v", p.Status)
	})
	// 2. It leaves the node that would be the last choice: who is there goes.
	create("moved", "high", "", true)
	berthtest.Await(t, berthtest.Patience, "the pod to be where the extender has left it", func(ctx context.Context) error {
		p, err := client.CoreV1().Pods("default").Get(ctx, "moved", metav1.GetOptions{})
		if err != nil || p.Spec.NodeName == nodes.Items[2].Name {
			return err
		}
		return fmt.Errorf("it is on %q, with %+v", p.Spec.NodeName, p.Status)
	})
	// 3. A pod without GPUs is none of its business.
	create("plain", "high", "", false)
	berthtest.Await(t, berthtest.Patience, "the other pod to be where nobody was protected", func(ctx context.Context) error {
		p, err := client.CoreV1().Pods("default").Get(ctx, "plain", metav1.GetOptions{})
		if err != nil || p.Spec.NodeName == nodes.Items[0].Name {
			return err
		}
		return fmt.Errorf("it is on %q, with %+v", p.Spec.NodeName, p.Status)
	})
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, p := range pods.Items {
		left = append(left, p.Name)
	}
	slices.Sort(left)
	if got := strings.Join(left, " "); got != "moved plain refused runs-middle" {
		t.Errorf("in the end there are %s", got)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errors) > 0 || !slices.Equal(g.asked["moved"], all) || !slices.Equal(g.asked["refused"], all) || g.asked["plain"] != nil {
		t.Errorf("the extender was asked about %v, want of two pods about %v; it says %q", g.asked, all, g.errors)
	}
}
