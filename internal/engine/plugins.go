package engine

// plugins is the table: every plugin there is, in kube-scheduler's default order, behind what Berth asks before. A new one gets a row where
// kube-scheduler has it, with a code and a place that nobody has; those that there are never change, since older members know them.
var plugins = [...]Plugin{
	{Descriptor: &nodeUnsupported, code: 16},
	{Descriptor: &schedulingGates},
	{Descriptor: &prioritySort},
	{Descriptor: &nodeUnschedulable, code: 1},
	{Descriptor: &nodeName, code: 2},
	{Descriptor: &taintToleration, Weight: 3, code: 3, place: 0},
	{Descriptor: &nodeAffinity, Weight: 2, code: 4, place: 1},
	{Descriptor: &nodePorts, code: 8},
	{Descriptor: &nodeResourcesFit, Weight: 1, code: codeDetailed, place: 0},
	{Descriptor: &volumeRestrictions, code: 20},
	{Descriptor: &nodeVolumeLimits, code: 22},
	{Descriptor: &volumeBinding, code: 32, place: 3},
	{Descriptor: &volumeZone, code: 31},
	{Descriptor: &podTopologySpread, Weight: 2, code: 10, place: 2},
	{Descriptor: &interPodAffinity, Weight: 2, code: 12, place: 3},
	{Descriptor: &dynamicResources, Weight: 2},
	{Descriptor: &defaultPreemption},
	{Descriptor: &nodeResourcesBalancedAllocation, Weight: 1, place: 1},
	{Descriptor: &imageLocality, Weight: 1, place: 2},
	{Descriptor: &defaultBinder},
	{Descriptor: &nodeDeclaredFeatures, code: 15},
	// Behind feature gates that are off.
	{Descriptor: &gangScheduling},
	{Descriptor: &topologyPlacementGenerator},
	{Descriptor: &podGroupPodsCount, Weight: 1},
}
