package manifest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// storage returns the manifest of an object of a kind, called x.
func storage(kind, meta, fields string) string {
	return "apiVersion: " + kindNamed(kind).apiVersion + "\nkind: " + kind + "\nmetadata: {name: x, " + meta + "}\n" + fields + "\n"
}

func TestWhatIsWrongWithWhatVolumesAreMadeOfIsNamed(t *testing.T) {
	const good = "accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}"
	const claimed = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}"
	for _, test := range []struct {
		name, input string
		want        []string // violations without document and object, or their beginnings
	}{
		{"a volume in a namespace", storage(KindPersistentVolume, "namespace: shop", "spec: {"+good+"}"), []string{"metadata.namespace: Forbidden: a persistent volume is in no namespace"}},
		{"a volume that says nothing", storage(KindPersistentVolume, "", "spec: {}"), []string{"spec.capacity[storage]: Required value", "spec.accessModes: Required value"}},
		{"modes of a volume", storage(KindPersistentVolume, "", "spec: {accessModes: [ReadWriteOnce, Often], volumeMode: Round, capacity: {storage: -1}}"), []string{
			"spec.capacity[storage]: Invalid value: \"-1\": must not be negative", `spec.accessModes[1]: Unsupported value: "Often"`, `spec.volumeMode: Unsupported value: "Round"`}},
		{"the claim of a volume", storage(KindPersistentVolume, "", "spec: {"+good+", claimRef: {name: c}}"), []string{"spec.claimRef: Required value"}},
		{"affinity without terms", storage(KindPersistentVolume, "", "spec: {"+good+", nodeAffinity: {required: {nodeSelectorTerms: []}}}"), []string{"spec.nodeAffinity.required.nodeSelectorTerms: Required value"}},
		{"a term of a volume", storage(KindPersistentVolume, "", "spec: {"+good+", nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}}"), []string{
			`spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Like"`}},
		{"a claim that says nothing", storage(KindPersistentVolumeClaim, "namespace: A", "spec: {}"), []string{
			`metadata.namespace: Invalid value: "A"`, "spec.resources.requests[storage]: Required value", "spec.accessModes: Required value"}},
		{"a claim's selector", storage(KindPersistentVolumeClaim, "", "spec: {"+claimed+", selector: {matchExpressions: [{key: a, operator: Like}]}}"), []string{`spec.selector.matchExpressions[0].operator: Invalid value: "Like"`}},
		{"a claim's owners", storage(KindPersistentVolumeClaim, "ownerReferences: [{uid: u}]", "spec: {"+claimed+"}"), []string{
			"metadata.ownerReferences[0].apiVersion: Required value", "metadata.ownerReferences[0].kind: Required value", "metadata.ownerReferences[0].name: Required value"}},
		{"a class", storage(KindStorageClass, "", "volumeBindingMode: Later\nallowedTopologies: [{matchLabelExpressions: [{key: a b}]}]"), []string{
			"provisioner: Required value", `volumeBindingMode: Unsupported value: "Later"`,
			`allowedTopologies[0].matchLabelExpressions[0].key: Invalid value: "a b"`, "allowedTopologies[0].matchLabelExpressions[0].values: Required value"}},
		{"a value of a topology", storage(KindStorageClass, "", "provisioner: p\nallowedTopologies: [{matchLabelExpressions: [{key: a, values: [b c]}]}]"), []string{
			`allowedTopologies[0].matchLabelExpressions[0].values[0]: Invalid value: "b c"`}},
		{"a CSI node", storage(KindCSINode, "", "spec: {drivers: [{name: d, nodeID: host, allocatable: {count: -1}}, {name: d, nodeID: host}, {name: '', nodeID: host}]}"), []string{
			"spec.drivers[0].allocatable.count: Invalid value: -1", `spec.drivers[1].name: Duplicate value: "d"`, "spec.drivers[2].name: Required value"}},
		{"a CSI driver in a namespace", storage(KindCSIDriver, "namespace: shop", "spec: {}"), []string{"metadata.namespace: Forbidden"}},
		{"a capacity", storage(KindCSIStorageCapacity, "", "capacity: -1\nmaximumVolumeSize: -2\nnodeTopology: {matchLabels: {a b: c}}"), []string{
			"storageClassName: Required value", `nodeTopology.matchLabels: Invalid value: "a b"`, `capacity: Invalid value: "-1"`, `maximumVolumeSize: Invalid value: "-2"`}},
		{"a group without a policy", storage(KindPodGroup, "", "spec: {schedulingPolicy: {}}"), []string{"spec.schedulingPolicy: Required value: must be basic or gang"}},
		{"a group with two", storage(KindPodGroup, "", "spec: {schedulingPolicy: {basic: {}, gang: {minCount: 1}}}"), []string{"spec.schedulingPolicy.gang: Forbidden"}},
		{"what a group says", storage(KindPodGroup, "", "spec: {schedulingPolicy: {gang: {minCount: 0}}, schedulingConstraints: {topology: [{key: a b}, {key: c}, {key: c}]}, disruptionMode: Some, priority: 1000000001}"), []string{
			"spec.schedulingPolicy.gang.minCount: Invalid value: 0", `spec.schedulingConstraints.topology[0].key: Invalid value: "a b"`, `spec.schedulingConstraints.topology[2].key: Duplicate value: "c"`,
			`spec.disruptionMode: Unsupported value: "Some"`, "spec.priority: Invalid value: 1000000001"}},
		{"a topology that a group prefers", storage(KindPodGroup, "annotations: {scheduling.berth.dev/preferred-topology: \"zone,,rack\"}", "spec: {schedulingPolicy: {basic: {}}}"), []string{
			`metadata.annotations[scheduling.berth.dev/preferred-topology]: Invalid value: "zone,,rack": label key 2 is empty`}},
		{"an attachment", storage(KindVolumeAttachment, "", "spec: {source: {}}"), []string{"spec.attacher: Required value", "spec.nodeName: Required value"}},
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

func TestVolumesAndClassesAreReadWithTheirDefaults(t *testing.T) {
	objects, err := Parse([]byte(strings.Join([]string{
		storage(KindPersistentVolume, "", "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}}"),
		storage(KindStorageClass, "", "provisioner: p"),
		storage(KindPersistentVolumeClaim, "", "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\nstatus: {phase: Bound}"),
	}, "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 PersistentVolume x, 2 StorageClass x, 3 PersistentVolumeClaim default/x"; names(objects) != want {
		t.Fatalf("read %s, want %s", names(objects), want)
	}
	if phase := objects[0].Other.(*v1.PersistentVolume).Status.Phase; phase != v1.VolumeAvailable {
		t.Errorf("the volume is %q", phase)
	}
	if mode := objects[1].Other.(*storagev1.StorageClass).VolumeBindingMode; *mode != storagev1.VolumeBindingImmediate {
		t.Errorf("the class binds %q", *mode)
	}
	if phase := objects[2].Kept().Other.(*v1.PersistentVolumeClaim).Status.Phase; phase != v1.ClaimBound {
		t.Errorf("the claim is kept as %q", phase)
	}
}

// A disk of a pool that is not named is the disk of the pool rbd; an Azure disk of no kind cannot be translated, as none of its default can.
func TestVolumesOfPodsAreCompletedAsByTheAPIServer(t *testing.T) {
	objects, err := Parse([]byte(`
apiVersion: v1
kind: Pod
metadata: {name: x}
spec:
  containers: [{name: c, image: i}]
  volumes:
  - {name: a, rbd: {monitors: [m], image: d}}
  - {name: b, rbd: {monitors: [m], image: d, pool: other}}
  - {name: c, azureDisk: {diskName: d, diskURI: u}}
  - {name: d, azureDisk: {diskName: d, diskURI: u, kind: Managed}}
---
` + storage(KindPersistentVolume, "", "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, azureDisk: {diskName: d, diskURI: u}}")))
	if err != nil {
		t.Fatal(err)
	}
	volumes := objects[0].Pod.Spec.Volumes
	if pools := []string{volumes[0].RBD.RBDPool, volumes[1].RBD.RBDPool}; pools[0] != "rbd" || pools[1] != "other" {
		t.Errorf("the pools are %q", pools)
	}
	for _, disk := range []struct {
		source *v1.AzureDiskVolumeSource
		want   v1.AzureDataDiskKind
	}{
		{volumes[2].AzureDisk, v1.AzureSharedBlobDisk}, {volumes[3].AzureDisk, v1.AzureManagedDisk},
		{objects[1].Other.(*v1.PersistentVolume).Spec.AzureDisk, v1.AzureSharedBlobDisk},
	} {
		if disk.source.Kind == nil || *disk.source.Kind != disk.want {
			t.Errorf("a disk is of kind %v, want %s", disk.source.Kind, disk.want)
		}
	}
}
