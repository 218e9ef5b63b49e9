package clustertest

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Intn returns a number in [0, n). Methods of rand.Rand are of this type.
type Intn func(n int) int

func (intn Intn) one(outOf int) bool { return intn(outOf) == 0 }

func pick[T any](intn Intn, from []T) T { return from[intn(len(from))] }

// some returns up to n different elements in their order.
func some[T any](intn Intn, n int, from []T) []T {
	var out []T
	for _, it := range from {
		if len(out) < n && intn(len(from)) < n {
			out = append(out, it)
		}
	}
	return out
}

// Names are few, so that things collide, come back and refer to each other.
var (
	nodeNames  = []string{"node-a", "node-b", "node-c", "node-d", "node-e", "node-f", "node-g", "node-h"}
	namespaces = []string{"default", "dev", "prod"}
	resources  = []string{"cpu", "ephemeral-storage", "example.com/gpu", "memory", "pods"}
	imageNames = []string{"alpine:1", "nginx:1", "nginx@sha256:1", "redis:7"}
	effects    = []string{"NoSchedule", "PreferNoSchedule", "NoExecute", "Odd"}
	labelKeys  = []string{"disk", "tier", "zone"}
	features   = []string{"FeatureA", "FeatureB"}
	kinds      = []string{cluster.KindService, cluster.KindReplicationController, cluster.KindReplicaSet, cluster.KindStatefulSet}
	selectors  = []string{"api", "web"} // the names of services and controllers
	// Of volumes, claims, classes, drivers, handles, attachments, and whatever else is in an object.
	volumeNames  = []string{"a", "b"}
	moreVolumes  = []string{"a", "b", "c", "d", "e"} // the names of PersistentVolumes
	provisioners = []string{"", "a", "kubernetes.io/aws-ebs", "kubernetes.io/azure-file"}
	ports        = []cluster.HostPort{
		{IP: "0.0.0.0", Protocol: "TCP", Port: 80}, {IP: "127.0.0.1", Protocol: "TCP", Port: 80},
		{IP: "127.0.0.2", Protocol: "TCP", Port: 80}, {IP: "0.0.0.0", Protocol: "UDP", Port: 53},
	}
)

// noProvisioner provisions nothing.
const noProvisioner = "kubernetes.io/no-provisioner"

// Delta returns a random delta that st accepts.
func Delta(intn Intn, st *cluster.State) cluster.Delta {
	if st.Settings.Shards == 0 || intn(60) == 0 {
		return settings(intn)
	}
	nodes, pods := nodesOf(st), podsOf(st)
	for {
		switch intn(27) {
		case 0:
			return cluster.ClassDefined{ID: cluster.ClassID(st.Version().Seq + 1), Spec: Class(intn)}
		case 1, 2, 3:
			return nodeSet(intn, st)
		case 4:
			if len(nodes) > 0 {
				if intn.one(4) {
					return cluster.NodeTouched{Index: pick(intn, nodes)}
				}
				return cluster.NodeRemoved{Index: pick(intn, nodes)}
			}
		case 5:
			if intn.one(3) {
				return cluster.NamespaceRemoved{Name: pick(intn, namespaces)}
			}
			return cluster.NamespaceSet{Name: pick(intn, namespaces), Labels: labels(intn)}
		case 6, 7, 8:
			if d, ok := newPod(intn, st); ok {
				return d
			}
		case 9:
			if all := pods(cluster.Pending, cluster.Assumed, cluster.Bound); len(all) > 0 {
				return changedPod(intn, st, pick(intn, all))
			}
		case 10, 11, 12:
			if pending := pods(cluster.Pending); len(pending) > 0 && len(nodes) > 0 {
				return assumed(intn, st, pick(intn, pending), pick(intn, nodes))
			}
		case 13:
			if assumed := pods(cluster.Assumed); len(assumed) > 0 {
				return cluster.PodBound{ID: pick(intn, assumed)}
			}
		case 14:
			if assumed := pods(cluster.Assumed); len(assumed) > 0 {
				return cluster.PodForgotten{ID: pick(intn, assumed), Reason: "conflict"}
			}
		case 15:
			if all := pods(cluster.Pending, cluster.Assumed, cluster.Bound); len(all) > 0 {
				return cluster.PodRemoved{ID: pick(intn, all)}
			}
		case 16, 17:
			return cluster.LabelsDefined{ID: cluster.LabelsID(st.Version().Seq + 1), Set: LabelSet(intn)}
		case 18:
			return cluster.SelectorSet{Kind: pick(intn, kinds), Namespace: pick(intn, namespaces), Name: pick(intn, selectors), Selector: Selector(intn)}
		case 19: // which need not exist
			return cluster.SelectorRemoved{Kind: pick(intn, kinds), Namespace: pick(intn, namespaces), Name: pick(intn, selectors)}
		case 20:
			if pending := pods(cluster.Pending); len(pending) > 0 {
				if intn.one(4) {
					return cluster.PodActivated{ID: pick(intn, append(pending, cluster.NoPod)), AfterBackoff: intn.one(2)}
				}
				return cluster.PodNominated{ID: pick(intn, pending), Node: pick(intn, append([]string{""}, nodeNames...))}
			}
		case 21:
			if d, ok := preemption(intn, st, pods(cluster.Pending)); ok {
				return d
			}
		case 22:
			return endOfPreemption(intn, st)
		case 23, 24, 25, 26:
			return object(intn)
		}
	}
}

// preemption evicts some pods of a node for a pending pod. False: there is no such pod, or no such node.
func preemption(intn Intn, st *cluster.State, pending []cluster.PodID) (cluster.Delta, bool) {
	d := cluster.PreemptionStarted{}
	for _, id := range pending {
		if !st.Pod(id).Preempting && (d.ID == 0 || intn.one(2)) {
			d.ID = id
		}
	}
	for _, i := range nodesOf(st) {
		if len(d.Victims) > 0 && intn.one(2) {
			break
		}
		d.Node, d.Victims = i, nil
		for id := range st.PodsOn(i) {
			d.Victims = append(d.Victims, id)
		}
	}
	p := st.Pod(d.ID)
	return d, len(d.Victims) > 0 && p != nil && !p.Placed() && !p.Preempting
}

func endOfPreemption(intn Intn, st *cluster.State) cluster.Delta {
	var preempting, victims []cluster.PodID
	for id, p := range st.Pods() {
		if p.Preempting {
			preempting = append(preempting, id)
		}
		if p.Victim {
			victims = append(victims, id)
		}
	}
	preempting = append(preempting, cluster.NoPod)
	return cluster.PreemptionEnded{ID: pick(intn, preempting), Failed: intn.one(2), Spared: some(intn, 2, victims)}
}

// object sets or removes an object of a kind that there is, or of one that this release does not know: often a budget, or what volumes are
// made of, which decide something.
func object(intn Intn) cluster.Delta {
	kind := cluster.BudgetKind
	switch intn(5) {
	case 0:
		kind = pick(intn, append(cluster.ObjectKinds(), 999))
	case 1, 2, 3:
		kind = cluster.PersistentVolumeKind + cluster.ObjectKind(intn(int(cluster.VolumeAttachmentKind-cluster.PersistentVolumeKind)+1))
	}
	key := cluster.ObjectKey{Kind: kind, Namespace: pick(intn, namespaces), Name: pick(intn, selectors)}
	switch kind {
	case cluster.BudgetKind:
	case cluster.CSINodeKind:
		key.Name = pick(intn, nodeNames)
	case cluster.PersistentVolumeKind:
		key.Name = pick(intn, moreVolumes)
	default:
		key.Name = pick(intn, volumeNames)
	}
	key = cluster.NewObject(key).Key() // objects of some kinds are in no namespace
	if intn.one(3) {
		return cluster.ObjectRemoved{ObjectKey: key} // which need not exist
	}
	set := cluster.ObjectSet{Object: cluster.NewObject(key)}
	content := reflect.ValueOf(set.Object).Elem()
	for i := range content.NumField() {
		if name := content.Type().Field(i).Name; name != "Namespace" && name != "Name" && name != "ObjectKey" {
			fill(intn, content.Field(i))
		}
	}
	if intn.one(4) || content.NumField() == 1 {
		set.More = pick(intn, []string{"", "later", "\x00\xff"})
	}
	switch o := set.Object.(type) {
	case *Made:
		if set.More != "" {
			o.Later = "b" // what is more follows all that this release knows
		}
	case *cluster.CSIStorageCapacity:
		if set.More != "" {
			o.Capacity = max(o.Capacity, 1) // likewise
		}
	case *cluster.VolumeAttachment:
		o.Node = pick(intn, nodeNames) // which need not exist
	case *cluster.StorageClass:
		o.Provisioner = pick(intn, provisioners)
	}
	if intn.one(2) {
		usual(intn, set.Object)
	}
	if v, ok := set.Object.(*cluster.PersistentVolume); ok && !v.HasFieldClass {
		v.HasFieldClass, v.FieldClass = set.More != "", "" // likewise
	}
	return set
}

// usual makes an object what claims that wait for a consumer can be about.
func usual(intn Intn, object cluster.Object) {
	class := pick(intn, volumeNames)
	var terms []cluster.NodeSelectorTerm
	if intn.one(2) {
		terms = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: pick(intn, labelKeys), Operator: "In", Values: some(intn, 2, []string{"a", "b", ""})}}}}
	}
	switch o := object.(type) {
	case *cluster.PersistentVolume:
		*o = cluster.PersistentVolume{
			Name: o.Name, Labels: o.Labels, Class: class, Capacity: int64(intn(4)), Mode: "Filesystem", Available: !intn.one(6), HasClaim: intn.one(4),
			Claim: o.Claim, HasAffinity: terms != nil, Affinity: terms,
		}
	case *cluster.PersistentVolumeClaim:
		*o = cluster.PersistentVolumeClaim{
			Namespace: o.Namespace, Name: o.Name, UID: o.UID, Class: class, HasRequest: !intn.one(4), Request: int64(intn(4)), Mode: "Filesystem",
			Selector: o.Selector, Owner: o.Owner,
		}
		if intn(8) > 0 {
			o.Selector = cluster.LabelSelector{}
		}
		if intn.one(6) {
			o.HasSelectedNode, o.SelectedNode = true, pick(intn, nodeNames)
		}
	case *cluster.StorageClass:
		o.Mode, o.Topologies = cluster.BindToFirstConsumer, terms
		if intn.one(3) {
			o.Provisioner = noProvisioner
		}
	case *cluster.CSIStorageCapacity:
		o.Class, o.HasLimit, o.Limit, o.Topology = class, !intn.one(4), int64(intn(4)), cluster.LabelSelector{}
		if terms != nil {
			o.Topology.Requirements = terms[0].Expressions
		}
	}
}

// assumed places a pod, and chooses something for some of its claims.
func assumed(intn Intn, st *cluster.State, id cluster.PodID, node cluster.NodeIndex) cluster.Delta {
	d := cluster.PodAssumed{ID: id, Node: node, Attempt: int32(1 + intn(3))}
	l := st.Labels(st.Pod(id).Labels)
	if l == nil || l.Namespace != st.Pod(id).Namespace {
		return d
	}
	for _, by := range l.Claims {
		claim := st.PersistentVolumeClaim(l.Namespace, by.Name)
		if claim == nil || claim.Volume != "" || intn.one(4) {
			continue
		}
		c := cluster.VolumeChoice{Claim: claim.Name, UID: claim.UID}
		if intn(3) > 0 {
			c.Volume = pick(intn, moreVolumes) // which need not exist
		}
		if more := append(d.Volumes, c); st.CanPromise(l.Namespace, st.Node(node).Name, more) == "" {
			d.Volumes = more
		}
	}
	return d
}

// fill gives a field of an object any value.
func fill(intn Intn, v reflect.Value) {
	switch at := v.Addr().Interface().(type) {
	case *cluster.LabelSelector:
		*at = Selector(intn)
		return
	case *[]string:
		*at = some(intn, 2, []string{"pod-10", "pod-20"})
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(pick(intn, append([]string{""}, volumeNames...)))
	case reflect.Bool:
		v.SetBool(intn.one(2))
	case reflect.Slice:
		if n := intn(3); n > 0 { // an empty one that is there comes back as one that is absent
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			fill(intn, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(intn, v.Field(i))
		}
	default:
		v.SetInt(int64(intn(3)))
	}
}

func nodesOf(st *cluster.State) []cluster.NodeIndex {
	var nodes []cluster.NodeIndex
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

func podsOf(st *cluster.State) func(phases ...cluster.Phase) []cluster.PodID {
	return func(phases ...cluster.Phase) []cluster.PodID {
		var ids []cluster.PodID
		for id, p := range st.Pods() {
			for _, phase := range phases {
				if p.Phase == phase {
					ids = append(ids, id)
				}
			}
		}
		return ids
	}
}

// Profile is kube-scheduler's default profile, as engine.DefaultProfile: the engine's own tests cannot import what imports it.
func Profile(schedulerName string) cluster.Profile {
	return cluster.Profile{
		SchedulerName: schedulerName,
		PreFilters: strings.Fields("NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone " +
			"PodTopologySpread InterPodAffinity NodeDeclaredFeatures"),
		Filters: strings.Fields("NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit " +
			"VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity NodeDeclaredFeatures"),
		Weights: []cluster.PluginWeight{
			{Name: "TaintToleration", Weight: 3}, {Name: "NodeAffinity", Weight: 2}, {Name: "NodeResourcesFit", Weight: 1},
			{Name: "PodTopologySpread", Weight: 2}, {Name: "InterPodAffinity", Weight: 2},
			{Name: "NodeResourcesBalancedAllocation", Weight: 1}, {Name: "ImageLocality", Weight: 1},
		},
		FitStrategy:           cluster.LeastAllocated,
		FitResources:          []cluster.PluginWeight{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}},
		BalancedResources:     strings.Fields("cpu memory"),
		HardPodAffinityWeight: 1,
		DefaultSpread:         cluster.SystemSpread(),
		SystemSpread:          true,
		PostFilters:           strings.Fields("DynamicResources DefaultPreemption"),
	}
}

func settings(intn Intn) cluster.Delta {
	profile := Profile("default-scheduler")
	profile.HardPodAffinityWeight = int32(intn(3))
	profile.IgnorePreferredTerms = intn.one(3)
	profile.PercentageOfNodesToScore = int32(intn(101))
	if intn.one(3) {
		profile.DefaultSpread, profile.SystemSpread = spread(intn), false
	}
	if intn.one(3) {
		profile.VolumeLimitScaling, profile.RequireCSIDrivers = intn.one(2), intn.one(2)
		profile.StorageShape = []cluster.ShapePoint{{Utilization: 0, Score: 10}, {Utilization: int32(1 + intn(100))}}
	}
	profile.TaintComparison = intn.one(4)
	if intn.one(3) {
		profile.PreEnqueues = some(intn, 2, []string{"Doorman", "Quota"})
	}
	if intn.one(3) {
		profile.QueueSort = "Deadline"
	}
	settings := cluster.Settings{Shards: int32(1 + intn(4)), Seed: uint64(intn(100)), Profiles: []cluster.Profile{profile}, PreemptionSeesVolumes: intn.one(3)}
	if intn.one(3) {
		settings = settings.Yielding([]string{profile.SchedulerName}, pick(intn, []string{"a", "b"}))
	}
	return cluster.SettingsSet{Settings: settings}
}

func labels(intn Intn) []cluster.Label {
	var out []cluster.Label
	for _, key := range some(intn, 2, labelKeys) {
		out = append(out, cluster.Label{Key: key, Value: pick(intn, []string{"a", "b", ""})})
	}
	return out
}

func quantities(intn Intn) []cluster.Quantity {
	var out []cluster.Quantity
	for _, name := range some(intn, 3, resources) {
		out = append(out, cluster.Quantity{Name: name, Value: int64(1 + intn(1000))})
	}
	return out
}

// Node returns a random node of that name.
func Node(intn Intn, name string) cluster.Node {
	n := cluster.Node{Name: name, Labels: labels(intn), Unschedulable: intn.one(5), Allocatable: quantities(intn), Features: some(intn, 1, features)}
	for range intn(3) {
		n.Taints = append(n.Taints, cluster.Taint{Key: pick(intn, []string{"k", "l"}), Value: "v", Effect: pick(intn, effects)})
	}
	for range intn(3) {
		n.Images = append(n.Images, cluster.Image{Names: some(intn, 2, imageNames), Size: int64(1 + intn(5))})
	}
	return n
}

// nodeSet changes a node, or adds one at the next index or a few further on.
func nodeSet(intn Intn, st *cluster.State) cluster.Delta {
	name := pick(intn, nodeNames)
	at := st.Nodes.ByName(name)
	if at == cluster.NoNode {
		at = st.Nodes.Free()
		if intn.one(4) {
			at = cluster.NodeIndex(st.Nodes.Len() + intn(70))
		}
	}
	return cluster.NodeSet{Index: at, Node: Node(intn, name)}
}

// Class returns a random class.
func Class(intn Intn) cluster.ClassSpec {
	c := cluster.ClassSpec{
		SchedulerName: "default-scheduler", Requests: quantities(intn), ScoreRequests: quantities(intn),
		NonZeroCPU: int64(intn(200)), NonZeroMemory: int64(intn(200)), NodeSelector: labels(intn),
		HostPorts: some(intn, 2, ports), Images: some(intn, 2, imageNames), ImageContainers: int32(1 + intn(2)),
	}
	if len(c.HostPorts) > 0 && intn.one(3) {
		c.HostPorts = append(c.HostPorts, c.HostPorts[0]) // two containers of the pod want the same
	}
	if intn.one(3) {
		c.Tolerations = []cluster.Toleration{{Key: "k", Operator: "Exists"}}
	}
	if intn.one(4) {
		c.HasRequired = true
		c.Required = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}}
	}
	if intn.one(3) {
		terms(intn, &c)
	}
	if intn.one(4) {
		c.Spread = spread(intn)
	}
	if intn.one(4) {
		c.Features = some(intn, 1, features)
	}
	if intn.one(6) {
		fill(intn, reflect.ValueOf(&c.Disks).Elem())
	}
	return c
}

// newPod adds a pod under the next id or a few further on. False: there is no class for it.
func newPod(intn Intn, st *cluster.State) (cluster.Delta, bool) {
	classes := st.Classes()
	if len(classes) == 0 {
		return nil, false
	}
	id := st.FreePod()
	if intn.one(6) {
		for id += cluster.PodID(intn(4)); st.Pod(id) != nil; {
			id++
		}
	}
	seq := st.Version().Seq + 1
	p := cluster.Pod{
		UID: fmt.Sprintf("uid-%d", seq), Namespace: pick(intn, namespaces), Name: fmt.Sprintf("pod-%d", seq),
		Class: pick(intn, classes).ID, Priority: int32(intn(3) - 1), Created: int64(seq),
	}
	if intn.one(4) {
		p.NodeName = pick(intn, nodeNames) // which need not exist
	}
	if intn.one(6) {
		p.RequiredNode = pick(intn, nodeNames)
	}
	if intn.one(6) {
		p.Gates = []string{"example.com/gate"}
	}
	p.Labels = labelsOf(intn, st, p.Namespace)
	if intn.one(3) {
		p.Nominated = pick(intn, nodeNames) // which need not exist either
	}
	p.Deleting = intn.one(8)
	p.Preempted = p.Deleting && intn.one(2)
	p.NeverPreempts = intn.one(4)
	if intn.one(4) {
		p.Group = pick(intn, volumeNames) // which need not exist
	}
	if intn.one(2) {
		p.Ends = int32(intn(4) - 1)
	}
	return cluster.PodSet{ID: id, Pod: p}, true
}

func changedPod(intn Intn, st *cluster.State, id cluster.PodID) cluster.Delta {
	row := st.Pod(id)
	p := row.Pod
	if row.Phase != cluster.Bound {
		p.NodeName = ""
	}
	switch intn(7) {
	case 0:
		p.Deleting = true
	case 6:
		p.Started = int64(st.Version().Seq)
	case 1:
		p.Class = pick(intn, st.Classes()).ID
	case 2:
		p.Gates = nil
	case 3:
		p.NodeName = pick(intn, nodeNames)
	case 4:
		p.Labels = labelsOf(intn, st, p.Namespace)
	case 5:
		p.Nominated = pick(intn, append([]string{""}, nodeNames...))
	}
	return cluster.PodSet{ID: id, Pod: p}
}
