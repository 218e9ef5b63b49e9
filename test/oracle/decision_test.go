package oracle

import (
	"fmt"
	"maps"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// decision is what a scheduler makes of one pod on one cluster.
type decision struct {
	Verdicts  map[string]verdict   // by node, of those that are not feasible
	Scores    map[string]nodeScore // by feasible node
	Counts    map[string]int       // nodes by reason
	Message   string               // of the pod's condition; "" if a node is feasible
	Nominated string               // the node the pod is nominated to, if it is feasible: the pod goes there, whatever the scores
	// Preemption is nil if a node is feasible, or if there is none.
	Preemption *preemption

	// volumes are what the claims of the pod get that wait for a consumer, by feasible node and by claim: see differChosen.
	volumes map[string][]cluster.VolumeChoice
	// met are those of supplyCases that kube-scheduler's decision is a case of.
	met map[string]bool

	scoreError error // of kube-scheduler: there are no scores
	// failed is the error that kube-scheduler's attempt ends with, unless the nominated node is feasible: no node is chosen, and
	// none refused. It is foreign if it is about a pod that is on a node.
	failed  error
	foreign bool
	// refusedBy is the plugin of kube-scheduler's that has refused all nodes at PreFilter, "" if none has.
	refusedBy string
	unscored  bool           // of Berth: the nominated node is feasible for the pod itself alone
	groups    []engine.Group // likewise: what the score-workers say of all nodes
}

// verdict is why a node is not feasible.
type verdict struct {
	Plugin       string
	Unresolvable bool     // UnschedulableAndUnresolvable
	Reasons      []string // sorted
}

// nodeScore is what a node is worth. A plugin that does not score the pod and one that gives 0 are the same.
type nodeScore struct {
	Raw      map[string]int64 // by plugin that is normalised
	Weighted map[string]int64 // by plugin
	Total    int64
}

func newScore(total int64) nodeScore {
	return nodeScore{Raw: make(map[string]int64), Weighted: make(map[string]int64), Total: total}
}

func (s *nodeScore) weigh(plugin string, value int64) {
	if value != 0 {
		s.Weighted[plugin] = value
	}
}

func (s *nodeScore) rate(plugin string, value int64) {
	if value != 0 {
		s.Raw[plugin] = value
	}
}

func newDecision() *decision {
	return &decision{Verdicts: make(map[string]verdict), Scores: make(map[string]nodeScore), Counts: make(map[string]int)}
}

// reject notes kube-scheduler's verdict on a node, the first one if it comes twice.
func (d *decision) reject(t failer, node string, s *fwk.Status) {
	if !s.IsRejected() || s.IsSuccess() {
		t.Fatalf("kube-scheduler's status of node %s: %v", node, s)
	}
	if _, again := d.Verdicts[node]; again {
		return
	}
	v := verdict{Plugin: s.Plugin(), Unresolvable: s.Code() == fwk.UnschedulableAndUnresolvable, Reasons: slices.Sorted(slices.Values(s.Reasons()))}
	d.Verdicts[node] = v
	for _, r := range v.Reasons {
		d.Counts[r]++
	}
}

// feasible returns the feasible nodes, whether or not they have scores. There is none if the attempt has failed.
func (d *decision) feasible(nodes []string) []string {
	if d.failed != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { _, not := d.Verdicts[n]; return not })
}

// best returns the nodes that kube-scheduler chooses among: those of the largest total, or the nominated one.
func (d *decision) best() []string {
	if d.Nominated != "" {
		return []string{d.Nominated}
	}
	top := int64(-1)
	for _, s := range d.Scores {
		top = max(top, s.Total)
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.Scores)), func(n string) bool { return d.Scores[n].Total != top })
}

// refuses returns why kube-scheduler would not have chosen a node, one of those; "" if it could have.
func (d *decision) refuses(node string, nodes []string) string {
	if d.failed != nil && d.Nominated == "" {
		return fmt.Sprintf("Berth chooses %s, and kube-scheduler's attempt fails: %v", node, d.failed)
	}
	if d.scoreError != nil && d.Nominated == "" {
		if feasible := d.feasible(nodes); !slices.Contains(feasible, node) {
			return fmt.Sprintf("Berth chooses %s, feasible are %v", node, feasible)
		}
		return ""
	}
	if best := d.best(); !slices.Contains(best, node) {
		return fmt.Sprintf("Berth chooses %s with %+v, the best are %v of %+v, verdicts %v", node, d.Scores[node], best, d.Scores, d.Verdicts)
	}
	return ""
}
