package deploy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// limitedClasses has an API server take pods of the system's classes only where there is a quota for them, as GKE's does.
const limitedClasses = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - scopeName: PriorityClass
              operator: In
              values: [system-node-critical, system-cluster-critical]
`

// What a cluster has of the chart's defaults becomes what all values say, as with helm upgrade: nothing that cannot be changed is changed. And the
// pods are such as the API server takes, of a class of the system's too, with the quota and not without.
func TestAnAPIServerTakesTheChartWithAllItsValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(limitedClasses), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, kubetest.Options{APIServerFlags: []string{"--admission-control-config-file=" + file}})
	c.apply(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}},
	}})
	plain, err := helm(nil)
	if err != nil {
		t.Fatal(err)
	}
	// What storage an etcd has cannot be changed.
	all := values(t, fullValues)
	delete(all["etcd"].(map[string]any), "storageClassName")
	all["yoda"] = map[string]any{"enabled": true}
	all["config"].(map[string]any)["profiles"] = []any{map[string]any{"schedulerName": "berth", "plugins": map[string]any{"score": map[string]any{"enabled": []any{map[string]any{"name": "Yoda"}}}}}}
	full, err := helmAll(2, all)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, plain...)
	if got := c.makesPods(t, plain); got != 7 {
		t.Errorf("there are %d workloads of the defaults, want 7", got)
	}
	queue := corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "queue-"}, Spec: deploymentOf(t, full.objects, "queue").Spec.Template.Spec}
	create := func(ctx context.Context) error {
		_, err := c.Client().CoreV1().Pods(namespace).Create(ctx, queue.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create(within(t)); err == nil || !strings.Contains(err.Error(), "insufficient quota") {
		t.Errorf("without a quota, a pod of %s: %v, want it refused", queue.Spec.PriorityClassName, err)
	}
	c.apply(t, full.objects...)
	quota, err := c.Client().CoreV1().ResourceQuotas(namespace).Get(within(t), "berth", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// What the controller of quotas writes.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if _, err := c.Client().CoreV1().ResourceQuotas(namespace).UpdateStatus(within(t), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "a pod within the quota to be taken", create)
	c.apply(t, full.hooks...)
	if got := c.makesPods(t, full.objects); got != 8 {
		t.Errorf("there are %d workloads of all values, want 8", got)
	}
}
