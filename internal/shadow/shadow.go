package shadow

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

const (
	// around is how many binds before a pod's, and behind it, may have been in flight with it, and lag is for how long: kube-scheduler's own binds take milliseconds, and seconds where the
	// API server is slow.
	around = 256
	lag    = 2 * time.Second
	// hurry is how many events wait to be looked at where only the likely orders are tried.
	hurry = 1 << 13
	// mostSeen bounds of how many pods that wait it is known since when.
	mostSeen = 1 << 20
)

// Config says whose pods are looked at.
type Config struct {
	// Settings have the profiles of the scheduler that is followed.
	Settings cluster.Settings
	// Examples is how many pods are told of each outcome.
	Examples int
	Now      func() time.Time // to measure by; nil means time.Now
}

// told is something that the source has told, and when.
type told struct {
	event source.Event
	at    time.Time
	binds bool // a pod that waited
}

// bind is a pod that has been bound.
type bind struct {
	pending source.Pod // as it was before
	bound   source.Event
	since   time.Time // when it was seen first
	at      time.Time
	turn    turn
}

// turn is the place of a pod in the order in which kube-scheduler decides: priority, then when it came.
type turn struct {
	priority int32
	number   int64
}

func (t turn) before(other turn) bool {
	if t.priority != other.priority {
		return t.priority > other.priority
	}
	return t.number < other.number
}

// waiting is a pod that has been told without a node.
type waiting struct {
	pod    source.Pod
	since  time.Time
	number int64
}

// Shadow follows a cluster. It is not safe for concurrent use.
type Shadow struct {
	cfg       Config
	names     map[string]*cluster.Profile
	state     *cluster.State
	fold      *ingest.Fold
	evaluator *engine.Evaluator

	synced  bool
	ahead   []*told                 // what has been told and is not in the state yet
	binds   int                     // of these, how many bind a pod
	recent  []*bind                 // the last that are in the state, and still there, oldest first
	last    map[string]source.Event // by uid, what the state has of the pods that are in waits or recent
	coming  map[string]bool         // by uid: ahead has them bound, and they were not seen before
	waits   map[string]waiting      // by uid
	binding map[string]bool         // by uid: those of waits of which ahead has the bind
	fit     map[string]fitting      // by uid, of pods that the scheduler has refused: since when they fit somewhere
	mostIDs int                     // that the fold may know before it forgets those of what has gone
	numbers int64
	totals  []engine.NodeTotal
	report  Report
}

// New returns a Shadow of a cluster of which nothing is known yet.
func New(cfg Config) (*Shadow, error) {
	s := &Shadow{
		cfg: cfg, names: make(map[string]*cluster.Profile), state: cluster.New(cluster.Version{Epoch: 1}),
		evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}), waits: make(map[string]waiting), binding: make(map[string]bool), fit: make(map[string]fitting), last: make(map[string]source.Event),
		coming: make(map[string]bool),
	}
	if cfg.Now == nil {
		s.cfg.Now = time.Now
	}
	for i := range cfg.Settings.Profiles {
		s.names[cfg.Settings.Profiles[i].SchedulerName] = &cfg.Settings.Profiles[i]
	}
	if err := s.state.Apply(cluster.SettingsSet{Settings: cfg.Settings}); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	s.fold = ingest.New(s.state, s.state.Apply, ingest.KeepIDs) // what is tried comes and goes, and would use up ids
	return s, nil
}

// Tell takes in what a source tells, at a time. It is looked at later: see Advance. An error says that the state is none any more.
func (s *Shadow) Tell(e source.Event, at time.Time) error {
	if !s.synced {
		if e.Kind == source.Synced {
			s.synced = true
			s.report.Since = at
			s.renumber()
			return nil
		}
		if e.Kind == source.PodGone || e.Kind == source.PodSet && e.Pod.NodeName != "" { // it has come and gone, or been bound, while all was read
			delete(s.waits, e.Pod.UID)
			delete(s.last, e.Pod.UID)
		}
		s.note(e, at)
		return s.observe(e)
	}
	_, waits := s.waits[e.Pod.UID]
	if e.Kind == source.PodSet && e.Pod.NodeName != "" && !waits && s.names[e.Pod.Class.SchedulerName] != nil && !s.coming[e.Pod.UID] {
		if _, there := s.state.PodByUID(e.Pod.UID); !there {
			s.report.Unseen++
			s.coming[e.Pod.UID] = true
		}
	}
	s.note(e, at)
	t := &told{e, at, s.isBind(e)}
	if s.ahead = append(s.ahead, t); t.binds {
		s.binds++
		s.binding[e.Pod.UID] = true
	}
	return nil
}

// renumber puts the pods that waited at the beginning in the order in which they were created: they were told in another.
func (s *Shadow) renumber() {
	uids := slices.SortedFunc(maps.Keys(s.waits), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.waits[a].pod.Created, s.waits[b].pod.Created), cmp.Compare(s.waits[a].number, s.waits[b].number))
	})
	for i, uid := range uids {
		is := s.waits[uid]
		is.number = int64(i + 1)
		s.waits[uid] = is
	}
}

// observe makes an event part of the state.
func (s *Shadow) observe(e source.Event) error {
	if e.Kind == source.PodSet {
		_, waits := s.waits[e.Pod.UID]
		if _, follows := s.last[e.Pod.UID]; waits || follows {
			s.last[e.Pod.UID] = e
		}
	}
	return s.fold.Observe(e)
}

// Synced reports whether all has been told that there was at the beginning.
func (s *Shadow) Synced() bool { return s.synced }

// Behind returns since when what is told waits to be looked at, beyond the time that what was in flight takes; zero: it does not.
func (s *Shadow) Behind(now time.Time) time.Duration {
	if len(s.ahead) == 0 {
		return 0
	}
	return max(0, now.Sub(s.ahead[0].at)-lag)
}

// Ahead returns how many events have been told and not been looked at.
func (s *Shadow) Ahead() int { return len(s.ahead) }

// note remembers when pods came that wait.
func (s *Shadow) note(e source.Event, at time.Time) {
	if e.Kind != source.PodSet || e.Pod.NodeName != "" || s.names[e.Pod.Class.SchedulerName] == nil {
		return
	}
	is, known := s.waits[e.Pod.UID]
	if !known {
		if len(s.waits) >= mostSeen {
			return
		}
		s.numbers++
		is.since, is.number = at, s.numbers
	}
	is.pod = e.Pod
	s.waits[e.Pod.UID] = is
}

// isBind reports whether an event may be that a pod has been bound that waited.
func (s *Shadow) isBind(e source.Event) bool {
	if e.Kind != source.PodSet || e.Pod.NodeName == "" {
		return false
	}
	_, waited := s.waits[e.Pod.UID]
	return waited && !s.binding[e.Pod.UID]
}

// atOnce is how many binds one Advance looks at.
const atOnce = 64

// Advance looks at what has been told so long ago that what was in flight then has been told too, or at all if it is told to. It looks at some binds, and reports whether there is more to be
// looked at.
func (s *Shadow) Advance(now time.Time, all bool) (more bool, err error) {
	n, looked := 0, 0
	for n < len(s.ahead) && (all || s.binds > around || now.Sub(s.ahead[n].at) >= lag) {
		if looked == atOnce {
			more = true
			break
		}
		t := s.ahead[n]
		if n++; t.binds {
			looked++
		}
		if err := s.take(t, s.ahead[n:]); err != nil {
			return false, err
		}
	}
	s.ahead = slices.Delete(s.ahead, 0, n)
	s.relearn()
	return more, nil
}

// mostGone is of how many classes and label sets that have come and gone the ids are kept, at least.
const mostGone = 1 << 16

// relearn forgets the ids of what has gone, when there is more of it than there is.
func (s *Shadow) relearn() {
	known := func() int {
		classes, labels := s.fold.Known()
		return classes + labels
	}
	if known() > s.mostIDs {
		s.fold.Relearn()
		s.mostIDs = 2*known() + mostGone
	}
}

// take makes an event part of the state, and judges it before if it binds a pod. Next is what has been told since.
func (s *Shadow) take(t *told, next []*told) error {
	e := t.event
	delete(s.coming, e.Pod.UID)
	if !t.binds {
		if e.Kind == source.PodGone {
			delete(s.waits, e.Pod.UID)
			if _, follows := s.last[e.Pod.UID]; follows {
				delete(s.last, e.Pod.UID)
				s.recent = slices.DeleteFunc(s.recent, func(b *bind) bool { return b.pending.UID == e.Pod.UID })
			}
		}
		return s.observe(e)
	}
	s.binds--
	is := s.waits[e.Pod.UID]
	b := &bind{is.pod, e, is.since, t.at, turn{is.pod.Priority, is.number}}
	if err := s.judge(b, next); err != nil {
		return err
	}
	delete(s.waits, e.Pod.UID)
	delete(s.binding, e.Pod.UID)
	for s.recent = append(s.recent, b); len(s.recent) > around; s.recent = slices.Delete(s.recent, 0, 1) {
		delete(s.last, s.recent[0].pending.UID)
	}
	return s.observe(e)
}

// finding is what is found of a pod that was bound to a node, in one state.
type finding struct {
	verdict  verdict
	node     string // Berth's, "" if there is none
	total    int64  // of the scheduler's node
	best     int64
	feasible int
	took     time.Duration
}

type verdict int

const (
	worse      verdict = iota // the scheduler's node is not the best
	same                      // Berth would have taken it
	equal                     // Berth would have taken another one that scores the same
	impossible                // Berth would not have put the pod there
	nowhere                   // nor anywhere
)

// find judges a pod that waits as if it were to be placed now, where the scheduler has put it on a node.
func (s *Shadow) find(uid, node string) (out finding, ok bool) {
	id, ok := s.state.PodByUID(uid)
	if !ok {
		return out, false
	}
	row := s.state.Pod(id)
	index, subject := s.state.Nodes.ByName(node), engine.SubjectOf(&row.Pod)
	if index == cluster.NoNode {
		return out, false // it has come and gone
	}
	began := s.cfg.Now()
	defer func() { out.took = s.cfg.Now().Sub(began) }()
	if only := row.RequiredNode; only != "" {
		if v, ok := s.evaluator.Node(s.state, subject, id, index); ok && v.Feasible() && only == node {
			return finding{verdict: same, node: node, feasible: 1}, true
		}
		return finding{verdict: nowhere}, true
	}
	best, ok := s.best(subject)
	out.verdict, out.feasible = nowhere, len(s.totals)
	if !ok {
		return out, true
	}
	for i := range s.totals {
		if s.totals[i].Node == index {
			out.verdict, out.total = worse, s.totals[i].Total
		}
	}
	out.node, out.best = s.state.Nodes.Spec[best.Node].Name, best.Total
	switch {
	case out.verdict == nowhere:
		out.verdict = impossible
	case best.Node == index:
		out.verdict = same
	case out.total == out.best:
		out.verdict = equal
	}
	return out, true
}

// best returns the node that Berth would take for a pod, and leaves what all nodes score that can run it in totals. Not ok: there is none.
func (s *Shadow) best(subject engine.Subject) (best engine.NodeTotal, ok bool) {
	s.totals, _, _ = s.evaluator.TotalsAmong(s.state, subject, nil, s.totals[:0])
	for _, t := range s.totals {
		if !ok || t.Total > best.Total || t.Total == best.Total && t.Tie < best.Tie {
			best, ok = t, true
		}
	}
	return best, ok
}

// unlikely is how seldom a choice among enough nodes may be what is seen, if it is to explain it.
const unlikely = 1e-4

// sampled reports whether a scheduler that stops looking when it has found enough nodes may have taken one that scores so much: it is not all too unlikely that none of those that score more were
// among as many, if these had been drawn. It is of the totals of the last find.
func (s *Shadow) sampled(profile *cluster.Profile, f finding) bool {
	enough := engine.NodesToFind(s.state.Nodes.Count(), profile.PercentageOfNodesToScore)
	if f.verdict != worse || f.feasible <= enough {
		return false
	}
	better := 0
	for i := range s.totals {
		if s.totals[i].Total > f.total {
			better++
		}
	}
	if f.feasible-better < enough {
		return false // any so many have one of them
	}
	return math.Pow(1-float64(enough)/float64(f.feasible), float64(better)) > unlikely
}

// judge says what Berth would have done with a pod that has been bound, before the state has that.
func (s *Shadow) judge(b *bind, next []*told) error {
	pod, node := &b.pending, b.bound.Pod.NodeName
	profile := s.names[pod.Class.SchedulerName]
	// Where a pod is to go, kube-scheduler writes to it, or to its claims, before it binds it: what Berth would have chosen without knowing that cannot be said.
	id, there := s.state.PodByUID(pod.UID)
	if !there || s.state.Pod(id).Nominated != "" || len(pod.Labels.Claims) > 0 {
		s.report.Unknown++
		return nil
	}
	is0, ok := s.find(pod.UID, node)
	if !ok {
		s.report.Unknown++
		return nil
	}
	s.report.took(is0.took, b.at.Sub(b.since))
	example := Example{Pod: pod.Namespace + "/" + pod.Name, Node: node, Berth: is0.node, Total: is0.total, Best: is0.best}
	switch is0.verdict {
	case same:
		s.report.Same++
		return nil
	case equal:
		s.report.Equal++
		return nil
	}
	sampled := s.sampled(profile, is0)
	var other finding
	var order string
	found := false
	if err := s.others(b, next, sampled || len(s.ahead) > hurry, func(how string) bool {
		f, ok := s.find(pod.UID, node)
		if ok && (f.verdict == same || f.verdict == equal) {
			found, other, order = true, f, how
			return true
		}
		if ok && !sampled && s.sampled(profile, f) {
			found, other, order = true, f, how
			return true
		}
		return false
	}); err != nil {
		return err
	}
	switch {
	case found && other.verdict != worse:
		example.Order = order
		s.report.OtherOrder++
		s.report.say(&s.report.Examples.OtherOrder, example, s.cfg.Examples)
	case sampled || found:
		example.Order = order
		s.report.Sampled++
		s.report.say(&s.report.Examples.Sampled, example, s.cfg.Examples)
	case is0.verdict == worse:
		s.report.Better++
		s.report.say(&s.report.Examples.Better, example, s.cfg.Examples)
	default:
		example.Why = s.why(pod.UID, node)
		if is0.verdict == nowhere {
			s.report.Nowhere++
			s.report.say(&s.report.Examples.Nowhere, example, s.cfg.Examples)
		} else {
			s.report.Elsewhere++
			s.report.say(&s.report.Examples.Elsewhere, example, s.cfg.Examples)
		}
	}
	return nil
}

// why says why Berth would not put a pod on a node.
func (s *Shadow) why(uid, node string) string {
	id, ok := s.state.PodByUID(uid)
	index := s.state.Nodes.ByName(node)
	if !ok || index == cluster.NoNode {
		return ""
	}
	subject := engine.SubjectOf(&s.state.Pod(id).Pod)
	v, ok := s.evaluator.Node(s.state, subject, id, index)
	if !ok || v.Feasible() {
		return ""
	}
	return engine.FitMessage(1, s.evaluator.Explain(s.state, subject, v, index))
}
