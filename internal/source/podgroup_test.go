package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPreferredTopologyIsReadOrSaysWhatIsWrong(t *testing.T) {
	for value, want := range map[string]struct {
		keys []string
		why  string
	}{
		"":                              {},
		" ":                             {},
		"zone":                          {keys: []string{"zone"}},
		"example.com/zone, block ,rack": {keys: []string{"example.com/zone", "block", "rack"}},
		"a,b,c,d,e,f,g,h":               {keys: []string{"a", "b", "c", "d", "e", "f", "g", "h"}},
		"a,b,c,d,e,f,g,h,i":             {why: "more than 8 label keys; want 1 to 8 label keys"},
		"zone,,rack":                    {why: "label key 2 is empty"},
		"zone,":                         {why: "label key 2 is empty"},
		"zone,the rack":                 {why: `"the rack" is no label key`},
		"/rack":                         {why: `"/rack" is no label key`},
		"rack,rack":                     {why: `"rack" is there twice`},
	} {
		group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "g", UID: "u", Annotations: map[string]string{PreferredTopology: value}}}
		group.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: 2}
		got := ReducePodGroup(group)
		if want.why != "" {
			const where = "its PodGroup's metadata.annotations[scheduling.berth.dev/preferred-topology]: "
			if !strings.HasPrefix(got.Untold, where+want.why) || got.UID != "u" || got.Gang {
				t.Errorf("%q: %+v, want that it says %q", value, got, where+want.why)
			}
			continue
		}
		if diff := cmp.Diff(want.keys, got.Preferred); diff != "" || got.Untold != "" || !got.Gang {
			t.Errorf("%q: %+v (-want +got):\n%s", value, got, diff)
		}
	}
	// What is wrong is quoted, but no more of it than people read.
	long := ReducePodGroup(&schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PreferredTopology: strings.Repeat("\x00", 200_000)}}})
	if long.Untold == "" || len(long.Untold) > 700 {
		t.Errorf("%d bytes say what is wrong", len(long.Untold))
	}
}
