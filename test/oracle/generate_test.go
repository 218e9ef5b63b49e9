package oracle

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

const (
	gpu       = "example.com/gpu"
	fpga      = "example.com/fpga"
	hugePages = "hugepages-2Mi"
)

// oneIn draws true about once in n times; a failing case is shrunk towards false.
func oneIn(t *rapid.T, n int, what string) bool {
	return rapid.IntRange(0, n-1).Draw(t, what) == n-1
}

func pick[T any](t *rapid.T, what string, from ...T) T { return rapid.SampledFrom(from).Draw(t, what) }

// evenly draws one of eight values, each as often: integers are mostly drawn small.
func evenly[T any](t *rapid.T, what string, from [8]T) T {
	k := 0
	for range 3 {
		k *= 2
		if rapid.Bool().Draw(t, what) {
			k++
		}
	}
	return from[k]
}

// several draws up to limit values.
func several[T any](t *rapid.T, limit int, what string, draw func() T) []T {
	var out []T
	for range rapid.IntRange(0, limit).Draw(t, what) {
		out = append(out, draw())
	}
	return out
}

// amounts are the quantities to draw one from, per resource: usual ones, and others. "" stands for none.
type amounts []struct {
	name          v1.ResourceName
	usual, others []string
}

func (a amounts) draw(t *rapid.T, what string) v1.ResourceList {
	out := v1.ResourceList{}
	for _, r := range a {
		from := r.usual
		if oneIn(t, 8, "unusual") {
			from = r.others
		}
		if q := pick(t, what+" "+string(r.name), from...); q != "" {
			out[r.name] = resource.MustParse(q)
		}
	}
	return out
}

var (
	allocatable = amounts{
		{"cpu", []string{"64", "8", "64", "2500m"}, []string{"0", "", "1"}},
		{"memory", []string{"64Gi", "8Gi", "64Gi", "4000000000500m"}, []string{"0", "", "512Mi"}},
		{"ephemeral-storage", []string{"100Gi", "20Gi"}, []string{"", "0", "1Gi"}},
		{gpu, []string{"", "8"}, []string{"1", "0"}},
		{fpga, []string{"", "2"}, []string{"1"}},
		{hugePages, []string{"", "64Mi"}, []string{"0", "2Mi"}},
		{"pods", []string{"110", "8", "110"}, []string{"3", "1", "0", ""}},
		{"unknown", []string{""}, []string{"3"}},
	}
	requests = amounts{
		{"cpu", []string{"500m", "", "250m", "1"}, []string{"0", "100u", "3"}},
		{"memory", []string{"128Mi", "", "1Gi"}, []string{"0", "1500m", "6Gi"}},
	}
	moreRequests = amounts{
		{"ephemeral-storage", []string{"", "2Gi"}, []string{"0"}},
		{gpu, []string{"1", ""}, []string{"0"}},
		{fpga, []string{"", "1"}, []string{"0"}},
		{hugePages, []string{"", "4Mi"}, []string{"0"}},
	}
	podRequests = amounts{
		{"cpu", []string{"1", "", "1500m"}, []string{"0", "4"}},
		{"memory", []string{"2Gi", "", "300Mi"}, []string{"0"}},
		{hugePages, []string{""}, []string{"4Mi"}},
	}
	overheads = amounts{{"cpu", []string{"250m", ""}, []string{"0"}}, {"memory", []string{"120Mi", ""}, []string{"0"}}}
	resized   = amounts{{"cpu", []string{"500m", "", "1500m"}, []string{"0", "3"}}, {"memory", []string{"128Mi", ""}, []string{"6Gi"}}}
)

// Requests that no node has room for, beyond 2^53, but that can be added up: of a thousand pods on one node, where nobody filters by resources.
var hugeCPU, hugeMemory = resource.MustParse("9100G"), resource.MustParse("9100T")

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

func drawNode(t *rapid.T, name string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: drawLabels(t, topologyValues, 5)}}
	if oneIn(t, 24, "no label at all") {
		n.Labels = nil
	} else {
		drawNodeLabels(t, n)
	}
	if oneIn(t, 4, "labels of storage") {
		drawStorageLabels(t, n)
	}
	n.Spec.Unschedulable = oneIn(t, 16, "unschedulable")
	n.Spec.Taints = several(t, 3, "taints", func() v1.Taint {
		taint := v1.Taint{
			Key: pick(t, "taint", "dedicated", "spot", "node.kubernetes.io/unschedulable"), Value: pick(t, "taint value", "", "a", "b", "5", "7", "-3", "07"),
			Effect: v1.TaintEffectPreferNoSchedule,
		}
		if oneIn(t, 8, "hard") {
			taint.Effect = pick(t, "effect", v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute)
		}
		return taint
	})
	n.Status.Allocatable = allocatable.draw(t, "allocatable")
	if oneIn(t, 16, "huge") { // the first of each is the most that Berth counts
		n.Status.Allocatable["cpu"] = resource.MustParse(pick(t, "huge", "9007199254740992m", "1T", "2T"))
		n.Status.Allocatable["memory"] = resource.MustParse(pick(t, "huge", "9007199254740992", "1P", "2P"))
	}
	n.Status.DeclaredFeatures = drawFeatures(t)
	for range rapid.IntRange(0, 4).Draw(t, "images") {
		names := []string{pick(t, "image", nodeImages...)}
		if oneIn(t, 2, "another name") {
			names = append(names, pick(t, "image", nodeImages...))
		}
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{
			Names: names, SizeBytes: pick[int64](t, "size", 300<<20, 50<<20, 2<<30, 40<<30, 1, 0),
		})
	}
	return n
}

// drawNodeLabels adds the labels that are not only for topologies. The hostname is mostly the node's own.
func drawNodeLabels(t *rapid.T, n *v1.Node) {
	if n.Labels == nil {
		n.Labels = make(map[string]string)
	}
	switch rapid.IntRange(0, 15).Draw(t, "hostname") {
	case 15:
	case 14:
		n.Labels[v1.LabelHostname] = "shared"
	default:
		n.Labels[v1.LabelHostname] = n.Name
	}
	if rapid.Bool().Draw(t, "serial") {
		n.Labels[serialKey] = n.Name
	}
	for _, key := range []string{"zone", "disk", "size"} {
		if !oneIn(t, 4, "no label "+key) {
			n.Labels[key] = pick(t, key, "a", "b", "5", "10", "", "5.5", "1_0", "9223372036854775807", "9223372036854775808")
		}
	}
}

const digest = "app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

var (
	nodeImages = []string{"app:1", "app:latest", digest, "registry.example:5000/side:latest", "registry.example:5000/side:2", "model:7"}
	podImages  = []string{"app:1", "app", digest, "registry.example:5000/side", "registry.example:5000/side:2", "missing", ""}
)

// drawPod draws a pod as the API server would keep it. The names in required affinity are of nodes up to width.
func drawPod(t *rapid.T, width int) *v1.Pod {
	p := drawSpec(t, width)
	corev1defaults.SetObjectDefaults_Pod(p)
	return p
}

// drawSpec draws a pod as somebody may write it.
func drawSpec(t *rapid.T, width int) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: drawLabels(t, podLabels, 3)}}
	if oneIn(t, 5, "another namespace") {
		p.Namespace = rapid.SampledFrom(namespaceNames).Draw(t, "namespace")
	}
	if oneIn(t, 3, "controlled") {
		p.OwnerReferences = drawOwnerReferences(t)
	}
	s := &p.Spec
	if oneIn(t, 4, "priority") {
		s.Priority = ptr.To(pick[int32](t, "priority", 10, 0, -5))
	}
	if oneIn(t, 24, "never preempts") {
		s.PreemptionPolicy = ptr.To(v1.PreemptNever)
	}
	s.SchedulerName = pick(t, "scheduler", v1.DefaultSchedulerName, "custom")
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		s.Containers = append(s.Containers, drawContainer(t, fmt.Sprintf("c%d", i)))
	}
	if oneIn(t, 60, "huge") {
		s.Containers[0].Resources = v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": hugeCPU, "memory": hugeMemory}}
	}
	if oneIn(t, 3, "init containers") {
		for i := range rapid.IntRange(1, 3).Draw(t, "init containers") {
			c := drawContainer(t, fmt.Sprintf("i%d", i))
			if rapid.Bool().Draw(t, "sidecar") {
				always := v1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			s.InitContainers = append(s.InitContainers, c)
		}
	}
	if oneIn(t, 6, "overhead") {
		s.Overhead = overheads.draw(t, "overhead")
	}
	if oneIn(t, 5, "pod-level resources") {
		list := podRequests.draw(t, "pod level")
		if s.Resources = (&v1.ResourceRequirements{Requests: list}); oneIn(t, 3, "limits only") {
			s.Resources = &v1.ResourceRequirements{Limits: list}
		}
	}
	s.HostNetwork = oneIn(t, 20, "host network")
	drawNeeds(t, s)
	s.Tolerations = several(t, 3, "tolerations", func() v1.Toleration {
		return v1.Toleration{
			Key:      pick(t, "tolerated", "dedicated", "", "spot", "node.kubernetes.io/unschedulable", "never-seen"),
			Operator: pick(t, "operator", v1.TolerationOpExists, v1.TolerationOpEqual, "", v1.TolerationOpGt, v1.TolerationOpLt),
			Value:    pick(t, "tolerated value", "", "a", "b", "5", "6", "-4", "05"),
			Effect:   pick(t, "tolerated effect", "", v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute),
		}
	})
	if oneIn(t, 16, "node selector") {
		s.NodeSelector = map[string]string{pick(t, "key", "zone", "disk", "never-seen"): pick(t, "value", "a", "b", "never-seen")}
	}
	s.Affinity = &v1.Affinity{}
	if oneIn(t, 2, "node affinity") {
		s.Affinity.NodeAffinity = drawNodeAffinity(t, width)
	}
	drawPodAffinity(t, s.Affinity)
	if oneIn(t, 3, "spread") {
		s.TopologySpreadConstraints = drawSpread(t)
	}
	if oneIn(t, 10, "image volume") {
		s.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: pick(t, "image", "model:7", "model", "app:1")}}}}
	}
	if oneIn(t, 24, "volumes") {
		s.Volumes = append(s.Volumes, drawPodVolumes(t)...)
	}
	return p
}

func drawContainer(t *rapid.T, name string) v1.Container {
	c := v1.Container{Name: name, Image: pick(t, "image", podImages...)}
	list := requests.draw(t, "container")
	if oneIn(t, 10, "more resources") {
		maps.Copy(list, moreRequests.draw(t, "container"))
	}
	if c.Resources.Requests = list; oneIn(t, 4, "limits only") {
		c.Resources = v1.ResourceRequirements{Limits: list}
	}
	if oneIn(t, 14, "ports") {
		for range rapid.IntRange(1, 2).Draw(t, "ports") {
			c.Ports = append(c.Ports, v1.ContainerPort{
				ContainerPort: 80, HostPort: pick[int32](t, "host port", 80, 0, 443),
				HostIP: pick(t, "host IP", "", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::"), Protocol: pick(t, "protocol", "", v1.ProtocolUDP, v1.ProtocolSCTP),
			})
		}
	}
	return c
}

func drawNodeAffinity(t *rapid.T, width int) *v1.NodeAffinity {
	a := &v1.NodeAffinity{}
	if oneIn(t, 5, "required") {
		named := oneIn(t, 3, "every term names a node")
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
			NodeSelectorTerms: several(t, 3, "terms", func() v1.NodeSelectorTerm { return drawTerm(t, width, named, 12) }),
		}
	}
	a.PreferredDuringSchedulingIgnoredDuringExecution = several(t, 3, "preferred", func() v1.PreferredSchedulingTerm {
		return v1.PreferredSchedulingTerm{Weight: pick[int32](t, "weight", 1, 30, 100, 0), Preference: drawTerm(t, width, false, 60)}
	})
	return a
}

// drawTerm draws a node selector term. One that does not name a node is invalid about once in so many times.
func drawTerm(t *rapid.T, width int, named bool, invalid int) v1.NodeSelectorTerm {
	var term v1.NodeSelectorTerm
	if named || oneIn(t, 6, "fields") {
		for range rapid.IntRange(1, 2).Draw(t, "fields") {
			op := v1.NodeSelectorOpIn
			if oneIn(t, 4, "not in") {
				op = v1.NodeSelectorOpNotIn
			}
			term.MatchFields = append(term.MatchFields, v1.NodeSelectorRequirement{
				Key: metav1.ObjectNameField, Operator: op, Values: []string{nodeName(rapid.IntRange(0, width).Draw(t, "name"))},
			})
		}
	}
	term.MatchExpressions = several(t, 2, "expressions", func() v1.NodeSelectorRequirement {
		r := v1.NodeSelectorRequirement{
			Key: pick(t, "key", "zone", "disk", "size", "never-seen"),
			Operator: pick(t, "operator", v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist,
				v1.NodeSelectorOpGt, v1.NodeSelectorOpLt),
		}
		switch r.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			r.Values = []string{pick(t, "value", "a", "b", "5", ""), pick(t, "value", "a", "10", "never-seen")}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			r.Values = []string{pick(t, "number", "5", "0", "9223372036854775806", "9223372036854775807")}
			if oneIn(t, invalid, "invalid") {
				r.Values = []string{pick(t, "no number", "many", "9223372036854775808")}
			}
		}
		return r
	})
	return term
}

// drawFleet draws nodes of a few kinds, most of them of one that has room, in topologies of their own.
func drawFleet(t *rapid.T, width int) []*v1.Node {
	var kinds []*v1.Node
	for range rapid.IntRange(1, 5).Draw(t, "kinds of nodes") {
		kinds = append(kinds, drawNode(t, ""))
	}
	kinds[0].Spec = v1.NodeSpec{}
	maps.Copy(kinds[0].Status.Allocatable, v1.ResourceList{
		"cpu": resource.MustParse("128"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"),
	})
	var fleet []*v1.Node
	for i := range width {
		kind := kinds[0]
		if oneIn(t, 4, "another kind") {
			kind = rapid.SampledFrom(kinds).Draw(t, "kind")
		}
		node := kind.DeepCopy()
		node.Name = nodeName(i)
		if node.Labels == nil {
			node.Labels = make(map[string]string)
		}
		node.Labels[v1.LabelHostname] = node.Name
		if _, ok := node.Labels[serialKey]; ok {
			node.Labels[serialKey] = node.Name
		}
		maps.Copy(node.Labels, drawLabels(t, topologyValues, 3))
		fleet = append(fleet, node)
	}
	return fleet
}
