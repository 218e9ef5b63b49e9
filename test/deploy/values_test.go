package deploy

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

var rewrite = flag.Bool("rewrite", false, "write what of the chart is made from other files")

// values reads values as they are written in a file.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// fullValues set what people set in a real cluster, of roles and of all pods.
const fullValues = `
image: {repository: registry.example/berth, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: registry}]
schedulerName: berth
config:
  percentageOfNodesToScore: 50
  podMaxBackoffSeconds: 20
  profiles:
    - schedulerName: berth
    - schedulerName: packed
      pluginConfig:
        - name: NodeResourcesFit
          args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
      plugins: {score: {enabled: [{name: Price, weight: 3}]}}
  extenders: [{urlPrefix: "https://extender.example/", filterVerb: filter, enableHTTPS: true, httpTimeout: 5s}]
pluginServices:
  - name: price
    address: price.shop:9000
    tls: {ca: /price/ca.crt, cert: /price/tls.crt, key: /price/tls.key, serverName: price.internal}
    plugins: [{name: Price, points: [score]}]
priorityClassName: system-cluster-critical
priorityClassQuota: 100
assignNamespaces: {enabled: true}
commonLabels: {team: platform}
commonAnnotations: {example.com/owner: platform}
podLabels: {tier: control}
podAnnotations: {sidecar.example/inject: "false"}
nodeSelector: {node-role.kubernetes.io/control-plane: ""}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://otel.tracing:4317"}]
binder:
  extraArgs: [--log-format=json, --kube-qps=1000]
  env: [{name: GOMEMLIMIT, value: 1500MiB}]
  podLabels: {tier: binders}
  podAnnotations: {example.com/a: b}
  nodeSelector: {pool: schedulers}
  tolerations: [{key: dedicated, value: schedulers}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}
  topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]
  extraVolumes: [{name: price, secret: {secretName: price}}]
  extraVolumeMounts: [{name: price, mountPath: /price, readOnly: true}]
  extraEgress: [{ports: [{port: 9000, protocol: TCP}]}]
etcd:
  storageClassName: fast
  extraArgs: [--heartbeat-interval=200]
certManager: {issuerRef: {kind: ClusterIssuer, name: vault}, duration: 720h, renewBefore: 240h}
prometheusRule: {enabled: true, labels: {release: prometheus}}
podMonitor: {enabled: true}
dashboard: {enabled: true, annotations: {grafana_folder: Scheduling}}
`

func deploymentOf(t *testing.T, objects []*unstructured.Unstructured, name string) appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(of(objects, "Deployment")[name].Object, &d, true); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheChartsPodsAreWhatTheValuesSay(t *testing.T) {
	objects, err := helm(values(t, fullValues))
	if err != nil {
		t.Fatal(err)
	}
	binder, queue := deploymentOf(t, objects, "binder").Spec.Template, deploymentOf(t, objects, "queue").Spec.Template
	spec, main := binder.Spec, binder.Spec.Containers[0]
	control := corev1.Toleration{Key: "node-role.kubernetes.io/control-plane", Operator: "Exists", Effect: "NoSchedule"}
	for what, diff := range map[string]string{
		"the image":                 cmp.Diff("registry.example/berth@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", main.Image),
		"who may pull":              cmp.Diff([]corev1.LocalObjectReference{{Name: "registry"}}, spec.ImagePullSecrets),
		"the priority class":        cmp.Diff("system-cluster-critical", spec.PriorityClassName),
		"nodes of binders":          cmp.Diff(map[string]string{"pool": "schedulers", "node-role.kubernetes.io/control-plane": ""}, spec.NodeSelector),
		"nodes of queues":           cmp.Diff(map[string]string{"node-role.kubernetes.io/control-plane": ""}, queue.Spec.NodeSelector),
		"tolerations of binders":    cmp.Diff([]corev1.Toleration{control, {Key: "dedicated", Value: "schedulers"}}, spec.Tolerations),
		"tolerations of queues":     cmp.Diff([]corev1.Toleration{control}, queue.Spec.Tolerations),
		"affinity of binders":       cmp.Diff("disk", spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key),
		"a label that both say":     cmp.Diff("binders", binder.Labels["tier"]),
		"a label of all pods":       cmp.Diff("control", queue.Labels["tier"]),
		"a label of all objects":    cmp.Diff("platform", binder.Labels["team"]),
		"annotations of all pods":   cmp.Diff("false", binder.Annotations["sidecar.example/inject"]),
		"annotations of binders":    cmp.Diff("b", binder.Annotations["example.com/a"]),
		"the last arguments":        cmp.Diff([]string{"--config=/config/config.yaml", "--plugin-services=/config/plugin-services.yaml", "--log-format=json", "--kube-qps=1000"}, main.Args[len(main.Args)-4:]),
		"the environment":           cmp.Diff([]corev1.EnvVar{{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "http://otel.tracing:4317"}, {Name: "GOMEMLIMIT", Value: "1500MiB"}}, main.Env[len(main.Env)-2:]),
		"what is mounted":           cmp.Diff(corev1.VolumeMount{Name: "price", MountPath: "/price", ReadOnly: true}, main.VolumeMounts[len(main.VolumeMounts)-1]),
		"volumes":                   cmp.Diff("price", spec.Volumes[len(spec.Volumes)-1].Secret.SecretName),
		"over what binders spread":  cmp.Diff([]string{"topology.kubernetes.io/zone"}, keysOf(spec.TopologySpreadConstraints)),
		"over what queues spread":   cmp.Diff([]string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, keysOf(queue.Spec.TopologySpreadConstraints)),
		"whom a constraint is of":   cmp.Diff(map[string]string{"app.kubernetes.io/name": "binder"}, spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels),
		"of which version they are": cmp.Diff([]string{"pod-template-hash"}, spec.TopologySpreadConstraints[0].MatchLabelKeys),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for name, o := range of(objects, "Certificate") {
		got, _, err := unstructured.NestedMap(o.Object, "spec")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{map[string]any{"kind": "ClusterIssuer", "name": "vault"}, "720h", "240h"}, []any{got["issuerRef"], got["duration"], got["renewBefore"]}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := len(of(objects, "Issuer")); got != 0 {
		t.Errorf("there are %d issuers beside the one that is given", got)
	}
	if of(objects, "PriorityClass")["berth"] != nil {
		t.Error("there is a PriorityClass that nothing has")
	}
	if diff := cmp.Diff([]any{map[string]any{"ports": []any{map[string]any{"port": int64(9000), "protocol": "TCP"}}}}, of(objects, "NetworkPolicy")["binder-extra"].Object["spec"].(map[string]any)["egress"]); diff != "" {
		t.Errorf("where binders may go besides (-want +got):\n%s", diff)
	}
	for _, o := range objects {
		if o.GetLabels()["team"] != "platform" || o.GetAnnotations()["example.com/owner"] != "platform" {
			t.Errorf("%s %s has labels %v and annotations %v: want those of all objects among them", o.GetKind(), o.GetName(), o.GetLabels(), o.GetAnnotations())
		}
	}
}

func keysOf(all []corev1.TopologySpreadConstraint) (keys []string) {
	for _, c := range all {
		keys = append(keys, c.TopologyKey)
	}
	return keys
}

// What selects pods cannot be changed in an installation that there is, and what selects nothing is found out late.
func TestNoValueChangesWhatSelectsPods(t *testing.T) {
	plain, err := helm(nil)
	if err != nil {
		t.Fatal(err)
	}
	full, err := helm(values(t, fullValues))
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]int{"Deployment": 5, "StatefulSet": 1} {
		was, is := of(plain, kind), of(full, kind)
		if len(was) != want {
			t.Errorf("there are %d of %s, want %d", len(was), kind, want)
		}
		for name := range was {
			before, _, _ := unstructured.NestedMap(was[name].Object, "spec", "selector")
			after, _, _ := unstructured.NestedMap(is[name].Object, "spec", "selector")
			if diff := cmp.Diff(before, after); diff != "" || len(after) == 0 {
				t.Errorf("%s %s selects other pods (-before +after):\n%s", kind, name, diff)
			}
			labels, _, _ := unstructured.NestedStringMap(is[name].Object, "spec", "template", "metadata", "labels")
			for key, value := range after["matchLabels"].(map[string]any) {
				if labels[key] != value {
					t.Errorf("%s %s selects pods by %s=%v, and its own have %q", kind, name, key, value, labels[key])
				}
			}
		}
	}
}

func TestABinderTakesTheConfigurationOfTheChartsValues(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "berth")
	buildBerth(t, binary)
	for name, c := range map[string]struct {
		values map[string]any
		want   map[string][]weighed // the scores of others that each scheduler has
	}{
		"two profiles, an extender and a plugin service": {values(t, fullValues), map[string][]weighed{"berth": nil, "packed": {{"Price", 3}}}},
		"a setting alone":                    {values(t, "config: {podMaxBackoffSeconds: 5}"), map[string][]weighed{"berth": nil}},
		"a profile without a name":           {values(t, "{schedulerName: b, config: {profiles: [{percentageOfNodesToScore: 10}]}}"), map[string][]weighed{"b": nil}},
		"a plugin service without a profile": {values(t, "pluginServices: [{name: p, address: 'unix:///p.sock', plugins: [{name: P, points: [score]}]}]"), map[string][]weighed{"berth": nil}},
		"Yoda in one profile of two": {values(t, `
schedulerName: gpu
yoda: {enabled: true}
config:
  profiles:
    - schedulerName: plain
      plugins: {queueSort: {disabled: [{name: PrioritySort}], enabled: [{name: Yoda}]}}
    - schedulerName: gpu
      plugins: {queueSort: {disabled: [{name: PrioritySort}], enabled: [{name: Yoda}]}, filter: {enabled: [{name: Yoda}]}, reserve: {enabled: [{name: Yoda}]}}`), map[string][]weighed{"plain": nil, "gpu": nil}},
		"default-scheduler, with another Lease": {values(t, "{schedulerName: default-scheduler, ownSchedulerName: other, config: {leaderElection: {resourceName: mine, resourceNamespace: leases}}}"), map[string][]weighed{"default-scheduler": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := helm(c.values)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string][]weighed)
			for _, p := range binderWrites(t, binary, objects) {
				got[p.SchedulerName] = nil
				for _, w := range p.Plugins["score"].Enabled {
					if w.Name == "Price" {
						got[p.SchedulerName] = append(got[p.SchedulerName], w)
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("what the binder goes by (-want +got):\n%s", diff)
			}
		})
	}
}

// The chart's roles as processes, with its command lines, files, accounts and certificates.
func TestEachProfileOfTheChartsValuesPlacesItsPods(t *testing.T) {
	c := startCluster(t, kubetest.Options{Authorization: "RBAC"})
	objects, err := helm(values(t, `
schedulerName: packed
config:
  profiles:
    - schedulerName: spread
    - schedulerName: packed
      pluginConfig:
        - name: NodeResourcesFit
          args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "Job" {
			o.SetName("etcd-init") // without the revision, as the rest of this package knows it
		}
	}
	c.apply(t, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}})
	c.apply(t, objects...)
	startBerth(t, c, objects).awaitReady(t)
	if err := c.CreateNodes(within(t), 2, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	at := make(map[string]string)
	for i, scheduler := range []string{"packed", "packed", "packed", "spread"} {
		pod := kubetest.PlainPod(i)
		pod.Name, pod.GenerateName, pod.Namespace, pod.Spec.SchedulerName = fmt.Sprint(scheduler, "-", i), "", "default", scheduler
		if _, err := c.Client().CoreV1().Pods("default").Create(within(t), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, pod.Name+" to be placed", func(ctx context.Context) error {
			is, err := c.Client().CoreV1().Pods("default").Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && is.Spec.NodeName == "" {
				err = fmt.Errorf("it has no node: %v", is.Status.Conditions)
			}
			if err == nil {
				at[pod.Name] = is.Spec.NodeName
			}
			return err
		})
	}
	if at["packed-0"] != at["packed-1"] || at["packed-1"] != at["packed-2"] || at["spread-3"] == at["packed-2"] {
		t.Errorf("pods are at %v: want those of packed on one node, and that of spread on the other", at)
	}
}

func TestTheRightToTheLeaseIsToTheOneOfTheConfiguration(t *testing.T) {
	objects, err := helm(values(t, "{schedulerName: default-scheduler, ownSchedulerName: other, config: {leaderElection: {resourceName: mine, resourceNamespace: leases}}}"))
	if err != nil {
		t.Fatal(err)
	}
	role := of(objects, "Role")["berth-binder-lease"]
	if role == nil || role.GetNamespace() != "leases" || !strings.Contains(fmt.Sprint(role.Object["rules"]), "resourceNames:[mine]") || of(objects, "RoleBinding")["berth-binder-lease"].GetNamespace() != "leases" {
		t.Errorf("the binder's role is %v, want one for the Lease leases/mine", role)
	}
}

// Pods read files when they start: new ones are made when these change, and only then.
func TestNewBindersAreMadeWhenTheirConfigurationChanges(t *testing.T) {
	sum := func(text string) string {
		objects, err := helm(values(t, text))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"queue", "filter-worker", "score-worker", "gateway"} {
			if got := deploymentOf(t, objects, name).Spec.Template.Annotations["checksum/config"]; got != "" {
				t.Errorf("%s would have new pods with the binder's configuration: %s", name, got)
			}
		}
		return deploymentOf(t, objects, "binder").Spec.Template.Annotations["checksum/config"]
	}
	none, a, again, b := sum("{}"), sum("config: {podMaxBackoffSeconds: 5}"), sum("{config: {podMaxBackoffSeconds: 5}, queue: {replicas: 3}}"), sum("config: {podMaxBackoffSeconds: 6}")
	if none != "" || a == "" || a != again || a == b {
		t.Errorf("sums: none %q, with 5 %q and %q, with 6 %q", none, a, again, b)
	}
}

func TestEachPodOfTheChartHasAStartupProbeAndNoLimitOfCPU(t *testing.T) {
	objects, err := helm(values(t, "yoda: {enabled: true}"))
	if err != nil {
		t.Fatal(err)
	}
	containers := 0
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		for name, o := range of(objects, kind) {
			text, err := json.Marshal(o.Object["spec"].(map[string]any)["template"])
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.PodTemplateSpec
			if err := json.Unmarshal(text, &pod); err != nil {
				t.Fatal(err)
			}
			for _, c := range pod.Spec.Containers {
				containers++
				switch p := c.StartupProbe; {
				case p == nil:
					t.Errorf("%s, container %s has no startup probe", name, c.Name)
				case p.PeriodSeconds*p.FailureThreshold < 300:
					t.Errorf("%s, container %s is ended when it has not begun after %d s, want at least five minutes", name, c.Name, p.PeriodSeconds*p.FailureThreshold)
				}
				if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
					t.Errorf("%s, container %s has a limit of CPU", name, c.Name)
				}
			}
		}
	}
	if containers != 8 {
		t.Errorf("there are %d containers, want those of five roles, etcd, Yoda and the collector", containers)
	}
}

func TestTheChartRefusesWhatWouldNotWorkAndSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct{ values, names, says string }{
		"own pods are Berth's":              {"{schedulerName: x, ownSchedulerName: x}", "ownSchedulerName", "Set ownSchedulerName to a name that another scheduler has"},
		"default-scheduler without another": {"schedulerName: default-scheduler", "ownSchedulerName", "Set ownSchedulerName"},
		"a profile that is default-scheduler": {
			"{schedulerName: berth, config: {profiles: [{schedulerName: berth}, {schedulerName: default-scheduler}]}}", "ownSchedulerName", "would be default-scheduler's, which is Berth",
		},
		"a profile by the name of own pods' scheduler": {
			"{ownSchedulerName: b, schedulerName: a, config: {profiles: [{schedulerName: a}, {schedulerName: b}]}}", "ownSchedulerName", "would be b's",
		},
		"a name that no profile has":     {"{schedulerName: berth, config: {profiles: [{schedulerName: a}, {schedulerName: b}]}}", "schedulerName", "Set it to one of a, b"},
		"two profiles of one name":       {"config: {profiles: [{schedulerName: berth}, {schedulerName: berth}]}", "config.profiles", "Give each its own"},
		"two profiles, one without name": {"config: {profiles: [{schedulerName: berth}, {}]}", "config.profiles[1].schedulerName", "each has a name of its own"},
		"default-scheduler without the Lease": {
			"{schedulerName: default-scheduler, ownSchedulerName: own, config: {leaderElection: {leaderElect: false}}}", "config.leaderElection.leaderElect", "Take it out",
		},
		"the Lease of the own pods' scheduler": {
			"{schedulerName: default-scheduler, ownSchedulerName: own, config: {leaderElection: {resourceName: berth-own-scheduler}}}", "config.leaderElection.resourceName", "Take it out",
		},
		"a kubeconfig":                                     {"config: {clientConnection: {kubeconfig: /a}}", "config.clientConnection.kubeconfig", "Take it out"},
		"Yoda that no profile uses":                        {"{yoda: {enabled: true}, config: {profiles: [{schedulerName: berth}]}}", "yoda.enabled", "Enable it in a profile"},
		"Yoda that a profile disables":                     {"{yoda: {enabled: true}, config: {profiles: [{schedulerName: berth, plugins: {filter: {disabled: [{name: Yoda}]}}}]}}", "yoda.enabled", "Enable it in a profile"},
		"fewer workers at most than at least":              {"scoreWorker: {minReplicas: 5, maxReplicas: 4}", "scoreWorker.maxReplicas", "Raise it"},
		"an issuer without cert-manager":                   {"certManager: {enabled: false, issuerRef: {name: a}}", "certManager.issuerRef", "Set it to true, or take issuerRef out"},
		"a label that selectors go by":                     {"queue: {podLabels: {app.kubernetes.io/name: q}}", "queue.podLabels", "Take another name"},
		"a common label of the chart":                      {"commonLabels: {helm.sh/chart: q}", "commonLabels", "Take another name"},
		"assigned namespaces of all pods":                  {"{schedulerName: default-scheduler, ownSchedulerName: own, assignNamespaces: {enabled: true}}", "assignNamespaces.enabled", "Switch it off"},
		"a flag that the chart gives":                      {"gateway: {extraArgs: [--authenticate=none]}", "gateway.extraArgs", "--authenticate=kubernetes. Take yours out"},
		"a flag of etcd that the chart gives":              {"etcd: {extraArgs: [--client-cert-auth=false]}", "etcd.extraArgs", "--client-cert-auth. Take yours out"},
		"the configuration, as a flag":                     {"{config: {podMaxBackoffSeconds: 5}, binder: {extraArgs: [--config=/a]}}", "binder.extraArgs", "--config=/config/config.yaml"},
		"plaintext":                                        {"queue: {extraArgs: [--insecure-plaintext]}", "queue.extraArgs", "it has certificates. Take it out"},
		"a binder without the Lease":                       {"binder: {extraArgs: [--leader-elect=false]}", "binder.extraArgs", "config.leaderElection says it"},
		"another prefix in the chart's etcd":               {"binder: {extraArgs: [--etcd-prefix=/a/]}", "binder.extraArgs", "etcd-init has made users for the default one"},
		"own scheduler's namespaces beside kube-scheduler": {"{ownSchedulerName: own, ownSchedulerNamespaces: {enabled: true}}", "ownSchedulerNamespaces.enabled", "Switch it off"},
		"less memory than is requested": {
			"queue: {resources: {requests: {memory: 4Gi}, limits: {memory: 3Gi}}}", "queue.resources", "Raise limits.memory, or set it to null",
		},
		"less memory than etcd requests": {"etcd: {resources: {limits: {memory: 128Mi}}}", "etcd.resources", "requests 256Mi of memory, and is limited to 128Mi"},
		"a quantity that is none":        {"queue: {resources: {requests: {memory: 4GB}}}", "4GB", "Write it as 512Mi"},
		"a key in a ConfigMap": {
			"config: {extenders: [{urlPrefix: 'https://a'}, {urlPrefix: 'https://a', tlsConfig: {keyData: YQ==}}]}", "config.extenders[1].tlsConfig.keyData", "Mount it by binder.extraVolumes and extraVolumeMounts, and use keyFile",
		},
		"a certificate in a ConfigMap": {"config: {extenders: [{urlPrefix: 'https://a', tlsConfig: {certData: YQ==}}]}", "config.extenders[0].tlsConfig.certData", "use certFile"},
		"assigned pods that would have nobody": {
			"{schedulerName: default-scheduler, ownSchedulerName: own, assignNamespaces: {enabled: true}}", "assignNamespaces.enabled", "leave that to a profile of config until none of them is pending",
		},
		// By the schema, whose messages say what is wrong and where.
		"no binder":                    {"binder: {replicas: 0}", "/binder/replicas", "minimum"},
		"a queue of no size":           {"queue: {replicas: 1.5}", "/queue/replicas", "integer"},
		"a name that ends a text":      {"schedulerName: a'b", "/schedulerName", "pattern"},
		"an own name that does":        {"ownSchedulerName: a'b", "/ownSchedulerName", "pattern"},
		"a profile's name that does":   {"config: {profiles: [{schedulerName: a'b}]}", "/config/profiles/0/schedulerName", "pattern"},
		"no name":                      {"schedulerName: ''", "/schedulerName", "minLength"},
		"a policy that there is not":   {"image: {pullPolicy: Sometimes}", "/image/pullPolicy", "Always"},
		"an etcd that holds nothing":   {"etcd: {quotaBytes: 0}", "/etcd/quotaBytes", "minimum"},
		"a label that is a number":     {"podMonitor: {labels: {release: 1}}", "/podMonitor/labels/release", "string"},
		"a request that is a map":      {"gateway: {resources: {requests: {gpu: {}}}}", "/gateway/resources/requests/gpu", "string"},
		"a port that is none":          {"apiServerPorts: [0]", "/apiServerPorts/0", "minimum"},
		"no etcd at all":               {"etcd: {enabled: false}", "/etcd/endpoints", "minItems"},
		"an etcd in plaintext":         {"etcd: {enabled: false, endpoints: ['http://a:2379']}", "/etcd/endpoints/0", "https"},
		"a value that there is not":    {"replicas: 3", "replicas", "not allowed"},
		"one of a role":                {"queue: {tolleration: []}", "tolleration", "not allowed"},
		"one of the configuration":     {"config: {profile: []}", "profile", "not allowed"},
		"one of a profile":             {"config: {profiles: [{plugins: {scores: {}}}]}", "scores", "not allowed"},
		"an older configuration":       {"config: {apiVersion: kubescheduler.config.k8s.io/v1beta3}", "/config/apiVersion", "v1"},
		"a digest that is none":        {"image: {digest: latest}", "/image/digest", "sha256"},
		"a priority of the system's":   {"priority: 2000000000", "/priority", "maximum"},
		"an issuer without a name":     {"certManager: {issuerRef: {kind: ClusterIssuer}}", "issuerRef", "name"},
		"a toleration that is a text":  {"tolerations: [nvidia.com/gpu]", "/tolerations/0", "object"},
		"a request without memory":     {"queue: {resources: {requests: {cpu: 1, memory: null}}}", "/queue/resources/requests", "memory"},
		"an argument that is no flag":  {"binder: {extraArgs: [config]}", "/binder/extraArgs/0", "--"},
		"a secret that is a text":      {"imagePullSecrets: [a]", "/imagePullSecrets/0", "object"},
		"a plugin service without any": {"pluginServices: [{name: a}]", "/pluginServices/0", "plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm(values(t, c.values))
			if err == nil {
				t.Fatalf("%s is taken", c.values)
			}
			if !strings.Contains(err.Error(), c.names) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v\nwant an error that names %s and says %q", err, c.names, c.says)
			}
			t.Log(err)
		})
	}
}

// The kind came late, and was in beta first.
func TestNamespacesAreAssignedByWhatTheAPIServerHas(t *testing.T) {
	on := values(t, "assignNamespaces: {enabled: true}")
	for minor, want := range map[string]string{"36": "admissionregistration.k8s.io/v1", "35": "admissionregistration.k8s.io/v1beta1", "34": "admissionregistration.k8s.io/v1beta1"} {
		r, err := helmOn(minor, 1, on)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
			if got := of(r.objects, kind)["berth-assign"].GetAPIVersion(); got != want {
				t.Errorf("on 1.%s, %s is of %s, want %s", minor, kind, got, want)
			}
		}
	}
}

// keysIn are the names of the fields of a type, as they are written.
func keysIn(of reflect.Type) (keys []string) {
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if options == "inline" || f.Anonymous {
			keys = append(keys, keysIn(f.Type)...)
			continue
		}
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}

// A setting that the schema does not know would be refused, or one that it knows alone found out by a binder that does not start.
func TestTheSchemaKnowsEachFieldOfAConfiguration(t *testing.T) {
	var schema struct {
		Definitions map[string]struct {
			Properties map[string]struct{ Properties map[string]any }
		}
	}
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	names := func(of any) (names []string) {
		for _, k := range reflect.ValueOf(of).MapKeys() {
			names = append(names, k.String())
		}
		slices.Sort(names)
		return names
	}
	of := schema.Definitions
	for what, c := range map[string]struct {
		has  any
		want reflect.Type
	}{
		"the configuration":  {of["config"].Properties, reflect.TypeFor[configv1.KubeSchedulerConfiguration]()},
		"the Lease":          {of["config"].Properties["leaderElection"].Properties, reflect.TypeFor[configv1.KubeSchedulerConfiguration]().Field(2).Type},
		"clients":            {of["config"].Properties["clientConnection"].Properties, reflect.TypeFor[configv1.KubeSchedulerConfiguration]().Field(3).Type},
		"a profile":          {of["profile"].Properties, reflect.TypeFor[configv1.KubeSchedulerProfile]()},
		"a profile's points": {of["profile"].Properties["plugins"].Properties, reflect.TypeFor[configv1.Plugins]()},
		"plugins at a point": {of["pluginSet"].Properties, reflect.TypeFor[configv1.PluginSet]()},
		"an extender":        {of["extender"].Properties, reflect.TypeFor[configv1.Extender]()},
	} {
		if diff := cmp.Diff(keysIn(c.want), names(c.has)); diff != "" {
			t.Errorf("%s (-type +schema):\n%s", what, diff)
		}
	}
}

func TestTheChartBringsTheAlertsAndTheDashboard(t *testing.T) {
	for copied, from := range map[string]string{"alerts.yaml": "prometheus/alerts.yaml", "berth.json": "grafana/berth.json"} {
		want, err := os.ReadFile(filepath.Join(deployDir, from))
		if err != nil {
			t.Fatal(err)
		}
		written(t, filepath.Join(chartDir, "files", copied), string(want))
	}
	objects, err := helm(values(t, fullValues))
	if err != nil {
		t.Fatal(err)
	}
	var rule monitoringv1.PrometheusRule
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(of(objects, "PrometheusRule")["berth"].Object, &rule, true); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(deployDir, "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(text, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, rule.Spec); diff != "" || len(rule.Spec.Groups) == 0 || rule.Labels["release"] != "prometheus" {
		t.Errorf("the rule, with labels %v (-file +chart):\n%s", rule.Labels, diff)
	}
	dashboard := of(objects, "ConfigMap")["berth-dashboard"]
	data, _, err := unstructured.NestedStringMap(dashboard.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	var is, file any
	text, err = os.ReadFile(filepath.Join(deployDir, "grafana", "berth.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(data["berth.json"]), &is); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(file, is); diff != "" || dashboard.GetLabels()["grafana_dashboard"] != "1" || dashboard.GetAnnotations()["grafana_folder"] != "Scheduling" {
		t.Errorf("the dashboard, with labels %v and annotations %v (-file +chart):\n%s", dashboard.GetLabels(), dashboard.GetAnnotations(), diff)
	}
}

func TestTheNotesSayWhatToDoNextAndWhatToMind(t *testing.T) {
	for text, want := range map[string][]string{
		"{}": {"whose spec.schedulerName is berth.", "helm test berth --namespace berth", `patch deployment DEPLOYMENT --patch '{"spec":{"template":{"spec":{"schedulerName":"berth"}}}}'`},
		"{schedulerName: default-scheduler, ownSchedulerName: own}": {"default-scheduler, which those have that name none", "kubectl --namespace kube-system get lease kube-scheduler", "shows nothing of Berth", "WARNING: what Berth's own pods need must not wait for Berth", "have to say spec.schedulerName: own."},
		"assignNamespaces: {enabled: true}":                         {"kubectl label namespace NAME berth.dev/schedule=true"},
		fullValues: {
			"berth, or packed", "Berth sha256:0123", "WARNING: whoever may have vault sign",
		},
		"{certManager: {enabled: false}, networkPolicies: {enabled: false}, binder: {replicas: 1}}": {
			"WARNING: cert-manager makes no certificates", "WARNING: there are no network policies", "WARNING: there is one binder",
		},
		"config: {extenders: [{urlPrefix: 'http://a:80', filterVerb: f}]}":              {"WARNING: config has extenders", "ports 443, 6443"},
		"etcd: {enabled: false, endpoints: ['http://a:2379'], insecurePlaintext: true}": {"WARNING: etcd is used in plaintext"},
	} {
		r, err := helmAll(1, values(t, text))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(r.notes, part) {
				t.Errorf("with %s, the notes lack %q:\n%s", text, part, r.notes)
			}
		}
		if text == "{}" && strings.Contains(r.notes, "WARNING") {
			t.Errorf("the notes of the defaults warn:\n%s", r.notes)
		}
	}
}

// written fails unless a file says what it is to say; with -rewrite it is written.
func written(t *testing.T, file, want string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(is)); diff != "" {
		t.Errorf("%s is not what it is made from: run with -rewrite (-want +is)\n%s", file, diff)
	}
}

// valueRow is a value of the chart: its path, its default, and what is said of it.
type valueRow struct{ path, is, about string }

// rowsOf returns the values below a node, in order. What is said of a map is said of itself, if it is a value, or before its first one.
func rowsOf(t *testing.T, path string, node *kyaml.Node) (rows []valueRow) {
	t.Helper()
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		about := saying(key.HeadComment) + saying(key.LineComment) + saying(value.LineComment)
		_, whole := map[string]bool{"requests": true, "limits": true, "labels": true}[key.Value]
		if value.Kind == kyaml.MappingNode && len(value.Content) > 0 && !whole {
			if about != "" {
				rows = append(rows, valueRow{path: at, about: about})
			}
			rows = append(rows, rowsOf(t, at, value)...)
			continue
		}
		bare := *value
		bare.HeadComment, bare.LineComment, bare.FootComment = "", "", ""
		var is any
		if err := bare.Decode(&is); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(is)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, valueRow{at, "`" + string(text) + "`", about})
	}
	return rows
}

// saying is the text of a comment.
func saying(comment string) string {
	var lines []string
	for line := range strings.Lines(comment) {
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	text := strings.Join(lines, " ")
	if text == "" {
		return ""
	}
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(text) + " "
}

func TestTheChartsReadmeSaysWhatItsValuesAre(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := kyaml.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions struct {
			Own struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	if text, err = os.ReadFile(filepath.Join(chartDir, "values.schema.json")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(`# Berth's chart

Berth, a scheduler for Kubernetes, with a role per Deployment and an etcd of its own: docs/deploy.md of the repository says what is in it, and docs/install.md how it
is put into kubeadm's clusters, kind, k3s and managed ones, and taken out again.

` + "```sh" + `
helm install berth deploy/helm/berth --namespace berth --create-namespace
helm test berth --namespace berth
` + "```" + `

Values that make no sense are refused when the chart is rendered, each with its name and what to do instead. One release per namespace: the objects in it have the
names of the roles.

Upgrade with ` + "`--reset-then-reuse-values`, not `--reuse-values`" + `: this one takes the defaults of the chart that was there, and what is new is missed, by name.

## Values

Made from ` + "`values.yaml` and `values.schema.json` by `cd test/deploy && go test . -run TestTheChartsReadmeSaysWhatItsValuesAre -rewrite`" + `.

| value | default | is |
| --- | --- | --- |
`)
	rows := rowsOf(t, "", root.YNode())
	for i, r := range rows {
		about := strings.TrimSpace(r.about)
		if i == 0 { // the file's own comment is before it, and ends with an empty line
			about = about[strings.LastIndex(about, "Where Berth"):]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.path, r.is, about)
	}
	b.WriteString("\nEach of `binder`, `queue`, `filterWorker`, `scoreWorker`, `gateway` and `etcd` may have these besides, none by default:\n\n| value | is |\n| --- | --- |\n")
	var names []string
	for name := range schema.Definitions.Own.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, schema.Definitions.Own.Properties[name].Description)
	}
	if len(rows) < 60 || len(names) < 10 {
		t.Errorf("found %d values, and %d that each role may have", len(rows), len(names))
	}
	written(t, filepath.Join(chartDir, "README.md"), b.String())
}
