package system

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// finding is what the doctor says of one thing.
type finding struct{ Check, Level, What, Fix string }

// diagnose asks the doctor, who ends with an error if something stands in the way.
func diagnose(t *testing.T, args ...string) (all []finding, code int, text string) {
	t.Helper()
	run := func(more ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), berthtest.Binary(t), append(append([]string{"doctor"}, args...), more...)...)
		var out, log strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &log
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); (code != 0) != strings.Contains(log.String(), "stand in the way") {
			t.Errorf("it ends with %d, and says %s", code, &log)
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	out, code := run("-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	text, _ = run()
	return all, code, text
}

// TestTheDoctorSaysWhatStandsInTheWay asks about a real cluster: with kube-scheduler's own user nothing does; with one that may do little, pods that Berth cannot judge, and no election, each is named with what to do.
func TestTheDoctorSaysWhatStandsInTheWay(t *testing.T) {
	k := newKubeadm(t)
	options := k.plane()
	options.APIServerFlags = append(options.APIServerFlags, "--enable-priority-and-fairness=true")
	cp := kubetest.StartT(t, options)
	k.kubeconfig(cp)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := cp.CreateNodes(ctx, 2, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	// has looks for a finding. A level of "" is any but fail: how fast something is says nothing of a machine that is busy.
	has := func(all []finding, level, check, what string) {
		t.Helper()
		for _, f := range all {
			if (f.Level == level || level == "" && f.Level != "fail") && f.Check == check && strings.Contains(f.What, what) {
				if level == "fail" && f.Fix == "" {
					t.Errorf("nothing says what to do about %q", f.What)
				}
				return
			}
		}
		t.Errorf("no %s of %s says %q: %+v", level, check, what, all)
	}

	// 1. kube-scheduler's own credentials, as kubeadm makes them.
	all, code, text := diagnose(t, "--kubeconfig", k.path("scheduler.conf"))
	t.Logf("\n%s", text)
	if code != 0 {
		t.Errorf("it ends with %d", code)
	}
	has(all, "ok", "configuration", "1 profiles")
	has(all, "ok", "versions", "Kubernetes 1.36")
	has(all, "ok", "rights", "all that Berth does")
	has(all, "ok", "pods", "Berth can judge all")
	has(all, "ok", "schedulers", "nobody has the Lease kube-system/kube-scheduler")
	has(all, "note", "priority and fairness", "which that is it may not see")
	has(all, "", "latency and clock", "answers in")
	has(all, "", "latency and clock", "this machine's clock")
	has(all, "note", "etcd", "403 Forbidden")

	// PodGroups of Coscheduling are none of its business, unless a profile has the plugin.
	if err := cp.ServeCoscheduling(ctx); err != nil {
		t.Fatal(err)
	}
	all, _, _ = diagnose(t, "--kubeconfig", k.path("scheduler.conf"))
	has(all, "ok", "rights", "all that Berth does")
	coscheduling := filepath.Join(t.TempDir(), "coscheduling.yaml")
	if err := os.WriteFile(coscheduling, []byte(cosched), 0o600); err != nil {
		t.Fatal(err)
	}
	all, _, _ = diagnose(t, "--kubeconfig", k.path("scheduler.conf"), "--config", coscheduling)
	has(all, "fail", "rights", "the user may not list, watch podgroups.scheduling.x-k8s.io, which Berth needs for pods of Coscheduling's PodGroups")
	has(all, "note", "configuration", "profiles[1].pluginConfig[0].args is ignored: nothing is held for a group that waits")

	// 2. An administrator sees more.
	all, _, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig())
	has(all, "", "etcd", "etcd takes up to")
	has(all, "ok", "etcd", "it holds")

	// 3. A user who may read pods alone, a configuration that is none, pods that Berth cannot judge or is not asked about, and a Lease that is held.
	_, err := cp.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Verbs: []string{"get", "list", "watch"}, Resources: []string{"pods"}},
		{APIGroups: []string{"resource.k8s.io"}, Verbs: []string{"list"}, Resources: []string{"deviceclasses"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cp.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "few"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "few"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "few"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	resourceName := "example.com/gpu"
	if _, err := cp.Client().ResourceV1().DeviceClasses().Create(ctx, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &resourceName}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cp.CreatePods(ctx, 3, func(i int) *corev1.Pod {
		pod := kubetest.PlainPod(i)
		switch i {
		case 0:
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		case 1:
			one := corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		case 2:
			pod.Spec.SchedulerName = "another"
		}
		return pod
	}); err != nil {
		t.Fatal(err)
	}
	few := with(t, cp.Kubeconfig(), "    token:", "    as: few\n    token:")
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: a}, {schedulerName: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, code, text = diagnose(t, "--kubeconfig", few, "--config", config)
	t.Logf("\n%s", text)
	if code != 1 {
		t.Errorf("it ends with %d, want 1", code)
	}
	has(all, "fail", "configuration", "profiles[1].schedulerName")
	has(all, "fail", "rights", "may not create pods/binding, which Berth needs for placing pods")
	has(all, "fail", "rights", "may not get, list, watch, patch persistentvolumes")
	has(all, "fail", "rights", "may not get, update the lease kube-system/kube-scheduler")
	has(all, "fail", "pods", "1 pods ask for what Berth does not judge")
	has(all, "fail", "pods", "1 pods ask for example.com/gpu, which the DeviceClass gpus stands for")
	has(all, "note", "pods", `1 pods wait for the scheduler "another"`)
	has(all, "note", "rights", "create subjectaccessreviews, create tokenreviews, get the configmap kube-system/extension-apiserver-authentication, list")
	has(all, "fail", "schedulers", "it could not be found out")

	scheduler, err := kubetest.StartProcess(theirs, filepath.Join(t.TempDir(), "log"), kubeScheduler(t), "--kubeconfig", cp.Kubeconfig(), "--secure-port=0")
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Stop()
	berthtest.Await(t, 3*time.Minute, "kube-scheduler to hold its Lease", func(ctx context.Context) error {
		_, err := cp.Client().CoordinationV1().Leases("kube-system").Get(ctx, theirs, metav1.GetOptions{})
		return err
	})
	all, _, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig())
	has(all, "note", "schedulers", "holds the Lease kube-system/kube-scheduler: Berth stands by")
	// A device plugin tells the resource: then pods go there.
	node, err := cp.Client().CoreV1().Nodes().Get(ctx, "node-00000", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable[corev1.ResourceName(resourceName)] = resource.MustParse("4")
	node.Status.Capacity[corev1.ResourceName(resourceName)] = resource.MustParse("4")
	if _, err := cp.Client().CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, _, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig())
	has(all, "note", "pods", "1 pods ask for example.com/gpu")
	// Nobody is there to ask.
	all, code, _ = diagnose(t, "--kubeconfig", with(t, cp.Kubeconfig(), cp.URL(), "https://127.0.0.1:1"), "--config", config)
	has(all, "fail", "configuration", "profiles[1].schedulerName")
	has(all, "fail", "cluster", "not all of it could be looked at")
	if code != 1 {
		t.Errorf("without an API server it ends with %d", code)
	}
	// What is Berth's own: an etcd that is there, and a folder that is not yet; an etcd that is not there, a file, and a folder in memory.
	etcd, err := kubetest.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Stop()
	const own = "Berth's etcd"
	dir := t.TempDir()
	all, _, text = diagnose(t, "--kubeconfig", cp.Kubeconfig(), "--etcd-endpoints", etcd.Endpoint(), "--data-dir", filepath.Join(dir, "not", "there"))
	t.Logf("\n%s", text)
	has(all, "", own, "a read that a majority agrees to takes")
	has(all, "ok", own, "its database has 0 MiB")
	has(all, "", own, dir+" has room for")
	has(all, "", own, "its disk has written 4 KiB after")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	etcd.Stop()
	all, code, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig(), "--etcd-endpoints", etcd.Endpoint(), "--data-dir", config)
	has(all, "fail", own, "connection refused")
	has(all, "fail", own, "is no folder")
	if code != 1 {
		t.Errorf("without Berth's etcd it ends with %d", code)
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		all, _, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig(), "--data-dir", "/dev/shm/berth-test")
		has(all, "fail", own, "/dev/shm is in memory")
	}
	all, code, _ = diagnose(t, "--kubeconfig", cp.Kubeconfig(), "--leader-elect=false")
	has(all, "fail", "schedulers", "leader election is off")
	if code != 1 {
		t.Errorf("without an election it ends with %d", code)
	}
}
