package source_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// where returns the selector of these requirements.
func where(requirements ...cluster.Requirement) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: requirements}
}

func in(key string, values ...string) cluster.Requirement {
	return cluster.Requirement{Key: key, Operator: "In", Values: values}
}

func TestPodAffinityIsReadAsKubeSchedulerDoes(t *testing.T) {
	nothing, own := cluster.LabelSelector{Nothing: true}, []string{"default"}
	for _, test := range []struct {
		name, term string
		want       cluster.PodTerm
	}{
		{
			"the pod's own namespace if the term names none", `{topologyKey: zone, labelSelector: {matchLabels: {b: "1", a: "2"}}}`,
			cluster.PodTerm{TopologyKey: "zone", Namespaces: own, NamespaceSelector: nothing, Selector: where(in("a", "2"), in("b", "1"))},
		}, {
			"namespaces in order, each once", `{topologyKey: zone, namespaces: [ns-2, ns-1, ns-2], labelSelector: {}}`,
			cluster.PodTerm{TopologyKey: "zone", Namespaces: []string{"ns-1", "ns-2"}, NamespaceSelector: nothing},
		}, {
			"an empty namespace selector is for all", `{topologyKey: zone, namespaceSelector: {}, labelSelector: {}}`,
			cluster.PodTerm{TopologyKey: "zone"},
		}, {
			"a namespace selector does not add the pod's own", `{topologyKey: zone, namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}, labelSelector: {}}`,
			cluster.PodTerm{TopologyKey: "zone", NamespaceSelector: where(cluster.Requirement{Key: "team", Operator: "Exists"})},
		}, {
			"no selector matches nothing", `{topologyKey: zone}`,
			cluster.PodTerm{TopologyKey: "zone", Namespaces: own, NamespaceSelector: nothing, Selector: nothing},
		}, {
			"label keys have been merged by the API server", `{topologyKey: zone, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [app], mismatchLabelKeys: [app]}`,
			cluster.PodTerm{TopologyKey: "zone", Namespaces: own, NamespaceSelector: nothing, Selector: where(in("a", "b"))},
		}, {
			"requirements in order of key, operator and values, each once",
			`{topologyKey: zone, labelSelector: {matchLabels: {b: x}, matchExpressions: [{key: b, operator: NotIn, values: [q, p, q]}, {key: b, operator: In, values: [x]}, {key: b, operator: In, values: [w, v]}, {key: a, operator: DoesNotExist}]}}`,
			cluster.PodTerm{
				TopologyKey: "zone", Namespaces: own, NamespaceSelector: nothing,
				Selector: where(cluster.Requirement{Key: "a", Operator: "DoesNotExist"}, in("b", "v", "w"), in("b", "x"), cluster.Requirement{Key: "b", Operator: "NotIn", Values: []string{"p", "q"}}),
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := `{topologyKey: other, namespaces: [ns], labelSelector: {}}`
			pod := spec(t, `
containers: [{name: a}]
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: [`+test.term+`, `+other+`]
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 7, podAffinityTerm: `+other+`}, {weight: 3, podAffinityTerm: `+test.term+`}]
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: [`+other+`, `+test.term+`]
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: `+test.term+`}]`)
			pod.Labels = map[string]string{"app": "web"}
			class := source.ReducePod(pod).Class
			second := cluster.PodTerm{TopologyKey: "other", Namespaces: []string{"ns"}, NamespaceSelector: nothing}
			want := cluster.ClassSpec{
				Affinity:              []cluster.PodTerm{test.want, second},
				AntiAffinity:          []cluster.PodTerm{second, test.want},
				PreferredAffinity:     []cluster.WeightedPodTerm{{Weight: 7, Term: second}, {Weight: 3, Term: test.want}},
				PreferredAntiAffinity: []cluster.WeightedPodTerm{{Weight: 100, Term: test.want}},
			}
			got := cluster.ClassSpec{
				Affinity: class.Affinity, AntiAffinity: class.AntiAffinity,
				PreferredAffinity: class.PreferredAffinity, PreferredAntiAffinity: class.PreferredAntiAffinity,
				Unsupported: class.Unsupported,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSpreadConstraintsAreReadAsKubeSchedulerDoes(t *testing.T) {
	for _, test := range []struct {
		name, constraint string
		want             cluster.SpreadConstraint
	}{
		{
			"what is not said", `{topologyKey: zone, maxSkew: 2, whenUnsatisfiable: ScheduleAnyway}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 2, MinDomains: 1, HonorAffinity: true, Selector: cluster.LabelSelector{Nothing: true}},
		}, {
			"all that can be said", `{topologyKey: zone, maxSkew: 1, minDomains: 3, whenUnsatisfiable: DoNotSchedule, nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {a: b}}}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 1, MinDomains: 3, Hard: true, HonorTaints: true, Selector: where(in("a", "b"))},
		}, {
			"defaults written out", `{topologyKey: zone, maxSkew: 1, minDomains: 1, whenUnsatisfiable: DoNotSchedule, nodeAffinityPolicy: Honor, nodeTaintsPolicy: Ignore, labelSelector: {}}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true},
		}, {
			"label keys that the pod has", `{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [version, missing, app], labelSelector: {matchExpressions: [{key: tier, operator: Exists}]}}`,
			cluster.SpreadConstraint{
				TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true,
				Selector: where(in("app", "web"), cluster.Requirement{Key: "tier", Operator: "Exists"}, in("version", "2")),
			},
		}, {
			"label keys narrow a selector of everything", `{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [app], labelSelector: {}}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: where(in("app", "web"))},
		}, {
			"label keys do not widen a selector of nothing", `{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [app]}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: cluster.LabelSelector{Nothing: true}},
		}, {
			"label keys that the API server has merged already", `{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [app], labelSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}}`,
			cluster.SpreadConstraint{TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: where(in("app", "web"))},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := spec(t, "containers: [{name: a}]\ntopologySpreadConstraints: ["+test.constraint+", {topologyKey: host, maxSkew: 9, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}]")
			pod.Labels = map[string]string{"app": "web", "version": "2"}
			class := source.ReducePod(pod).Class
			want := []cluster.SpreadConstraint{test.want, {TopologyKey: "host", MaxSkew: 9, MinDomains: 1, HonorAffinity: true}}
			if diff := cmp.Diff(want, class.Spread); diff != "" || class.Unsupported != "" {
				t.Errorf("constraints (-want +got):\n%s%s", diff, class.Unsupported)
			}
		})
	}
}

func TestASelectorThatCannotBeParsedMakesAClassUnsupported(t *testing.T) {
	const bad = `labelSelector: {matchLabels: {service: "{{.bad-value.}}", good: a}}`
	const why = `values[0][service]: Invalid value: "{{.bad-value.}}": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`
	good := `{topologyKey: k, labelSelector: {}}`
	for _, test := range []struct{ name, affinity, spread, plugin, want string }{
		{"required affinity", "podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [" + good + ", {topologyKey: k, " + bad + "}]}", "",
			"InterPodAffinity", "parsing pod: requiredAffinityTerms: " + why},
		{"required anti-affinity", "podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, labelSelector: {matchExpressions: [{key: a, operator: Like}]}}]}", "",
			"InterPodAffinity", `parsing pod: requiredAntiAffinityTerms: "Like" is not a valid label selector operator`},
		{"preferred affinity and anti-affinity", "podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: k, labelSelector: {matchExpressions: [{key: a, operator: Like}]}}}]}, " +
			"podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: k, namespaceSelector: {matchExpressions: [{key: a, operator: Near}]}}}]}", "",
			"InterPodAffinity", `parsing pod: [preferredAffinityTerms: "Like" is not a valid label selector operator, preferredAntiAffinityTerms: "Near" is not a valid label selector operator]`},
		{"spread", "", "{topologyKey: k, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}, {topologyKey: j, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, " + bad + "}",
			"PodTopologySpread", "get constraints from pod: " + why},
		{"spread before affinity", "podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, " + bad + "}]}", "{topologyKey: j, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, " + bad + "}",
			"PodTopologySpread", "get constraints from pod: " + why},
	} {
		for range 20 { // of several errors always the same one
			class := source.ReducePod(spec(t, "containers: [{name: a}]\naffinity: {"+test.affinity+"}\ntopologySpreadConstraints: ["+test.spread+"]")).Class
			if class.UnsupportedPlugin != test.plugin || class.Unsupported != test.want {
				t.Fatalf("%s: %s says %q, want %s to say %q", test.name, class.UnsupportedPlugin, class.Unsupported, test.plugin, test.want)
			}
			if len(class.Spread) > 0 {
				t.Fatalf("%s: some of the constraints are left", test.name)
			}
		}
	}
	placed := spec(t, `
nodeName: node
containers: [{name: a}]
affinity:
  podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [`+good+`, {topologyKey: k, `+bad+`}]}
  podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [`+good+`]}`)
	if class := source.ReducePod(placed).Class; len(class.Affinity) != 0 || len(class.AntiAffinity) != 1 {
		t.Errorf("of a placed pod: %d affinity terms, %d of anti-affinity; want those of the list that can be parsed", len(class.Affinity), len(class.AntiAffinity))
	}
}

func TestPodsThatDifferInLabelsAreOfOneClass(t *testing.T) {
	reduce := func(namespace, app, affinity, spread string) source.Pod {
		pod := spec(t, "containers: [{name: a}]\n"+affinity+spread)
		pod.Namespace, pod.Labels = namespace, map[string]string{"b": "1", "app": app}
		return source.ReducePod(pod)
	}
	named := "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, namespaces: [x], labelSelector: {}}]}}\n"
	own := "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, labelSelector: {}}]}}\n"
	keys := "topologySpreadConstraints: [{topologyKey: k, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [app]}]"
	a := reduce("one", "a", "", "")
	if want := (cluster.LabelSet{Namespace: "one", Labels: []cluster.Label{{Key: "app", Value: "a"}, {Key: "b", Value: "1"}}}); !cmp.Equal(a.Labels, want) {
		t.Errorf("labels %+v, want %+v", a.Labels, want)
	}
	for _, test := range []struct {
		name             string
		affinity, spread string
		namespace, app   string
		one              bool
	}{
		{"other labels", "", "", "one", "b", true},
		{"another namespace", "", "", "two", "a", true},
		{"terms that name their namespaces", named, "", "two", "b", true},
		{"terms of the pod's own namespace", own, "", "two", "a", false},
		{"terms of the same namespace", own, "", "one", "b", true},
		{"label keys", "", keys, "one", "b", false},
		{"label keys of the same labels", "", keys, "two", "a", true},
	} {
		first, second := reduce("one", "a", test.affinity, test.spread), reduce(test.namespace, test.app, test.affinity, test.spread)
		if got := cmp.Equal(first.Class, second.Class); got != test.one {
			t.Errorf("%s: of one class: %v, want %v", test.name, got, test.one)
		}
		if cmp.Equal(first.Labels, second.Labels) {
			t.Errorf("%s: the label sets are equal", test.name)
		}
	}
}

func TestTheControllerIsReadIfItsSelectorCounts(t *testing.T) {
	for _, test := range []struct {
		version, kind string
		controller    bool
		want          cluster.Controller
	}{
		{"v1", "ReplicationController", true, cluster.Controller{Kind: cluster.KindReplicationController, Name: "owner"}},
		{"apps/v1", "ReplicaSet", true, cluster.Controller{Kind: cluster.KindReplicaSet, Name: "owner"}},
		{"apps/v1", "StatefulSet", true, cluster.Controller{Kind: cluster.KindStatefulSet, Name: "owner"}},
		{"apps/v1", "ReplicaSet", false, cluster.Controller{}},
		{"apps/v1", "DaemonSet", true, cluster.Controller{}},
		{"apps/v1beta1", "StatefulSet", true, cluster.Controller{}},
		{"v1", "ReplicaSet", true, cluster.Controller{}},
		{"a/b/c", "ReplicaSet", true, cluster.Controller{}},
	} {
		pod := spec(t, "containers: [{name: a}]")
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "another"},
			{APIVersion: test.version, Kind: test.kind, Name: "owner", Controller: &test.controller},
		}
		if got := source.ReducePod(pod).Labels.Controller; got != test.want {
			t.Errorf("%s %s, controller %v: %+v, want %+v", test.version, test.kind, test.controller, got, test.want)
		}
	}
}

func TestANominationIsRead(t *testing.T) {
	pod := spec(t, "containers: [{name: a}]")
	pod.Status.NominatedNodeName = "n"
	if got := source.ReducePod(pod).Nominated; got != "n" {
		t.Errorf("nominated to %q, want n", got)
	}
}

func TestFeaturesThatANodeMustDeclareAreThoseOfTheSpec(t *testing.T) {
	for text, want := range map[string][]string{
		"containers: [{name: a}]": nil,
		"containers: [{name: a, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers}]}]":                                                        {"RestartAllContainersOnContainerExits"},
		"{containers: [{name: a}], initContainers: [{name: i, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers}]}]}":                         {"RestartAllContainersOnContainerExits"},
		"{hostNetwork: true, hostUsers: false, containers: [{name: a}]}":                                                                                             {"UserNamespacesHostNetworkSupport"},
		"{hostNetwork: true, hostUsers: true, containers: [{name: a}]}":                                                                                              nil,
		"{hostUsers: false, containers: [{name: a}]}":                                                                                                                nil,
		"{hostNetwork: true, hostUsers: false, containers: [{name: a, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers}]}]}":                 {"RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"},
		"{resources: {requests: {cpu: 1}}, containers: [{name: a}], initContainers: [{name: i, resources: {requests: {cpu: 1}}, resizePolicy: []}]}":                 nil,
		"{nodeName: node, containers: [{name: a, restartPolicy: Never, restartPolicyRules: [{action: Restart}]}], affinity: {podAffinity: {}, podAntiAffinity: {}}}": nil,
	} {
		class := source.ReducePod(spec(t, text)).Class
		if !cmp.Equal(class.Features, want) || class.Unsupported != "" {
			t.Errorf("%s: %q, want %q; %s", text, class.Features, want, class.Unsupported)
		}
	}
}

func TestSelectorsOfServicesAndControllersAreRead(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x", Labels: map[string]string{"not": "this"}}
	labels := map[string]string{"b": "1", "a": "2"}
	byLabels := &metav1.LabelSelector{MatchLabels: labels}
	type reduced struct {
		Selector source.Selector
		OK       bool
	}
	of := func(s source.Selector, ok bool) reduced { return reduced{s, ok} }
	service := func(selector map[string]string) reduced {
		return of(source.ReduceService(&v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{Selector: selector}}))
	}
	controller := func(selector map[string]string) reduced {
		return of(source.ReduceReplicationController(&v1.ReplicationController{ObjectMeta: meta, Spec: v1.ReplicationControllerSpec{Selector: selector}}))
	}
	replicas := func(selector *metav1.LabelSelector) reduced {
		return of(source.ReduceReplicaSet(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector}}))
	}
	stateful := func(selector *metav1.LabelSelector) reduced {
		return of(source.ReduceStatefulSet(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector}}))
	}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	both := where(in("a", "2"), in("b", "1"))
	for i, test := range []struct {
		got  reduced
		kind string
		want cluster.LabelSelector
		ok   bool
	}{
		{service(labels), "Service", both, true},
		{service(nil), "Service", where(), false},
		{service(map[string]string{}), "Service", where(), false},
		{controller(labels), "ReplicationController", both, true},
		{controller(nil), "ReplicationController", where(), false},
		{replicas(byLabels), "ReplicaSet", both, true},
		{replicas(nil), "ReplicaSet", where(), false},
		{replicas(bad), "ReplicaSet", where(), false},
		{replicas(&metav1.LabelSelector{}), "ReplicaSet", where(), true},
		{stateful(byLabels), "StatefulSet", both, true},
		{stateful(nil), "StatefulSet", where(), false},
		{stateful(bad), "StatefulSet", where(), false},
	} {
		want := reduced{source.Selector{Kind: test.kind, Namespace: "ns", Name: "x", Selector: test.want}, test.ok}
		if diff := cmp.Diff(want, test.got); diff != "" {
			t.Errorf("case %d (-want +got):\n%s", i, diff)
		}
	}
}
