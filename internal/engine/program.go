package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxScore is the largest score of a plugin.
const maxScore = 100

// Raw are the scores of a node that other nodes have a say in. Those of TaintToleration and NodeAffinity are normalised over all
// feasible nodes before they count. Those of PodTopologySpread and InterPodAffinity depend on other nodes' pods, too, and that of
// ImageLocality on other nodes' images; TopologyProfile and Images stand for them.
type Raw struct {
	TaintToleration, NodeAffinity int64
	// Images says which of the class's images a node has, for ImageLocality, by their places among the different images in the
	// class's order: bit k of the first byte for place k, then, for each further one in order, how many places are left out after
	// the one before (or after place 7) as a varint. So its length is bounded by what the node has. "" if the node has none, or
	// if the plugin does not score.
	Images string
	// TopologyProfile is what those two plugins see of a node, in an encoding that is the same in every replica: nodes of one
	// topology profile are feasible together and score alike. It has nothing to do with a scheduling profile. "" if they do not judge the pod.
	TopologyProfile string
}

// The places in Scored.Scores.
const (
	scoreFit = iota
	scoreBalanced
	ownScores   // how many of them the node alone decides
	scoreImage  = ownScores
	fixedScores = scoreImage + 1
)

// NotScored stands in Scored.Scores for a plugin that does not score the class.
const NotScored = -1

// weights are the profile's weights of the score plugins; 0: the plugin does not score.
type weights struct {
	taintToleration, nodeAffinity, spread, interPod int64
	fixed                                           [fixedScores]int64
}

// program is a class compiled against the symbols and columns of a state. It never changes.
type program struct {
	unsupported, unsupportedPlugin string

	unschedulable nodeUnschedulable
	name          nodeName
	taints        taintToleration
	affinity      nodeAffinity
	ports         nodePorts
	fit           nodeResourcesFit
	balanced      nodeResourcesBalancedAllocation
	images        imageLocality
	features      nodeDeclaredFeatures

	// filters is what runs on each node, in the profile's order, without what lets all pods of the class pass.
	filters []filterPlugin
	at      [filterPlugins]int // where each of the profile's filters comes in its order
	weights weights
	// scored says which of the not normalised plugins score the class.
	scored [fixedScores]bool

	// What it was compiled against; see stale.
	profile   *cluster.Profile
	symbols   int    // number of symbols, if one was missing, else -1
	resources int    // number of columns, if one was missing, else -1
	numbered  uint64 // Renumbered
}

// filterPlugin names a filter in program.filters.
type filterPlugin uint8

const (
	filterNodeUnschedulable filterPlugin = iota
	filterNodeName
	filterTaintToleration
	filterNodeAffinity
	filterNodePorts
	filterNodeResourcesFit
	filterNodeDeclaredFeatures
	filterPodTopologySpread
	filterInterPodAffinity
	filterPlugins
)

// compiler looks up what a class names, and remembers whether something was missing.
type compiler struct {
	st                              *cluster.State
	missingSymbol, missingResources bool
}

func (c *compiler) symbol(text string) cluster.Symbol {
	s := c.st.Symbols.Lookup(text)
	c.missingSymbol = c.missingSymbol || s == cluster.NoSymbol
	return s
}

func (c *compiler) resource(name string) (cluster.ResourceID, bool) {
	id, ok := c.st.Resource(name)
	c.missingResources = c.missingResources || !ok
	return id, ok
}

func compile(st *cluster.State, spec *cluster.ClassSpec) *program {
	c := compiler{st: st}
	p := &program{
		unsupported: spec.Unsupported, unsupportedPlugin: spec.UnsupportedPlugin,
		profile: st.Profile(spec.SchedulerName), symbols: -1, resources: -1, numbered: st.Renumbered(),
	}
	profile := p.profile
	if profile == nil {
		d := cluster.DefaultProfile(spec.SchedulerName)
		profile = &d
	}
	p.weights = weightsOf(profile)

	var err error
	p.unschedulable = compileNodeUnschedulable(spec)
	p.name = nodeName{spec.NodeName}
	p.taints = c.taintToleration(spec)
	p.affinity, err = c.nodeAffinity(spec, profile)
	p.ports = compileNodePorts(spec)
	p.features = compileNodeDeclaredFeatures(spec)
	p.fit = c.nodeResourcesFit(spec, profile)
	p.balanced, p.scored[scoreBalanced] = c.nodeResourcesBalancedAllocation(spec, profile)
	p.filters = p.filtersOf(profile)
	p.scored[scoreFit] = p.weights.fixed[scoreFit] != 0
	p.scored[scoreBalanced] = p.scored[scoreBalanced] && p.weights.fixed[scoreBalanced] != 0
	if p.scored[scoreImage] = p.weights.fixed[scoreImage] != 0; p.scored[scoreImage] {
		p.images = c.imageLocality(spec)
	}

	switch {
	case p.unsupported != "":
	case err != nil:
		p.unsupported, p.unsupportedPlugin = err.Error(), NodeAffinity
	case len(p.fit.names) > maxFitResources:
		p.unsupported, p.unsupportedPlugin = "pod requests too many different resources", NodeResourcesFit
	}
	if c.missingSymbol {
		p.symbols = st.Symbols.Len()
	}
	if c.missingResources {
		p.resources = st.Resources()
	}
	return p
}

// filtersOf returns what the profile runs at Filter and has something to say about the class.
func (p *program) filtersOf(profile *cluster.Profile) []filterPlugin {
	var out []filterPlugin
	for at, name := range profile.Filters {
		if plugin := slices.Index(filterNames[:], name); plugin >= 0 {
			p.at[plugin] = at
		}
		switch name {
		case NodeUnschedulable:
			out = append(out, filterNodeUnschedulable)
		case NodeName:
			if p.name.name != "" {
				out = append(out, filterNodeName)
			}
		case TaintToleration:
			out = append(out, filterTaintToleration)
		case NodeAffinity:
			if p.affinity.hasEnforced || p.affinity.hasRequired || len(p.affinity.selector) > 0 {
				out = append(out, filterNodeAffinity)
			}
		case NodePorts:
			if len(p.ports.wanted) > 0 {
				out = append(out, filterNodePorts)
			}
		case NodeResourcesFit:
			out = append(out, filterNodeResourcesFit)
		case NodeDeclaredFeatures:
			if len(p.features.required) > 0 {
				out = append(out, filterNodeDeclaredFeatures)
			}
		}
	}
	return out
}

// filterNames are the names by filterPlugin.
var filterNames = [filterPlugins]string{
	NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, NodeDeclaredFeatures,
	PodTopologySpread, InterPodAffinity,
}

// scores reports whether a plugin scores in a profile.
func scores(profile *cluster.Profile, plugin string) bool {
	return slices.ContainsFunc(profile.Weights, func(w cluster.PluginWeight) bool { return w.Name == plugin && w.Weight != 0 })
}

func weightsOf(profile *cluster.Profile) weights {
	var w weights
	for _, p := range profile.Weights {
		switch p.Name {
		case TaintToleration:
			w.taintToleration = p.Weight
		case NodeAffinity:
			w.nodeAffinity = p.Weight
		case PodTopologySpread:
			w.spread = p.Weight
		case InterPodAffinity:
			w.interPod = p.Weight
		case NodeResourcesFit:
			w.fixed[scoreFit] = p.Weight
		case NodeResourcesBalancedAllocation:
			w.fixed[scoreBalanced] = p.Weight
		case ImageLocality:
			w.fixed[scoreImage] = p.Weight
		}
	}
	return w
}

// stale reports whether compiling again could give another program. What was missing can only matter on nodes that
// have changed since, so a new program of an unchanged profile keeps what is known of all other nodes. So does one that only has
// other symbols and columns.
func (p *program) stale(st *cluster.State, spec *cluster.ClassSpec) bool {
	return p.symbols >= 0 && p.symbols != st.Symbols.Len() ||
		p.resources >= 0 && p.resources != st.Resources() ||
		p.numbered != st.Renumbered() ||
		p.profile != st.Profile(spec.SchedulerName)
}

// same reports whether a node that has not changed is judged and scored the same by both programs.
func (p *program) same(q *program) bool { return p.profile == q.profile }

// filter returns the verdict of the first plugin that a live node fails, in the profile's order, as far as the node
// alone decides. Pods nominated to it, but self, count as if they were there if their priority is not lower.
func (p *program) filter(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) Verdict {
	if v := p.preFilter(st, i); v != codeFeasible {
		return v
	}
	if nominees := nomineesOf(st, i, priority, self); nominees != nil {
		if v := p.pass(st, i, nominees); v != codeFeasible {
			return v
		}
	}
	return p.pass(st, i, nil)
}

// preFilter returns the verdict on a node that no filter has to look at.
func (p *program) preFilter(st *cluster.State, i cluster.NodeIndex) Verdict {
	if p.unsupported != "" {
		return codeUnsupported | unresolvable
	}
	if st.Nodes.Unsupported.Has(i) {
		return codeNodeUnsupported | unresolvable
	}
	return p.affinity.narrow(&st.Nodes, i)
}

// pass runs the filters once.
func (p *program) pass(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	n := &st.Nodes
	for _, plugin := range p.filters {
		v := codeFeasible
		switch plugin {
		case filterNodeUnschedulable:
			v = p.unschedulable.filter(n, i)
		case filterNodeName:
			v = p.name.filter(n, i)
		case filterTaintToleration:
			v = p.taints.filter(n, i)
		case filterNodeAffinity:
			v = p.affinity.filter(st, i)
		case filterNodePorts:
			v = p.ports.filter(n, i, h)
		case filterNodeResourcesFit:
			v = p.fit.filter(n, i, h)
		case filterNodeDeclaredFeatures:
			if !p.features.filter(n, i) {
				v = codeFeatures | unresolvable
			}
		}
		if v != codeFeasible {
			return v
		}
	}
	return codeFeasible
}

// combine returns the verdict on an eligible or other node of a topology profile: that of the filter which comes first.
func (p *program) combine(v Verdict, c *topologyProfile) Verdict {
	if !v.Feasible() && !c.first {
		return v // the node fails already with the pods nominated to it
	}
	return p.earlier(v, c.verdict)
}

// earlier returns the verdict of the filter that comes first.
func (p *program) earlier(v, w Verdict) Verdict {
	if v.Feasible() || !w.Feasible() && p.place(w) < p.place(v) {
		return w
	}
	return v
}

// place returns where the filter of a verdict that is not feasible comes in the profile's order.
func (p *program) place(v Verdict) int {
	switch v.code() {
	case codeNodeUnschedulable:
		return p.at[filterNodeUnschedulable]
	case codeNodeName:
		return p.at[filterNodeName]
	case codeTaintToleration:
		return p.at[filterTaintToleration]
	case codeNodeAffinity, codeNodeAffinityEnforced:
		return p.at[filterNodeAffinity]
	case codeNodePorts:
		return p.at[filterNodePorts]
	case codeFit:
		return p.at[filterNodeResourcesFit]
	case codeFeatures:
		return p.at[filterNodeDeclaredFeatures]
	case codeSpread, codeSpreadMissing:
		return p.at[filterPodTopologySpread]
	case codeAffinity, codeAntiAffinity, codeExistingAntiAffinity:
		return p.at[filterInterPodAffinity]
	}
	return -1 // before any filter runs
}

// raw scores a live node with the plugins that other nodes have a say in, but for what its topology profile says.
func (p *program) raw(st *cluster.State, i cluster.NodeIndex) Raw {
	var r Raw
	if p.weights.taintToleration != 0 {
		r.TaintToleration = p.taints.score(&st.Nodes, i)
	}
	if p.weights.nodeAffinity != 0 {
		r.NodeAffinity = p.affinity.score(st, i)
	}
	r.Images = p.images.on(&st.Nodes, i)
	return r
}

// nodeScores are the scores that the node alone decides, 0 to 100 or NotScored.
type nodeScores [ownScores]int8

// fixed scores a live node with the plugins that look at it alone.
func (p *program) fixed(st *cluster.State, i cluster.NodeIndex) nodeScores {
	out := nodeScores{NotScored, NotScored}
	if p.scored[scoreFit] {
		out[scoreFit] = inRange(p.fit.score(&st.Nodes, i))
	}
	if p.scored[scoreBalanced] {
		out[scoreBalanced] = inRange(p.balanced.score(&st.Nodes, i))
	}
	return out
}

// inRange holds a score between 0 and 100. Only quantities so large that int64 overflows lead outside; kube-scheduler
// fails the cycle of such a pod with an error, again and again.
func inRange(score int64) int8 { return int8(min(max(score, 0), maxScore)) }

// sum returns the weighted sum of the scores.
func (w *weights) sum(s nodeScores) int64 {
	sum := int64(0)
	for k, score := range s {
		if score > 0 {
			sum += w.fixed[k] * int64(score)
		}
	}
	return sum
}
