package engine

// The plugins of kube-scheduler's that Berth has elsewhere: the queue and the binder are what they do.
var (
	schedulingGates = Descriptor{Name: "SchedulingGates", Points: []string{"preEnqueue"}, Judges: []Aspect{Gates}}
	prioritySort    = Descriptor{Name: "PrioritySort", Points: []string{"queueSort"}}
	defaultBinder   = Descriptor{Name: "DefaultBinder", Points: []string{"bind"}}

	// PodGroups are followed wherever the API server serves them, whatever profiles say.
	gangScheduling             = Descriptor{Name: "GangScheduling", Points: []string{"preEnqueue", "permit"}, Gated: true, OwnGate: true, Judges: []Aspect{Groups}}
	topologyPlacementGenerator = Descriptor{Name: "TopologyPlacementGenerator", Points: []string{"placementGenerate"}, Gated: true}
	podGroupPodsCount          = Descriptor{Name: "PodGroupPodsCount", Points: []string{"placementScore"}, Gated: true}
)

// The plugins of kube-scheduler's that Berth does not have.
var (
	// It would find room by giving back devices. Berth knows no pod with devices; it says so as kube-scheduler does.
	dynamicResources = Descriptor{
		Name:   "DynamicResources",
		Points: []string{"preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"}, Unbuilt: true,
		Judges:     []Aspect{Claims},
		postFilter: func(string) string { return "no new claims to deallocate" },
	}
)

// OfGroups reports whether it is about PodGroups alone.
func (d *Descriptor) OfGroups() bool {
	return d == &gangScheduling || d == &topologyPlacementGenerator || d == &podGroupPodsCount
}
