package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

// Plugins finds the plugins of others that are services.
type Plugins interface {
	// Find returns the services there are, as they are to be asked in the context.
	Find(ctx context.Context) ([]pluginhost.Service, error)
}

type pluginsKey struct{}

// WithPlugins returns a context of questions that ask plugins of others which are services. In others nobody is asked.
func WithPlugins(ctx context.Context, p Plugins) context.Context {
	return context.WithValue(ctx, pluginsKey{}, p)
}

type asideKey struct{}

// WithAside returns a context of questions that wait for others within aside, which calls wait.
func WithAside(ctx context.Context, aside func(wait func() error) error) context.Context {
	return context.WithValue(ctx, asideKey{}, aside)
}

// aside calls wait, which waits for others.
func aside(ctx context.Context, wait func() error) error {
	if within, ok := ctx.Value(asideKey{}).(func(func() error) error); ok {
		return within(wait)
	}
	return wait()
}

// asking asks plugins of others in a World.
type asking struct {
	services []pluginhost.Service // once they have been found
	found    bool
	why      error // they cannot be found

	inquiry  *pluginhost.Inquiry // nil: nobody is asked
	profiles []cluster.Profile   // that it is of
	notes    []string            // of inquiries that have ended
	last     *pluginhost.Asking  // what was asked last; nil: nothing was
}

// inquiry returns what asks plugins of others about pods of a scheduler name, nil if none is to be asked.
func (w *World) inquiry(schedulerName string) (*pluginhost.Inquiry, error) {
	find, _ := w.ctx.Value(pluginsKey{}).(Plugins)
	profile := w.State().Profile(schedulerName)
	if find == nil || profile == nil || len(engine.Foreign(profile)) == 0 {
		return nil, nil
	}
	a := &w.asking
	if !a.found {
		a.found = true
		err := aside(w.ctx, func() (err error) {
			a.services, a.why = find.Find(w.ctx)
			return w.ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	profiles := w.State().Settings.Profiles
	if a.inquiry != nil && !sameSlice(a.profiles, profiles) {
		a.end()
	}
	if a.inquiry == nil {
		is, err := pluginhost.NewInquiry(a.services, profiles, func(uid string) bool { _, is := w.placed[uid]; return is })
		if err != nil {
			return nil, err
		}
		a.inquiry, a.profiles = is, profiles
	}
	if !a.inquiry.Asks(schedulerName) {
		return nil, nil
	}
	return a.inquiry, nil
}

// sameSlice reports whether two slices are the same.
func sameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// end ends what is asked of some profiles, and keeps what is to be told of that.
func (a *asking) end() {
	if a.inquiry == nil {
		return
	}
	for _, note := range a.inquiry.Notes() {
		if !slices.Contains(a.notes, note) {
			a.notes = append(a.notes, note)
		}
	}
	a.done()
	a.inquiry.End()
	a.inquiry = nil
}

// done has nothing kept of what was asked last that is of one pod alone.
func (a *asking) done() {
	if a.last != nil {
		a.last.Done()
		a.last = nil
	}
}

// Notes say which plugin services could not be asked, of all that has been asked in this World so far.
func (w *World) Notes() []string {
	notes := slices.Clone(w.asking.notes)
	if w.asking.why != nil {
		notes = append(notes, fmt.Sprintf("plugin services could not be asked: %v; their filters and scores are ignored", w.asking.why))
	}
	if w.asking.inquiry != nil {
		for _, note := range w.asking.inquiry.Notes() {
			if !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
		}
	}
	return notes
}

// NotAskedOf says which plugins of others, of those that some pods' profiles use, have not been asked, by profile.
func NotAskedOf(w *World, pods []cluster.PodID) (notes []string) {
	st := w.State()
	used := make(map[string]bool)
	for _, id := range pods {
		if row := st.Pod(id); row != nil {
			used[st.Class(row.Class).Spec.SchedulerName] = true
		}
	}
	for k := range st.Settings.Profiles {
		p := &st.Settings.Profiles[k]
		if !used[p.SchedulerName] {
			continue
		}
		if plugins := w.NotAsked(p); len(plugins) > 0 {
			notes = append(notes, fmt.Sprintf("profile %s: plugins of others were not asked: %s", p.SchedulerName, strings.Join(plugins, ", ")))
		}
	}
	return notes
}

// NotAsked returns the plugins of others of a profile that have not been asked in this World so far: see [engine.Foreign]. Services are asked for verdicts and scores.
func (w *World) NotAsked(profile *cluster.Profile) []string {
	if a := &w.asking; a.inquiry != nil && sameSlice(a.profiles, w.State().Settings.Profiles) {
		return a.inquiry.NotAsked(profile)
	}
	return engine.Foreign(profile)
}

// Opine asks plugins of others what they say of nodes that can run a pending pod, as far as Berth's own are concerned. What they say is there until it is called again; nil: nobody is asked. A [pluginhost.Unanswered] error is about the pod.
func (w *World) Opine(id cluster.PodID, nodes []cluster.NodeIndex) (said *pluginhost.Asking, err error) {
	row := w.State().Pod(id)
	schedulerName := w.State().Class(row.Class).Spec.SchedulerName
	inquiry, err := w.inquiry(schedulerName)
	if err != nil || inquiry == nil || len(nodes) == 0 {
		return nil, err
	}
	if err := w.Between(); err != nil {
		return nil, err
	}
	w.asking.done()
	err = aside(w.ctx, func() (err error) {
		said, err = inquiry.Judge(w.ctx, w.State(), schedulerName, engine.SubjectOf(&row.Pod), func() *corev1.Pod { return w.object(row) }, nodes)
		return err
	})
	w.asking.last = said
	return said, err
}

// object returns a pod as services are sent it: of one that the question has brought, what that says; any other one stands for that of the cluster.
func (w *World) object(row *cluster.PodRow) *corev1.Pod {
	pod := new(corev1.Pod)
	switch brought := w.brought[row.UID]; {
	case brought == nil:
		pod.Namespace, pod.Name, pod.UID = row.Namespace, row.Name, types.UID(row.UID)
	case pluginhost.Stands(brought):
		return brought
	default:
		*pod = *brought
		pod.Namespace, pod.Name, pod.UID = row.Namespace, row.Name, types.UID(row.UID)
	}
	return pod
}

// asks reports whether plugins of others have a say in where a pod goes. The state has it.
func (p *placing) asks(row *cluster.PodRow) (bool, error) {
	inquiry, err := p.w.inquiry(p.w.State().Class(row.Class).Spec.SchedulerName)
	return inquiry != nil, err
}

// chooseAsked finds the node for a pod that plugins of others have a say about, as the binder does: of the nodes that can run it, they are asked which can, and what they score.
func (p *placing) chooseAsked(id cluster.PodID) (cluster.NodeIndex, engine.Placement, error) {
	st, e := p.w.State(), p.w.Evaluator()
	row := st.Pod(id)
	subject := engine.SubjectOf(&row.Pod)
	// 1. The only node that it may go to, or the one that it is nominated to.
	one := st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated))
	var among cluster.Bitmap // nil: all
	if one != cluster.NoNode {
		verdict, known := e.Node(st, subject, id, one)
		fits := known && verdict.Feasible()
		if fits {
			left, err := p.leave(id, []cluster.NodeIndex{one})
			if err != nil || len(left) > 0 {
				return one, engine.Placed, err
			}
		}
		switch {
		case row.RequiredNode != "", !fits && e.FailsAsNominated(st, id) != nil:
			return cluster.NoNode, engine.NoFit, nil
		case known && !fits: // the others are judged as if it were there already
			among = slices.Clone(st.Nodes.Live)
			among.Clear(one)
		}
	} else if row.RequiredNode != "" {
		return cluster.NoNode, engine.NoFit, nil
	}
	// 2. All, and of these the best.
	if err := p.w.Judge(subject); err != nil {
		return cluster.NoNode, engine.NoFit, err
	}
	totals, _, _ := e.TotalsAmong(st, subject, among, nil)
	slices.SortFunc(totals, func(a, b engine.NodeTotal) int { return cmp.Compare(a.Node, b.Node) })
	left, err := p.leave(id, indexesOf(totals))
	if err != nil || len(left) == 0 {
		return cluster.NoNode, engine.NoFit, err
	}
	if len(left) < len(totals) {
		some := make(cluster.Bitmap, (st.Nodes.Len()+63)/64)
		for _, i := range left {
			some.Set(i)
		}
		if totals, _, _ = e.TotalsAmong(st, subject, some, nil); len(totals) == 0 {
			return cluster.NoNode, engine.NoFit, nil
		}
	}
	if p.said != nil {
		p.said.ScoreTotals(indexesOf(totals), totals)
	}
	best := slices.MinFunc(totals, func(a, b engine.NodeTotal) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Tie, b.Tie))
	})
	return best.Node, engine.Placed, nil
}

// leave returns which of some nodes plugins of others leave, and notes why they refuse others. None is left of a pod about which they do not answer.
func (p *placing) leave(id cluster.PodID, nodes []cluster.NodeIndex) (left []cluster.NodeIndex, err error) {
	p.said, err = p.w.Opine(id, nodes)
	if is, stated := errors.AsType[pluginhost.Unanswered](err); stated {
		p.unanswered = string(is)
		return nil, nil
	}
	if err != nil || p.said == nil {
		return nodes, err
	}
	for _, i := range nodes {
		if r, refused := p.said.Refusal(i); refused {
			if p.refused == nil {
				p.refused = make(map[cluster.NodeIndex]pluginhost.Refusal)
			}
			p.refused[i] = r
		} else {
			left = append(left, i)
		}
	}
	return left, nil
}

func indexesOf(nodes []engine.NodeTotal) []cluster.NodeIndex {
	out := make([]cluster.NodeIndex, len(nodes))
	for k := range nodes {
		out[k] = nodes[k].Node
	}
	return out
}

// CountRefusals counts nodes by why plugins of others refuse them.
func CountRefusals(st *cluster.State, refused map[cluster.NodeIndex]pluginhost.Refusal) []engine.VerdictCount {
	one := make([]engine.VerdictCount, 0, len(refused))
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		r := refused[i]
		one = append(one, engine.VerdictCount{Plugin: r.Plugin, Reason: r.Reason, Unresolvable: r.Unresolvable, Count: 1, Examples: []string{st.Nodes.Spec[i].Name}})
	}
	return engine.MergeVerdicts(one)
}
