package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

const (
	// MaxPods bounds how many pods one question is about.
	MaxPods = 100_000
	// window is how many pods are looked ahead: nodes are ranked for their signatures together.
	window = 256
	// slack is how many more candidates of a signature are looked for than the window has pods of it.
	slack = 16
)

// Outcome is what becomes of a pod.
type Outcome int

// The outcomes.
const (
	// Unplaced: no node is feasible.
	Unplaced Outcome = iota
	// Placed: on the node that kube-scheduler's filters and scores prefer.
	Placed
	// Preempts: it is placed where pods of lower priority had to go for it.
	Preempts
	// Evicted: it was placed, and had to go for another.
	Evicted
	// Gated: it has scheduling gates, and is not tried.
	Gated
	// NotOurs: it is being deleted, or no profile is of its scheduler's name. It is not tried.
	NotOurs
	// Yielded: pods of its scheduler's name are left to another scheduler at the moment, Message says to whom and why. It is not tried.
	Yielded
)

func (o Outcome) String() string {
	return [...]string{"unplaced", "placed", "preempts", "evicted", "gated", "not ours", "yielded"}[o]
}

// PodOutcome says what becomes of a pod, and why.
type PodOutcome struct {
	Pod                  cluster.PodID
	UID, Namespace, Name string
	Outcome              Outcome
	Node                 string // Placed, Preempts: where it is
	// Volumes is what has been chosen for claims of a pod that is Placed. Of PlaceGroup only.
	Volumes []cluster.VolumeChoice
	Victims []Victim // Preempts: who had to go, the most important first of each preemption
	// Of pods that are Unplaced: how many nodes there are, why not these, and kube-scheduler's text.
	Nodes    int
	Verdicts []engine.VerdictCount
	Message  string
	// Elsewhere is how many nodes could take it that are not in the domain of its group. Of PlaceGroup only.
	Elsewhere int
	// Missed says that another pod has taken its place, and it was not found out why there is none else. Of ConfirmGroup only.
	Missed bool
}

// FitMessage is Message with the nodes of other domains, as kube-scheduler words it.
func (o *PodOutcome) FitMessage() string {
	why := o.Verdicts
	if o.Elsewhere > 0 {
		why = append(slices.Clone(why), engine.VerdictCount{Reason: "node(s) of other domains", Count: int32(o.Elsewhere)})
	}
	return engine.FitMessage(o.Nodes, why)
}

// Victim is a pod that has to go so that another finds room.
type Victim struct {
	Pod                        cluster.PodID
	UID, Namespace, Name, Node string
	Priority                   int32
	Protected                  []string // the PodDisruptionBudgets that do not allow it, by name
}

// PlaceOptions say how pods are placed.
type PlaceOptions struct {
	// Preempt makes room for pods that fit nowhere, if their profile and policy do. The victims are gone at once.
	Preempt bool
	// Brief leaves out why pods are Unplaced: Verdicts and Message.
	Brief bool
	// MaxText bounds how many bytes Verdicts, Message and Victims of all pods have, told of each. Beyond it, Place returns an error that wraps
	// ErrTooLong. 0: there is no bound.
	MaxText int
	// apart: pods of PodGroups are placed each by itself.
	apart bool
}

// ErrTooLong is wrapped by errors that say that an answer is larger than its bound.
var ErrTooLong = errors.New("the answer is too long")

// Place places pending pods as Berth would: one after the other in queue order (priority, then creation, then the order in
// which they are given), each on the node that is best when its turn comes. It assumes them in the World. Pods that pods
// behind them may have helped, by what they are, by preemption or by not going where they are nominated, are tried again in
// the end. Pods of a PodGroup are placed together when the turn of the first of them comes: see PlaceGroup. The outcomes are in the order
// of pods. Where many pods wait at once, Berth makes room only behind a batch of them, so preemptions can come out
// otherwise; percentageOfNodesToScore is not followed: all feasible nodes are scored.
func Place(w *World, pods []cluster.PodID, o PlaceOptions) ([]PodOutcome, error) {
	if len(pods) > MaxPods {
		return nil, fmt.Errorf("place: %w: %d pods, at most %d are possible", ErrTooMuch, len(pods), MaxPods)
	}
	p := placing{w: w, options: o, outcomes: make([]PodOutcome, len(pods)), told: make([]told, len(pods)), at: make(map[cluster.PodID]int, len(pods)), failed: make(map[engine.Subject]*failure)}
	var queue []int
	for k, id := range pods {
		row := w.State().Pod(id)
		if row == nil {
			return nil, fmt.Errorf("place: there is no pod %d", id)
		}
		if _, twice := p.at[id]; twice {
			return nil, fmt.Errorf("place: pod %s/%s is there twice", row.Namespace, row.Name)
		}
		p.at[id] = k
		p.outcomes[k] = PodOutcome{Pod: id, UID: row.UID, Namespace: row.Namespace, Name: row.Name}
		switch {
		case row.Placed():
			p.outcomes[k].Outcome, p.outcomes[k].Node = Placed, row.NodeName
		case row.Deleting || w.State().Profile(w.State().Class(row.Class).Spec.SchedulerName) == nil:
			p.outcomes[k].Outcome = NotOurs
		case len(row.Gates) > 0:
			p.outcomes[k].Outcome = Gated
		case w.State().Yields(row.Class):
			p.outcomes[k].Outcome, p.outcomes[k].Message = Yielded, w.State().Settings.YieldedTo
		default:
			queue = append(queue, k)
		}
	}
	if err := p.run(inQueueOrder(w.State(), pods, queue)); err != nil {
		return nil, fmt.Errorf("place: %w", err)
	}
	return p.outcomes, nil
}

// Pending returns the pods that are not placed, in queue order.
func Pending(w *World) []cluster.PodID {
	var ids []cluster.PodID
	for id, row := range w.State().Pods() {
		if !row.Placed() {
			ids = append(ids, id)
		}
	}
	slices.SortStableFunc(ids, func(a, b cluster.PodID) int { return compareTurn(w.State().Pod(a), w.State().Pod(b)) })
	return ids
}

// inQueueOrder returns indexes of pods as their turns come.
func inQueueOrder(st *cluster.State, pods []cluster.PodID, queue []int) []int {
	slices.SortStableFunc(queue, func(a, b int) int { return compareTurn(st.Pod(pods[a]), st.Pod(pods[b])) })
	return queue
}

// compareTurn orders pods as a queue does. A pod that does not say when it was created is new.
func compareTurn(a, b *cluster.PodRow) int {
	created := func(p *cluster.PodRow) int64 {
		if p.Created == 0 {
			return math.MaxInt64
		}
		return p.Created
	}
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(created(a), created(b)))
}

// placing is one run of Place.
type placing struct {
	w        *World
	options  PlaceOptions
	outcomes []PodOutcome
	told     []told                // of outcomes
	text     int                   // of all that is told
	at       map[cluster.PodID]int // where in outcomes

	ahead  []int // the pods behind the current one, in their order
	placer *engine.Placer
	ranked cluster.Seq            // when the placer's candidates were
	index  map[engine.Subject]int // of the placer's candidates
	beyond int                    // how often it was looked who could go for pods of groups of which some are placed
	freed  int                    // how often room became free so far: by preemption, or because a nomination ended elsewhere or for nothing

	// Of the pod that was tried last, if plugins of others have a say about it:
	said       *pluginhost.Asking                       // what they have said last; nil: nobody was asked
	refused    map[cluster.NodeIndex]pluginhost.Refusal // nodes that can run it but for these plugins
	unanswered string                                   // what was answered instead; "": nothing was

	failed map[engine.Subject]*failure // the last one of pods that neither require a node nor are nominated
}

// told is what has been told of a pod.
type told struct {
	text      int
	crossNode bool // pods on other nodes may be the only reason against some node
}

// failure is why pods of a subject fit nowhere, in the state of a version.
type failure struct {
	version cluster.Version
	nodes   int
	why     []engine.VerdictCount
	message string
	// hopeless is what preemption says where it cannot help, if it has been asked.
	hopeless string
	// elsewhere is PodOutcome.Elsewhere.
	elsewhere int
	// more are messages that go on behind message, by how they do: pods that fail alike share them.
	more map[string]string
}

// run places pods in order, and tries those again that others may have helped.
func (p *placing) run(queue []int) error {
	for len(queue) > 0 {
		var left []int
		freed, placed := p.freed, 0
		taken := make(map[int]bool) // with another one of their group
		for n, k := range queue {
			if taken[k] {
				continue
			}
			p.ahead = queue[n+1:]
			before := len(left)
			key, members := p.group(queue[n:])
			var err error
			if len(members) > 0 {
				for _, m := range members {
					taken[m] = true
				}
				left, err = p.together(key, members, left)
				placed += before + len(members) - len(left)
			} else {
				left, err = p.take(k, left)
				placed += before + 1 - len(left)
			}
			if err != nil {
				return err
			}
		}
		if placed == 0 && p.freed == freed {
			return nil
		}
		queue = slices.DeleteFunc(left, func(k int) bool {
			return p.freed == freed && !p.told[k].crossNode
		})
	}
	return nil
}

// take tries a pod until it is placed or nothing helps. Where room is made for it, those of a higher priority that are left
// come first. It returns who is left.
func (p *placing) take(k int, left []int) ([]int, error) {
	for {
		placed, evicts, err := p.one(k)
		switch {
		case err != nil || placed:
			return left, err
		case !evicts:
			return append(left, k), nil
		}
		higher := left
		left = nil
		for _, other := range higher {
			placed := false
			_, members := p.group([]int{other}) // of a group: it is tried as one, in its turn
			if len(members) == 0 && p.w.State().Pod(p.outcomes[other].Pod).Priority > p.w.State().Pod(p.outcomes[k].Pod).Priority {
				if placed, _, err = p.one(other); err != nil {
					return left, err
				}
			}
			if !placed {
				left = append(left, other)
			}
		}
	}
}

// one tries one pod. It reports whether the pod is placed, or whether room has been made for it.
func (p *placing) one(k int) (placed, evicts bool, err error) {
	if err := between(p.w.ctx); err != nil {
		return false, false, err
	}
	out := &p.outcomes[k]
	node, placement, err := p.choose(k)
	if err != nil {
		return false, false, err
	}
	if placement != engine.Placed && p.unanswered != "" { // the attempt fails
		out.Outcome, out.Nodes, out.Verdicts, out.Message = Unplaced, 0, nil, p.unanswered
		if err = p.resign(out.Pod); err == nil {
			err = p.tell(k)
		}
		return false, false, err
	}
	if placement != engine.Placed {
		if err := p.explain(out); err != nil {
			return false, false, err
		}
		if evicts, err = p.postFilter(out); err == nil {
			err = p.tell(k)
		}
		return false, evicts, err
	}
	nominated := p.w.State().Pod(out.Pod).Nominated
	if err := p.w.assume(out.Pod, node); err != nil {
		if !errors.Is(err, errNoVolumes) {
			return false, false, err
		}
		if err := p.explain(out); err != nil {
			return false, false, err
		}
		return false, false, p.tell(k)
	}
	out.Node, out.Outcome = p.w.State().Nodes.Spec[node].Name, Placed
	out.Nodes, out.Verdicts, out.Message = 0, nil, ""
	if len(out.Victims) > 0 {
		out.Outcome = Preempts
	}
	if err := p.tell(k); err != nil {
		return false, false, err
	}
	if nominated != "" && nominated != out.Node {
		p.freed++
	}
	return true, false, nil
}

// tell counts what is now told of a pod.
func (p *placing) tell(k int) error {
	out := &p.outcomes[k]
	now := told{crossNode: engine.CrossNode(out.Verdicts) || len(p.refused) > 0}
	if p.options.Brief {
		out.Verdicts, out.Message = nil, ""
	}
	now.text = len(out.Message)
	for i := range out.Verdicts {
		v := &out.Verdicts[i]
		now.text += len(v.Plugin) + len(v.Reason)
		for _, example := range v.Examples {
			now.text += len(example)
		}
	}
	for i := range out.Victims {
		now.text += len(out.Victims[i].Namespace) + len(out.Victims[i].Name)
	}
	p.text += now.text - p.told[k].text
	p.told[k] = now
	if p.options.MaxText > 0 && p.text > p.options.MaxText {
		return fmt.Errorf("%w: more than %d bytes are to be said of these pods", ErrTooLong, p.options.MaxText)
	}
	return nil
}

// choose finds the node for a pod as a commit does.
func (p *placing) choose(k int) (cluster.NodeIndex, engine.Placement, error) {
	st, id := p.w.State(), p.outcomes[k].Pod
	row := st.Pod(id)
	subject := engine.SubjectOf(&row.Pod)
	p.said, p.refused, p.unanswered = nil, nil, ""
	if st.Nodes.Count() == 0 || st.Class(row.Class).Spec.Unsupported != "" {
		return cluster.NoNode, engine.NoFit, nil
	}
	if row.RequiredNode == "" && row.Nominated == "" {
		if f := p.failed[subject]; f != nil && f.version == st.Version() {
			return cluster.NoNode, engine.NoFit, nil
		}
	}
	if asks, err := p.asks(row); asks || err != nil {
		if err != nil {
			return cluster.NoNode, engine.NoFit, err
		}
		return p.chooseAsked(id)
	}
	switch {
	case p.placer == nil:
		p.placer, p.ranked = engine.NewPlacer(p.w.Evaluator(), st, st.Version().Seq, nil), st.Version().Seq
	case row.RequiredNode == "" && p.stale(row):
		if err := p.evaluate(k, slack); err != nil {
			return cluster.NoNode, engine.NoFit, err
		}
	}
	at, known := p.index[subject]
	if !known {
		at = -1
	}
	node, placement := p.placer.Choose(id, at)
	// Where what is known of the nodes proves no choice any more, they are ranked again.
	for _, more := range []int{slack, st.Nodes.Len()} {
		if placement != engine.Retry {
			return node, placement, nil
		}
		if err := p.evaluate(k, more); err != nil {
			return cluster.NoNode, engine.NoFit, err
		}
		node, placement = p.placer.Choose(id, 0)
	}
	if placement == engine.Retry {
		return node, placement, fmt.Errorf("no choice is proven for pod %s/%s", row.Namespace, row.Name)
	}
	return node, placement, nil
}

// stale reports whether so much has changed since the nodes were ranked that to look at it again is no one piece of work, of a pod with claims.
func (p *placing) stale(row *cluster.PodRow) bool {
	st := p.w.State()
	labels := st.Labels(row.Labels)
	if labels == nil || len(labels.Claims) == 0 {
		return false
	}
	changed := 0
	st.Nodes.ChangedSince(p.ranked, all(st), func(cluster.NodeIndex) { changed++ })
	return changed > engine.NodesAtOnce(len(labels.Claims))
}

// evaluate ranks the nodes for a pod, whose candidates are the first, and for those ahead: of each signature as many as it has pods
// there, and some more.
func (p *placing) evaluate(k, more int) error {
	st, e := p.w.State(), p.w.Evaluator()
	type wanted struct {
		subject engine.Subject
		pods    int
		at      int
	}
	signatures := make(map[engine.Signature]*wanted)
	var order []*wanted
	p.index = make(map[engine.Subject]int)
	for n := -1; n < min(len(p.ahead), window); n++ {
		if n >= 0 {
			k = p.ahead[n]
		}
		row := st.Pod(p.outcomes[k].Pod)
		if row == nil || row.RequiredNode != "" {
			continue
		}
		subject := engine.SubjectOf(&row.Pod)
		signature := e.Signature(st, subject)
		if signatures[signature] == nil {
			signatures[signature] = &wanted{subject: subject, at: len(order)}
			order = append(order, signatures[signature])
		}
		signatures[signature].pods++
		p.index[subject] = signatures[signature].at
	}
	candidates := make([]engine.Candidates, len(order))
	for k, it := range order {
		candidates[k].Subject = it.subject
		everything := all(st)
		if err := p.w.Judge(it.subject); err != nil {
			return err
		}
		if found, ok := e.Filter(st, it.subject, everything); ok && found.Eligible.Count() > 0 {
			candidates[k].Groups, _ = e.Score(st, it.subject, everything, found.Eligible, it.pods+more)
		}
	}
	p.placer, p.ranked = engine.NewPlacer(e, st, st.Version().Seq, candidates), st.Version().Seq
	return nil
}

// all returns the range of all nodes.
func all(st *cluster.State) cluster.Range {
	return cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
}

// explain says why a pod fits nowhere.
func (p *placing) explain(out *PodOutcome) error {
	st := p.w.State()
	row := st.Pod(out.Pod)
	subject := engine.SubjectOf(&row.Pod)
	alone := row.RequiredNode == "" && row.Nominated == ""
	if f := p.failed[subject]; f != nil && alone && f.version == st.Version() {
		out.Outcome, out.Nodes, out.Verdicts, out.Message = Unplaced, f.nodes, f.why, f.message
		return nil
	}
	if row.RequiredNode == "" {
		if err := p.w.Judge(subject); err != nil {
			return err
		}
	}
	why := explain(p.w, out.Pod)
	if len(p.refused) > 0 {
		why.why = engine.MergeVerdicts(why.why, CountRefusals(st, p.refused))
		why.message = engine.FitMessage(why.nodes, why.why)
	}
	out.Outcome, out.Nodes, out.Verdicts, out.Message = Unplaced, why.nodes, why.why, why.message
	if alone && (p.said == nil || !p.said.NeedsPod()) {
		p.failed[subject] = why
	}
	return nil
}

// explain says why a pending pod fits nowhere: what filters say, and kube-scheduler's text.
func explain(w *World, id cluster.PodID) *failure {
	out := &failure{version: w.State().Version()}
	out.nodes, out.why = w.Evaluator().AnswersOf(w.State(), id).Unschedulable()
	out.message = engine.FitMessage(out.nodes, out.why)
	return out
}
