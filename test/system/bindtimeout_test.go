package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// Nothing provisions: the pod of the profile that waits for a second is given back, the other one waits on.
func TestAPodWaitsForItsClaimsAsLongAsItsProfileSays(t *testing.T) {
	cfg, err := config.Decode([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: patient
- schedulerName: hasty
  pluginConfig:
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	completed, err := config.Complete(cfg, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	client := cp.Client()
	if err := cp.CreateNodes(ctx, 1, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	late, class := storagev1.VolumeBindingWaitForFirstConsumer, "made"
	if _, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner, VolumeBindingMode: &late}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Profiles: completed.Profiles, BindTimeouts: completed.BindTimeouts})
	// start makes the pod of a profile, and returns when its claim has got its node.
	start := func(name string) {
		t.Helper()
		if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := cp.CreatePods(ctx, 1, func(i int) *corev1.Pod {
			p := kubetest.PlainPod(i)
			p.Name, p.GenerateName, p.Spec.SchedulerName = name, "", name
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
			return p
		}); err != nil {
			t.Fatal(err)
		}
		berthtest.Await(t, berthtest.Patience, "a node for the claim of "+name, func(ctx context.Context) error {
			c, err := client.CoreV1().PersistentVolumeClaims("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil || c.Annotations[volume.AnnSelectedNode] != "" {
				return err
			}
			return fmt.Errorf("annotations %v", c.Annotations)
		})
	}
	// condition returns what is told of a pod that is not placed, "" as long as nothing is.
	condition := func(ctx context.Context, name string) (string, error) {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				return c.Message, nil
			}
		}
		return "", nil
	}
	start("patient")
	start("hasty")
	const want = `running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded`
	berthtest.Await(t, berthtest.Patience, "the pod to be given back", func(ctx context.Context) error {
		got, err := condition(ctx, "hasty")
		if err != nil || got == want {
			return err
		}
		return fmt.Errorf("it says %q, want %q", got, want)
	})
	// It is later than its claim was written, by more than the other one's second.
	got, err := condition(ctx, "patient")
	if pod := b.Pods()["default/patient"]; err != nil || got != "" || pod.GetMessage() != "" {
		t.Errorf("of the other is told %q, and %v, %v; want that it waits", got, pod, err)
	}
}
