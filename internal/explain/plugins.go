package explain

import (
	"errors"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// opinion is what plugins of others say of the nodes that can run the pod as far as Berth's own plugins are concerned.
type opinion struct {
	said    *pluginhost.Asking // nil: nobody has been asked
	left    []cluster.NodeIndex
	refused map[cluster.NodeIndex]pluginhost.Refusal
}

// ask asks plugins of others about the nodes that can run the pod, and counts those that they refuse among the rejections.
func (x *Explanation) ask(w *whatif.World, pod cluster.PodID) (*opinion, error) {
	st, e := w.State(), w.Evaluator()
	out := new(opinion)
	if x.Feasible == 0 {
		return out, nil
	}
	var fits []cluster.NodeIndex
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if x.Pod.RequiredNode != "" && st.Nodes.ByName(x.Pod.RequiredNode) != i {
			continue
		}
		if verdict, known := e.Node(st, engine.SubjectOf(&st.Pod(pod).Pod), pod, i); known && verdict.Feasible() {
			fits = append(fits, i)
		}
	}
	said, err := w.Opine(pod, fits)
	if is, stated := errors.AsType[pluginhost.Unanswered](err); stated {
		x.Notes = append(x.Notes, string(is))
		return out, nil
	}
	if err != nil || said == nil {
		return out, err
	}
	out.said, out.refused = said, make(map[cluster.NodeIndex]pluginhost.Refusal)
	for _, i := range fits {
		if r, refused := said.Refusal(i); refused {
			out.refused[i] = r
		} else {
			out.left = append(out.left, i)
		}
	}
	x.refuse(whatif.CountRefusals(st, out.refused))
	return out, nil
}

// refuse moves nodes from the feasible ones to the rejections.
func (x *Explanation) refuse(counts []engine.VerdictCount) {
	for _, c := range counts {
		k := slices.IndexFunc(x.Rejections, func(r engine.Rejection) bool { return r.Plugin == c.Plugin })
		if k < 0 {
			k, x.Rejections = len(x.Rejections), append(x.Rejections, engine.Rejection{Plugin: c.Plugin})
		}
		r := &x.Rejections[k]
		r.Nodes, r.Reasons = r.Nodes+c.Count, append(r.Reasons, c)
		if c.Unresolvable {
			r.Unresolvable += c.Count
		}
		x.Feasible -= c.Count
	}
}

// scores are what plugins of others score nodes, by node, in the order of the profile's services.
func (o *opinion) scores() map[cluster.NodeIndex][]PluginScore {
	if o.said == nil {
		return nil
	}
	out := make(map[cluster.NodeIndex][]PluginScore, len(o.left))
	for _, s := range o.said.Scores(o.left) {
		for k, i := range o.left {
			out[i] = append(out[i], PluginScore{Plugin: s.Plugin, Raw: s.Raw[k], Normalized: s.Normalized[k], Weight: s.Weight})
		}
	}
	return out
}

// add adds what plugins of others score a node to a candidate.
func (c *Candidate) add(scores []PluginScore) {
	for _, s := range scores {
		c.Scores = append(c.Scores, s)
		c.Total += s.Weighted()
	}
}

// lack is why plugins of others refuse a node, as what the node lacks.
func (o *opinion) lack(i cluster.NodeIndex) (engine.Lack, bool) {
	r, refused := o.refused[i]
	return engine.Lack{Plugin: r.Plugin, Reason: r.Reason, Unresolvable: r.Unresolvable, Relative: 1}, refused
}
