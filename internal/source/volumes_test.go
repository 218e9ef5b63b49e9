package source_test

import (
	"math"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"
)

// read returns an object of the API that is written in YAML.
func read[O any](t *testing.T, text string) *O {
	t.Helper()
	o := new(O)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// terms returns the term of one requirement.
func terms(r cluster.Requirement) []cluster.NodeSelectorTerm {
	return []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{r}}}
}

func TestAPersistentVolumeIsReducedToWhatVolumePluginsRead(t *testing.T) {
	const text = `
metadata:
  name: v
  labels: {topology.kubernetes.io/zone: a__b, app: db}
  annotations: {pv.kubernetes.io/bound-by-controller: "yes"}
  deletionTimestamp: "2026-01-02T03:04:05Z"
spec:
  storageClassName: fast
  capacity: {storage: 10Gi, other: 3}
  accessModes: [ReadWriteOnce, ReadOnlyMany, ReadWriteOnce]
  volumeMode: Block
  volumeAttributesClassName: gold
  claimRef: {kind: PersistentVolumeClaim, namespace: shop, name: c, uid: u, resourceVersion: "7"}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}
  persistentVolumeReclaimPolicy: Delete
  mountOptions: [hard]
  csi: {driver: csi.example.com, volumeHandle: h, fsType: ext4}
status: {phase: Available}
`
	want := &cluster.PersistentVolume{
		Name:   "v",
		Labels: []cluster.Label{{Key: "app", Value: "db"}, {Key: "topology.kubernetes.io/zone", Value: "a__b"}},
		Class:  "fast", Capacity: 10 << 30, AccessModes: []string{"ReadOnlyMany", "ReadWriteOnce"}, Mode: "Block", AttributesClass: "gold",
		HasClaim: true, Claim: cluster.ClaimReference{Namespace: "shop", Name: "c", UID: "u"}, Available: true, Deleting: true,
		HasAffinity: true, Affinity: terms(in("disk", "ssd")), Driver: "csi.example.com", Handle: "h",
	}
	if diff := cmp.Diff(want, source.ReducePersistentVolume(read[v1.PersistentVolume](t, text))); diff != "" {
		t.Errorf("reduced (-want +got):\n%s", diff)
	}
	bare := cluster.PersistentVolume{Mode: "Filesystem"}
	if diff := cmp.Diff(&bare, source.ReducePersistentVolume(&v1.PersistentVolume{})); diff != "" {
		t.Errorf("one that says nothing (-want +got):\n%s", diff)
	}
	for what, test := range map[string]struct {
		text string
		want func(*cluster.PersistentVolume)
	}{
		"a class by annotation, which comes first": {
			`{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: slow}}, spec: {storageClassName: fast}}`,
			func(v *cluster.PersistentVolume) { v.Class, v.HasFieldClass, v.FieldClass = "slow", true, "fast" },
		},
		"the same class by annotation and by the field": {
			`{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: fast}}, spec: {storageClassName: fast}}`,
			func(v *cluster.PersistentVolume) { v.Class = "fast" },
		},
		"no class by annotation": {
			`{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: ""}}, spec: {storageClassName: fast}}`,
			func(v *cluster.PersistentVolume) { v.HasFieldClass, v.FieldClass = true, "fast" },
		},
		"an empty attributes class, as none": {`{spec: {volumeAttributesClassName: ""}}`, nil},
		"released":                           {`{status: {phase: Released}}`, nil},
		"kept for a claim by its name": {`{spec: {claimRef: {namespace: a, name: b}}}`, func(v *cluster.PersistentVolume) {
			v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "a", Name: "b"}
		}},
		"affinity that requires nothing":     {`{spec: {nodeAffinity: {}}}`, nil},
		"affinity that nothing meets":        {`{spec: {nodeAffinity: {required: {nodeSelectorTerms: []}}}}`, func(v *cluster.PersistentVolume) { v.HasAffinity = true }},
		"a part of a byte":                   {`{spec: {capacity: {storage: 1500m}}}`, func(v *cluster.PersistentVolume) { v.Capacity = 2 }},
		"more than can be counted":           {`{spec: {capacity: {storage: 100Ei}}}`, func(v *cluster.PersistentVolume) { v.Capacity = math.MaxInt64 }},
		"more than that, in powers of 10":    {`{spec: {capacity: {storage: 20E}}}`, func(v *cluster.PersistentVolume) { v.Capacity = math.MaxInt64 }},
		"as much as can be counted, nearly":  {`{spec: {capacity: {storage: 9E}}}`, func(v *cluster.PersistentVolume) { v.Capacity = 9e18 }},
		"less than nothing":                  {`{spec: {capacity: {storage: -1}}}`, nil},
		"an in-tree volume that is no CSI's": {`{spec: {nfs: {server: s, path: p}}}`, nil},
		"one that kube-scheduler leaves be":  {`{spec: {vsphereVolume: {volumePath: p}}}`, nil},
		"another one":                        {`{spec: {azureFile: {secretName: s, shareName: share}}}`, nil},
		"a CSI volume that is in-tree as well": {
			`{spec: {csi: {driver: d, volumeHandle: h}, cinder: {volumeID: c}}}`,
			func(v *cluster.PersistentVolume) { v.Driver, v.Handle = "d", "h" },
		},
	} {
		want := bare
		if test.want != nil {
			test.want(&want)
		}
		if diff := cmp.Diff(&want, source.ReducePersistentVolume(read[v1.PersistentVolume](t, test.text))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestAnInTreeVolumeIsToldAsItIsAndAsCSIHasIt(t *testing.T) {
	zone := in("topology.kubernetes.io/zone", "europe-west1-b")
	for what, test := range map[string]struct {
		spec string
		want cluster.Migration
		// The affinity of the volume and of the CSI volume, if not equal to that of the former.
		affinity, migrated []cluster.NodeSelectorTerm
	}{
		"EBS": {
			`{awsElasticBlockStore: {volumeID: "aws://a/vol-1"}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [europe-west1-b]}]}]}}}`,
			cluster.Migration{Plugin: "kubernetes.io/aws-ebs", Driver: "ebs.csi.aws.com", Handle: "vol-1"},
			terms(zone), terms(in("topology.ebs.csi.aws.com/zone", "europe-west1-b")),
		},
		"GCE, of the zone of its label": {
			`{gcePersistentDisk: {pdName: d}}`,
			cluster.Migration{Plugin: "kubernetes.io/gce-pd", Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/europe-west1-b/disks/d"},
			nil, terms(in("topology.gke.io/zone", "europe-west1-b")),
		},
		"Azure": {
			`{azureDisk: {diskName: d, diskURI: /uri, kind: Managed}}`,
			cluster.Migration{Plugin: "kubernetes.io/azure-disk", Driver: "disk.csi.azure.com", Handle: "/uri"}, nil, nil,
		},
		"Cinder": {
			`{cinder: {volumeID: c}}`,
			cluster.Migration{Plugin: "kubernetes.io/cinder", Driver: "cinder.csi.openstack.org", Handle: "c"},
			nil, terms(in("topology.cinder.csi.openstack.org/zone", "europe-west1-b")),
		},
		"Portworx": {
			`{portworxVolume: {volumeID: p}}`,
			cluster.Migration{Plugin: "kubernetes.io/portworx-volume", Driver: "pxd.portworx.com", Handle: "p"}, nil, nil,
		},
		"one that cannot be translated": {
			`{azureDisk: {diskName: d, diskURI: /uri, kind: Dedicated}}`,
			cluster.Migration{Plugin: "kubernetes.io/azure-disk", Error: "kind(Dedicated) is not supported in csi migration"}, nil, nil,
		},
	} {
		volume := read[v1.PersistentVolume](t, `{metadata: {labels: {topology.kubernetes.io/zone: europe-west1-b}}, spec: `+test.spec+`}`)
		before := volume.DeepCopy()
		got := source.ReducePersistentVolume(volume)
		want := &cluster.PersistentVolume{
			Labels: []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: "europe-west1-b"}}, Mode: "Filesystem", Migration: test.want,
			Affinity: test.affinity, HasAffinity: test.affinity != nil, MigratedAffinity: test.migrated, HasMigratedAffinity: test.migrated != nil,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(before, volume); diff != "" {
			t.Errorf("%s has been changed:\n%s", what, diff)
		}
	}
}

func TestAClaimIsReducedToWhatVolumePluginsRead(t *testing.T) {
	const text = `
metadata:
  namespace: shop
  name: c
  uid: u
  deletionTimestamp: "2026-01-02T03:04:05Z"
  annotations: {pv.kubernetes.io/bind-completed: "", volume.kubernetes.io/selected-node: n1, volume.kubernetes.io/storage-provisioner: p}
  ownerReferences: [{apiVersion: v1, kind: Pod, name: o, uid: other}, {apiVersion: v1, kind: Pod, name: p, uid: pod, controller: true}]
spec:
  storageClassName: fast
  resources: {requests: {storage: 1Gi}, limits: {storage: 2Gi}}
  accessModes: [ReadWriteOncePod]
  volumeMode: Block
  selector: {matchLabels: {app: db}}
  volumeAttributesClassName: gold
  volumeName: v
status: {phase: Lost}
`
	want := &cluster.PersistentVolumeClaim{
		Namespace: "shop", Name: "c", UID: "u", Class: "fast", HasRequest: true, Request: 1 << 30, AccessModes: []string{"ReadWriteOncePod"},
		Mode: "Block", Selector: where(in("app", "db")), AttributesClass: "gold", Volume: "v", Bound: true, Lost: true, Deleting: true,
		HasSelectedNode: true, SelectedNode: "n1", Owner: "pod",
	}
	if diff := cmp.Diff(want, source.ReducePersistentVolumeClaim(read[v1.PersistentVolumeClaim](t, text))); diff != "" {
		t.Errorf("reduced (-want +got):\n%s", diff)
	}
	bare := cluster.PersistentVolumeClaim{Mode: "Filesystem"}
	for what, test := range map[string]struct {
		text string
		want func(*cluster.PersistentVolumeClaim)
	}{
		"nothing": {`{}`, nil},
		"a class by annotation, which comes first": {
			`{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: slow}}, spec: {storageClassName: fast}}`,
			func(c *cluster.PersistentVolumeClaim) { c.Class = "slow" },
		},
		"no class, and it says so":  {`{spec: {storageClassName: ""}}`, nil},
		"a request of nothing":      {`{spec: {resources: {requests: {storage: 0}}}}`, func(c *cluster.PersistentVolumeClaim) { c.HasRequest = true }},
		"a selector of everything":  {`{spec: {selector: {}}}`, nil},
		"a node without a name":     {`{metadata: {annotations: {volume.kubernetes.io/selected-node: ""}}}`, func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode = true }},
		"bound by its status alone": {`{status: {phase: Bound}}`, nil},
		"owned by no controller":    {`{metadata: {ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: pod}]}}`, nil},
		"an unreadable selector": {
			`{spec: {selector: {matchExpressions: [{key: a, operator: Like}]}}}`,
			func(c *cluster.PersistentVolumeClaim) {
				c.Selector, c.SelectorError = cluster.LabelSelector{Nothing: true}, `"Like" is not a valid label selector operator`
			},
		},
	} {
		want := bare
		if test.want != nil {
			test.want(&want)
		}
		if diff := cmp.Diff(&want, source.ReducePersistentVolumeClaim(read[v1.PersistentVolumeClaim](t, test.text))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestWhatVolumesAreMadeOfIsReducedToWhatVolumePluginsRead(t *testing.T) {
	class := source.ReduceStorageClass(read[storagev1.StorageClass](t, `
metadata: {name: fast}
provisioner: csi.example.com
parameters: {type: ssd}
volumeBindingMode: WaitForFirstConsumer
allowedTopologies: [{matchLabelExpressions: [{key: zone, values: [a, b]}, {key: rack, values: [r]}]}, {}]
`))
	wantClass := &cluster.StorageClass{Name: "fast", Provisioner: "csi.example.com", Mode: cluster.BindToFirstConsumer, Topologies: []cluster.NodeSelectorTerm{
		{Expressions: []cluster.Requirement{in("zone", "a", "b"), in("rack", "r")}}, {},
	}}
	if diff := cmp.Diff(wantClass, class); diff != "" {
		t.Errorf("a class (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&cluster.StorageClass{Name: "old"}, source.ReduceStorageClass(read[storagev1.StorageClass](t, `metadata: {name: old}`))); diff != "" {
		t.Errorf("a class without a mode (-want +got):\n%s", diff)
	}

	node := source.ReduceCSINode(read[storagev1.CSINode](t, `
metadata: {name: n1, annotations: {storage.alpha.kubernetes.io/migrated-plugins: "kubernetes.io/cinder,kubernetes.io/aws-ebs,kubernetes.io/cinder"}}
spec:
  drivers:
  - {name: z.example.com, nodeID: z, topologyKeys: [zone], allocatable: {count: 25}}
  - {name: y.example.com, nodeID: y, allocatable: {}}
  - {name: a.example.com, nodeID: a, allocatable: {count: 0}}
`))
	wantNode := &cluster.CSINode{
		Name: "n1", Migrated: []string{"kubernetes.io/aws-ebs", "kubernetes.io/cinder"},
		Drivers: []cluster.NodeDriver{{Name: "a.example.com", Limited: true}, {Name: "y.example.com"}, {Name: "z.example.com", Limited: true, Limit: 25}},
	}
	if diff := cmp.Diff(wantNode, node); diff != "" {
		t.Errorf("a CSI node (-want +got):\n%s", diff)
	}

	driver := source.ReduceCSIDriver(read[storagev1.CSIDriver](t, `{metadata: {name: d}, spec: {storageCapacity: true, preventPodSchedulingIfMissing: true, attachRequired: false}}`))
	if diff := cmp.Diff(&cluster.CSIDriver{Name: "d", StorageCapacity: true, PreventPodSchedulingIfMissing: true}, driver); diff != "" {
		t.Errorf("a CSI driver (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&cluster.CSIDriver{Name: "d"}, source.ReduceCSIDriver(read[storagev1.CSIDriver](t, `metadata: {name: d}`))); diff != "" {
		t.Errorf("a CSI driver that says nothing (-want +got):\n%s", diff)
	}

	for what, test := range map[string]struct {
		text string
		want cluster.CSIStorageCapacity
	}{
		"capacity":            {`{storageClassName: fast, capacity: 10Gi, nodeTopology: {matchLabels: {zone: a}}}`, cluster.CSIStorageCapacity{Class: "fast", HasLimit: true, Limit: 10 << 30, Capacity: 10 << 30, Topology: where(in("zone", "a"))}},
		"the largest volume":  {`{capacity: 10Gi, maximumVolumeSize: 1Gi, nodeTopology: {}}`, cluster.CSIStorageCapacity{HasLimit: true, Limit: 1 << 30, Capacity: 10 << 30}},
		"nothing known":       {`{nodeTopology: {}}`, cluster.CSIStorageCapacity{}},
		"nothing left":        {`{capacity: 0, nodeTopology: {}}`, cluster.CSIStorageCapacity{HasLimit: true}},
		"no topology":         {`{}`, cluster.CSIStorageCapacity{Topology: cluster.LabelSelector{Nothing: true}}},
		"unreadable topology": {`{nodeTopology: {matchExpressions: [{key: a, operator: Like}]}}`, cluster.CSIStorageCapacity{Topology: cluster.LabelSelector{Nothing: true}}},
	} {
		capacity := read[storagev1.CSIStorageCapacity](t, test.text)
		capacity.Namespace, capacity.Name = "shop", "x"
		test.want.Namespace, test.want.Name = "shop", "x"
		if diff := cmp.Diff(&test.want, source.ReduceCSIStorageCapacity(capacity)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	attachment := source.ReduceVolumeAttachment(read[storagev1.VolumeAttachment](t, `
metadata: {name: a}
spec: {attacher: csi.example.com, nodeName: n1, source: {persistentVolumeName: v}}
status: {attached: true}
`))
	if diff := cmp.Diff(&cluster.VolumeAttachment{Name: "a", Attacher: "csi.example.com", Node: "n1", Volume: "v"}, attachment); diff != "" {
		t.Errorf("an attachment (-want +got):\n%s", diff)
	}
	inline := source.ReduceVolumeAttachment(read[storagev1.VolumeAttachment](t, `{metadata: {name: a}, spec: {attacher: d, nodeName: n1, source: {inlineVolumeSpec: {}}}}`))
	if inline.Volume != "" {
		t.Errorf("an inline volume is attached as %q", inline.Volume)
	}
}

func TestTheVolumesOfAPodAreItsClaimsAndDisks(t *testing.T) {
	pod := spec(t, `
containers: [{name: a}]
volumes:
- {name: scratch, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}}
- {name: config, configMap: {name: c}}
- {name: data, persistentVolumeClaim: {claimName: z, readOnly: true}}
- {name: again, persistentVolumeClaim: {claimName: z}}
- {name: gce, gcePersistentDisk: {pdName: d, readOnly: true, partition: 1}}
- {name: ebs, awsElasticBlockStore: {volumeID: vol-1, readOnly: true}}
- {name: iscsi, iscsi: {targetPortal: p, iqn: q, lun: 3, readOnly: true}}
- {name: rbd, rbd: {monitors: [m2, m1, m2], pool: rbd, image: i, readOnly: true}}
- {name: azure, azureDisk: {diskName: d, diskURI: /uri, kind: Managed}}
- {name: cinder, cinder: {volumeID: c}}
- {name: portworx, portworxVolume: {volumeID: p}}
- {name: broken, azureDisk: {diskName: d, diskURI: /uri, kind: Dedicated}}
- {name: file, azureFile: {secretName: s, shareName: share}}
- {name: vsphere, vsphereVolume: {volumePath: p}}
- {name: csi, csi: {driver: d}}
`)
	got := source.ReducePod(pod)
	claims := []cluster.PodClaim{{Name: "p-scratch", Ephemeral: true, PodUID: "u"}, {Name: "z"}, {Name: "z"}}
	if diff := cmp.Diff(claims, got.Labels.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	disks := []cluster.Disk{
		{Kind: cluster.DiskGCE, ID: "d", ReadOnly: true, Migration: cluster.Migration{
			Plugin: "kubernetes.io/gce-pd", Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
		}},
		{Kind: cluster.DiskEBS, ID: "vol-1", Migration: cluster.Migration{Plugin: "kubernetes.io/aws-ebs", Driver: "ebs.csi.aws.com", Handle: "vol-1"}},
		{Kind: cluster.DiskISCSI, ID: "q", ReadOnly: true},
		{Kind: cluster.DiskRBD, ID: "i", Pool: "rbd", Monitors: []string{"m1", "m2"}, ReadOnly: true},
		{Migration: cluster.Migration{Plugin: "kubernetes.io/azure-disk", Driver: "disk.csi.azure.com", Handle: "/uri"}},
		{Migration: cluster.Migration{Plugin: "kubernetes.io/cinder", Driver: "cinder.csi.openstack.org", Handle: "c"}},
		{Migration: cluster.Migration{Plugin: "kubernetes.io/portworx-volume", Driver: "pxd.portworx.com", Handle: "p"}},
		{Migration: cluster.Migration{
			Plugin: "kubernetes.io/azure-disk", Error: "converting volume(broken) from inline to csi: kind(Dedicated) is not supported in csi migration",
		}},
	}
	if diff := cmp.Diff(disks, got.Class.Disks); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
}

// The pods of a StatefulSet are of one class, each with a claim of its own.
func TestClaimsAreOfThePodAndNotOfItsClass(t *testing.T) {
	of := func(claim string) source.Pod {
		return source.ReducePod(spec(t, strings.ReplaceAll("containers: [{name: a}]\nvolumes: [{name: v, persistentVolumeClaim: {claimName: CLAIM}}]", "CLAIM", claim)))
	}
	a, b, again := of("data-0"), of("data-1"), of("data-0")
	if diff := cmp.Diff(a.Class, b.Class); diff != "" {
		t.Errorf("the classes differ:\n%s", diff)
	}
	if a.Labels.Key() == b.Labels.Key() || a.Labels.Key() != again.Labels.Key() {
		t.Error("claims do not tell pods apart")
	}
}

func TestVolumesThatAnyNodeCanMountTakeNoMemory(t *testing.T) {
	without := spec(t, "containers: [{name: a}]")
	with := spec(t, "containers: [{name: a}]\nvolumes: [{name: token, projected: {sources: []}}, {name: scratch, emptyDir: {}}, {name: config, configMap: {name: c}}]")
	allocs := func(pod *v1.Pod) float64 { return testing.AllocsPerRun(100, func() { source.ReducePod(pod) }) }
	if a, b := allocs(without), allocs(with); a != b {
		t.Errorf("a pod takes %v allocations, and with volumes %v", a, b)
	}
}
