package source_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const mi = 1 << 20

// spec returns a pod with the given spec in YAML.
func spec(t *testing.T, text string) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"}}
	if err := yaml.UnmarshalStrict([]byte(text), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	return pod
}

func quantities(pairs ...any) []cluster.Quantity {
	var out []cluster.Quantity
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, cluster.Quantity{Name: pairs[i].(string), Value: int64(pairs[i+1].(int))})
	}
	return out
}

func TestARequiredNodeIsTakenOutOfTheClass(t *testing.T) {
	name := func(n string) string { return fmt.Sprintf("{key: metadata.name, operator: In, values: [%s]}", n) }
	zone := "{key: zone, operator: In, values: [a]}"
	for _, test := range []struct {
		what     string
		terms    string // of the required affinity
		required string
		want     []cluster.NodeSelectorTerm // what is left
		none     bool                       // nothing is left
	}{
		{what: "a name alone", terms: "{matchFields: [" + name("n1") + "]}", required: "n1", none: true},
		{
			what: "a name and an expression", terms: "{matchFields: [" + name("n1") + "], matchExpressions: [" + zone + "]}", required: "n1",
			want: []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}},
		},
		{
			what: "the same name twice, once with an expression", required: "n1", none: true,
			terms: "{matchFields: [" + name("n1") + "]}, {matchFields: [" + name("n1") + "], matchExpressions: [" + zone + "]}",
		},
		{
			what: "two names", terms: "{matchFields: [" + name("n1") + "]}, {matchFields: [" + name("n2") + "]}",
			want: []cluster.NodeSelectorTerm{
				{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}}},
				{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"n2"}}}},
			},
		},
		{
			what: "a name or an expression", terms: "{matchFields: [" + name("n1") + "]}, {matchExpressions: [" + zone + "]}",
			want: []cluster.NodeSelectorTerm{
				{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}}},
				{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}},
			},
		},
		{
			what: "not a name", terms: "{matchFields: [{key: metadata.name, operator: NotIn, values: [n1]}]}",
			want: []cluster.NodeSelectorTerm{{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "NotIn", Values: []string{"n1"}}}}},
		},
		{
			what: "two fields", terms: "{matchFields: [" + name("n1") + ", " + name("n1") + "]}",
			want: []cluster.NodeSelectorTerm{{Fields: []cluster.Requirement{
				{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}, {Key: "metadata.name", Operator: "In", Values: []string{"n1"}},
			}}},
		},
		{what: "no term", terms: "", want: nil},
		{
			what: "a name or an invalid term", terms: "{matchFields: [" + name("n1") + "]}, {matchExpressions: [{key: zone, operator: Gt, values: [x]}]}",
			want: []cluster.NodeSelectorTerm{{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}}}, {Expressions: []cluster.Requirement{{Key: "zone", Operator: "Gt", Values: []string{"x"}}}}},
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			pod := source.ReducePod(spec(t, `
containers: [{name: a}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [`+test.terms+`]}}}`))
			if pod.RequiredNode != test.required {
				t.Errorf("required node %q, want %q", pod.RequiredNode, test.required)
			}
			if diff := cmp.Diff(test.want, pod.Class.Required); diff != "" {
				t.Errorf("required terms (-want +got):\n%s", diff)
			}
			if pod.Class.HasRequired == test.none {
				t.Errorf("HasRequired: %v", pod.Class.HasRequired)
			}
			if pod.Class.Unsupported != "" {
				t.Errorf("unsupported: %s", pod.Class.Unsupported)
			}
		})
	}
}

func TestPodsOfADaemonSetAreOfOneClass(t *testing.T) {
	pod := func(node string) source.Pod {
		p := spec(t, `
containers: [{name: a}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [`+node+`]}]}]}}}`)
		p.Name, p.UID = "p-"+node, "u-"+"node"
		p.Labels = map[string]string{"node": node}
		p.Annotations = map[string]string{"node": node}
		return source.ReducePod(p)
	}
	a, b := pod("a"), pod("b")
	if diff := cmp.Diff(a.Class, b.Class); diff != "" {
		t.Errorf("classes differ:\n%s", diff)
	}
	if a.RequiredNode != "a" || b.RequiredNode != "b" {
		t.Errorf("required nodes %q and %q", a.RequiredNode, b.RequiredNode)
	}
}

func TestTheRestOfAPodIsReadAsItStands(t *testing.T) {
	pod := spec(t, `
schedulerName: berth
priority: 7
schedulingGates: [{name: g2}, {name: g1}]
nodeSelector: {z: "1", a: "2"}
tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 300}, {key: k, value: v}]
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 5, preference: {matchExpressions: [{key: zone, operator: Gt, values: ["3"]}]}}
initContainers:
- {name: i, image: "example.com:5000/init", ports: [{containerPort: 1, hostPort: 99}]}
- {name: side, image: side, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 53, protocol: UDP}]}
containers:
- {name: a, image: "app:1", ports: [{containerPort: 80, hostPort: 8080, hostIP: 10.0.0.1}, {containerPort: 81}, {containerPort: 82, hostPort: 53, protocol: UDP}]}
- {name: b, image: "app@sha256:abc", ports: [{containerPort: 80, hostPort: 80}]}
volumes: [{name: v, image: {reference: model}}, {name: w, emptyDir: {}}]
`)
	now := metav1.NewTime(time.Unix(1700000000, 0))
	pod.CreationTimestamp, pod.DeletionTimestamp = now, &now
	want := source.Pod{
		Pod: cluster.Pod{
			UID: "u", Namespace: "default", Name: "p", Priority: 7, Created: 1700000000e9, Gates: []string{"g2", "g1"}, Deleting: true,
		},
		Class: cluster.ClassSpec{
			SchedulerName: "berth",
			ScoreRequests: quantities("cpu", 300, "memory", 600*mi), // 2 containers and a sidecar
			NonZeroCPU:    300, NonZeroMemory: 600 * mi,
			Tolerations:  []cluster.Toleration{{Operator: "Exists", Effect: "NoExecute"}, {Key: "k", Value: "v"}},
			NodeSelector: []cluster.Label{{Key: "a", Value: "2"}, {Key: "z", Value: "1"}},
			Preferred: []cluster.PreferredTerm{{Weight: 5, Term: cluster.NodeSelectorTerm{
				Expressions: []cluster.Requirement{{Key: "zone", Operator: "Gt", Values: []string{"3"}}},
			}}},
			HostPorts: []cluster.HostPort{
				{IP: "0.0.0.0", Protocol: "UDP", Port: 53}, {IP: "0.0.0.0", Protocol: "TCP", Port: 80}, {IP: "10.0.0.1", Protocol: "TCP", Port: 8080},
			},
			Images:          []string{"example.com:5000/init:latest", "side:latest", "app:1", "app@sha256:abc", "model:latest"},
			ImageContainers: 4,
		},
		Labels: cluster.LabelSet{Namespace: "default"},
	}
	if diff := cmp.Diff(want, source.ReducePod(pod)); diff != "" {
		t.Errorf("ReducePod (-want +got):\n%s", diff)
	}
}

func TestWhatBerthCannotJudgeIsSaid(t *testing.T) {
	extended := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "example.com/r%02d: 1, ", i)
		}
		return `containers: [{name: a, resources: {requests: {cpu: 1, ` + b.String() + `}}}]`
	}
	one := "containers: [{name: a}]\n"
	for _, test := range []struct{ spec, plugin, text string }{
		{one, "", ""},
		{one + "affinity: {podAffinity: {}, podAntiAffinity: {}}", "", ""},
		{one + "volumes: [{name: v, configMap: {name: c}}, {name: w, csi: {driver: d}}, {name: x, nfs: {server: s, path: p}}]", "", ""},
		{one + "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "", ""},
		{one + "volumes: [{name: v, ephemeral: {}}]", "", ""},
		{one + "volumes: [{name: v, gcePersistentDisk: {pdName: d}}]", "", ""},
		{one + "volumes: [{name: v, awsElasticBlockStore: {volumeID: d}}]", "", ""},
		{one + "volumes: [{name: v, iscsi: {targetPortal: p, iqn: q, lun: 0}}]", "", ""},
		{one + "volumes: [{name: v, rbd: {monitors: [m], image: i}}]", "", ""},
		{one + "volumes: [{name: v, azureDisk: {diskName: d, diskURI: u}}]", "", ""},
		{one + "resourceClaims: [{name: c}]", "DynamicResources", "resource claims"},
		{`containers: [{name: a, resources: {requests: {deviceclass.resource.kubernetes.io/gpu: "1"}}}]`, "DynamicResources", "device class"},
		{`containers: [{name: a, resources: {requests: {deviceclass.resource.kubernetes.io/gpu: "0"}}}]`, "", ""},
		{`containers: [{name: a, resources: {requests: {example.com/gpu: "1"}}}]`, "", ""},
		{extended(50), "", ""},
		{extended(51), "NodeResourcesFit", "51"},
		{one + "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: k, operator: In}]}}]}}", "NodeAffinity", "preferred node affinity is invalid"},
	} {
		class := source.ReducePod(spec(t, test.spec)).Class
		if class.UnsupportedPlugin != test.plugin || !strings.Contains(class.Unsupported, test.text) || (class.Unsupported == "") != (test.plugin == "") {
			t.Errorf("%.120s:\n plugin %q says %q, want %q to speak of %q", test.spec, class.UnsupportedPlugin, class.Unsupported, test.plugin, test.text)
		}
	}
	placed := spec(t, "containers: [{name: a, resources: {requests: {cpu: 1}}}]\nvolumes: [{name: v, persistentVolumeClaim: {claimName: c}}]")
	placed.Spec.NodeName = "n"
	if got := source.ReducePod(placed).Class.Requests; !cmp.Equal(got, quantities("cpu", 1000)) {
		t.Errorf("a placed pod with a claim requests %v", got)
	}
}

func TestANodeIsReadAsKubeSchedulerDoes(t *testing.T) {
	node := func(beat int) *v1.Node {
		list := v1.ResourceList{}
		for name, q := range map[v1.ResourceName]string{
			"cpu": "3920m", "memory": "15Gi", "pods": "110", "ephemeral-storage": "47093746742", "nvidia.com/gpu": "8",
			"hugepages-1Gi": "0", "example.com/half": "500m", "unknown": "3",
		} {
			list[name] = resource.MustParse(q)
		}
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "n", Labels: map[string]string{"b": "2", "a": "1"}, ResourceVersion: fmt.Sprint(beat),
				Annotations: map[string]string{"beat": fmt.Sprint(beat)},
			},
			Spec: v1.NodeSpec{
				Unschedulable: true, PodCIDR: fmt.Sprint(beat),
				Taints: []v1.Taint{{Key: "t2", Effect: "NoSchedule", TimeAdded: &metav1.Time{Time: time.Unix(int64(beat), 0)}}, {Key: "t1", Value: "v", Effect: "NoExecute"}},
			},
			Status: v1.NodeStatus{
				Allocatable: list, Capacity: v1.ResourceList{"cpu": resource.MustParse("4")},
				Images:           []v1.ContainerImage{{Names: []string{"a:1", "a@sha256:x"}, SizeBytes: 7}},
				Conditions:       []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.NewTime(time.Unix(int64(beat), 0))}},
				DeclaredFeatures: []string{"Two", "One"},
			},
		}
	}
	want := cluster.Node{
		Name: "n", Unschedulable: true,
		Labels: []cluster.Label{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}},
		Taints: []cluster.Taint{{Key: "t2", Effect: "NoSchedule"}, {Key: "t1", Value: "v", Effect: "NoExecute"}},
		Allocatable: quantities("cpu", 3920, "ephemeral-storage", 47093746742, "example.com/half", 1, "memory", 15*1024*mi,
			"nvidia.com/gpu", 8, "pods", 110),
		Images:   []cluster.Image{{Names: []string{"a:1", "a@sha256:x"}, Size: 7}},
		Features: []string{"One", "Two"},
	}
	for beat := range 3 {
		if diff := cmp.Diff(want, source.ReduceNode(node(beat))); diff != "" {
			t.Errorf("ReduceNode after beat %d (-want +got):\n%s", beat, diff)
		}
	}
	name, labels := source.ReduceNamespace(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"y": "2", "x": "1"}}})
	if name != "ns" || !cmp.Equal(labels, []cluster.Label{{Key: "x", Value: "1"}, {Key: "y", Value: "2"}}) {
		t.Errorf("ReduceNamespace: %q, %v", name, labels)
	}
}

func TestAPodWhoseSpreadCountsOnlyItsOwnNodeKeepsTheName(t *testing.T) {
	pod := func(when v1.UnsatisfiableConstraintAction, policy v1.NodeInclusionPolicy) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{
			TopologySpreadConstraints: []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: when, NodeAffinityPolicy: &policy, LabelSelector: &metav1.LabelSelector{},
			}},
			Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}},
				}}},
			}}},
		}}
	}
	for _, test := range []struct {
		when     v1.UnsatisfiableConstraintAction
		policy   v1.NodeInclusionPolicy
		required string
	}{
		{v1.DoNotSchedule, v1.NodeInclusionPolicyHonor, ""},
		{v1.DoNotSchedule, v1.NodeInclusionPolicyIgnore, "a"},
		{v1.ScheduleAnyway, v1.NodeInclusionPolicyHonor, "a"}, // its score does not matter where there is one node
	} {
		got := source.ReducePod(pod(test.when, test.policy))
		if got.RequiredNode != test.required || got.Class.HasRequired == (test.required != "") {
			t.Errorf("%s, %s: required node %q and required terms %v, want node %q", test.when, test.policy, got.RequiredNode, got.Class.Required, test.required)
		}
	}
}

func TestRestoringARequiredNodeUndoesTakingIt(t *testing.T) {
	name := []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}}
	zone := []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpExists}}
	for want, terms := range map[string][]v1.NodeSelectorTerm{
		"only the name":      {{MatchFields: name}},
		"name and label":     {{MatchFields: name, MatchExpressions: zone}, {MatchFields: name, MatchExpressions: zone}},
		"one of two is name": {{MatchFields: name, MatchExpressions: zone}, {MatchFields: name}},
	} {
		pod := source.ReducePod(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms},
		}}}})
		if pod.RequiredNode != "a" {
			t.Fatalf("%s: required node %q", want, pod.RequiredNode)
		}
		got := source.RestoreRequiredNode(pod)
		if got.RequiredNode != "" || !got.Class.HasRequired || len(got.Class.Required) == 0 {
			t.Errorf("%s: %+v", want, got.Class)
		}
		for _, term := range got.Class.Required {
			if len(term.Fields) != 1 || term.Fields[0].Values[0] != "a" {
				t.Errorf("%s: a term without the name: %+v", want, term)
			}
		}
		if pod.Class.HasRequired && len(pod.Class.Required[0].Fields) != 0 {
			t.Errorf("%s: the pod that was given has changed: %+v", want, pod.Class.Required)
		}
	}
}

func TestWhetherAPodEndsByItself(t *testing.T) {
	deadline := func(seconds int64) *int64 { return &seconds }
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want int32
	}{
		{"nothing is said", v1.PodSpec{}, cluster.NeverEnds},
		{"it is always restarted", v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways}, cluster.NeverEnds},
		{"it never is", v1.PodSpec{RestartPolicy: v1.RestartPolicyNever}, cluster.EndsSometime},
		{"if it fails", v1.PodSpec{RestartPolicy: v1.RestartPolicyOnFailure}, cluster.EndsSometime},
		{"it has a deadline", v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, ActiveDeadlineSeconds: deadline(60)}, 60},
		{"it is restarted until its deadline", v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, ActiveDeadlineSeconds: deadline(60)}, 60},
		{"its deadline is far", v1.PodSpec{ActiveDeadlineSeconds: deadline(1 << 40)}, math.MaxInt32},
		{"its deadline is none that an API server has", v1.PodSpec{ActiveDeadlineSeconds: deadline(-7)}, 1},
	} {
		if got := source.ReducePod(&v1.Pod{Spec: test.spec}).Ends; got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
