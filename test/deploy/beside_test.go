package deploy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// rendering renders the chart with values.
func rendering(t *testing.T, text string) rendered {
	t.Helper()
	r, err := helmAll(1, values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func policyOf(t *testing.T, objects []*unstructured.Unstructured, name string) networkingv1.NetworkPolicySpec {
	t.Helper()
	o := of(objects, "NetworkPolicy")[name]
	if o == nil {
		t.Fatalf("there is no NetworkPolicy %s", name)
	}
	var p networkingv1.NetworkPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &p, true); err != nil {
		t.Fatal(err)
	}
	return p.Spec
}

// portsOutside are the ports that a policy lets pods reach wherever they are.
func portsOutside(p networkingv1.NetworkPolicySpec) (ports []int) {
	for _, rule := range p.Egress {
		if len(rule.To) == 0 {
			for _, port := range rule.Ports {
				ports = append(ports, port.Port.IntValue())
			}
		}
	}
	return ports
}

func TestRolesReachAnEtcdThatIsNotTheReleases(t *testing.T) {
	for text, want := range map[string]struct{ inside, outside []int }{
		"{}": {nil, []int{443, 6443}},
		"etcd: {enabled: false, endpoints: ['https://a:2379', 'https://b:2379/']}":         {[]int{2379}, []int{2379, 443, 6443}},
		"etcd: {enabled: false, endpoints: ['https://a', 'https://[fd00::1]:12379']}":      {[]int{12379, 2379}, []int{12379, 2379, 443, 6443}},
		"etcd: {enabled: false, endpoints: ['http://[fd00::1]'], insecurePlaintext: true}": {[]int{2379}, []int{2379, 443, 6443}},
	} {
		objects := rendering(t, text).objects
		if diff := cmp.Diff(want.inside, portsOutside(policyOf(t, objects, "inside"))); diff != "" {
			t.Errorf("with %s, ports of queues and workers (-want +got):\n%s", text, diff)
		}
		if diff := cmp.Diff(want.outside, portsOutside(policyOf(t, objects, "outside"))); diff != "" {
			t.Errorf("with %s, ports of binders and gateways (-want +got):\n%s", text, diff)
		}
	}
}

// memoryOf returns what each container of all Deployments, StatefulSets and DaemonSets requests and is limited to.
func memoryOf(t *testing.T, objects []*unstructured.Unstructured) map[string][2]string {
	t.Helper()
	all := make(map[string][2]string)
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		for _, o := range of(objects, kind) {
			content, _, err := unstructured.NestedMap(o.Object, "spec", "template")
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.PodTemplateSpec
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, &pod, true); err != nil {
				t.Fatal(err)
			}
			for _, c := range pod.Spec.Containers {
				limit := "none"
				if q, limited := c.Resources.Limits[corev1.ResourceMemory]; limited {
					limit = q.String()
				}
				all[c.Name] = [2]string{c.Resources.Requests.Memory().String(), limit}
			}
		}
	}
	return all
}

// An upgrade of who has raised a request, and not the limit that came later, must not be refused in its midst.
func TestWhoRequestsMoreMemoryThanTheDefaultLimitHasNone(t *testing.T) {
	plain := map[string][2]string{
		"binder": {"1Gi", "2Gi"}, "queue": {"512Mi", "1Gi"}, "filter-worker": {"512Mi", "1Gi"}, "score-worker": {"512Mi", "1Gi"}, "gateway": {"1Gi", "1Gi"},
		"etcd": {"256Mi", "none"}, "yoda": {"512Mi", "2Gi"}, "scv": {"64Mi", "128Mi"},
	}
	if diff := cmp.Diff(plain, memoryOf(t, rendering(t, "yoda: {enabled: true}").objects)); diff != "" {
		t.Errorf("by default (-want +got):\n%s", diff)
	}
	raised := rendering(t, `
binder: {resources: {requests: {memory: 4Gi}}}
queue: {resources: {requests: {memory: 1500M}}}
filterWorker: {resources: {requests: {memory: 4294967296}}}
scoreWorker: {resources: {requests: {memory: 1.5Gi, cpu: 0.5}}}
gateway: {resources: {requests: {memory: 8Gi}, limits: {memory: 10Gi}}}
etcd: {resources: {requests: {memory: 1e9}}}
yoda: {enabled: true, resources: {requests: {memory: 3Gi}}, collector: {resources: {requests: {memory: 256Mi}}}}`).objects
	want := map[string][2]string{
		"binder": {"4Gi", "none"}, "queue": {"1500M", "none"}, "filter-worker": {}, "score-worker": {"1536Mi", "none"}, "gateway": {"8Gi", "10Gi"},
		"etcd": {}, "yoda": {"3Gi", "none"}, "scv": {"256Mi", "none"},
	}
	got := memoryOf(t, raised)
	want["filter-worker"] = [2]string{got["filter-worker"][0], "none"} // written as it comes
	want["etcd"] = [2]string{got["etcd"][0], "none"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with more requested (-want +got):\n%s", diff)
	}
}

// What a binder runs has memory of its own, and a directory for its socket.
func TestABinderHasRoomForWhatItRuns(t *testing.T) {
	const services = "pluginServices: [{name: a, run: {command: [/a]}, plugins: [{name: A, points: [score]}]}, {name: b, run: {command: [/b], memory: 512Mi}, plugins: [{name: B, points: [score]}]}]"
	environment := func(d appsv1.Deployment) (got []string) {
		for _, e := range d.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "GOMEMLIMIT" {
				got = append(got, e.Value)
			}
		}
		return got
	}
	tmp := func(d appsv1.Deployment) (got []string) {
		for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
			if m.MountPath == "/tmp" {
				got = append(got, m.Name)
			}
		}
		return got
	}
	for _, c := range []struct {
		name, more string
		limit      string
		env, tmp   []string
	}{
		{"two processes", "", "4608Mi", []string{"1932735283"}, []string{"run-services"}},
		{"a limit of the user's", "binder: {resources: {limits: {memory: 8Gi}}}", "8Gi", nil, []string{"run-services"}},
		{"a GOMEMLIMIT of the user's", "env: [{name: GOMEMLIMIT, value: 1GiB}]", "4608Mi", []string{"1GiB"}, []string{"run-services"}},
		{"a volume of the user's", "binder: {extraVolumes: [{name: t, emptyDir: {}}], extraVolumeMounts: [{name: t, mountPath: /tmp}]}", "4608Mi", []string{"1932735283"}, []string{"t"}},
	} {
		objects := rendering(t, services+"\n"+c.more).objects
		d := deploymentOf(t, objects, "binder")
		if got := memoryOf(t, objects)["binder"][1]; got != c.limit {
			t.Errorf("%s: the limit is %s, want %s", c.name, got, c.limit)
		}
		if diff := cmp.Diff([][]string{c.env, c.tmp}, [][]string{environment(d), tmp(d)}); diff != "" {
			t.Errorf("%s: GOMEMLIMIT and what is at /tmp (-want +got):\n%s", c.name, diff)
		}
	}
	if d := deploymentOf(t, rendering(t, "{}").objects, "binder"); len(tmp(d)) != 0 || len(environment(d)) != 0 {
		t.Errorf("a binder that runs nothing has %v at /tmp and GOMEMLIMIT %v", tmp(d), environment(d))
	}
}

// Plugin services that are found through etcd announce themselves there, as the user plugin.
func TestEtcdTakesPluginServicesThatAnnounceThemselves(t *testing.T) {
	announces := func(objects []*unstructured.Unstructured) (rules int) {
		for _, rule := range policyOf(t, objects, "etcd").Ingress {
			for _, from := range rule.From {
				if from.PodSelector.MatchLabels["berth.dev/plugin"] == "true" && from.NamespaceSelector != nil && len(rule.Ports) == 1 && rule.Ports[0].Port.String() == "client" {
					rules++
				}
			}
		}
		return rules
	}
	found := rendering(t, "pluginServices: [{name: a, discovered: true, tls: {serverName: a}, plugins: [{name: A, points: [score]}]}]").objects
	certificate := of(found, "Certificate")["berth-plugin"]
	if announces(found) != 1 || certificate == nil || !strings.Contains(fmt.Sprint(certificate.Object["spec"]), "commonName:plugin") || !strings.Contains(fmt.Sprint(certificate.Object["spec"]), "member.berth.internal") {
		t.Errorf("with a service that is found through etcd, %d rules let it in, and its certificate is %v", announces(found), certificate)
	}
	at := rendering(t, "pluginServices: [{name: a, address: 'a:1', plugins: [{name: A, points: [score]}]}]").objects
	if announces(at) != 0 || of(at, "Certificate")["berth-plugin"] != nil {
		t.Error("with a service at an address, etcd takes others than Berth's roles")
	}
}

// There is a collector on each node, and a quota is for the roles.
func TestCollectorsAreNotOfAQuotaForTheRoles(t *testing.T) {
	for text, want := range map[string]string{
		"yoda: {enabled: true}": "berth",
		"{priorityClassName: system-cluster-critical, yoda: {enabled: true}}":                                                                                "system-cluster-critical",
		"{priorityClassName: system-cluster-critical, priorityClassQuota: 100, yoda: {enabled: true}}":                                                       "",
		"{priorityClassName: system-cluster-critical, priorityClassQuota: 100, yoda: {enabled: true, collector: {priorityClassName: system-node-critical}}}": "system-node-critical",
	} {
		got, _, err := unstructured.NestedString(of(rendering(t, text).objects, "DaemonSet")["scv"].Object, "spec", "template", "spec", "priorityClassName")
		if err != nil || got != want {
			t.Errorf("with %s, collectors are of class %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestTheNotesWarnOfWhatWaitsForBerthUnlessItDoesNot(t *testing.T) {
	const warning = "must not wait for Berth"
	for text, want := range map[string]bool{
		"{schedulerName: default-scheduler, ownSchedulerName: own}":                                          true,
		"{schedulerName: default-scheduler, ownSchedulerName: own, ownSchedulerNamespaces: {enabled: true}}": false,
		"{}": false,
	} {
		if r := rendering(t, text); strings.Contains(r.notes, warning) != want {
			t.Errorf("with %s, the notes warn: %v, want %v:\n%s", text, !want, want, r.notes)
		}
	}
}

func TestHelmTestLeavesNothingAndNamesBerth(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "berth",
		"{schedulerName: default-scheduler, ownSchedulerName: own}":                                                                                   "default-scheduler",
		"{schedulerName: default-scheduler, ownSchedulerName: own, config: {profiles: [{schedulerName: default-scheduler}, {schedulerName: berth}]}}": "berth",
		"{schedulerName: b, config: {profiles: [{schedulerName: a}, {schedulerName: b}]}}":                                                            "b",
		"{schedulerName: '0123', ownSchedulerName: '0x10'}":                                                                                           "0123",
	} {
		r := rendering(t, text)
		got, _, err := unstructured.NestedString(of(r.hooks, "Pod")["test-placed"].Object, "spec", "schedulerName")
		if err != nil || got != want {
			t.Errorf("with %s, the pod is %q's, %v, want %q", text, got, err, want)
		}
		if len(r.hooks) != 3 {
			t.Errorf("there are %d objects of helm test, want 3", len(r.hooks))
		}
		for _, o := range r.hooks {
			if policy := o.GetAnnotations()["helm.sh/hook-delete-policy"]; policy != "before-hook-creation,hook-succeeded" {
				t.Errorf("%s %s is deleted by %q", o.GetKind(), o.GetName(), policy)
			}
		}
	}
}

// The component assigns by the name that the overlay gives to the binder, so that no pod gets one that is nobody's.
func TestNamespacesAreAssignedToWhomTheOverlayHas(t *testing.T) {
	for dir, want := range map[string]string{assigned: "'berth'", filepath.Join("testdata", "assigned-default"): "'default-scheduler'"} {
		text := fmt.Sprint(of(render(t, dir), "MutatingAdmissionPolicy")["berth-assign"].Object["spec"])
		if !strings.Contains(text, "schedulerName: "+want+"}}") {
			t.Errorf("%s assigns by %s, want %s", dir, text, want)
		}
	}
}

// As a part of another chart, Berth is switched on by the value that this names.
func TestTheChartTakesTheConditionOfADependency(t *testing.T) {
	if got := len(of(rendering(t, "{enabled: true, global: {a: b}}").objects, "Deployment")); got != 5 {
		t.Errorf("there are %d Deployments, want 5", got)
	}
}
