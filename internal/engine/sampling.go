package engine

// kube-scheduler stops looking for nodes that can run a pod when it has found enough: of minFeasibleNodesToFind or fewer nodes all are looked at, and of more so many per cent. Where nothing
// is said, these are mostPercentage, less one for each percentageNodes nodes, and leastPercentage at least.
const (
	minFeasibleNodesToFind                           = 100
	mostPercentage, leastPercentage, percentageNodes = 50, 5, 125
)

// NodesToFind returns how many nodes that can run a pod are enough for kube-scheduler, of so many there are, at a percentageOfNodesToScore; 0: nothing is said. It is kube-scheduler's
// numFeasibleNodesToFind. Berth itself looks at all.
func NodesToFind(nodes int, percentage int32) int {
	switch {
	case percentage >= 100, nodes <= minFeasibleNodesToFind:
		return nodes
	case percentage <= 0:
		percentage = max(leastPercentage, mostPercentage-int32(nodes/percentageNodes))
	}
	return max(minFeasibleNodesToFind, int(int64(nodes)*int64(percentage)/100))
}
