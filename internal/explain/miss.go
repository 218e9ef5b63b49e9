package explain

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Miss is a node that cannot take the pod, and all that it lacks, of all plugins.
//
// One miss is nearer than another if its node lacks fewer things; of equally many, if the sum of engine.Lack.Relative over
// them is smaller; else if its index is lower.
type Miss struct {
	Node     cluster.NodeIndex
	Name     string
	Things   int
	Relative float64
	Lacks    []engine.Lack // by plugin in kube-scheduler's order
	Blockers []Blocker     // by the place in Lacks: the pods in the way
}

// Blocker is a pod that is in the way.
type Blocker = engine.Blocker

func (m *Miss) compare(other *Miss) int {
	return cmp.Or(cmp.Compare(m.Things, other.Things), cmp.Compare(m.Relative, other.Relative), cmp.Compare(m.Node, other.Node))
}

func relative(lacks []engine.Lack) float64 {
	sum := 0.0
	for k := range lacks {
		sum += lacks[k].Relative
	}
	return sum
}

// missOf returns all that a node lacks; nothing, if it can take the pod.
func missOf(w *whatif.World, pod cluster.PodID, i cluster.NodeIndex) Miss {
	st := w.State()
	lacks, _ := w.Evaluator().Shortfall(st, pod, i)
	m := Miss{
		Node: i, Name: st.Nodes.Spec[i].Name, Things: len(lacks), Relative: relative(lacks), Lacks: lacks, Blockers: make([]Blocker, len(lacks)),
	}
	for k := range lacks {
		if blocker := st.Pod(lacks[k].Blocker); blocker != nil {
			m.Blockers[k] = Blocker{Namespace: blocker.Namespace, Name: blocker.Name, Node: cmp.Or(blocker.NodeName, blocker.Nominated)}
		}
	}
	return m
}

// add adds something else that the node lacks.
func (m *Miss) add(lack engine.Lack) {
	m.Things, m.Relative = m.Things+1, m.Relative+lack.Relative
	m.Lacks, m.Blockers = append(m.Lacks, lack), append(m.Blockers, Blocker{})
}

// keep puts a miss where it belongs among the nearest, if it does.
func keep(nearest []Miss, m Miss) []Miss {
	if len(nearest) == maxMisses && m.compare(&nearest[maxMisses-1]) >= 0 {
		return nearest
	}
	at, _ := slices.BinarySearchFunc(nearest, m, func(a, b Miss) int { return a.compare(&b) })
	return slices.Insert(nearest[:min(len(nearest), maxMisses-1)], at, m)
}
