package pluginhost

import (
	"errors"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// RefusedNode is a node that cannot run a pod, and why.
type RefusedNode struct {
	Node cluster.NodeIndex
	Name string
	Refusal
}

// PostFiltering is that plugins of one service look for a way for a pod that fits nowhere.
type PostFiltering struct {
	part    *part
	plugins []string
	result  *PostFiltered
}

// PostFiltered is what has come of that.
type PostFiltered struct {
	Success          bool   // the pod will fit: nobody else is asked
	Nominated        string // the node that it is nominated to; "": none
	ClearsNomination bool   // it is to be nominated to none any more
	Unresolvable     bool   // without success, nobody else is asked, either
	Reason           string // without success, why not
	Failed           bool   // a plugin has, as Reason says: nobody else is asked
}

// PostFilters returns who is to be asked to look for a way, one after the other: plugins that follow each other are asked together if they are of one service.
func (k *Asking) PostFilters(plugins []string) (out []*PostFiltering) {
	for _, name := range plugins {
		i := slices.IndexFunc(k.parts, func(p *part) bool { return slices.Contains(p.use.postFilters, name) })
		if i < 0 { // its service has failed, and is ignorable
			continue
		}
		if n := len(out); n > 0 && out[n-1].part == k.parts[i] {
			out[n-1].plugins = append(out[n-1].plugins, name)
		} else {
			out = append(out, &PostFiltering{part: k.parts[i], plugins: []string{name}})
		}
	}
	return out
}

// CollectPostFilter notes that plugins are to look for a way, and why nodes cannot run the pod that could if others were evicted. The caller holds the state's lock, and calls Exchange then. Nodes that have
// gone are left out.
func (k *Asking) CollectPostFilter(st *cluster.State, subject engine.Subject, of *PostFiltering, nodes []RefusedNode) {
	p := of.part
	if !slices.Contains(k.parts, p) {
		return
	}
	for _, other := range k.parts { // what is left there of others' questions is not asked any more
		other.service.session.sync(st)
	}
	is := p.service.session
	if is.all.cluster {
		is.tellAll(st)
	}
	p.kind = is.kindOf(st, p.key(subject), p.object, p.annotations)
	is.columnOf(st, p.kind, &p.use)
	told := &pluginv1.Question{Kind: p.kind.id, PostFilters: of.plugins}
	known := make(map[Refusal]uint32)
	for _, n := range nodes {
		if !st.Nodes.Live.Has(n.Node) || st.Nodes.Spec[n.Node].Name != n.Name {
			continue
		}
		r := n.Refusal
		if known[r] == 0 && len(told.Refusals) >= maxRefusals-1 {
			r = Refusal{Plugin: told.Refusals[0].Plugin, Reason: anotherReason}
		}
		if known[r] == 0 {
			told.Refusals = append(told.Refusals, &pluginv1.Refusal{Plugin: r.Plugin, Reason: r.Reason, Unresolvable: r.Unresolvable})
			known[r] = uint32(len(told.Refusals))
		}
		is.tell(st, n.Node)
		told.Nodes, told.Verdicts = append(told.Nodes, int32(n.Node)), append(told.Verdicts, known[r])
	}
	b := is.last()
	b.request.Questions = append(b.request.Questions, told)
	b.questions = append(b.questions, question{kind: p.kind, use: &p.use, seq: st.Version().Seq, post: of})
}

// Last returns the last plugin of those that are asked.
func (f *PostFiltering) Last() string { return f.plugins[len(f.plugins)-1] }

// Result returns what has come of it behind Exchange, nil if the service has failed, and is ignorable.
func (f *PostFiltering) Result() *PostFiltered { return f.result }

// take takes the answer, if it makes sense.
func (f *PostFiltering) take(a *pluginv1.Answer) error {
	if a.GetError() != "" {
		return errStated(extender.Short(a.GetError()))
	}
	is := a.GetPostFiltered()
	if is.GetError() != "" {
		f.result = &PostFiltered{Failed: true, Reason: extender.Short(is.GetError())}
		return nil
	}
	switch {
	case is == nil:
		return errors.New("want post_filtered: plugins were asked to look for a way for a pod that fits nowhere")
	case is.GetNominated() != "" && is.GetClearsNomination():
		return errors.New("post_filtered: the pod is nominated, and its nomination is to end")
	case is.GetSuccess() && is.GetUnresolvable():
		return errors.New("post_filtered: success, and unresolvable")
	case len(is.GetNominated()) > maxNodeName:
		return errors.New("post_filtered.nominated: no node has such a long name")
	}
	f.result = &PostFiltered{
		Success: is.GetSuccess(), Nominated: is.GetNominated(), ClearsNomination: is.GetClearsNomination(), Unresolvable: is.GetUnresolvable(), Reason: extender.Short(is.GetReason()),
	}
	return nil
}

// maxNodeName is how many bytes the name of a node has at most.
const maxNodeName = 253
