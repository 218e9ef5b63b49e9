package system

import (
	"context"
	"fmt"
	"strings"
	"testing"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// fullOfVolumes returns manifests of two nodes, node-0000 and node-0001, to each of which two volumes can be attached, and are: of the pods low-0 to low-3,
// two on each node, of which low-0 has the least priority; and of a claim that nobody uses, whose volume is attached to a node that is not there.
func fullOfVolumes() (manifests []string) {
	manifests = berthtest.Nodes(2)
	for k := range 2 {
		manifests = append(manifests, fmt.Sprintf(`{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: node-%04d}, spec: {drivers: [{name: csi.example.com, nodeID: id, allocatable: {count: 2}}]}}`, k))
	}
	bound := func(name string) {
		manifests = append(manifests,
			fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-%[1]s}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], claimRef: {namespace: default, name: %[1]s}, csi: {driver: csi.example.com, volumeHandle: h-%[1]s}}, status: {phase: Bound}}`, name),
			fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %[1]s, namespace: default, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: pv-%[1]s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`, name))
	}
	for k := range 4 {
		name, node := fmt.Sprint("low-", k), fmt.Sprintf("node-%04d", k/2)
		bound(name)
		manifests = append(manifests, usesClaim(name, name, fmt.Sprintf("priority: %d, nodeName: %s, ", k, node)),
			fmt.Sprintf(`{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: %[1]s}, spec: {attacher: csi.example.com, nodeName: %[2]s, source: {persistentVolumeName: pv-%[1]s}}}`, name, node))
	}
	bound("high")
	return append(manifests, `{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: elsewhere}, spec: {attacher: csi.example.com, nodeName: elsewhere, source: {persistentVolumeName: pv-high}}}`)
}

// usesClaim returns the manifest of a pod that uses a claim.
func usesClaim(name, claim, spec string) string {
	return berthtest.Pod(name, "100m", "64Mi", spec+fmt.Sprintf("volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}], ", claim))
}

func TestAPodPreemptsForAVolumeAndWaitsUntilThatOfTheVictimIsDetached(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{PreemptionSeesVolumes: true, Shards: 2})
	b.Apply(fullOfVolumes()...)
	b.AwaitDecided(4)
	b.Apply(usesClaim("high", "high", "priority: 10, "))
	detach := func(name string) {
		if _, err := b.Delete(b.Context(), &schedulingv1.DeleteRequest{Kind: "VolumeAttachment", Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	// low-0 is evicted, and gone, and its volume attached for as long as somebody takes to detach it.
	attempts := int32(0)
	waits := func(context.Context) error {
		high := b.Pods()["default/high"]
		if !strings.HasSuffix(high.GetMessage(), "preemption: not eligible due to volumes that are still attached to the nominated node.") || high.GetAttempts() <= attempts {
			return fmt.Errorf("it says %q, in attempt %d", high.GetMessage(), high.GetAttempts())
		}
		return nil
	}
	berthtest.Await(t, berthtest.Patience, "the pod to wait for the volume", waits)
	// It is tried again when any volume has been detached, and evicts nobody else.
	attempts = b.Pods()["default/high"].GetAttempts()
	detach("elsewhere")
	berthtest.Await(t, berthtest.Patience, "the pod to be tried again", waits)
	if got := len(b.Placements()); got != 3 {
		t.Errorf("%d pods are placed, want low-1, low-2 and low-3: %v", got, b.Placements())
	}
	detach("low-0")
	berthtest.Await(t, berthtest.Patience, "the pod to be bound", func(context.Context) error {
		if got := b.Placements()["default/high"]; got != "node-0000" {
			return fmt.Errorf("it is on %q", got)
		}
		return nil
	})
	if got := len(b.Placements()); got != 4 {
		t.Errorf("%d pods are placed, want high, low-1, low-2 and low-3: %v", got, b.Placements())
	}
}

func TestAPodPreemptsForNoVolumeThatIsAttachedIfItDoesAsKubeSchedulerDoes(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{})
	b.Apply(fullOfVolumes()...)
	b.Apply(usesClaim("high", "high", "priority: 10, "))
	b.AwaitDecided(5)
	const full = "0/2 nodes are available: 2 node(s) exceed max volume count."
	if got, want := b.Pods()["default/high"].GetMessage(), full+" no new claims to deallocate, preemption: "+full; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
