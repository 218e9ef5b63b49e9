package system

import (
	"context"
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// profilesWith are those of the empty configuration.
func profilesWith(t *testing.T, options config.Options) []cluster.Profile {
	t.Helper()
	cfg, err := config.Decode([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration"))
	if err != nil {
		t.Fatal(err)
	}
	completed, err := config.Complete(cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	return completed.Profiles
}

// A pod comes to no node whose CSINode does not list the driver of its volume: of any driver, or, with the gate, of one whose CSIDriver says so.
func TestAPodWaitsForTheDriverOfItsVolume(t *testing.T) {
	for _, tt := range []struct {
		name           string
		options        config.Options
		prevents       bool // the CSIDriver says so
		waits          bool
		unlistedDriver bool // there is no CSIDriver
	}{
		{name: "as kube-scheduler", prevents: true},
		{name: "--require-csi-drivers", options: config.Options{RequireCSIDrivers: true}, waits: true},
		{name: "--require-csi-drivers, and no CSIDriver", options: config.Options{RequireCSIDrivers: true}, unlistedDriver: true, waits: true},
		{name: "VolumeLimitScaling", options: config.Options{VolumeLimitScaling: true}, prevents: true, waits: true},
		{name: "VolumeLimitScaling, and the CSIDriver does not say so", options: config.Options{VolumeLimitScaling: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := berthtest.Start(t, berthtest.Options{Nodes: 2, Shards: 2, Profiles: profilesWith(t, tt.options)})
			if !tt.unlistedDriver {
				b.Apply(fmt.Sprintf(`{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: csi.example.com}, spec: {preventPodSchedulingIfMissing: %v}}`, tt.prevents))
			}
			b.Apply(
				`{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: node-0000}, spec: {drivers: [{name: another, nodeID: id}]}}`, // node-0001 has none
				`{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], claimRef: {namespace: default, name: c}, csi: {driver: csi.example.com, volumeHandle: h}}, status: {phase: Bound}}`,
				`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, namespace: default, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: pv, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`,
				usesClaim("p", "c", ""),
			)
			b.AwaitDecided(1)
			if !tt.waits {
				if b.Placements()["default/p"] == "" {
					t.Errorf("it is not placed: %q", b.Pods()["default/p"].GetMessage())
				}
				return
			}
			const missing = "0/2 nodes are available: 2 csi.example.com CSI driver is not installed on the node."
			if got, want := b.Pods()["default/p"].GetMessage(), missing+" no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."; got != want {
				t.Fatalf("it says %q, want %q", got, want)
			}
			b.Apply(`{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: node-0001}, spec: {drivers: [{name: csi.example.com, nodeID: id}]}}`)
			berthtest.Await(t, berthtest.Patience, "the pod to be where the driver has come to", func(context.Context) error {
				if got := b.Placements()["default/p"]; got != "node-0001" {
					return fmt.Errorf("it is on %q", got)
				}
				return nil
			})
		})
	}
}

// With the gate StorageCapacityScoring a claim's pod goes where the volume that it gets is largest for what it asks for.
func TestWithStorageCapacityScoringPodsGoWhereThereIsMostRoom(t *testing.T) {
	const nodes, pods = 8, 4
	b := berthtest.Start(t, berthtest.Options{Nodes: nodes, Shards: 2, Profiles: profilesWith(t, config.Options{StorageCapacityScoring: true})})
	node := func(k int) string { return fmt.Sprintf("node-%04d", k) }
	for k := range pods { // each has a class of its own, of which the volumes are small but for one
		class := fmt.Sprint("class-", k)
		b.Apply(fmt.Sprintf(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: %s}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}`, class))
		for n := range nodes {
			size := "2Gi"
			if n == 2*k+1 {
				size = "100Gi"
			}
			b.Apply(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %[1]s-%[2]d}, spec: {capacity: {storage: %[3]s}, accessModes: [ReadWriteOnce], storageClassName: %[1]s, local: {path: /v}, `+
				`nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[4]s]}]}]}}}, status: {phase: Available}}`, class, n, size, node(n)))
		}
		b.Apply(
			fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c-%d, namespace: default}, spec: {storageClassName: %s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Pending}}`, k, class),
			usesClaim(fmt.Sprint("p-", k), fmt.Sprint("c-", k), ""))
	}
	b.AwaitDecided(pods)
	placed := b.Placements()
	for k := range pods {
		if got, want := placed[fmt.Sprint("default/p-", k)], node(2*k+1); got != want {
			t.Errorf("p-%d is on %q, want %s: %q", k, got, want, b.Pods()[fmt.Sprint("default/p-", k)].GetMessage())
		}
	}
}
