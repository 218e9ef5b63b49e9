package binder

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// node returns a node with so many milli-CPU, ample memory and room for 110 pods.
func node(name string, milliCPU int64) cluster.Node {
	return cluster.Node{Name: name, Allocatable: []cluster.Quantity{
		{Name: "cpu", Value: milliCPU}, {Name: "memory", Value: 1 << 36}, {Name: "pods", Value: 110},
	}}
}

// pod returns a pending pod that requests milli-CPU. Its uid is its name.
func pod(name string, milliCPU int64) source.Pod {
	return source.Pod{
		Pod: cluster.Pod{UID: name, Namespace: "default", Name: name, Created: 1},
		Class: cluster.ClassSpec{
			SchedulerName: scheduler,
			Requests:      []cluster.Quantity{{Name: "cpu", Value: milliCPU}},
			ScoreRequests: []cluster.Quantity{{Name: "cpu", Value: milliCPU}, {Name: "memory", Value: 200 << 20}},
			NonZeroCPU:    milliCPU, NonZeroMemory: 200 << 20, ImageContainers: 1,
		},
		Labels: cluster.LabelSet{Namespace: "default"},
	}
}

// requiring returns the pod with a required node.
func requiring(p source.Pod, node string) source.Pod {
	p.RequiredNode = node
	return p
}

// on puts a pod on a node.
func on(p source.Pod, node string) source.Pod {
	p.NodeName = node
	return p
}

// overcommitted returns the name of a node whose pods request more CPU than it has, "" if there is none.
func overcommitted(st *cluster.State) string {
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		var sum int64
		for _, row := range st.PodsOn(i) {
			for _, q := range st.Class(row.Class).Spec.Requests {
				if q.Name == "cpu" {
					sum += q.Value
				}
			}
		}
		if st.Nodes.Live.Has(i) && sum > st.Nodes.Allocatable[cluster.CPU][i] {
			return st.Nodes.Spec[i].Name
		}
	}
	return ""
}
