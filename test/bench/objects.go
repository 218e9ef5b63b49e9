package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/manifest"
)

// nodeObjects returns the nodes of the workload, alike but for name and zone. They share what is alike. If it changes nodes, they have
// images too, every other one that of the pods.
func (w workload) nodeObjects() ([]manifest.Object, error) {
	model, err := parse(fmt.Sprintf(
		`{apiVersion: v1, kind: Node, metadata: {name: node}, status: {allocatable: {cpu: %dm, memory: %dMi, pods: "%d"}}}`,
		nodeMilliCPU, nodeMiB, nodePods))
	if err != nil {
		return nil, err
	}
	out := make([]manifest.Object, w.nodes)
	for i := range out {
		node := *model.Node
		node.Name = nodeName(i)
		node.Labels = map[string]string{
			corev1.LabelHostname: node.Name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
		}
		if w.changes > 0 {
			node.Status.Images = imagesOf(i%2 == 0)
		}
		out[i] = manifest.Object{Node: &node}
	}
	return out, nil
}

// podGroup returns the PodGroup of all pods.
func (w workload) podGroup() ([]manifest.Object, error) {
	return manifest.Parse(fmt.Appendf(nil,
		`{apiVersion: scheduling.k8s.io/v1alpha2, kind: PodGroup, metadata: {name: %s}, spec: {schedulingPolicy: {gang: {minCount: %d}}}}`, gangName, w.pods))
}

// imagesOf returns what a node has: images that no pod asks for, and that of the pods or not.
func imagesOf(pods bool) []corev1.ContainerImage {
	const others = 20
	out := make([]corev1.ContainerImage, 0, others+1)
	for k := range others {
		out = append(out, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/other-%d:1", k)}, SizeBytes: int64(k+1) * 20 << 20})
	}
	if pods {
		out = append(out, corev1.ContainerImage{Names: []string{podImage}, SizeBytes: 500 << 20})
	}
	return out
}

// podImage is the image of all pods, which nodes have only where a workload says so.
const podImage = "registry.example/bench:1"

func nodeName(i int) string { return fmt.Sprintf("node-%07d", i) }

// classMilliCPU is what a pod of one of several classes requests.
func classMilliCPU(class int) int { return podMilliCPU/2 + class }

// podObjects returns pods of the workload, the first of which is number from, in the namespace default.
func (w workload) podObjects(from, n int) ([]manifest.Object, error) {
	models := make([]*corev1.Pod, max(w.classes, 1))
	for class := range models {
		milliCPU := podMilliCPU
		if w.classes > 1 {
			milliCPU = classMilliCPU(class)
		}
		o, err := parse(fmt.Sprintf(
			`{apiVersion: v1, kind: Pod, metadata: {name: pod, labels: {app: bench}}, spec: {%scontainers: [{name: main, image: %q, resources: {requests: {cpu: %dm, memory: %dMi}}}]}}`,
			w.constraint, podImage, milliCPU, podMiB))
		if err != nil {
			return nil, err
		}
		models[class] = o.Pod
	}
	out := make([]manifest.Object, n)
	for i := range out {
		pod := *models[(from+i)%len(models)]
		pod.Name = fmt.Sprintf("pod-%06d", from+i)
		out[i] = manifest.Object{Pod: &pod}
	}
	return out, nil
}

// parse reads a manifest with its defaults, as the gateway does.
func parse(text string) (manifest.Object, error) {
	objects, err := manifest.Parse([]byte(text))
	if err != nil {
		return manifest.Object{}, err
	}
	return objects[0], nil
}
