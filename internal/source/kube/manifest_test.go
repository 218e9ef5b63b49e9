package kube

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A manifest that is applied without an API server is completed as, and refused if, an API server would.
func TestRelationsInManifestsAreReadAsThisAPIServerReadsThem(t *testing.T) {
	c := startCluster(t)
	near := func(term string) string {
		return "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [" + term + "]}}"
	}
	apart := func(weight int, term string) string {
		return fmt.Sprintf("affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: %d, podAffinityTerm: %s}]}}", weight, term)
	}
	spread := func(constraints string) string { return "topologySpreadConstraints: [" + constraints + "]" }
	accepted := 0
	cases := []string{
		near(`{topologyKey: zone}`),
		near(`{labelSelector: {}}`),
		near(`{topologyKey: a b}`),
		near(`{topologyKey: zone, labelSelector: {matchLabels: {b: "1", a: "2"}, matchExpressions: [{key: c, operator: NotIn, values: [q, p, q]}]}, namespaces: [b-ns, a-ns]}`),
		near(`{topologyKey: zone, namespaces: [""]}`),
		near(`{topologyKey: zone, namespaces: [Not_ok]}`),
		near(`{topologyKey: zone, namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}, labelSelector: {}}`),
		near(`{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: In}]}}`),
		near(`{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}}`),
		near(`{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: Like, values: [x]}]}}`),
		near(`{topologyKey: zone, labelSelector: {matchLabels: {a: "no label!"}}}`),
		near(`{topologyKey: zone, labelSelector: {}, matchLabelKeys: [app, missing], mismatchLabelKeys: [version]}`),
		near(`{topologyKey: zone, labelSelector: {}, matchLabelKeys: [app, app]}`),
		near(`{topologyKey: zone, labelSelector: {}, matchLabelKeys: [missing, missing]}`),
		near(`{topologyKey: zone, labelSelector: {}, matchLabelKeys: [app], mismatchLabelKeys: [app]}`),
		near(`{topologyKey: zone, labelSelector: {matchLabels: {app: x}}, matchLabelKeys: [app]}`),
		near(`{topologyKey: zone, labelSelector: {matchLabels: {missing: x}}, matchLabelKeys: [missing]}`),
		near(`{topologyKey: zone, labelSelector: {matchExpressions: [{key: app, operator: Exists}]}, matchLabelKeys: [app]}`),
		near(`{topologyKey: zone, labelSelector: {matchLabels: {app: x}}, mismatchLabelKeys: [app]}`),
		near(`{topologyKey: zone, labelSelector: {}, matchLabelKeys: ["a b"]}`),
		near(`{topologyKey: zone, matchLabelKeys: [app]}`),
		near(`{topologyKey: zone, mismatchLabelKeys: [app]}`),
		apart(0, `{topologyKey: zone, labelSelector: {}}`),
		apart(100, `{topologyKey: zone, labelSelector: {}, mismatchLabelKeys: [app]}`),
		apart(101, `{topologyKey: zone, labelSelector: {}}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: zone, maxSkew: 0, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: "", maxSkew: 1, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: a b, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: Never}`),
		spread(`{topologyKey: zone, maxSkew: 1, minDomains: 2, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}`),
		spread(`{topologyKey: zone, maxSkew: 1, minDomains: 0, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: zone, maxSkew: 1, minDomains: 2, whenUnsatisfiable: ScheduleAnyway}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, nodeAffinityPolicy: Maybe}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: honor}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}, {topologyKey: zone, maxSkew: 2, whenUnsatisfiable: DoNotSchedule}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}, {topologyKey: zone, maxSkew: 2, whenUnsatisfiable: ScheduleAnyway}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [app, missing]}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [app]}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [app]}`),
		spread(`{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}`),
	}
	for i, text := range cases {
		text := fmt.Appendf(nil, "apiVersion: v1\nkind: Pod\nmetadata: {name: p-%d, namespace: default, labels: {app: web, version: \"2\"}}\nspec:\n  containers: [{name: a, image: app}]\n  %s\n", i, text)
		var pod v1.Pod
		if err := yaml.UnmarshalStrict(text, &pod); err != nil {
			t.Fatal(err)
		}
		objects, parseErr := manifest.Parse(text)
		created, err := c.client.CoreV1().Pods("default").Create(within(t), &pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && !apierrors.IsInvalid(err) {
			t.Fatal(err)
		}
		if (err == nil) != (parseErr == nil) {
			t.Errorf("%s: the API server says %v, the manifest's reader %v", text, err, parseErr)
			continue
		}
		if err != nil {
			continue
		}
		accepted++
		if diff := cmp.Diff(relations(created), relations(objects[0].Pod)); diff != "" {
			t.Errorf("%s (-API server +manifest):\n%s", text, diff)
		}
		// What comes back from an API server, as a recorded cluster does, is not merged again.
		again, err := yaml.Marshal(withType(created))
		if err != nil {
			t.Fatal(err)
		}
		if objects, err = manifest.Parse(again); err != nil {
			t.Errorf("%s: as the API server returned it: %v", text, err)
		} else if diff := cmp.Diff(relations(created), relations(objects[0].Pod)); diff != "" {
			t.Errorf("%s: as the API server returned it (-API server +manifest):\n%s", text, diff)
		}
	}
	if accepted < 10 || len(cases)-accepted < 10 {
		t.Errorf("%d of %d were accepted", accepted, len(cases))
	}
}

func withType(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return pod
}

// relations returns the part of a pod's class that is about other pods.
func relations(pod *v1.Pod) cluster.ClassSpec {
	class := source.ReducePod(pod).Class
	return cluster.ClassSpec{
		Affinity: class.Affinity, AntiAffinity: class.AntiAffinity,
		PreferredAffinity: class.PreferredAffinity, PreferredAntiAffinity: class.PreferredAntiAffinity,
		Spread: class.Spread, Unsupported: class.Unsupported,
	}
}
