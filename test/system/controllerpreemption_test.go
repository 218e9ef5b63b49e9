//go:build volumes

package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kubeschedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// TestPreemptorsGetThePlacesOfVolumesThatTheControllerDetaches: nodes are full of attached volumes of StatefulSets, half of them of ephemeral claims. The pods of
// another one are more important: each has one pod evicted, waits until the attach-detach controller has detached its volumes, and is placed.
func TestPreemptorsGetThePlacesOfVolumesThatTheControllerDetaches(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	client := cp.Client()
	const nodes, limit, important = 3, 4, 5
	createAttachable(ctx, t, cp, nodes, map[string]int32{provisioner: limit})
	createClass(ctx, t, cp, "late", provisioner, storagev1.VolumeBindingWaitForFirstConsumer, "")
	sets := make(map[string]*appsv1.StatefulSet)
	for k, name := range []string{"plain", "scratch", "high"} {
		class := &kubeschedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: int32(100 * k)}
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		sets[name] = statefulSet(name, "late")
		if name == "scratch" {
			sets[name] = statefulSet(name, "late", ephemeral("scratch", "late"))
		}
		sets[name].Spec.Template.Spec.PriorityClassName = name
	}
	kubelet, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 100*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kubelet.Stop(); err != nil {
			t.Error(err)
		}
	}()
	startControllers(t, cp)
	playDriver(t, cp, provisioner, 1, 50*time.Millisecond)
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), PreemptionSeesVolumes: true, Shards: 2})
	create := func(name string, pods int32) {
		sets[name].Spec.Replicas = &pods
		if _, err := client.AppsV1().StatefulSets("default").Create(ctx, sets[name], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	// 1. All places are taken: by 6 pods with a volume each, and 3 with two.
	create("plain", nodes*limit/2)
	create("scratch", nodes*limit/4)
	awaitBound(t, cp, nodes*limit*3/4)
	checkSupply(t, cp, provisioner, limit)

	// 2. Of the pods that come then, each needs a place.
	create("high", important)
	berthtest.Await(t, berthtest.Patience, "the important pods to be bound", func(ctx context.Context) error {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "set=high"})
		if err != nil {
			return err
		}
		bound := 0
		for i := range list.Items {
			if list.Items[i].Spec.NodeName != "" {
				bound++
			}
		}
		if bound != important {
			return fmt.Errorf("%d are", bound)
		}
		return nil
	})
	checkSupply(t, cp, provisioner, limit)
	victims := kubelet.Evicted()
	for _, p := range victims {
		if *p.Spec.Priority >= 200 {
			t.Errorf("%s is evicted, which is as important", p.Name)
		}
	}
	if n := len(victims); n == 0 || n > important {
		t.Errorf("%d pods are evicted for %d, want one for each, at most: %v", n, important, podNames(victims))
	}
	t.Logf("%d pods are evicted for %d: %v", len(victims), important, podNames(victims))
}

func podNames(pods []*corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}
