package pending

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

const testScheduler = "default-scheduler"

func cpu(milli int64) []cluster.Quantity { return []cluster.Quantity{{Name: "cpu", Value: milli}} }

func settings(shards int32) cluster.SettingsSet {
	return cluster.SettingsSet{Settings: cluster.Settings{
		Shards: shards, Seed: 7, Profiles: []cluster.Profile{engine.DefaultProfile(testScheduler)},
	}}
}

func cpuClass(milli int64) cluster.ClassSpec {
	return cluster.ClassSpec{SchedulerName: testScheduler, Requests: cpu(milli), ScoreRequests: cpu(milli), NonZeroCPU: milli}
}

// modelPod is what the model knows of a pod.
type modelPod struct {
	id        cluster.PodID
	arrival   int
	place     Place
	entered   time.Time
	attempts  int32
	failures  int
	errors    int
	asked     bool // extenders were, whom it preempts
	attempt   Attempt
	feasible  bool            // somewhere, or it could preempt, when it was popped
	eligible  bool            // some node was, as far as that node itself goes
	popped    cluster.Version // the version then
	awaitedAt cluster.Version // zero unless its outcome is in the log up to there

	// Since it was popped:
	unschedulable bool
	changed       bool // its class or priority
	smaller       bool // its request
	again         bool // it is to be tried again
}

// model is the queue again, without any index: it looks at every pod whenever it needs one.
type model struct {
	st        *cluster.State
	queue     *Queue
	judge     cpuJudge
	now       time.Time
	arrivals  int
	pods      map[cluster.PodID]*modelPod
	nextPod   int
	classes   []cluster.ClassID
	repellers int // that have come
}

func newModel(t *rapid.T) *model {
	m := &model{
		st: cluster.New(cluster.Version{Epoch: 3}), queue: NewQueue(0, newCPUJudge()), judge: newCPUJudge(),
		now: time.Unix(1_000_000, 0), pods: make(map[cluster.PodID]*modelPod),
	}
	m.queue.Reset(m.now, m.st)
	m.apply(t, settings(1))
	// A pod of each class is kept, bound elsewhere, so that the classes stay.
	for k, spec := range []cluster.ClassSpec{cpuClass(100), cpuClass(300), withAffinity(cpuClass(500)), wary(cpuClass(200)), cpuClass(900)} {
		m.classes = append(m.classes, cluster.ClassID(k))
		m.apply(t, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec})
		m.apply(t, cluster.PodSet{ID: m.st.FreePod(), Pod: cluster.Pod{
			UID: fmt.Sprintf("keeper-%d", k), Class: cluster.ClassID(k), NodeName: "elsewhere"}})
	}
	for range 6 {
		m.addPod(t)
	}
	return m
}

func (m *model) apply(t *rapid.T, d cluster.Delta) {
	var left []string // the nodes that a pod leaves, or is to stay on, or that go themselves
	switch d := d.(type) {
	case cluster.PodRemoved:
		left = []string{m.st.Pod(d.ID).NodeName}
	case cluster.PodForgotten:
		left = []string{m.st.Pod(d.ID).NodeName}
	case cluster.NodeRemoved:
		left = []string{m.st.Nodes.Spec[d.Index].Name}
	case cluster.PreemptionEnded:
		for _, id := range d.Spared {
			left = append(left, m.st.Pod(id).NodeName)
		}
	}
	if err := m.st.Apply(d); err != nil {
		t.Fatalf("apply %+v: %v", d, err)
	}
	m.queue.Apply(m.now, m.st, d)
	for _, p := range m.sorted(func(p *modelPod) bool {
		return p.place == InFlight && !p.awaitedAt.IsZero() && !m.st.Version().Less(p.awaitedAt)
	}) {
		m.again(p)
	}
	for id, p := range m.pods {
		if on := m.st.Pod(id).Nominated; on != "" && slices.Contains(left, on) && m.victimsGone(id) {
			p.again = true
			if m.waits(p) {
				m.comeBack(p)
			}
		}
	}
	m.recheck()
}

// victimsGone reports whether nobody is on the way out of the node that a pod is nominated to.
func (m *model) victimsGone(id cluster.PodID) bool {
	pod := m.st.Pod(id)
	for _, other := range m.st.Pods() {
		if other.NodeName == pod.Nominated && other.Node != cluster.NoNode && other.Priority < pod.Priority && other.Victim {
			return false
		}
	}
	return true
}

// recheck brings back every unschedulable pod that fits somewhere, or could preempt on a node that the last delta has changed,
// or has waited for five minutes. That it fits somewhere is more than the rule says, unless unschedulable pods fit nowhere, which
// is what the rule is for.
func (m *model) recheck() {
	m.queue.Recheck(m.now, m.st)
	for id, p := range m.pods {
		if m.waits(p) && (m.anyFits(id) || m.couldPreempt(p, m.st.Version().Seq-1) || m.now.Sub(p.entered) > 5*time.Minute) {
			m.comeBack(p)
		}
	}
}

// waits reports whether a pod is unschedulable and not held back.
func (m *model) waits(p *modelPod) bool {
	return p.place == Unschedulable && !m.st.Pod(p.id).Preempting
}

// couldPreempt reports whether a pod could preempt on a node that has changed since, or need not wait for its victims any more because of
// what its node has become.
func (m *model) couldPreempt(p *modelPod, since cluster.Seq) bool {
	row := m.st.Pod(p.id)
	if n := m.st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated)); n != cluster.NoNode && row.Nominated != "" {
		_, may := m.judge.Preempts(m.st, p.id)
		return may && !m.victimsGone(p.id) && m.st.Nodes.Modified[n] > since
	}
	if row.NeverPreempts || row.Nominated != "" {
		return false
	}
	for n := range cluster.NodeIndex(m.st.Nodes.Len()) {
		if m.st.Nodes.Modified[n] > since && (row.RequiredNode == "" || row.RequiredNode == m.st.Nodes.Spec[n].Name) &&
			m.judge.Preemptable(m.st, engine.SubjectOf(&row.Pod), p.id, n) {
			return true
		}
	}
	return false
}

// missed reports whether something has happened since an unschedulable pod was popped that would have brought it back.
func (m *model) missed(p *modelPod) bool {
	return p.again || !p.unschedulable || p.smaller || m.anyFits(p.id) || m.couldPreempt(p, p.popped.Seq)
}

func (m *model) sorted(want func(*modelPod) bool) []*modelPod {
	var out []*modelPod
	for _, p := range m.pods {
		if want(p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *modelPod) int {
		return cmp.Or(cmp.Compare(m.st.Pod(b.id).Priority, m.st.Pod(a.id).Priority), a.entered.Compare(b.entered), cmp.Compare(a.arrival, b.arrival))
	})
	return out
}

// impossible ends an action that cannot be done as things are. To rapid, to skip means to draw another one.
func impossible(t *rapid.T) { t.Skip("not possible now") }

// node draws one of the nodes that there are.
func (m *model) node(t *rapid.T) cluster.NodeIndex {
	at := m.st.Nodes.ByName(rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"))
	if at == cluster.NoNode {
		impossible(t)
	}
	return at
}

func (m *model) pick(t *rapid.T, want func(*modelPod) bool) *modelPod {
	var ids []cluster.PodID
	for id, p := range m.pods {
		if want(p) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		impossible(t)
	}
	slices.Sort(ids)
	return m.pods[rapid.SampledFrom(ids).Draw(t, "pod")]
}

// anyFits reports whether a pod fits somewhere now.
func (m *model) anyFits(id cluster.PodID) bool {
	return m.anyEligible(id) && m.judge.allowed(m.st, m.st.Pod(id).Class)
}

// anyEligible reports whether it does as far as each node itself goes.
func (m *model) anyEligible(id cluster.PodID) bool {
	row := m.st.Pod(id)
	for n := range cluster.NodeIndex(m.st.Nodes.Len()) {
		if (row.RequiredNode == "" || row.RequiredNode == m.st.Nodes.Spec[n].Name) && m.judge.eligible(m.st, engine.SubjectOf(&row.Pod), id, n) {
			return true
		}
	}
	return false
}

// expiry and passed are kube-scheduler's arithmetic, in whole seconds.
func (p *modelPod) expiry() int64 {
	count := p.failures
	if p.errors > 0 {
		count = p.errors
	}
	seconds := []int64{0, 1, 2, 4, 8, 10}[min(count, 5)]
	return p.entered.Unix() + seconds
}

func (p *modelPod) passed(now time.Time) bool {
	return p.failures+p.errors == 0 || p.expiry() < now.Unix()
}

func (m *model) comeBack(p *modelPod) {
	switch {
	case len(m.st.Pod(p.id).Gates) > 0:
		p.place = Gated
	case m.st.Pod(p.id).Preempting:
		p.place = Unschedulable
	case p.passed(m.now):
		p.place = Active
	default:
		p.place = Backoff
	}
}

// The operations.

func (m *model) addPod(t *rapid.T) {
	m.nextPod++
	pod := cluster.Pod{
		UID: fmt.Sprintf("uid-%d", m.nextPod), Name: fmt.Sprintf("pod-%d", m.nextPod), Class: rapid.SampledFrom(m.classes).Draw(t, "class"),
		Priority: rapid.Int32Range(0, 2).Draw(t, "priority"), Created: m.now.Unix() * 1e9,
		RequiredNode: rapid.SampledFrom([]string{"", "", "", "n1", "n2"}).Draw(t, "required node"), NeverPreempts: rapid.IntRange(0, 4).Draw(t, "never") == 0,
	}
	if rapid.IntRange(0, 4).Draw(t, "gated") == 0 {
		pod.Gates = []string{"wait"}
	}
	id := m.st.FreePod()
	m.arrivals++
	p := &modelPod{id: id, arrival: m.arrivals, entered: time.Unix(m.now.Unix(), 0)}
	m.apply(t, cluster.PodSet{ID: id, Pod: pod})
	m.pods[id] = p
	m.comeBack(p)
}

func (m *model) setPod(t *rapid.T, p *modelPod, change func(*cluster.Pod)) {
	pod := m.st.Pod(p.id).Pod
	before := pod
	change(&pod)
	m.apply(t, cluster.PodSet{ID: p.id, Pod: pod})
	p.changed = p.changed || pod.Class != before.Class || pod.Priority != before.Priority
	p.smaller = p.smaller || m.cpu(pod.Class) < m.cpu(before.Class)
	p.again = p.again || pod.Priority > before.Priority || before.Nominated != "" && pod.Nominated == ""
	switch {
	case pod.Deleting:
		delete(m.pods, p.id)
	case len(pod.Gates) > 0 && p.place != assumed:
		p.place = Gated
	case p.place == Gated, m.waits(p) && (p.again || p.smaller || p.changed && m.missed(p)):
		m.comeBack(p)
	}
}

func (m *model) cpu(class cluster.ClassID) int64 { return m.st.Class(class).Spec.Requests[0].Value }

// nominate follows a nomination that the log tells of.
func (m *model) nominate(p *modelPod, before string) {
	row := m.st.Pod(p.id)
	cleared := before != "" && row.Nominated == ""
	p.again = p.again || cleared
	switch {
	case row.Preempting && (p.place == Active || p.place == Backoff):
		p.place = Unschedulable
	case cleared && m.waits(p):
		m.comeBack(p)
	}
}

func (m *model) pop(t *rapid.T, limit int) {
	for _, p := range m.pods {
		if p.place == Backoff && p.passed(m.now) {
			p.place = Active
		}
	}
	want := m.sorted(func(p *modelPod) bool { return p.place == Active })
	early := m.sorted(func(p *modelPod) bool { return p.place == Backoff && p.errors == 0 && !p.asked })
	slices.SortStableFunc(early, func(a, b *modelPod) int { return cmp.Compare(a.expiry(), b.expiry()) })
	want = append(want, early...)
	want = want[:min(limit, len(want))]
	got := m.queue.Pop(m.now, limit)
	var wantIDs, gotIDs []cluster.PodID
	for _, p := range want {
		wantIDs = append(wantIDs, p.id)
	}
	for _, a := range got {
		gotIDs = append(gotIDs, a.ID)
	}
	if diff := gocmp.Diff(wantIDs, gotIDs); diff != "" {
		t.Fatalf("Pop (-want +got):\n%s", diff)
	}
	for k, p := range want {
		p.place, p.attempts, p.attempt = InFlight, p.attempts+1, got[k]
		p.awaitedAt = cluster.Version{}
		p.feasible, p.eligible, p.popped = m.anyFits(p.id) || m.couldPreempt(p, -1), m.anyEligible(p.id), m.st.Version()
		p.unschedulable, p.changed, p.smaller, p.again = false, false, false, false
	}
}

func (m *model) setNode(t *rapid.T) {
	name := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node")
	at := m.st.Nodes.ByName(name)
	if at == cluster.NoNode {
		at = m.st.Nodes.Free()
	}
	m.apply(t, cluster.NodeSet{Index: at, Node: cluster.Node{
		Name: name, Allocatable: cpu(rapid.SampledFrom([]int64{0, 200, 400, 1000}).Draw(t, "cpu"))}})
}

func (m *model) reject(p *modelPod, asked bool) {
	p.asked = asked
	m.queue.Reject(m.now, m.st, p.attempt, Diagnosis{
		Asked:   asked,
		Message: "no node fits", Version: p.popped, CrossNode: p.eligible,
		// What is said of a pod differs from one attempt to the next; the same plugin may have two reasons.
		Verdicts: []engine.VerdictCount{
			{Plugin: engine.NodeResourcesFit, Reason: "Insufficient cpu"}, {Plugin: engine.NodeResourcesFit, Reason: "Insufficient memory"},
			{Plugin: engine.NodeName}, {Plugin: engine.NodePorts},
		}[:1+p.failures%4],
	})
	p.failures++
	p.errors = 0
	p.entered, p.unschedulable = m.now, true
	if !m.st.Pod(p.id).Preempting && m.missed(p) {
		m.comeBack(p)
	} else {
		p.place = Unschedulable
	}
	m.recheck()
}

// again puts a pod that was in flight back where it came from.
func (m *model) again(p *modelPod) {
	p.place, p.awaitedAt = Active, cluster.Version{}
	if m.st.Pod(p.id).Preempting {
		p.place = Unschedulable
	}
}

func running(p *modelPod) bool { return p.place == InFlight && p.awaitedAt.IsZero() }

// against returns the plugins that count as being against a pod, each once.
func against(e Entry) []string {
	switch e.Place {
	case InFlight:
		return nil
	case Gated:
		return []string{schedulingGates}
	}
	var plugins []string
	for _, v := range e.Verdicts {
		plugins = append(plugins, v.Plugin)
	}
	slices.Sort(plugins)
	return slices.Compact(plugins)
}

func (m *model) check(t *rapid.T) {
	want := make(map[cluster.PodID]string)
	got := make(map[cluster.PodID]string)
	for id, p := range m.pods {
		if p.place != assumed {
			want[id] = fmt.Sprintf("%v after %d attempts", p.place, p.attempts)
		}
	}
	sum, rejected := 0, make(map[Rejection]int)
	for e := range m.queue.Entries(m.queue.IDs()) {
		for _, plugin := range against(e) {
			rejected[Rejection{e.Pod.Class, plugin}]++
		}
		got[e.ID] = fmt.Sprintf("%v after %d attempts", e.Place, e.Attempts)
		sum++
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Fatalf("places (-want +got):\n%s", diff)
	}
	for p := range Place(Places) {
		sum -= m.queue.Count(p)
	}
	if sum != 0 {
		t.Fatalf("the counts of the places differ from the pods by %d", sum)
	}
	if diff := gocmp.Diff(rejected, maps.Collect(m.queue.Rejected())); diff != "" {
		t.Fatalf("plugins that are against pods (-counted +kept):\n%s", diff)
	}
	floor, held := int32(0), false
	for id, p := range m.pods {
		row := m.st.Pod(id)
		if m.waits(p) && m.anyFits(id) {
			t.Fatalf("pod %d is unschedulable and fits: its wake-up was lost", id)
		}
		if (p.place == Active || running(p)) && (!held || row.Priority > floor) {
			floor, held = row.Priority, true
		}
	}
	if got, ok := m.queue.PriorityFloor(); got != floor || ok != held {
		t.Fatalf("floor %d, %v; want %d, %v", got, ok, floor, held)
	}
}

func TestQueueIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"":    m.check,
			"pod": m.addPod,
			"pop": func(t *rapid.T) { m.pop(t, rapid.IntRange(1, 4).Draw(t, "limit")) },
			"a whole cycle makes unschedulable what does not fit": func(t *rapid.T) {
				m.pop(t, 100)
				for _, p := range m.sorted(func(p *modelPod) bool { return running(p) && !p.feasible }) {
					m.reject(p, rapid.Bool().Draw(t, "asked"))
				}
			},
			"a node grows and shrinks during a cycle": func(t *rapid.T) {
				m.pop(t, 100)
				m.setNode(t)
				m.setNode(t)
				for _, p := range m.sorted(func(p *modelPod) bool { return running(p) && !p.feasible }) {
					m.reject(p, rapid.Bool().Draw(t, "asked"))
				}
			},
			"second": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(100, 3000).Draw(t, "ms")) * time.Millisecond)
				m.recheck()
			},
			"minutes": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
				m.recheck()
			},
			"node":      m.setNode,
			"node goes": func(t *rapid.T) { m.apply(t, cluster.NodeRemoved{Index: m.node(t)}) },
			"gate or ungate": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				m.setPod(t, p, func(pod *cluster.Pod) {
					if len(pod.Gates) > 0 {
						pod.Gates = nil
					} else {
						pod.Gates = []string{"wait"}
					}
				})
			},
			"class": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				class := rapid.SampledFrom(m.classes).Draw(t, "class")
				m.setPod(t, p, func(pod *cluster.Pod) { pod.Class = class })
			},
			"priority": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				m.setPod(t, p, func(pod *cluster.Pod) { pod.Priority++ })
			},
			"nominate": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				node := rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
				m.setPod(t, p, func(pod *cluster.Pod) { pod.Nominated = node })
			},
			"nominate in the log": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				before := m.st.Pod(p.id).Nominated
				m.apply(t, cluster.PodNominated{ID: p.id, Node: rapid.SampledFrom([]string{"", "", "n1"}).Draw(t, "node")})
				m.nominate(p, before)
				m.recheck()
			},
			"preemption starts": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed && !m.st.Pod(p.id).Preempting })
				at := m.node(t)
				var victims []cluster.PodID
				for id, row := range m.st.PodsOn(at) {
					if row.Priority < m.st.Pod(p.id).Priority && !row.Victim {
						victims = append(victims, id)
					}
				}
				if victims == nil {
					impossible(t)
				}
				m.apply(t, cluster.PreemptionStarted{ID: p.id, Node: at, Victims: victims})
				m.nominate(p, "")
				m.recheck()
			},
			"preemption ends": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return m.st.Pod(p.id).Preempting })
				d := cluster.PreemptionEnded{ID: p.id, Failed: rapid.Bool().Draw(t, "failed")}
				for id, row := range m.st.Pods() {
					if row.Victim && rapid.Bool().Draw(t, "spared") {
						d.Spared = append(d.Spared, id)
					}
				}
				m.apply(t, d)
				switch {
				case d.Failed && p.place == InFlight:
					p.again = true
				case d.Failed && (p.place == Unschedulable || p.place == Backoff):
					p.place = Active
				case p.place == Unschedulable && m.missed(p):
					m.comeBack(p)
				}
				m.recheck()
			},
			"activate": func(t *rapid.T) {
				p := m.pick(t, func(*modelPod) bool { return true })
				can := p.place != assumed && p.place != Gated && !m.st.Pod(p.id).Preempting
				if got := m.queue.Activate(m.now, p.id); got != can {
					t.Fatalf("Activate of a pod that is %v: %v", p.place, got)
				}
				switch {
				case can && p.place == InFlight:
					p.again = true
				case can:
					p.place = Active
				}
			},
			"a pod with anti-affinity comes": func(t *rapid.T) {
				m.repellers++
				id := cluster.ClassID(100 + m.repellers)
				m.apply(t, cluster.ClassDefined{ID: id, Spec: withAntiAffinity(cpuClass(10))})
				m.apply(t, cluster.PodSet{ID: m.st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprintf("repels-%d", id), Class: id, NodeName: "n1"}})
			},
			"a pod that is on a node goes": func(t *rapid.T) {
				var ids []cluster.PodID
				for id, row := range m.st.Pods() {
					if row.Phase == cluster.Bound && row.Node != cluster.NoNode {
						ids = append(ids, id)
					}
				}
				if len(ids) == 0 {
					impossible(t)
				}
				m.apply(t, cluster.PodRemoved{ID: rapid.SampledFrom(ids).Draw(t, "pod")})
			},
			"deleting": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != assumed })
				m.setPod(t, p, func(pod *cluster.Pod) { pod.Deleting = true })
			},
			"pod goes": func(t *rapid.T) {
				p := m.pick(t, func(*modelPod) bool { return true })
				delete(m.pods, p.id)
				m.apply(t, cluster.PodRemoved{ID: p.id})
			},
			"assumed": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place == InFlight })
				at := m.node(t)
				p.place, p.awaitedAt = assumed, cluster.Version{}
				m.apply(t, cluster.PodAssumed{ID: p.id, Node: at, Attempt: p.attempt.Number})
			},
			"bound": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place == assumed })
				m.apply(t, cluster.PodBound{ID: p.id})
				delete(m.pods, p.id)
			},
			"forgotten": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place == assumed })
				m.apply(t, cluster.PodForgotten{ID: p.id, Reason: "bind failed"})
				p.errors++
				p.entered, p.unschedulable = m.now, false
				m.comeBack(p)
			},
			"retry": func(t *rapid.T) {
				p := m.pick(t, running)
				m.queue.Retry(m.now, p.attempt)
				m.again(p)
			},
			"fail": func(t *rapid.T) {
				p := m.pick(t, running)
				m.queue.Fail(m.now, p.attempt, "broken")
				p.errors++
				p.entered = m.now
				m.comeBack(p)
			},
			"await": func(t *rapid.T) {
				p := m.pick(t, running)
				v := m.st.Version()
				v.Seq += cluster.Seq(rapid.IntRange(0, 3).Draw(t, "later"))
				m.queue.Await(m.now, p.attempt, v, Unresolved)
				if p.awaitedAt = v; v == m.st.Version() {
					m.again(p)
				}
			},
			"unschedulable": func(t *rapid.T) {
				m.reject(m.pick(t, func(p *modelPod) bool { return running(p) && !p.feasible }), rapid.Bool().Draw(t, "asked"))
			},
			"void attempts do nothing": func(t *rapid.T) {
				p := m.pick(t, func(p *modelPod) bool { return p.place != InFlight && p.attempts > 0 })
				m.queue.Reject(m.now, m.st, p.attempt, Diagnosis{})
				m.queue.Fail(m.now, p.attempt, "late")
				m.queue.Retry(m.now, p.attempt)
			},
			"another state": func(t *rapid.T) {
				m.queue.Reset(m.now, m.st)
				for _, p := range m.sortedByCreation() {
					m.arrivals++
					p.arrival = m.arrivals // those of the same time are ordered by creation and id from here on
					p.awaitedAt, p.unschedulable = cluster.Version{}, false
					p.again, p.smaller, p.changed = false, false, false
					if p.place != assumed {
						m.comeBack(p)
					}
				}
			},
		})
	})
}

func (m *model) sortedByCreation() []*modelPod {
	var out []*modelPod
	for _, p := range m.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *modelPod) int {
		return cmp.Or(cmp.Compare(m.st.Pod(a.id).Created, m.st.Pod(b.id).Created), cmp.Compare(a.id, b.id))
	})
	return out
}
