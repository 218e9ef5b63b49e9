package engine

import (
	"cmp"
	"slices"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxProtected bounds what is remembered of the label sets of a namespace: one for each, and one for each budget that selects it, which may
// be all.
const maxProtected = 1 << 18

// budgets finds the PodDisruptionBudgets that protect a pod: a namespace may have ten thousand, and whoever looks for room asks about
// every pod of a low priority. What it knows is of a state as long as no budget changes. It is safe for concurrent use.
type budgets struct {
	mu       sync.Mutex
	st       *cluster.State
	epoch    cluster.Epoch
	modified cluster.Seq
	spaces   map[string]*spaceBudgets
}

// spaceBudgets are the budgets of a namespace that protect pods, by name.
type spaceBudgets struct {
	all     []*cluster.Budget
	allowed []int32 // of all
	// byLabel are those that ask for one of some values of a label, by each of these; others are those that do not.
	byLabel map[cluster.Label][]int32
	others  []int32

	mu   sync.Mutex
	of   map[cluster.LabelsID][]int32 // those that select a label set, once somebody has asked
	kept int                          // how much that is; see maxProtected
}

// forget lets go of the state.
func (b *budgets) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.st, b.spaces = nil, nil
}

// space returns the budgets of a namespace, nil if there is none.
func (b *budgets) space(st *cluster.State, namespace string) *spaceBudgets {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch, modified := st.Version().Epoch, st.ObjectsModified(cluster.BudgetKind); b.spaces == nil || b.st != st || b.epoch != epoch || b.modified != modified {
		b.st, b.epoch, b.modified, b.spaces = st, epoch, modified, make(map[string]*spaceBudgets)
	}
	s, known := b.spaces[namespace]
	if !known {
		s = newSpaceBudgets(slices.Collect(st.Budgets(namespace)))
		b.spaces[namespace] = s
	}
	return s
}

func newSpaceBudgets(all []*cluster.Budget) *spaceBudgets {
	all = slices.DeleteFunc(all, func(b *cluster.Budget) bool { return b.Selector.Nothing || b.Selector.Empty() })
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *cluster.Budget) int { return cmp.Compare(a.Name, b.Name) })
	s := &spaceBudgets{all: all, byLabel: make(map[cluster.Label][]int32), of: make(map[cluster.LabelsID][]int32)}
	for k, b := range all {
		s.allowed = append(s.allowed, b.Allowed)
		asks := slices.IndexFunc(b.Selector.Requirements, func(r cluster.Requirement) bool { return r.Operator == "In" })
		if asks < 0 {
			s.others = append(s.others, int32(k))
			continue
		}
		r := &b.Selector.Requirements[asks]
		for n, value := range r.Values {
			if slices.Index(r.Values, value) == n {
				label := cluster.Label{Key: r.Key, Value: value}
				s.byLabel[label] = append(s.byLabel[label], int32(k))
			}
		}
	}
	return s
}

// candidates returns the budgets that may select a label set.
func (s *spaceBudgets) candidates(labels *cluster.Labels) []int32 {
	out := slices.Clone(s.others)
	for _, l := range labels.Labels {
		out = append(out, s.byLabel[l]...)
	}
	return out
}

// selecting returns the budgets that select a label set of the namespace. The caller must not change the slice.
func (s *spaceBudgets) selecting(labels *cluster.Labels) []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, known := s.of[labels.ID]; known {
		return found
	}
	found := slices.DeleteFunc(s.candidates(labels), func(k int32) bool { return !s.all[k].Selector.Matches(labels.Labels) })
	if s.kept += 1 + len(found); s.kept > maxProtected {
		clear(s.of)
		s.kept = 1 + len(found)
	}
	s.of[labels.ID] = found
	return found
}

// Disruptions is the account of PodDisruptionBudgets while pods of one state go one after the other, as kube-scheduler keeps it. The zero
// value is that before the first of them.
type Disruptions struct {
	budgets *budgets
	left    map[*spaceBudgets][]int32 // of namespaces in which a budget has been charged, by budget
}

// Charge counts a pod that goes against all budgets that protect it, and appends to refused those that do not allow it: they have no
// disruption left. They are charged, too.
func (d *Disruptions) Charge(st *cluster.State, pod *cluster.PodRow, refused []*cluster.Budget) []*cluster.Budget {
	labels := st.Labels(pod.Labels)
	if labels == nil || len(labels.Labels) == 0 {
		return refused
	}
	if d.budgets == nil {
		d.budgets = new(budgets)
	}
	space := d.budgets.space(st, labels.Namespace)
	if space == nil {
		return refused
	}
	selecting := space.selecting(labels)
	if len(selecting) == 0 {
		return refused
	}
	left := d.left[space]
	if left == nil {
		if d.left == nil {
			d.left = make(map[*spaceBudgets][]int32)
		}
		left = slices.Clone(space.allowed)
		d.left[space] = left
	}
	for _, k := range selecting {
		budget := space.all[k]
		if len(budget.Disrupted) > 0 && !budget.Protects(pod.Name, &labels.LabelSet) {
			continue
		}
		if left[k] <= 0 {
			refused = append(refused, budget)
		}
		left[k]--
	}
	return refused
}
