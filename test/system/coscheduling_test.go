package system

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/config"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// cosched are two profiles, of which one has Coscheduling as scheduler-plugins says to enable it, but that the other sorts the queue likewise, as kube-scheduler wants it.
const cosched = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
- schedulerName: cosched
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
  pluginConfig:
  - name: Coscheduling
    args: {permitWaitingTimeSeconds: 10}
`

// labelled creates pods of one CPU whose label names a group of Coscheduling, and that are found by their name's beginning.
func labelled(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name, scheduler, group string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		pod := kubetest.PlainPod(0)
		pod.Name, pod.Labels = fmt.Sprintf("%s-%d", name, i), map[string]string{"group": name, "scheduling.x-k8s.io/pod-group": group}
		pod.Spec.SchedulerName = scheduler
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
		if _, err := cp.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitWhy waits until pods of that label wait, none of them on a node, and say why.
func awaitWhy(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name, want string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, "why pods of "+name+" wait", func(context.Context) error {
		nodes, why := nodesOf(ctx, t, cp, name)
		if sum(nodes) > 0 {
			t.Fatalf("pods of %s are on %v, want none", name, nodes)
		}
		if !strings.Contains(why, want) {
			return fmt.Errorf("it says %q, want %q", why, want)
		}
		return nil
	})
}

// awaitGated waits until the first two pods of that label are gated, and say why: nobody tries them, so the API server is told nothing.
func awaitGated(ctx context.Context, t *testing.T, b *berthtest.Berth, cp *kubetest.ControlPlane, name, want string) {
	t.Helper()
	for i := range 2 {
		pod := fmt.Sprintf("%s-%d", name, i)
		berthtest.Await(t, berthtest.Patience, pod+" to be gated", func(ctx context.Context) error {
			is, err := b.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: "default", Name: pod})
			if err == nil && (is.GetPod().GetState() != schedulingv1.PodState_POD_STATE_GATED || is.GetPod().GetMessage() != want) {
				err = fmt.Errorf("it is %v, and says %q, want %q", is.GetPod().GetState(), is.GetPod().GetMessage(), want)
			}
			return err
		})
	}
	if nodes, why := nodesOf(ctx, t, cp, name); sum(nodes) > 0 || why != "" {
		t.Fatalf("pods of %s are on %v, and others say %q, want none", name, nodes, why)
	}
}

// TestGangsOfCoschedulingAreBoundTogetherOrNotAtAll has PodGroups of Coscheduling on a real API server, with their CustomResourceDefinition.
func TestGangsOfCoschedulingAreBoundTogetherOrNotAtAll(t *testing.T) {
	cfg, err := config.Decode([]byte(cosched))
	if err != nil {
		t.Fatal(err)
	}
	completed, err := config.Complete(cfg, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := cp.ServeCoscheduling(ctx); err != nil {
		t.Fatal(err)
	}
	group := func(name string, minMember int) {
		t.Helper()
		if err := cp.CreateCoschedulingGroup(ctx, "default", name, minMember); err != nil {
			t.Fatal(err)
		}
	}
	if err := cp.CreateNodes(ctx, 4, kubetest.PlainNode); err != nil { // of 4 CPUs each
		t.Fatal(err)
	}
	b := berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2, Profiles: completed.Profiles, Coscheduling: completed.Coscheduling})

	// 1. Two of three wait, and say for what; with the third, all are placed.
	labelled(ctx, t, cp, "train", "cosched", "train", 0, 2)
	awaitGated(ctx, t, b, cp, "train", "PodGroup not found: podgroup.scheduling.x-k8s.io/train")
	group("train", 3)
	awaitGated(ctx, t, b, cp, "train", "cannot find enough sibling pods, minMember of group: 3")
	// A profile without the plugin knows nothing of the label, whether there is such a group or not.
	labelled(ctx, t, cp, "plain", "default-scheduler", "train", 0, 1)
	labelled(ctx, t, cp, "groupless", "default-scheduler", "none", 0, 1)
	awaitGang(ctx, t, cp, "plain", 1)
	awaitGang(ctx, t, cp, "groupless", 1)
	awaitGated(ctx, t, b, cp, "train", "cannot find enough sibling pods, minMember of group: 3")
	labelled(ctx, t, cp, "train", "cosched", "train", 2, 3)
	awaitGang(ctx, t, cp, "train", 3)

	// 2. A native group and one of Coscheduling have the same name, and pods of their own. The native one wants four.
	gang(ctx, t, cp, "same", 4, "")
	group("same", 2)
	labelled(ctx, t, cp, "theirs", "cosched", "same", 0, 2)
	awaitGang(ctx, t, cp, "theirs", 2)
	native := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ { // the label says otherwise, and does not count
			pod := kubetest.PlainPod(0)
			pod.Name, pod.Labels = fmt.Sprintf("native-%d", i), map[string]string{"group": "native", "scheduling.x-k8s.io/pod-group": "train"}
			pod.Spec.SchedulerName, pod.Spec.SchedulingGroup = "cosched", &corev1.PodSchedulingGroup{PodGroupName: new("same")}
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
			if _, err := cp.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	native(0, 3)
	awaitGated(ctx, t, b, cp, "native", "waiting for minCount pods from a gang to appear in scheduling queue")
	native(3, 4)
	awaitGang(ctx, t, cp, "native", 4)
	awaitDecided(t, cp, "same", metav1.ConditionTrue, "Scheduled", "")

	// 3. There is room for 5 more of 16 CPUs: a gang of 6 holds none of it.
	group("large", 6)
	labelled(ctx, t, cp, "large", "cosched", "large", 0, 6)
	awaitWhy(ctx, t, cp, "large", "pod group is unschedulable: 5 of at least 6 pods fit")
	group("small", 2)
	labelled(ctx, t, cp, "small", "cosched", "small", 0, 2)
	awaitGang(ctx, t, cp, "small", 2)
	if err := cp.CreateNodes(ctx, 1, func(int) *corev1.Node { return kubetest.PlainNode(100) }); err != nil {
		t.Fatal(err)
	}
	awaitGang(ctx, t, cp, "large", 6)
	checkCluster(t, cp)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
	// What its controller writes, nobody has written.
	text, err := cp.Client().RESTClient().Get().AbsPath("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/train").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var is struct{ Status json.RawMessage }
	if err := json.Unmarshal(text, &is); err != nil || len(is.Status) > 0 {
		t.Errorf("the status of a PodGroup of Coscheduling is %s (%v), want none", is.Status, err)
	}
}
