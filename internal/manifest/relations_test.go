package manifest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// near returns a pod's manifest with a required pod affinity term.
func near(term string) string {
	return pod("p", "  affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: ["+term+"]}}")
}

func spread(constraints string) string {
	return pod("p", "  topologySpreadConstraints: ["+constraints+"]")
}

// object returns a manifest of a kind with these metadata and this spec.
func object(kind, meta, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x, %s}\nspec: {%s}\n", kindNamed(kind).apiVersion, kind, meta, spec)
}

func TestWhatIsWrongWithRelationsOfPodsIsNamed(t *testing.T) {
	const term = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
	const constraint = "spec.topologySpreadConstraints[0]"
	for _, test := range []struct {
		name, input string
		want        []string // violations without document and object, or their beginnings
	}{
		{"a term without a topology key", near(`{labelSelector: {}}`), []string{term + ".topologyKey: Required value"}},
		{"a topology key that cannot be", near(`{topologyKey: a b, labelSelector: {}}`), []string{term + `.topologyKey: Invalid value: "a b"`}},
		{"a label value that cannot be", near(`{topologyKey: k, labelSelector: {matchLabels: {a: "b c"}}}`), []string{term + `.labelSelector.matchLabels: Invalid value: "b c"`}},
		{"In without values", near(`{topologyKey: k, namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}`), []string{
			term + ".namespaceSelector.matchExpressions[0].values: Required value"}},
		{"Exists with values", near(`{topologyKey: k, labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}`), []string{
			term + ".labelSelector.matchExpressions[0].values: Forbidden"}},
		{"a namespace that cannot be", near(`{topologyKey: k, namespaces: [ok, Not_ok]}`), []string{term + `.namespaces[1]: Invalid value: "Not_ok"`}},
		{"a weight", pod("p", "  affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, podAffinityTerm: {topologyKey: k}}, {weight: 101, podAffinityTerm: {topologyKey: k}}]}}"), []string{
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be from 1 to 100",
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].weight: Invalid value: 101: must be from 1 to 100"}},
		{"label keys without a selector", near(`{topologyKey: k, matchLabelKeys: [a], mismatchLabelKeys: [b]}`), []string{
			term + ".matchLabelKeys: Forbidden", term + ".mismatchLabelKeys: Forbidden"}},
		{"a label key that cannot be", near(`{topologyKey: k, labelSelector: {}, mismatchLabelKeys: [a b]}`), []string{term + `.mismatchLabelKeys[0]: Invalid value: "a b"`}},
		{"a key to match and to mismatch", near(`{topologyKey: k, labelSelector: {}, matchLabelKeys: [a], mismatchLabelKeys: [a]}`), []string{
			term + `.matchLabelKeys[0]: Invalid value: "a": is in both matchLabelKeys and mismatchLabelKeys`}},
		{"a key that the selector has", strings.Replace(near(`{topologyKey: k, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [a]}`), "{name: p}", "{name: p, labels: {a: b}}", 1), []string{
			term + `.matchLabelKeys[0]: Invalid value: "a": is in both matchLabelKeys and labelSelector`}},

		{"no skew", spread(`{topologyKey: k, maxSkew: -1, whenUnsatisfiable: ScheduleAnyway}`), []string{constraint + ".maxSkew: Invalid value: -1: must be at least 1"}},
		{"no topology key", spread(`{maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}`), []string{constraint + ".topologyKey: Required value"}},
		{"no action", spread(`{topologyKey: k, maxSkew: 1}`), []string{constraint + `.whenUnsatisfiable: Unsupported value: ""`}},
		{"minDomains of no domain", spread(`{topologyKey: k, maxSkew: 1, minDomains: 0, whenUnsatisfiable: DoNotSchedule}`), []string{constraint + ".minDomains: Invalid value: 0: must be at least 1"}},
		{"minDomains that hold nobody back", spread(`{topologyKey: k, maxSkew: 1, minDomains: 2, whenUnsatisfiable: ScheduleAnyway}`), []string{
			constraint + ".minDomains: Invalid value: 2: can only be used with whenUnsatisfiable DoNotSchedule"}},
		{"policies", spread(`{topologyKey: k, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, nodeAffinityPolicy: Respect, nodeTaintsPolicy: ignore}`), []string{
			constraint + `.nodeAffinityPolicy: Unsupported value: "Respect"`, constraint + `.nodeTaintsPolicy: Unsupported value: "ignore"`}},
		{"a constraint twice", spread(`{topologyKey: k, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}, {topologyKey: k, maxSkew: 2, whenUnsatisfiable: ScheduleAnyway}`), []string{
			`spec.topologySpreadConstraints[1]: Duplicate value: "k, ScheduleAnyway"`}},
		{"a selector", spread(`{topologyKey: k, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}`), []string{
			constraint + `.labelSelector.matchExpressions[0].operator: Invalid value: "Gt"`}},
		{"label keys of a constraint", spread(`{topologyKey: k, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [a]}`), []string{constraint + ".matchLabelKeys: Forbidden"}},

		{"a nomination", pod("p", "status: {nominatedNodeName: A B}"), []string{`status.nominatedNodeName: Invalid value: "A B"`}},
		{"owners", strings.Replace(pod("p", ""), "{name: p}", "{name: p, ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: u, controller: true}, {uid: u, controller: true}]}", 1), []string{
			"metadata.ownerReferences[1].apiVersion: Required value", "metadata.ownerReferences[1].kind: Required value", "metadata.ownerReferences[1].name: Required value",
			"metadata.ownerReferences[1].controller: Invalid value: true: only one owner can be the controller"}},

		{"a service's selector", object(KindService, "", "selector: {a b: c}"), []string{`spec.selector[a b]: Invalid value: "a b"`}},
		{"a service's name", strings.Replace(object(KindService, "", ""), "name: x", "name: a.b", 1), []string{`metadata.name: Invalid value: "a.b"`}},
		{"a service's namespace", object(KindService, "namespace: A", ""), []string{`metadata.namespace: Invalid value: "A"`}},
		{"a controller without labels", object(KindReplicationController, "", "replicas: 1"), []string{"spec.selector: Required value"}},
		{"a replica set without a selector", object(KindReplicaSet, "", "replicas: 1"), []string{"spec.selector: Required value"}},
		{"a replica set of everything", object(KindReplicaSet, "", "selector: {}"), []string{"spec.selector: Required value"}},
		{"a stateful set's selector", object(KindStatefulSet, "", "selector: {matchExpressions: [{key: a, operator: Like}]}"), []string{`spec.selector.matchExpressions[0].operator: Invalid value: "Like"`}},
		{"a budget's selector", object(KindPodDisruptionBudget, "", "selector: {matchExpressions: [{key: a, operator: In}]}"), []string{"spec.selector.matchExpressions[0].values: Required value"}},
		{"a budget below nothing", object(KindPodDisruptionBudget, "namespace: A", "") + "status: {disruptionsAllowed: -1}", []string{
			`metadata.namespace: Invalid value: "A"`, "status.disruptionsAllowed: Invalid value: -1: must not be negative"}},
		{"a preemption policy", pod("p", "  preemptionPolicy: Sometimes"), []string{`spec.preemptionPolicy: Unsupported value: "Sometimes": supported values: "PreemptLowerPriority", "Never"`}},
		{"an unknown field of a service", object(KindService, "", "selectors: {a: b}"), []string{"spec.selectors: unknown field"}},
		{"a wrong type in a replica set", object(KindReplicaSet, "", "selector: {matchLabels: {a: 1}}"), []string{"spec.selector.matchLabels[a]: want text (put it in quotes), not the number 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.input))
			invalid, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("Parse: %v, want an *Error", err)
			}
			var got []string
			for i, v := range invalid.Violations {
				s := v.Field + ": " + v.Description
				if i < len(test.want) && strings.HasPrefix(s, test.want[i]) {
					s = test.want[i]
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLabelKeysAreMergedIntoTheSelectorsOfANewPod(t *testing.T) {
	const text = `
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web, version: "2"}%s}
spec:
  containers: [{name: a}]
  affinity:
    podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 1, podAffinityTerm: {topologyKey: k, labelSelector: {}, matchLabelKeys: [version, missing]}}
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {topologyKey: k, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [version], mismatchLabelKeys: [app, missing]}
      - {topologyKey: k, labelSelector: {matchLabels: {app: web}}}
  topologySpreadConstraints:
  - {topologyKey: k, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [app]}
`
	selectors := func(p *v1.Pod) []metav1.LabelSelector {
		return []metav1.LabelSelector{
			*p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm.LabelSelector,
			*p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector,
			*p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[1].LabelSelector,
			*p.Spec.TopologySpreadConstraints[0].LabelSelector,
		}
	}
	is := func(key string, operator metav1.LabelSelectorOperator, value string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}}
	}
	web := map[string]string{"app": "web"}
	merged := []metav1.LabelSelector{
		{MatchExpressions: []metav1.LabelSelectorRequirement{is("version", "In", "2")}},
		{MatchLabels: web, MatchExpressions: []metav1.LabelSelectorRequirement{is("version", "In", "2"), is("app", "NotIn", "web")}},
		{MatchLabels: web},
		{MatchExpressions: []metav1.LabelSelectorRequirement{is("app", "In", "web")}},
	}
	for uid, want := range map[string][]metav1.LabelSelector{
		"":          merged,
		", uid: u1": {{}, {MatchLabels: web}, {MatchLabels: web}, {}}, // an API server has merged what was to be merged
	} {
		objects, err := Parse(fmt.Appendf(nil, text, uid))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, selectors(objects[0].Pod)); diff != "" {
			t.Errorf("selectors of a pod with the metadata %q (-want +got):\n%s", uid, diff)
		}
	}
}

func TestServicesAndControllersAreRead(t *testing.T) {
	objects, err := Parse([]byte(strings.Join([]string{
		object(KindService, "namespace: shop", "selector: {app: web}, clusterIP: None, ports: [{port: 80, targetPort: http}]"),
		object(KindService, "", "type: ExternalName, externalName: example.com"),
		object(KindReplicationController, "", "template: {metadata: {labels: {app: old}}, spec: {containers: [{name: a}]}}"),
		object(KindReplicationController, "namespace: shop", "selector: {app: older}, template: {metadata: {labels: {app: old}}}"),
		object(KindReplicaSet, "", "replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}"),
		object(KindStatefulSet, "", "serviceName: db, selector: {matchExpressions: [{key: app, operator: Exists}]}"),
	}, "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 Service shop/x, 2 Service default/x, 3 ReplicationController default/x, 4 ReplicationController shop/x, 5 ReplicaSet default/x, 6 StatefulSet default/x"; names(objects) != want {
		t.Fatalf("read %s, want %s", names(objects), want)
	}
	got := []any{
		objects[0].Other.(*v1.Service).Spec.Selector, objects[1].Other.(*v1.Service).Spec.Selector,
		objects[2].Other.(*v1.ReplicationController).Spec.Selector, objects[3].Other.(*v1.ReplicationController).Spec.Selector,
		objects[4].Other.(*appsv1.ReplicaSet).Spec.Selector, objects[5].Other.(*appsv1.StatefulSet).Spec.Selector,
	}
	want := []any{
		map[string]string{"app": "web"}, map[string]string(nil), map[string]string{"app": "old"}, map[string]string{"app": "older"},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Exists"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("selectors (-want +got):\n%s", diff)
	}
	for kind, want := range map[string]bool{
		KindNode: false, KindNamespace: false, KindPod: true, KindService: true, KindReplicationController: true, KindReplicaSet: true, KindStatefulSet: true,
		KindPodDisruptionBudget: true, KindPersistentVolume: false, KindPersistentVolumeClaim: true, KindStorageClass: false, KindCSINode: false,
		KindCSIDriver: false, KindCSIStorageCapacity: true, KindVolumeAttachment: false, "Deployment": false,
	} {
		if Namespaced(kind) != want {
			t.Errorf("%s is in a namespace: %v, want %v", kind, !want, want)
		}
	}
	if o := (Object{Other: &appsv1.StatefulSet{}}); o.Kind() != KindStatefulSet || (Object{}).Kind() != "" || (Object{}).Name() != "" {
		t.Errorf("kinds %q and %q", o.Kind(), Object{}.Kind())
	}
}

func TestANominationIsKeptWhileAPodWaits(t *testing.T) {
	for spec, want := range map[string]string{
		"status: {nominatedNodeName: n1, phase: Pending}":               "n1",
		"  nodeName: n2\nstatus: {nominatedNodeName: n1}":               "",
		"status: {nominatedNodeName: n1, phase: Failed, message: gone}": "",
	} {
		objects, err := Parse([]byte(pod("p", spec)))
		if err != nil {
			t.Fatal(err)
		}
		if got := objects[0].Pod.Status.NominatedNodeName; got != want {
			t.Errorf("%s: nominated to %q, want %q", spec, got, want)
		}
	}
}

func TestABudgetIsReadWithWhatItsStatusSays(t *testing.T) {
	objects, err := Parse([]byte(object(KindPodDisruptionBudget, "generation: 3", "minAvailable: 50%, selector: {matchLabels: {app: web}}, unhealthyPodEvictionPolicy: AlwaysAllow") +
		"status: {disruptionsAllowed: 2, currentHealthy: 4, desiredHealthy: 2, expectedPods: 4, disruptedPods: {web-1: \"2026-01-01T00:00:00Z\"}}"))
	if err != nil {
		t.Fatal(err)
	}
	b := objects[0].Other.(*policyv1.PodDisruptionBudget)
	if _, disrupted := b.Status.DisruptedPods["web-1"]; b.Namespace != "default" || b.Spec.Selector.MatchLabels["app"] != "web" ||
		b.Status.DisruptionsAllowed != 2 || !disrupted {
		t.Errorf("read: %+v", b)
	}
}

func TestPriorityPreemptionPolicyAndStartOfAPodAreKept(t *testing.T) {
	const status = "status: {startTime: \"2026-01-02T03:04:05Z\", phase: Running}"
	objects, err := Parse([]byte(pod("p", "  nodeName: n1\n  priority: -7\n  preemptionPolicy: Never\n"+status) + "\n---\n" + pod("waits", status)))
	if err != nil {
		t.Fatal(err)
	}
	p := objects[0].Pod
	if *p.Spec.Priority != -7 || *p.Spec.PreemptionPolicy != v1.PreemptNever || p.Status.StartTime == nil || p.Status.StartTime.Unix() != 1767323045 {
		t.Errorf("read: priority %d, policy %s, start %v", *p.Spec.Priority, *p.Spec.PreemptionPolicy, p.Status.StartTime)
	}
	if start := objects[1].Pod.Status.StartTime; start != nil {
		t.Errorf("a pod that waits has started at %v", start)
	}
}
