package berthapp

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// images are those that nodes have. kube-scheduler's cache knows of a node's images how many nodes had them when the node was told last, which depends on the order in which nodes were; here it is how
// many have them now.
type images struct {
	changed   bool                                         // since it was said that it has not
	nodes     map[string]map[string]*fwk.ImageStateSummary // by node, then by image
	has       map[string]int                               // how many nodes have an image
	summaries map[string]map[int64]*fwk.ImageStateSummary  // by image, then by size: nodes share them
}

func newImages() *images {
	return &images{nodes: make(map[string]map[string]*fwk.ImageStateSummary), has: make(map[string]int), summaries: make(map[string]map[int64]*fwk.ImageStateSummary)}
}

// set says which images a node has; nil: there is no such node.
func (m *images) set(name string, node *v1.Node) {
	m.changed = true
	for image := range m.nodes[name] {
		m.count(image, -1)
	}
	delete(m.nodes, name)
	if node == nil {
		return
	}
	of := make(map[string]*fwk.ImageStateSummary)
	for _, image := range node.Status.Images {
		for _, called := range image.Names {
			if of[called] == nil {
				m.count(called, 1)
			}
			sizes := m.summaries[called]
			if sizes[image.SizeBytes] == nil {
				sizes[image.SizeBytes] = &fwk.ImageStateSummary{Size: image.SizeBytes, NumNodes: m.has[called]}
			}
			of[called] = sizes[image.SizeBytes]
		}
	}
	m.nodes[name] = of
}

func (m *images) count(image string, by int) {
	m.has[image] += by
	if m.has[image] == 0 {
		delete(m.has, image)
		delete(m.summaries, image)
		return
	}
	if m.summaries[image] == nil {
		m.summaries[image] = make(map[int64]*fwk.ImageStateSummary)
	}
	for _, s := range m.summaries[image] {
		s.NumNodes = m.has[image]
	}
}
