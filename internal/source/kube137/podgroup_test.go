package kube137

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// sent is a PodGroup of v1beta1 as an API server of 1.37 would send it, with what is managed and decided by others.
func sent(spec string) string {
	return `{"kind":"PodGroup","apiVersion":"scheduling.k8s.io/v1beta1",
"metadata":{"name":"train-workers-0","namespace":"research","uid":"0b6d6a52-8e0d-4c0e-9d3c-51b7c5b0e1c2","resourceVersion":"4711","generation":2,
 "creationTimestamp":"2030-01-02T03:04:05Z","finalizers":["scheduling.k8s.io/podgroup-protection"],
 "managedFields":[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"scheduling.k8s.io/v1beta1","time":"2030-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]},
"spec":` + spec + `,
"status":{"conditions":[{"type":"PodGroupInitiallyScheduled","status":"False","observedGeneration":2,"lastTransitionTime":"2030-01-02T03:04:06Z","reason":"Unschedulable","message":"no room"}]}}`
}

func TestPodGroupsOfV1beta1AreTheGroupsThatThoseOfV1alpha2Are(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		want       cluster.PodGroup
	}{
		{"all that there is", `{"workloadRef":{"workloadName":"train","templateName":"workers"},"schedulingPolicy":{"gang":{"minCount":8}},
"schedulingConstraints":{"topology":[{"key":"example.com/rack"}]},"resourceClaims":[{"name":"net","resourceClaimName":"net-0"}],
"disruptionMode":{"all":{}},"priorityClassName":"high","priority":1000,"preemptionPolicy":"PreemptLowerPriority"}`,
			cluster.PodGroup{Gang: true, MinCount: 8, Topology: []string{"example.com/rack"}, HasPriority: true, Priority: 1000, Whole: true}},
		{"with what the server fills in", `{"schedulingPolicy":{"gang":{"minCount":3}},"disruptionMode":{"single":{}},"priority":0}`, cluster.PodGroup{Gang: true, MinCount: 3, HasPriority: true}},
		{"the least", `{"schedulingPolicy":{"basic":{}}}`, cluster.PodGroup{}},
		{"with constraints of none", `{"schedulingPolicy":{"basic":{}},"schedulingConstraints":{}}`, cluster.PodGroup{}},
		{"a field of later", `{"schedulingPolicy":{"gang":{"minCount":2,"maxCount":4}},"later":true}`, cluster.PodGroup{Gang: true, MinCount: 2}},

		{"never preempts", `{"schedulingPolicy":{"gang":{"minCount":2}},"preemptionPolicy":"Never"}`, cluster.PodGroup{Untold: "spec.preemptionPolicy of the PodGroup is Never: Berth knows that of pods only"}},
		{"has a parent", `{"workloadRef":{"workloadName":"train","templateName":"workers"},"parentCompositePodGroupName":"train-0","schedulingPolicy":{"gang":{"minCount":2}}}`,
			cluster.PodGroup{Untold: `the PodGroup is of the CompositePodGroup "train-0", which Berth does not follow: it would not be placed together with the others there`}},
		{"a policy of later", `{"schedulingPolicy":{"elastic":{"minCount":2}}}`, cluster.PodGroup{Untold: "spec.schedulingPolicy of the PodGroup is neither basic nor gang: Berth knows no other"}},
		{"a mode of later", `{"schedulingPolicy":{"basic":{}},"disruptionMode":{"half":{}}}`, cluster.PodGroup{Untold: "spec.disruptionMode of the PodGroup is neither single nor all: Berth knows no other"}},
	} {
		got, err := DecodePodGroup([]byte(sent(test.spec)))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		want := test.want
		want.Namespace, want.Name, want.UID = "research", "train-workers-0", "0b6d6a52-8e0d-4c0e-9d3c-51b7c5b0e1c2"
		want.Created = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestWhatIsNoPodGroupOfV1beta1IsAnError(t *testing.T) {
	for _, test := range []struct{ name, data, want string }{
		{"of 1.36", strings.Replace(sent(`{"schedulingPolicy":{"basic":{}}}`), "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2", 1), `it is "PodGroup" of "scheduling.k8s.io/v1alpha2", want "PodGroup" of "scheduling.k8s.io/v1beta1"`},
		{"another kind", `{"kind":"Workload","apiVersion":"scheduling.k8s.io/v1beta1"}`, `it is "Workload"`},
		{"the mode of 1.36", sent(`{"schedulingPolicy":{"basic":{}},"disruptionMode":"PodGroup"}`), ".spec.disruptionMode of type"},
		{"no JSON", `{`, "unexpected end of JSON input"},
	} {
		if got, err := DecodePodGroup([]byte(test.data)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v, want %q", test.name, got, err, test.want)
		}
	}
}
