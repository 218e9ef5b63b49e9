package answer_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/answer"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// An explanation of a pod with as many claims as are judged, each with a volume that can be reached from thousands of nodes, is of a size.
func TestAnExplanationOfManyPlacesIsOfASize(t *testing.T) {
	var objects, volumes, values strings.Builder
	for k := range 6 {
		objects.WriteString("---\n" + nodeWith(fmt.Sprint("node-", k), 1))
	}
	for k := range 2000 {
		fmt.Fprintf(&values, "host-%d-%s, ", k, strings.Repeat("x", 20))
	}
	objects.WriteString("---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: shared}\nspec:\n  capacity: {storage: 1Gi}\n  accessModes: [ReadWriteMany]\n" +
		"  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [" + values.String() + "]}]}]}}\n")
	for k := range 256 {
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data-%d, namespace: default, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}\n"+
			"spec: {volumeName: shared, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}\n", k)
		fmt.Fprintf(&volumes, "{name: v%d, persistentVolumeClaim: {claimName: data-%d}}, ", k, k)
	}
	objects.WriteString("---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: default}\nspec: {schedulerName: berth, containers: [{name: c, image: i}], volumes: [" + volumes.String() + "]}\n")
	box := boxOf(t, objects.String())
	id, err := answer.Find(t.Context(), box, "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	var got *schedulingv1.ExplainPodResponse
	bytes := allocates(func() {
		got, err = answer.Explain(t.Context(), box, id, &schedulingv1.ExplainPodRequest{}, answer.MayKnow{Pods: true, Claims: true})
	})
	if err != nil || len(got.GetClaims()) != 256 || len(got.GetMisses()) != 5 || !strings.Contains(got.GetClaims()[0].GetText(), "and 1997 more") {
		t.Fatalf("%d claims, %d misses, %v: %.300s", len(got.GetClaims()), len(got.GetMisses()), err, got.GetClaims()[0].GetText())
	}
	if size := proto.Size(got); size > 4<<20 || bytes > 64<<20 {
		t.Errorf("the explanation has %d bytes, for which %d were allocated", size, bytes)
	}
}

// All names as long as an API server takes them, and of all that is said as much as there can be.
func TestTheLargestExplanationIsOfASize(t *testing.T) {
	long := func(k int) string {
		return fmt.Sprintf("%d-%s", k, strings.Repeat(strings.Repeat("x", 61)+".", 4)[:246])
	}
	var objects, volumes, terms strings.Builder
	for k := range 6 {
		objects.WriteString("---\n" + strings.Replace(nodeWith(long(k)+"n", 1), "k0: v,", "topology.kubernetes.io/zone: z,", 1))
	}
	for k := range 5 {
		fmt.Fprintf(&terms, "{matchExpressions: [{key: %[1]s/%[2]s, operator: In, values: [%[2]s-1, %[2]s-2, %[2]s-3, %[2]s-4]}, {key: %[1]s/%[2]s, operator: NotIn, values: [v%[3]d]}]}, ", long(k), strings.Repeat("y", 60), k)
	}
	for k := range 256 {
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %[1]s, namespace: default, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}\n"+
			"spec: {storageClassName: %[1]s, volumeName: %[1]sv, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}\n", long(k))
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: %sv, labels: {topology.kubernetes.io/zone: far}}\nspec:\n  capacity: {storage: 1Gi}\n  accessModes: [ReadWriteOncePod]\n"+
			"  nodeAffinity: {required: {nodeSelectorTerms: [%s]}}\n", long(k), terms.String())
		fmt.Fprintf(&volumes, "{name: v%d, persistentVolumeClaim: {claimName: %s}}, ", k, long(k))
	}
	for _, name := range []string{"user, namespace: default}\nspec: {nodeName: " + long(0) + "n, ", "p, namespace: default}\nspec: {"} {
		objects.WriteString("---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "schedulerName: berth, containers: [{name: c, image: i}], volumes: [" + volumes.String() + "]}\n")
	}
	box := boxOf(t, objects.String())
	id, err := answer.Find(t.Context(), box, "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	got, err := answer.Explain(t.Context(), box, id, &schedulingv1.ExplainPodRequest{}, answer.MayKnow{Pods: true, Claims: true})
	if err != nil {
		t.Fatal(err)
	}
	obstacles := len(got.GetClaims()[255].GetObstacles())
	if size := proto.Size(got); size > 16<<20 || len(got.GetMisses()) != 5 || obstacles != 3 {
		t.Errorf("the explanation has %d bytes, %d misses, %d obstacles to a claim", size, len(got.GetMisses()), obstacles)
	}
}

// allocates returns how many bytes are allocated meanwhile.
func allocates(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
