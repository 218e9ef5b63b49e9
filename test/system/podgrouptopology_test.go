package system

// What kube-scheduler 1.36's own integration tests say of PodGroups with a topology (test/integration/scheduler/podgroup/topology_aware_scheduling/tas_test.go), by their names, as cases of podGroupCases. There, each case of
// a basic group is played with the gate GangScheduling and without it; here there is no such gate. Nodes have 2 CPUs, pods 1, or 2 if they are large; all pods have the priority 100. Upstream has one queue, in which the pods of a first group are before those of a second; here two
// groups may be of two shards, so that the second is made when the first is bound, wherever that matters. Where upstream's cases say which nodes the pods
// are on, so do these.
var topologyCases = []struct{ name, steps string }{
	// TestTopologyAwareSchedulingWithGangPolicy
	{"gang schedules on a single rack, when only one feasible rack is available", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 node5-rack2 cpu=2 rack=2 zone=1
		nodes node6-zone2 cpu=2 rack=3 zone=2
		pods existing1 cpu=2 priority=100 on=node4-rack2
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node1-rack1,node2-rack1,node3-rack1`},
	{"gang remains pending when no feasible resources are found", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 cpu=2 rack=2 zone=1
		nodes node4-zone2 cpu=2 rack=3 zone=2
		group pg1 min=3 topology=rack
		pods p1 p2 p3 cpu=2 group=pg1 priority=100
		waits p1 p2 p3`},
	{"gang remains pending when resources are consumed by existing pods", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		pods existing1 cpu=2 priority=100 on=node1-rack1
		pods existing2 cpu=2 priority=100 on=node3-rack1
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		waits p1 p2 p3
		delete existing1
		bound p1 p2 p3`},
	{"gang schedules on a single rack, choosing placement with the highest score in default placement scoring algorithm", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 node4-rack2 node5-rack2 cpu=2 rack=2 zone=2
		nodes node6-rack3 cpu=2 rack=3 zone=2
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node1-rack1,node2-rack1`},
	{"gang schedules on a single rack, choosing placement with highest allocation percentage (default placement scoring algorithm) with pre-existing pods in cluster", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 node4-rack2 node5-rack2 cpu=2 rack=2 zone=2
		nodes node6-rack3 node7-rack3 node8-rack3 cpu=2 rack=3 zone=2
		nodes node9-rack4 cpu=2 rack=4 zone=2
		pods existing1 cpu=2 priority=100 on=node3-rack2
		pods existing2 cpu=1 priority=100 on=node8-rack3
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node3-rack2,node4-rack2,node5-rack2`},
	{"two gangs schedule consecutively, each on a separate rack", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 node5-rack2 cpu=2 rack=2 zone=1
		group pg1 min=3 topology=rack
		pods p1 p2 p3 cpu=2 group=pg1 priority=100
		bound p1 p2 p3
		group pg2 min=2 topology=rack
		pods p4 p5 group=pg2 priority=100
		bound p4 p5
		within p1 p2 p3 nodes=node1-rack1,node2-rack1,node3-rack1
		within p4 p5 nodes=node4-rack2,node5-rack2`},
	{"two gangs schedule consecutively, both on the same rack", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 cpu=2 rack=2 zone=1
		group pg1 min=2 topology=rack
		pods p1 cpu=2 group=pg1 priority=100
		pods p2 group=pg1 priority=100
		bound p1 p2
		group pg2 min=3 topology=rack
		pods p3 p4 p5 group=pg2 priority=100
		within p1 p2 nodes=node1-rack1,node2-rack1,node3-rack1
		bound p3 p4 p5
		within p3 p4 p5 nodes=node1-rack1,node2-rack1,node3-rack1`},
	{"two gangs schedule consecutively, different topology keys", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 cpu=2 rack=2 zone=1
		nodes node4-zone2 node5-zone2 node6-zone2 cpu=2 rack=3 zone=2
		group pg1 min=3 topology=rack
		pods p1 p2 p3 cpu=2 group=pg1 priority=100
		bound p1 p2 p3
		group pg2 min=3 topology=zone
		pods p4 p5 p6 cpu=2 group=pg2 priority=100
		bound p4 p5 p6
		within p1 p2 p3 nodes=node4-zone2,node5-zone2,node6-zone2
		within p4 p5 p6 nodes=node1-rack1,node2-rack1,node3-rack2`},
	{"two gangs schedule consecutively, only one fits in the cluster", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		group pg2 min=2 topology=rack
		pods p4 p5 group=pg2 priority=100
		within p1 p2 p3 nodes=node1-rack1,node2-rack1
		waits p4 p5`},
	{"gang with minCount < pod count schedules on a single rack", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 node4-rack2 cpu=2 rack=2 zone=1
		group pg1 min=2 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		together p1 p2 p3 topology=rack`},
	{"gang with minCount < pod count schedules on a single rack, choosing smaller rack", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 node5-rack2 cpu=2 rack=2 zone=1
		nodes node6-rack3 cpu=2 rack=3 zone=2
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		pods p4 group=pg1 priority=100
		bound p4
		within p1 p2 p3 p4 nodes=node4-rack2,node5-rack2
		pods p5 group=pg1 priority=100
		waits p5`},
	{"gang does not schedule on a single rack when preemption could free up enough resources", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		pods existing1 cpu=2 priority=100 on=node2-rack1
		group pg1 min=3 topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		waits p1 p2 p3
		bound existing1`},

	// TestTopologyAwareSchedulingWithBasicPolicy
	{"basic podgroup schedules on the only rack in the cluster", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		group pg1 basic topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node1-rack1,node2-rack1`},
	{"basic podgroup schedules all pods on a single rack, when there are multiple racks fitting in the cluster", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 node4-rack2 cpu=2 rack=2 zone=1
		nodes node5-zone2 node6-zone2 cpu=2 rack=3 zone=2
		group pg1 basic topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		together p1 p2 p3 topology=rack`},
	{"basic podgroup cannot fit on a single rack, no pods get scheduled on a different rack", `
		nodes node1-rack1 cpu=2 rack=1 zone=1
		nodes node2-rack2 cpu=2 rack=2 zone=1
		group pg1 basic topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2
		waits p3
		together p1 p2 topology=rack`},
	{"basic podgroup does not schedule at all when no pods fit", `
		nodes node1-rack1 cpu=2 rack=1 zone=1
		nodes node2-rack2 cpu=2 rack=2 zone=1
		group pg1 basic topology=rack
		pods p1 p2 cpu=3 group=pg1 priority=100
		waits p1 p2`},
	{"basic podgroup schedules only some pods when others don't fit on any node", `
		nodes node1-rack1 cpu=2 rack=1 zone=1
		nodes node2-rack2 cpu=2 rack=2 zone=1
		group pg1 basic topology=rack
		pods p1 cpu=3 group=pg1 priority=100
		pods p2 group=pg1 priority=100
		bound p2
		waits p1`},
	{"basic podgroup schedules on a single rack, choosing placement with highest allocation percentage (default placement scoring algorithm)", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 node4-rack2 node5-rack2 cpu=2 rack=2 zone=2
		group pg1 basic topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node1-rack1,node2-rack1`},
	{"basic podgroup schedules on a single rack, choosing placement with highest allocation percentage with pre-existing pods", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 node5-rack2 node6-rack2 cpu=2 rack=2 zone=2
		nodes node7-rack3 node8-rack3 node9-rack3 node10-rack3 cpu=2 rack=3 zone=2
		pods existing1 priority=100 on=node1-rack1
		pods existing2 priority=100 on=node5-rack2
		pods existing3 priority=100 on=node6-rack2
		group pg1 basic topology=rack
		pods p1 p2 p3 group=pg1 priority=100
		bound p1 p2 p3
		within p1 p2 p3 nodes=node4-rack2,node5-rack2,node6-rack2`},
	{"basic podgroup schedules on a single rack, choosing best scoring placement that will not fit all podgroup", `
		nodes node1-rack1 node2-rack1 node3-rack1 node4-rack1 cpu=2 rack=1 zone=1
		nodes node5-rack2 cpu=2 rack=2 zone=1
		pods existing1 cpu=2 priority=100 on=node1-rack1
		group pg1 basic topology=rack
		pods p1 group=pg1 priority=100
		bound p1
		pods p2 p3 group=pg1 priority=100
		bound p2
		within p1 p2 nodes=node5-rack2
		waits p3`},
	{"two basic podgroups schedule consecutively, each on a single rack", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		nodes node4-rack2 cpu=2 rack=2 zone=1
		group pg1 basic topology=rack
		pods p1 p2 group=pg1 priority=100
		bound p1 p2
		group pg2 basic topology=rack
		pods p3 p4 group=pg2 priority=100
		within p1 p2 nodes=node4-rack2
		bound p3 p4
		within p3 p4 nodes=node1-rack1,node2-rack1,node3-rack1`},
	{"two basic podgroups schedule consecutively on the only rack", `
		nodes node1-rack1 node2-rack1 node3-rack1 cpu=2 rack=1 zone=1
		group pg1 basic topology=rack
		pods p1 p2 group=pg1 priority=100
		group pg2 basic topology=rack
		pods p3 p4 p5 group=pg2 priority=100
		bound p1 p2 p3 p4 p5`},
	{"two basic podgroups schedule consecutively, different topology keys", `
		nodes node1-rack1 cpu=2 rack=1 zone=1
		nodes node2-zone2 node3-zone2 cpu=2 rack=2 zone=2
		nodes node4-zone2 node5-zone2 cpu=2 rack=3 zone=2
		group pg1 basic topology=rack
		pods p1 p2 group=pg1 priority=100
		bound p1 p2
		group pg2 basic topology=zone
		pods p3 p4 p5 cpu=2 group=pg2 priority=100
		bound p1 p2 p3 p4 p5
		within p1 p2 nodes=node1-rack1
		within p3 p4 p5 nodes=node2-zone2,node3-zone2,node4-zone2,node5-zone2`},
	{"two basic podgroups schedule consecutively, one does not fit in the assigned rack", `
		nodes node1-rack1 node2-rack1 cpu=2 rack=1 zone=1
		nodes node3-rack2 cpu=2 rack=2 zone=1
		group pg1 basic topology=rack
		pods p1 group=pg1 priority=100
		bound p1
		pods p2 p3 group=pg1 priority=100
		bound p2
		waits p3
		within p1 p2 nodes=node3-rack2
		group pg2 basic topology=rack
		pods p4 p5 p6 group=pg2 priority=100
		bound p4 p5 p6
		within p4 p5 p6 nodes=node1-rack1,node2-rack1`},
	{"basic podgroup continues to schedule pods when more resources become available", `
		nodes node1-rack1 cpu=2 rack=1 zone=1
		nodes node2-rack2 cpu=2 rack=2 zone=1
		pods existing1 priority=100 on=node1-rack1
		bound existing1
		group pg1 basic topology=rack
		pods p1 group=pg1 priority=100
		bound p1
		pods p2 group=pg1 priority=100
		within p1 nodes=node1-rack1
		waits p2
		delete existing1
		bound p1 p2
		within p1 p2 nodes=node1-rack1`},
}
