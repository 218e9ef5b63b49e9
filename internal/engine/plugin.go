package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Plugin is a row of the table in plugins.go: a plugin, and what tells it apart from the others. Its place in the table is its place in
// kube-scheduler's default order.
type Plugin struct {
	*Descriptor
	Weight int64   // of its score in the default profile; 0: it does not score there
	code   Verdict // of its first reason, the others follow; 0: it has none
	place  int     // of its score among those of its scale; see Scale
}

// Descriptor is all that Berth knows of a plugin, but for what its row says. Each is in a file of its own, and nobody else names the
// plugin. What is left out, the plugin has nothing to do with.
type Descriptor struct {
	Name string // kube-scheduler's: verdicts, metrics and configurations call it so
	// Points are where it runs, as KubeSchedulerConfiguration calls them. One that has none is no plugin of kube-scheduler's.
	Points []string
	// Needs says at which other points the plugin has to run for it to run at a point: kube-scheduler's or Berth would fail else, or leave undone what
	// pods wait for.
	Needs map[string][]string
	// Gated: it is behind a feature gate of kube-scheduler's that is off, and not in the default profile.
	Gated bool
	// OwnGate: kube-scheduler has a feature gate of its name, which is off if the plugin is Gated.
	OwnGate bool
	// Unbuilt: Berth does not have it.
	Unbuilt bool
	// Judges is what the plugin judges of a pod's spec: what cannot be read of it is the plugin's to refuse.
	Judges []Aspect
	// Predicates and Priorities are what a Policy, before there were profiles, called its filter and its score.
	Predicates, Priorities []string

	reasons []Reason
	// compile returns what the plugin makes of a class.
	compile func(*compiler) compiled
	// relate returns how pods of a class are related to pods on other nodes, by which the plugin judges topology profiles.
	relate func(*relating) relation
	scale  Scale
	// scoresIf reports whether it scores in a profile at all, if it has a weight there; nil: it does.
	scoresIf func(*cluster.Profile) bool
	// resolve finds out what the volumes of pods come to, as far as the plugin cares, and returns why it refuses them at PreFilter, "" if it
	// does not. It writes to its own part of podVolumes.
	resolve func(*resolving) string
	// refuses: at PreFilter it refuses pods with a text that is none of its reasons.
	refuses bool
	// elsewhere is the place, among its reasons, of what is said of all nodes but the one that a pod requires. 0: another plugin says it.
	elsewhere Verdict

	// hints say which changes bring a pod closer that it has rejected, keeps which may let one preempt that it has kept from that.
	hints, keeps hints

	// short says what its rejections mean, after the number of the nodes; text what a node lacks. Without them the reasons have to do.
	short func(*Rejection) string
	text  func(*Lack, Blocker) string
	// detail fills in what takes a look at other pods: Lack.Blocker and Lack.Terms.
	detail func(*surveyor, cluster.NodeIndex, *Lack)
	// help is what can help a node that it rejects, unless its lacks say it themselves.
	help Help
	// besides returns what to say in addition of pods with these verdicts; "" is nothing.
	besides func(*cluster.State, []VerdictCount) string
	// postFilter returns what the plugin says at postFilter of a pod that fits nowhere, given what preemption says.
	postFilter func(preemption string) string
}

// Reason is a text of kube-scheduler's.
type Reason struct {
	Text string
	// before: the node is set aside before any filter runs. alone: so are all, and they are not counted.
	before, alone bool
	// fails: kube-scheduler's attempt ends with an error, so that no node is feasible if one has the reason.
	fails bool
	// without is the place, among the plugin's reasons, of the same one of a node that fails only without the pods nominated to it; 0: there
	// is none, for those only ever take room. onlyWithout is that it is that one.
	without     Verdict
	onlyWithout bool
}

// Aspect is a part of a pod's spec.
type Aspect uint8

// The aspects.
const (
	Gates Aspect = iota
	NodeTerms
	Ports
	Requests
	Spreading
	PodTerms
	Claims
	BoundVolumes
	SharedDisks
	AttachedVolumes
	Features
	Groups
)

// JudgeOf returns the name of the plugin that judges an aspect.
func JudgeOf(a Aspect) string {
	k := slices.IndexFunc(plugins[:], func(p Plugin) bool { return slices.Contains(p.Judges, a) })
	return plugins[k].Name
}

// Scale is how the scores of a plugin come about, and how they are made comparable.
type Scale uint8

// The scales. A plugin's place is among those of the same line.
const (
	notScored Scale = iota

	ownScale   // 0 to 100, decided by the node alone: a place in Scored.Scores
	imageScale // 0 to 100, decided by Raw.Images: a place in Scored.Scores

	mostScale         // a score of the node, in Raw.Scores: 100·raw/max, over the feasible nodes
	reversedMostScale // likewise: 100 - 100·raw/max

	rangeScale         // a score of topology profiles: 100·(raw-min)/(max-min)
	reversedRangeScale // likewise: 100·(max+min-raw)/max
)

// normalized reports whether the score is normalised over all feasible nodes. Its place is one in Normalized.
func (s Scale) normalized() bool { return s >= mostScale }

// ranges reports whether the least score counts for normalisation, besides the largest.
func (s Scale) ranges() bool { return s >= rangeScale }

// Plugins returns the table. Nobody changes it.
func Plugins() []Plugin { return plugins[:] }

// Foreign returns the plugins of a profile that sort the queue, say which pods may be tried, filter, score or look for a way for pods that fit nowhere, and are others': they are asked when a pod is placed, and never here.
func Foreign(p *cluster.Profile) (names []string) {
	add := func(name string) {
		if PluginOf(name) == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if p.QueueSort != "" {
		add(p.QueueSort)
	}
	for _, name := range slices.Concat(p.PreEnqueues, p.Filters) {
		add(name)
	}
	for _, w := range p.Weights {
		add(w.Name)
	}
	for _, name := range p.PostFilters {
		add(name)
	}
	return names
}

// ForeignNodes reports whether a profile has filters or scores of others, which are asked about each of its pods.
func ForeignNodes(p *cluster.Profile) bool {
	return slices.ContainsFunc(p.Filters, func(name string) bool { return PluginOf(name) == nil }) || slices.ContainsFunc(p.Weights, func(w cluster.PluginWeight) bool { return PluginOf(w.Name) == nil })
}

// PluginOf returns the plugin with a name, nil if there is none.
func PluginOf(name string) *Plugin {
	if k := rankOfPlugin(name); k < len(plugins) {
		return &plugins[k]
	}
	return nil
}

// rankOfPlugin returns a plugin's place in the table; one that is not there is behind all.
func rankOfPlugin(name string) int {
	if k := slices.Index(names[:], name); k >= 0 {
		return k
	}
	return len(plugins)
}

// names are the plugins' names, by row.
var names = func() (out [len(plugins)]string) {
	for row := range plugins {
		out[row] = plugins[row].Name
	}
	return out
}()

// Scores reports whether the plugin scores nodes, if a profile has it do so. That it runs at score does not say so.
func (d *Descriptor) Scores(profile *cluster.Profile) bool {
	return d.scale != notScored && (d.scoresIf == nil || d.scoresIf(profile))
}

// RunsAt reports whether the plugin runs at a point.
func (d *Descriptor) RunsAt(point string) bool { return slices.Contains(d.Points, point) }

// byCode are the rows by the codes of their reasons, -1 where there is none.
var byCode = func() (out [maxCodes]int) {
	for code := range out {
		out[code] = -1
	}
	for row := range plugins {
		for k := range plugins[row].reasons {
			out[int(plugins[row].code)+k] = row
		}
	}
	return out
}()

// scales are the scales of the normalised scores, by place in Normalized.
var scales = func() (out [normalizedScores]Scale) {
	for _, p := range plugins {
		if p.scale.normalized() {
			out[p.place] = p.scale
		}
	}
	return out
}()

// imagePlace is the place in Scored.Scores of what images add.
var imagePlace = func() int {
	return plugins[slices.IndexFunc(plugins[:], func(p Plugin) bool { return p.scale == imageScale })].place
}()

// ScorePlaces returns how many places of Scored.Scores are in use.
func ScorePlaces() int {
	places := 0
	for _, p := range plugins {
		if p.scale == ownScale || p.scale == imageScale {
			places = max(places, p.place+1)
		}
	}
	return places
}

// relatingPlugins returns those that read pods on other nodes, in the order of the table.
func relatingPlugins() (out []*Plugin) {
	for k := range plugins {
		if plugins[k].relate != nil {
			out = append(out, &plugins[k])
		}
	}
	return out
}

// requiredElsewhere returns the plugin that sets aside all nodes but the one that a pod requires, and its code for that.
func requiredElsewhere() (name string, code Verdict) {
	for k := range plugins {
		if p := &plugins[k]; p.elsewhere > 0 {
			return p.Name, p.code + p.elsewhere
		}
	}
	return "", codeUnsupported
}

// Blocker is a pod that is in the way. It has no name if there is none, or none is found.
type Blocker struct {
	Namespace, Name string
	Node            string // where it is, or is nominated to
}

// Help is what could help a node that lacks something.
type Help uint16

// What could help.
const (
	HelpRequests        Help = 1 << iota // to request less of the resource
	HelpTaints                           // to tolerate the taint, or to take it away
	HelpConditions                       // to drop the condition from the pod
	HelpLabels                           // to label the node
	HelpCordon                           // to uncordon it
	HelpNewNode                          // one like it, but new
	HelpNewNodeNominees                  // the same, if pods are nominated to this one
	HelpNewVolume                        // a volume for the claim that can be reached from it, or room to provision one
	HelpNodeThere                        // a new one like it, but where the volume is: as Lack.Of.Where says
)

// DefaultProfile is kube-scheduler's default profile, of the plugins Berth has.
func DefaultProfile(schedulerName string) cluster.Profile {
	out := cluster.Profile{
		SchedulerName:         schedulerName,
		FitStrategy:           cluster.LeastAllocated,
		FitResources:          []cluster.PluginWeight{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}},
		BalancedResources:     []string{"cpu", "memory"},
		HardPodAffinityWeight: 1,
		DefaultSpread:         cluster.SystemSpread(),
		SystemSpread:          true,
	}
	for k := range plugins {
		p := &plugins[k]
		if p.Gated {
			continue
		}
		if p.RunsAt("postFilter") {
			out.PostFilters = append(out.PostFilters, p.Name) // with what is not built: it has a say in the text
		}
		if p.Unbuilt {
			continue
		}
		if p.RunsAt("preFilter") {
			out.PreFilters = append(out.PreFilters, p.Name)
		}
		if p.RunsAt("filter") {
			out.Filters = append(out.Filters, p.Name)
		}
		if p.Weight != 0 {
			out.Weights = append(out.Weights, cluster.PluginWeight{Name: p.Name, Weight: p.Weight})
		}
	}
	return out
}
