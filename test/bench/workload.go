package main

import (
	"fmt"
	"slices"
	"strings"
)

// workload is a cluster, the pods that come to it, and what is asked of Berth.
type workload struct {
	name, about string
	nodes, pods int    // unless the command line says; 0 pods: as many as there is surely room for
	classes     int    // of pods, which differ in their requests and come in turns; 0 means 1
	constraint  string // of every pod: fields of its spec in YAML's flow style, with a comma behind each
	// room is how many pods surely find room, given the nodes and how many pods one can run. nil: all that nodes can run.
	room      func(nodes, perNode int) int
	placed    int  // pods that have been placed before Berth starts
	gang      bool // all pods are of one PodGroup, that wants all of them
	processes bool // every role, and etcd, in a process of its own; else all in one
	oneByOne  bool // a pod is created when the one before it is bound; else all are there before Berth starts
	perNode   bool // measure the memory per node, by comparing with a Berth that has no nodes
	asks      int  // questions per second that people ask meanwhile
	byTurns   bool // they ask every other half second or so only
	changes   int  // of nodes per second that come every other half second or so
	change    kindOfChange
	// traced is the share of attempts whose traces are sent to a collector. 0: traces are switched off.
	traced  float64
	slow    bool // takes minutes: not among the workloads that run unless it is named
	targets []target
}

// target is a figure of a workload's runs, and what is asked of it.
type target struct {
	figure figure
	asked  float64 // 0: nothing; it is told all the same
}

// figure is what is measured. Its text is what the table calls it.
type figure string

// The figures. Those of the latency workload are quantiles over its pods.
const (
	decisions   figure = "decisions/s"
	firstBind   figure = "first bind s"
	lastBind    figure = "last bind s" // from Berth's start, too
	peakMB      figure = "peak MB"
	perNodeKB   figure = "KB/node"
	p50         figure = "p50 ms"
	p99         figure = "p99 ms"
	p50FromCall figure = "p50 from call ms"
	p99FromCall figure = "p99 from call ms"
	p50Assumed  figure = "p50 assumed ms"
	p99Assumed  figure = "p99 assumed ms"
	whyP99      figure = "why p99 ms"
	ifP99       figure = "what-if p99 ms"
	whyP50      figure = "why p50 ms"
	ifP50       figure = "what-if p50 ms"
	coldWhy     figure = "first why ms"
	healthP99   figure = "health p99 ms"
	loss        figure = "loss %"
	unanswered  figure = "unanswered"
	changed     figure = "changes/s"
	spans       figure = "spans"
	cpuSeconds  figure = "CPU s"
	cpuMicros   figure = "CPU us"
)

// atLeast reports whether the figure is to be no less than what is asked, rather than no more.
func (f figure) atLeast() bool { return f == decisions || f == spans || f == changed }

// verb formats the figure.
func (f figure) verb() string {
	switch f {
	case decisions, peakMB, cpuMicros, unanswered, spans, changed:
		return "%.0f"
	case cpuSeconds:
		return "%.1f"
	}
	return "%.2f"
}

// What a node has and a pod requests, where classes do not differ.
const (
	nodeMilliCPU, nodeMiB, nodePods = 8000, 32 << 10, 110
	podMilliCPU, podMiB             = 100, 128
	zones                           = 10
)

const (
	selector     = "labelSelector: {matchLabels: {app: bench}}"
	hardSpread   = "topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, " + selector + "}], "
	sameZone     = "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: topology.kubernetes.io/zone, " + selector + "}]}}, "
	gangName     = "gang"
	onePerHost   = "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, " + selector + "}]}}, "
	thousand     = 1000
	million      = 1000 * thousand
	smallCluster = 5 * thousand
)

// workloads returns all workloads, in the order of the table.
func workloads() []workload {
	rate := func(asked float64) []target { return []target{{decisions, asked}} }
	return []workload{
		{name: "plain", about: "pods of one class", nodes: smallCluster, pods: 50 * thousand, targets: rate(20_000)},
		{name: "classes", about: "100 classes in turns", nodes: smallCluster, pods: 50 * thousand, classes: 100, targets: rate(10_000)},
		{
			name: "spread-hard", about: "at most 1 pod more in a zone than in any other", nodes: smallCluster, pods: 20 * thousand,
			constraint: hardSpread, targets: rate(5000),
			room: func(nodes, perNode int) int { return min(nodes, zones) * smallestZone(nodes) * perNode },
		},
		{
			name: "affinity", about: "required affinity to each other on zone; they fill one", nodes: smallCluster,
			constraint: sameZone, targets: rate(5000),
			room: func(nodes, perNode int) int { return smallestZone(nodes) * perNode },
		},
		{
			name: "anti-affinity", about: "required anti-affinity to each other on hostname; one node stays free", nodes: smallCluster,
			constraint: onePerHost, targets: rate(5000),
			room: func(nodes, _ int) int { return nodes - 1 },
		},
		{
			name: "gang", about: "one PodGroup of pods of one class, which are placed together", nodes: smallCluster, pods: 5 * thousand, gang: true,
			constraint: "schedulingGroup: {podGroupName: " + gangName + "}, ", targets: []target{{lastBind, 3}, {firstBind, 0}},
		},
		{name: "plain-100k", about: "pods of one class", nodes: 100 * thousand, pods: 50 * thousand, targets: rate(10_000)},
		{
			name: "spread-100k", about: "at most 1 pod more in a zone than in any other", nodes: 100 * thousand, pods: 20 * thousand,
			constraint: hardSpread, targets: rate(2000),
			room: func(nodes, perNode int) int { return min(nodes, zones) * smallestZone(nodes) * perNode },
		},
		{
			name: "plain-1m", about: "pods of one class, all roles in one process", nodes: million, pods: 20 * thousand, slow: true,
			perNode: true, targets: []target{{decisions, 1000}, {perNodeKB, 1.5}},
		},
		{
			name: "plain-1m-processes", about: "the same, each role in a process of its own", nodes: million, pods: 20 * thousand, slow: true,
			processes: true, perNode: true, targets: []target{{decisions, 1000}, {perNodeKB, 1.5}},
		},
		{
			name: "latency", about: "one pod at a time on an idle cluster, each role in a process of its own", nodes: smallCluster, pods: 500,
			processes: true, oneByOne: true,
			targets: []target{{p99, 10}, {p50, 0}, {p99FromCall, 0}, {p50FromCall, 0}, {p99Assumed, 0}, {p50Assumed, 0}},
		},
		{name: "unasked", about: "many pods of one class, to compare with asked", nodes: smallCluster, pods: 300 * thousand, slow: true, targets: rate(0)},
		{
			name: "asked", about: "the same, with 20 explanations and what-ifs a second", nodes: smallCluster, pods: 300 * thousand, slow: true,
			asks: 20, targets: []target{{decisions, 0}, {whyP99, 20}, {ifP99, 20}, {healthP99, 0}, {whyP50, 0}, {ifP50, 0}, {coldWhy, 0}, {unanswered, 0}},
		},
		{
			name: "unasked-processes", about: "many pods of one class, each role in a process of its own, to compare with asked-processes",
			nodes: smallCluster, pods: 300 * thousand, slow: true, processes: true, targets: rate(0),
		},
		{
			name: "asked-processes", about: "the same, with 20 explanations and what-ifs a second", nodes: smallCluster, pods: 300 * thousand,
			slow: true, processes: true, asks: 20,
			targets: []target{{decisions, 0}, {whyP99, 20}, {ifP99, 20}, {healthP99, 0}, {whyP50, 0}, {ifP50, 0}, {coldWhy, 0}, {unanswered, 0}},
		},
		{
			name: "asked-by-turns", about: "the same, with questions every other half second or so, to tell what they cost whatever the machine does meanwhile",
			nodes: smallCluster, pods: 300 * thousand, slow: true, processes: true, asks: 20, byTurns: true,
			targets: []target{{decisions, 0}, {loss, 5}, {unanswered, 0}},
		},
		{
			name: "asked-100k", about: "pods of one class, with 20 explanations and what-ifs a second", nodes: 100 * thousand, pods: 300 * thousand,
			slow: true, asks: 20,
			targets: []target{{decisions, 0}, {whyP99, 200}, {ifP99, 200}, {healthP99, 0}, {whyP50, 0}, {ifP50, 0}, {coldWhy, 0}, {unanswered, 0}},
		},
		{
			name: "untraced", about: "pods of one class, each role in a process of its own, to compare with traced", nodes: smallCluster,
			pods: 100 * thousand, processes: true, slow: true, targets: []target{{decisions, 0}, {cpuMicros, 0}},
		},
		{
			name: "traced", about: "the same, with one attempt of 100 traced", nodes: smallCluster, pods: 100 * thousand, processes: true, slow: true,
			traced: 0.01, targets: []target{{decisions, 0}, {cpuMicros, 0}, {spans, 1}},
		},
		{
			name: "image-churn", about: "pods whose image every other node has; 200 nodes a second get or lose it, every other half second or so",
			nodes: smallCluster, pods: 200 * thousand, slow: true, processes: true, changes: 200, change: imagesChange,
			targets: []target{{decisions, 0}, {loss, 20}, {changed, 190}},
		},
		{
			name: "node-churn", about: "the same pods; 200 times a second a cordoned node joins, has another label, or leaves",
			nodes: smallCluster, pods: 200 * thousand, slow: true, processes: true, changes: 200, change: nodesChange,
			targets: []target{{decisions, 0}, {loss, 20}, {changed, 190}},
		},
		{
			name: "others-churn", about: "the same pods; what image-churn writes to etcd is written to keys that nobody reads, to tell what writes alone cost",
			nodes: smallCluster, pods: 200 * thousand, slow: true, processes: true, changes: 200, change: othersChange,
			targets: []target{{decisions, 0}, {loss, 0}, {changed, 190}},
		},
		{
			name: "image-churn-classes", about: "100 classes of such pods, and nodes that get or lose their image", nodes: smallCluster,
			pods: 200 * thousand, classes: 100, slow: true, processes: true, changes: 200, change: imagesChange,
			targets: []target{{decisions, 0}, {loss, 20}, {changed, 190}},
		},
		{name: "memory", about: "pods of one class", nodes: smallCluster, pods: 10 * thousand, targets: []target{{peakMB, 300}}},
		{
			name: "restart-local", about: "a cluster with 140000 placed pods, and pods that wait", nodes: smallCluster, pods: 100,
			placed: 140 * thousand, targets: []target{{firstBind, 15}},
		},
	}
}

// smallestZone is how many nodes the zone with the fewest has: nodes are in zones in turn.
func smallestZone(nodes int) int { return nodes / min(nodes, zones) }

// allWorkloads stands for all of them on the command line.
const allWorkloads = "all"

// workloadsNamed returns the workloads of a comma-separated list of names; of an empty one, those that are not slow.
func workloadsNamed(names string) ([]workload, error) {
	known := workloads()
	switch names {
	case allWorkloads:
		return known, nil
	case "":
		return slices.DeleteFunc(known, func(w workload) bool { return w.slow }), nil
	}
	var out []workload
	for name := range strings.SplitSeq(names, ",") {
		at := slices.IndexFunc(known, func(w workload) bool { return w.name == name })
		if at < 0 {
			var there []string
			for _, w := range known {
				there = append(there, w.name)
			}
			return nil, fmt.Errorf("no workload %q; there are %s and %s", name, strings.Join(there, ", "), allWorkloads)
		}
		out = append(out, known[at])
	}
	return out, nil
}

// sized returns the workload with the numbers of the command line, where they are not 0, and refuses more pods than there
// is room for: they would be waited for in vain.
func (w workload) sized(nodes, pods int) (workload, error) {
	if nodes > 0 {
		w.placed = w.placed / w.nodes * nodes
		w.nodes = nodes
	}
	if pods > 0 {
		w.pods = pods
	}
	milliCPU := podMilliCPU
	if w.classes > 1 {
		milliCPU = classMilliCPU(w.classes - 1)
	}
	perNode := min(nodeMilliCPU/milliCPU, nodeMiB/podMiB, nodePods)
	room := w.nodes * perNode
	if w.room != nil {
		room = w.room(w.nodes, perNode)
	}
	if w.pods == 0 {
		w.pods = room
	}
	if w.pods < 1 || w.pods+w.placed > room {
		return w, fmt.Errorf("%d pods of workload %s, and %d placed ones, on %d nodes, which surely have room for %d", w.pods, w.name, w.placed, w.nodes, room)
	}
	return w, nil
}

// describeWorkloads returns a line for each workload.
func describeWorkloads() string {
	var lines []string
	for _, w := range workloads() {
		lines = append(lines, fmt.Sprintf("%-18s %d nodes; %s", w.name, w.nodes, w.about))
	}
	return strings.Join(lines, "\n")
}
