package engine

import (
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxScore is the largest score of a plugin.
const maxScore = 100

// Raw are the scores of a node that other nodes have a say in. Scores are normalised over all feasible nodes before they count. What
// depends on other nodes' pods, too, or on their images, is not in it; TopologyProfile and Images stand for that.
type Raw struct {
	// Scores are those of the node itself, by place, of the plugins of mostScale and reversedMostScale.
	Scores [nodeScales]int64
	// Images says which of the class's images a node has, by their places among the different images in the
	// class's order: bit k of the first byte for place k, then, for each further one in order, how many places are left out after
	// the one before (or after place 7) as a varint. So its length is bounded by what the node has. "" if the node has none, or
	// if the plugin does not score.
	Images string
	// TopologyProfile is what the plugins that read pods on other nodes see of a node, in an encoding that is the same in every replica: nodes of one
	// topology profile are feasible together and score alike. It has nothing to do with a scheduling profile. A hash
	// of what the pod's volumes come to goes with it. "" if they do not judge the pod and it has none.
	TopologyProfile string
}

// How many places there are for scores.
const (
	nodeScales       = 2 // in Raw.Scores
	normalizedScores = 4 // in Normalized, with those of topology profiles
	fixedScores      = 4 // in Scored.Scores: as many as cost no more memory than fewer
)

// NotScored stands in Scored.Scores for a plugin that does not score the class.
const NotScored = -1

// weights are the profile's weights of the score plugins, by place; 0: the plugin does not score.
type weights struct {
	normal [normalizedScores]int64
	fixed  [fixedScores]int64
}

// filterFunc returns the verdict on a live node, as if pods had come to it or gone from it.
type filterFunc func(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict

// scoreFunc scores a live node.
type scoreFunc func(st *cluster.State, i cluster.NodeIndex) int64

// compiled is what a plugin makes of a class. What is nil, it does not do: a filter would let every node pass.
type compiled struct {
	broken string // why the class cannot be judged
	// before and filter judge a node. Where a plugin refuses all nodes of a set, unresolvably, it says the set instead: it is a part of
	// the state that the class is compiled against, as it is when a node is judged.
	before, filter       filterFunc
	beforeSet, filterSet *cluster.Bitmap
	score                scoreFunc
	details              []string           // reasons that verdicts of codeDetailed name by their bits
	texts                map[Verdict]string // reasons that are the pod's own, by code
	drivers              []string           // reasons that verdicts of codeNoDriver name by their place

	// surveyBefore and survey return what adds all that a node lacks, where before and filter tell of the first thing only. nil: there
	// is no more to tell; nobody else tells of a node either that has been set aside before.
	surveyBefore, survey func(*surveyor) surveyFunc
}

// step is a filter of a program: it refuses the nodes of a set with a verdict, or is run.
type step struct {
	set     *cluster.Bitmap
	verdict Verdict
	run     filterFunc
	plugin  *Plugin
	survey  func(*surveyor) surveyFunc
}

// firstOf returns the verdict of the first step that a live node fails.
func firstOf(steps []step, st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	for k := range steps {
		s := &steps[k]
		if s.set != nil {
			if s.set.Has(i) {
				return s.verdict
			}
		} else if v := s.run(st, i, h); v != codeFeasible {
			return v
		}
	}
	return codeFeasible
}

// scorer is a score of a program, with its place.
type scorer struct {
	run   scoreFunc
	place int
}

// program is a class compiled against the symbols and columns of a state. It never changes.
type program struct {
	unsupported, unsupportedPlugin string

	// What several plugins read of the class.
	selection   nodeSelection
	tolerations tolerations
	images      wantedImages

	// before is what sets nodes aside before any filter runs, in every profile; filters is what runs on each node, in the profile's
	// order, without what lets all pods of the class pass.
	before, filters []step
	raws, owns      []scorer          // of Raw.Scores, and of Scored.Scores
	at              [len(plugins)]int // where each of the profile's filters comes in its order, by row
	details         []string
	drivers         []string           // of codeNoDriver
	texts           map[Verdict]string // by code, of reasons that the table does not have
	volumes         *volumeProgram     // nil: those of other pods do not matter
	weights         weights
	blank           nodeScores // of a node that nothing has scored
	scoresImages    bool

	// What it was compiled against; see stale.
	profile   *cluster.Profile
	symbols   int       // number of symbols, if one was missing, else -1
	resources int       // number of columns, if one was missing, else -1
	numbered  uint64    // Renumbered
	awaiting  *awaiting // nil: no claim waits for a consumer
}

// compiler looks up what a class names, and remembers whether something was missing.
type compiler struct {
	st                              *cluster.State
	missingSymbol, missingResources bool

	spec    *cluster.ClassSpec
	volumes *podVolumes // nil: the pods have none
	profile *cluster.Profile
	program *program // as far as it is made
	plugin  *Plugin  // whose turn it is
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

// scores reports whether the plugin scores.
func (c *compiler) scores() bool { return scores(c.profile, c.plugin.Name) }

func compile(st *cluster.State, spec *cluster.ClassSpec, volumes *podVolumes) *program {
	c := compiler{st: st, spec: spec, volumes: volumes}
	p := &program{
		unsupported: spec.Unsupported, unsupportedPlugin: spec.UnsupportedPlugin,
		profile: st.Profile(spec.SchedulerName), symbols: -1, resources: -1, numbered: st.Renumbered(),
	}
	c.program, c.profile = p, p.profile
	if c.profile == nil {
		d := DefaultProfile(spec.SchedulerName)
		c.profile = &d
	}
	if volumes != nil {
		p.volumes = new(volumeProgram)
	}
	p.weights = weightsOf(c.profile)
	p.selection, p.tolerations = c.nodeSelection(), c.tolerations()
	var made [len(plugins)]compiled
	for row := range plugins {
		if c.plugin = &plugins[row]; c.plugin.compile != nil {
			made[row] = c.plugin.compile(&c)
			p.take(c.plugin, &made[row])
		}
	}
	for at, name := range c.profile.Filters {
		row := rankOfPlugin(name)
		if row == len(plugins) {
			continue
		}
		p.at[row] = at
		if m := &made[row]; m.filter != nil || m.filterSet != nil {
			p.filters = append(p.filters, step{m.filterSet, plugins[row].code | unresolvable, m.filter, &plugins[row], m.survey})
		}
	}
	if volumes != nil && volumes.refusal != "" && p.unsupported == "" && !c.refusedBefore(volumes.refusedBy) {
		p.unsupported, p.unsupportedPlugin = volumes.refusal, volumes.refusedBy
	}
	if v := p.volumes; v != nil && v.restrictions == nil && v.limits == nil {
		p.volumes = nil
	}
	if c.missingSymbol {
		p.symbols = st.Symbols.Len()
	}
	if c.missingResources {
		p.resources = st.Resources()
	}
	return p
}

// take adds what a plugin has made of the class, but for its filter.
func (p *program) take(plugin *Plugin, m *compiled) {
	if m.broken != "" && p.unsupported == "" {
		p.unsupported, p.unsupportedPlugin = m.broken, plugin.Name
	}
	if m.before != nil || m.beforeSet != nil {
		p.before = append(p.before, step{m.beforeSet, plugin.code | unresolvable, m.before, plugin, m.surveyBefore})
	}
	if m.details != nil {
		p.details = m.details
	}
	if m.drivers != nil {
		p.drivers = m.drivers
	}
	if m.texts != nil {
		if p.texts == nil {
			p.texts = make(map[Verdict]string)
		}
		maps.Copy(p.texts, m.texts)
	}
	switch {
	case plugin.scale == imageScale:
		p.scoresImages = p.weights.fixed[plugin.place] != 0
	case plugin.scale == ownScale && (m.score == nil || p.weights.fixed[plugin.place] == 0):
		p.blank[plugin.place] = NotScored
	case plugin.scale == ownScale:
		p.owns = append(p.owns, scorer{m.score, plugin.place})
	case m.score == nil:
	case plugin.scale.normalized() && p.weights.normal[plugin.place] != 0:
		p.raws = append(p.raws, scorer{m.score, plugin.place})
	}
}

// scores reports whether a plugin scores in a profile.
func scores(profile *cluster.Profile, plugin string) bool {
	return slices.ContainsFunc(profile.Weights, func(w cluster.PluginWeight) bool { return w.Name == plugin && w.Weight != 0 })
}

func weightsOf(profile *cluster.Profile) weights {
	var w weights
	for _, p := range profile.Weights {
		plugin := PluginOf(p.Name)
		switch {
		case plugin == nil || plugin.scale == notScored:
		case plugin.scale.normalized():
			w.normal[plugin.place] = p.Weight
		default:
			w.fixed[plugin.place] = p.Weight
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
	if nominees := p.nomineesOf(st, i, priority, self); nominees != nil {
		if v := p.pass(st, i, nominees); v != codeFeasible {
			return v
		}
		v := p.pass(st, i, nil)
		if r := v.tabled(); r != nil && r.without > 0 {
			return plugins[byCode[v.code()]].code + r.without | v&unresolvable
		}
		return v
	}
	return p.pass(st, i, nil)
}

// preFilter returns the verdict on a node that no filter has to look at.
func (p *program) preFilter(st *cluster.State, i cluster.NodeIndex) Verdict {
	if p.unsupported != "" {
		return codeUnsupported | unresolvable
	}
	return firstOf(p.before, st, i, nil)
}

// pass runs the filters once.
func (p *program) pass(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	return firstOf(p.filters, st, i, h)
}

// alone returns the verdict of one of the filters, with the pods nominated to a node and without.
func (p *program) alone(k int, st *cluster.State, i cluster.NodeIndex, nominees *overlay) Verdict {
	v := firstOf(p.filters[k:k+1], st, i, nominees)
	if v == codeFeasible && nominees != nil {
		v = firstOf(p.filters[k:k+1], st, i, nil)
	}
	return v
}

// combine returns the verdict on an eligible or other node of a topology profile: that of the filter which comes first.
func (p *program) combine(v Verdict, c *topologyProfile) Verdict {
	switch r := v.tabled(); {
	case r != nil && r.onlyWithout:
		if c.first && !c.verdict.Feasible() {
			return c.verdict // it fails already with the pods nominated to it
		}
	case !v.Feasible() && !c.first:
		return v // it is this that does
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
	row := byCode[v.code()]
	if row < 0 || plugins[row].reasons[v.code()-plugins[row].code].before {
		return -1 // before any filter runs
	}
	return p.at[row]
}

// raw scores a live node with the plugins that other nodes have a say in, but for what its topology profile says.
func (p *program) raw(st *cluster.State, i cluster.NodeIndex) Raw {
	var r Raw
	for k := range p.raws {
		r.Scores[p.raws[k].place] = p.raws[k].run(st, i)
	}
	r.Images = p.images.on(&st.Nodes, i)
	return r
}

// nodeScores are the scores that the node alone decides, 0 to 100 or NotScored.
type nodeScores [fixedScores]int8

// fixed scores a live node with the plugins that look at it alone.
func (p *program) fixed(st *cluster.State, i cluster.NodeIndex) nodeScores {
	out := p.blank
	for k := range p.owns {
		out[p.owns[k].place] = inRange(p.owns[k].run(st, i))
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
