package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// TestRoomIsReservedForAGangAcrossATakeover has a gang that wants both nodes, on which pods run that end by themselves. Its room is reserved, survives a Berth that ends, is not given to a small pod when one of those has ended, and is given back when the gang loses its PodGroup.
func TestRoomIsReservedForAGangAcrossATakeover(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	if err := cp.CreateNodes(ctx, 2, kubetest.PlainNode); err != nil { // of 4 CPUs each
		t.Fatal(err)
	}
	pods := cp.Client().CoreV1().Pods("default")
	create := func(name string) {
		t.Helper()
		pod := kubetest.PlainPod(0)
		pod.Name, pod.Labels, pod.Spec.RestartPolicy = name, map[string]string{"group": name}, corev1.RestartPolicyNever
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(name string) {
		t.Helper()
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	nominated := func(group string) (nodes []string, err error) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "group=" + group})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if n := list.Items[i].Status.NominatedNodeName; n != "" && list.Items[i].Spec.NodeName == "" {
				nodes = append(nodes, n)
			}
		}
		slices.Sort(nodes)
		return nodes, nil
	}
	awaitNominated := func(group string, want int) {
		t.Helper()
		berthtest.Await(t, berthtest.Patience, fmt.Sprintf("%d pods of %s to be nominated", want, group), func(context.Context) error {
			nodes, err := nominated(group)
			if err == nil && (len(nodes) != want || len(slices.Compact(nodes)) != want) {
				err = fmt.Errorf("they are to %v", nodes)
			}
			return err
		})
	}
	options := berthtest.Options{Kubeconfig: cp.Kubeconfig(), ReserveForGroups: time.Second}
	b := berthtest.Start(t, options)

	// 1. Room is reserved, and it is said where.
	create("run-0")
	awaitGang(ctx, t, cp, "run-0", 1)
	create("run-1")
	awaitGang(ctx, t, cp, "run-1", 1)
	gang(ctx, t, cp, "g", 2, "")
	members(ctx, t, cp, "g", "", 0, 2, "3")
	awaitNominated("g", 2)
	x, err := b.ExplainPod(b.Context(), &schedulingv1.ExplainPodRequest{Namespace: "default", Name: "g-0"})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(x.GetNotes(), "; "); !strings.Contains(notes, "room is held for its PodGroup g on node-") || !strings.Contains(notes, "2 pods there are to end first") {
		t.Errorf("the notes are %q", notes)
	}

	// 2. The next Berth keeps it.
	b.Stop()
	berthtest.Start(t, options)
	ends("run-0")
	create("small")
	berthtest.Await(t, berthtest.Patience, "the small pod to fit nowhere though one node is empty", func(ctx context.Context) error {
		_, why := nodesOf(ctx, t, cp, "small")
		if !strings.Contains(why, "Insufficient cpu") {
			return fmt.Errorf("it says %q", why)
		}
		return nil
	})
	ends("run-1")
	awaitGang(ctx, t, cp, "g", 2)
	if nodes, _ := nodesOf(ctx, t, cp, "small"); len(nodes) > 0 {
		t.Errorf("the small pod is on %v", nodes)
	}

	// 3. The room of a gang that loses its PodGroup is the small pod's.
	ends("g-0")
	ends("g-1")
	awaitGang(ctx, t, cp, "small", 1)
	create("run-2")
	awaitGang(ctx, t, cp, "run-2", 1)
	gang(ctx, t, cp, "lost", 2, "")
	members(ctx, t, cp, "lost", "", 0, 2, "3")
	awaitNominated("lost", 2)
	if _, err := cp.Client().SchedulingV1alpha2().PodGroups("default").Patch(ctx, "lost", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil { // or it would not go before its pods
		t.Fatal(err)
	}
	if err := cp.Client().SchedulingV1alpha2().PodGroups("default").Delete(ctx, "lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitNominated("lost", 0)
	create("late")
	ends("run-2")
	awaitGang(ctx, t, cp, "late", 1)
}
