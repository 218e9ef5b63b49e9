package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// testCluster is a control plane behind the contract.
type testCluster struct {
	plane  *kubetest.ControlPlane
	client kubernetes.Interface
}

func startCluster(t testing.TB) *testCluster {
	plane := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	return &testCluster{plane: plane, client: plane.Client()}
}

func (c *testCluster) config() Config {
	return Config{Kubeconfig: c.plane.Kubeconfig(), SchedulerNames: []string{sourcetest.Scheduler}, Instance: "test-host"}
}

func newSource(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *testCluster) Source(t testing.TB) source.Source { return newSource(t, c.config()) }
func (c *testCluster) Fence(testing.TB) coord.Cond       { return coord.Cond{} }

func (c *testCluster) SetNode(t testing.TB, node *v1.Node) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(within(t), node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			old, err := nodes.Get(within(t), node.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			update := node.DeepCopy()
			update.ResourceVersion, update.UID = old.ResourceVersion, old.UID
			if update, err = nodes.Update(within(t), update, metav1.UpdateOptions{}); err != nil {
				return err
			}
			update.Status = node.Status
			_, err = nodes.UpdateStatus(within(t), update, metav1.UpdateOptions{})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) DeleteNode(t testing.TB, name string) {
	t.Helper()
	if err := c.client.CoreV1().Nodes().Delete(within(t), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetPod(t testing.TB, pod *v1.Pod) string {
	t.Helper()
	c.setPriorityClass(t, &pod.Spec)
	pods := c.client.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(within(t), pod, metav1.CreateOptions{})
	for ctx := within(t); pod.Spec.PriorityClassName != "" && apierrors.IsForbidden(err) && ctx.Err() == nil; { // the API server has not seen the class yet
		created, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	}
	if start := pod.Status.StartTime; err == nil && start != nil {
		created.Status.StartTime = start
		created, err = pods.UpdateStatus(within(t), created, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			created, err = pods.Get(within(t), pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			created.Labels, created.Spec.SchedulingGates = pod.Labels, pod.Spec.SchedulingGates
			created, err = pods.Update(within(t), created, metav1.UpdateOptions{})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(created.UID)
}

// setPriorityClass makes the priority class of a pod.
func (c *testCluster) setPriorityClass(t testing.TB, spec *v1.PodSpec) {
	t.Helper()
	if spec.PriorityClassName == "" {
		return
	}
	class := &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: spec.PriorityClassName}, Value: *spec.Priority, PreemptionPolicy: spec.PreemptionPolicy,
	}
	_, err := c.client.SchedulingV1().PriorityClasses().Create(within(t), class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func (c *testCluster) DeletePod(t testing.TB, namespace, name string) {
	t.Helper()
	if err := c.client.CoreV1().Pods(namespace).Delete(within(t), name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) EndPod(t testing.TB, namespace, name string) {
	t.Helper()
	_, err := c.client.CoreV1().Pods(namespace).Patch(within(t), name, types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetNamespace(t testing.TB, namespace *v1.Namespace) {
	t.Helper()
	if _, err := c.client.CoreV1().Namespaces().Create(within(t), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) Nominate(t testing.TB, namespace, name, node string) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"nominatedNodeName":%q}}`, node)
	_, err := c.client.CoreV1().Pods(namespace).Patch(within(t), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetSelector(t testing.TB, kind, namespace, name string, labels map[string]string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "example.com/app:1"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	core, apps := c.client.CoreV1(), c.client.AppsV1()
	var err error
	switch kind {
	case cluster.KindService:
		service := &v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{Selector: labels, Ports: []v1.ServicePort{{Port: 80}}}}
		if _, err = core.Services(namespace).Create(within(t), service, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = core.Services(namespace).Patch(within(t), name, types.JSONPatchType, replaceSelector(t, labels), metav1.PatchOptions{})
		}
	case cluster.KindReplicationController:
		controller := &v1.ReplicationController{ObjectMeta: meta, Spec: v1.ReplicationControllerSpec{Selector: labels, Template: &template}}
		controllers := core.ReplicationControllers(namespace)
		if _, err = controllers.Create(within(t), controller, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			var old *v1.ReplicationController
			if old, err = controllers.Get(within(t), name, metav1.GetOptions{}); err == nil {
				old.Spec.Selector, old.Spec.Template = labels, &template
				_, err = controllers.Update(within(t), old, metav1.UpdateOptions{})
			}
		}
	case cluster.KindReplicaSet:
		set := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
		_, err = apps.ReplicaSets(namespace).Create(within(t), set, metav1.CreateOptions{})
	case cluster.KindStatefulSet:
		set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}}
		_, err = apps.StatefulSets(namespace).Create(within(t), set, metav1.CreateOptions{})
	default:
		t.Fatalf("set selector of a %s", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replaceSelector returns the JSON patch that makes labels the selector of a service, which may have none.
func replaceSelector(t testing.TB, labels map[string]string) []byte {
	t.Helper()
	if labels == nil {
		labels = map[string]string{}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/selector", "value": labels}})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

func (c *testCluster) DeleteSelector(t testing.TB, kind, namespace, name string) {
	t.Helper()
	core, apps := c.client.CoreV1(), c.client.AppsV1()
	background := metav1.DeletePropagationBackground // nobody here would take the pods of a replication controller off it
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	var err error
	switch kind {
	case cluster.KindService:
		err = core.Services(namespace).Delete(within(t), name, options)
	case cluster.KindReplicationController:
		err = core.ReplicationControllers(namespace).Delete(within(t), name, options)
	case cluster.KindReplicaSet:
		err = apps.ReplicaSets(namespace).Delete(within(t), name, options)
	case cluster.KindStatefulSet:
		err = apps.StatefulSets(namespace).Delete(within(t), name, options)
	default:
		t.Fatalf("delete selector of a %s", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetBudget(t testing.TB, budget *policyv1.PodDisruptionBudget) {
	t.Helper()
	budgets := c.client.PolicyV1().PodDisruptionBudgets(budget.Namespace)
	set, err := budgets.Create(within(t), budget, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if set, err = budgets.Get(within(t), budget.Name, metav1.GetOptions{}); err == nil {
			set.Spec = budget.Spec
			set, err = budgets.Update(within(t), set, metav1.UpdateOptions{})
		}
	}
	if err == nil {
		set.Status = budget.Status
		_, err = budgets.UpdateStatus(within(t), set, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) DeleteBudget(t testing.TB, namespace, name string) {
	t.Helper()
	if err := c.client.PolicyV1().PodDisruptionBudgets(namespace).Delete(within(t), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetObject(t testing.TB, object metav1.Object) {
	t.Helper()
	core, storage := c.client.CoreV1(), c.client.StorageV1()
	switch o := object.(type) {
	case *v1.PersistentVolume:
		set(t, core.PersistentVolumes(), o, core.PersistentVolumes().UpdateStatus)
	case *v1.PersistentVolumeClaim:
		set(t, core.PersistentVolumeClaims(o.Namespace), o, core.PersistentVolumeClaims(o.Namespace).UpdateStatus)
	case *storagev1.StorageClass:
		set(t, storage.StorageClasses(), o, nil)
	case *storagev1.CSINode:
		set(t, storage.CSINodes(), o, nil)
	case *storagev1.CSIDriver:
		set(t, storage.CSIDrivers(), o, nil)
	case *storagev1.CSIStorageCapacity:
		set(t, storage.CSIStorageCapacities(o.Namespace), o, nil)
	case *storagev1.VolumeAttachment:
		set(t, storage.VolumeAttachments(), o, nil)
	case *schedulingv1alpha2.PodGroup:
		set(t, c.client.SchedulingV1alpha2().PodGroups(o.Namespace), o, nil)
	default:
		t.Fatalf("set a %T", object)
	}
}

// set creates or updates an object, and then its status, unless status is nil.
func set[O metav1.Object](t testing.TB, objects interface {
	Create(context.Context, O, metav1.CreateOptions) (O, error)
	Get(context.Context, string, metav1.GetOptions) (O, error)
	Update(context.Context, O, metav1.UpdateOptions) (O, error)
}, o O, status func(context.Context, O, metav1.UpdateOptions) (O, error)) {
	t.Helper()
	is, err := objects.Create(within(t), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if is, err = objects.Get(within(t), o.GetName(), metav1.GetOptions{}); err == nil {
			o.SetResourceVersion(is.GetResourceVersion())
			is, err = objects.Update(within(t), o, metav1.UpdateOptions{})
		}
	}
	if err == nil && status != nil {
		o.SetResourceVersion(is.GetResourceVersion())
		_, err = status(within(t), o, metav1.UpdateOptions{})
	}
	o.SetResourceVersion("")
	if err != nil {
		t.Fatal(err)
	}
}

// DeleteObject deletes an object that something protects from being deleted while it is in use.
func (c *testCluster) DeleteObject(t testing.TB, kind, namespace, name string) {
	t.Helper()
	core, storage := c.client.CoreV1(), c.client.StorageV1()
	unprotected := []byte(`{"metadata":{"finalizers":null}}`)
	var err error
	switch kind {
	case "PersistentVolume":
		if _, err = core.PersistentVolumes().Patch(within(t), name, types.MergePatchType, unprotected, metav1.PatchOptions{}); err == nil {
			err = core.PersistentVolumes().Delete(within(t), name, metav1.DeleteOptions{})
		}
	case "PersistentVolumeClaim":
		claims := core.PersistentVolumeClaims(namespace)
		if _, err = claims.Patch(within(t), name, types.MergePatchType, unprotected, metav1.PatchOptions{}); err == nil {
			err = claims.Delete(within(t), name, metav1.DeleteOptions{})
		}
	case "StorageClass":
		err = storage.StorageClasses().Delete(within(t), name, metav1.DeleteOptions{})
	case "CSINode":
		err = storage.CSINodes().Delete(within(t), name, metav1.DeleteOptions{})
	case "CSIDriver":
		err = storage.CSIDrivers().Delete(within(t), name, metav1.DeleteOptions{})
	case "CSIStorageCapacity":
		err = storage.CSIStorageCapacities(namespace).Delete(within(t), name, metav1.DeleteOptions{})
	case "VolumeAttachment":
		err = storage.VolumeAttachments().Delete(within(t), name, metav1.DeleteOptions{})
	case "PodGroup":
		groups := c.client.SchedulingV1alpha2().PodGroups(namespace)
		if _, err = groups.Patch(within(t), name, types.MergePatchType, unprotected, metav1.PatchOptions{}); err == nil {
			err = groups.Delete(within(t), name, metav1.DeleteOptions{})
		}
	default:
		t.Fatalf("delete a %s", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Reported counts the pod's events and the versions of the pod itself, which is written to for its condition.
func (c *testCluster) Reported(t testing.TB, namespace, name, uid string) (int64, string) {
	t.Helper()
	pod := c.pod(t, namespace, name)
	var version int64
	if _, err := fmt.Sscan(pod.ResourceVersion, &version); err != nil {
		t.Fatal(err)
	}
	writes := version
	for _, e := range c.events(t, uid) {
		if _, err := fmt.Sscan(e.ResourceVersion, &version); err != nil {
			t.Fatal(err)
		}
		writes = max(writes, version)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse && condition.Reason == v1.PodReasonUnschedulable {
			return writes, condition.Message
		}
	}
	return writes, ""
}

func (c *testCluster) pod(t testing.TB, namespace, name string) *v1.Pod {
	t.Helper()
	pod, err := c.client.CoreV1().Pods(namespace).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// events returns the events about a pod.
func (c *testCluster) events(t testing.TB, uid string) []eventsv1.Event {
	t.Helper()
	list, err := c.client.EventsV1().Events("").List(within(t), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []eventsv1.Event
	for _, e := range list.Items {
		if string(e.Regarding.UID) == uid {
			out = append(out, e)
		}
	}
	return out
}
