package pluginhost

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// limits are the bounds of a session.
type limits struct {
	told, asked int // nodes of a request
	bytes       int // that a request tells, about
	kinds       int // that are kept though no pod on a told node is of them
	columns     int // bytes of answers
}

// maxAsked is how many nodes are asked about at most in a request, whatever the service answers in its time.
const maxAsked = 50_000

var defaultLimits = limits{told: 1_000, asked: 500, bytes: 4 << 20, kinds: 4_096, columns: 128 << 20}

// session is a stream, what has been told on it, and what has been answered.
type session struct {
	connection uint64  // by which it is
	limits     *limits // its service's
	epoch      cluster.Epoch
	plugins    map[string]*pluginv1.PluginDescription
	profiles   []*pluginv1.Profile // that are to be told yet
	activates  bool                // the service says which pods are worth trying
	orders     bool                // and answers behind what it reserves
	all        dependencies        // of all plugins
	proven     bool                // all that somebody asked has been answered
	calls      calls

	synced     cluster.Seq         // nodes that are gone since are to be told yet
	nodes      []toldNode          // by index
	changed    []time.Duration     // by node, as far as some have: when one has changed last for the service, as changes.asks counts
	allChanged time.Duration       // when all have
	heard      []cluster.NodeIndex // nodes that have changed for the service, in order
	forgot     uint64              // how many came before those
	refreshed  uint64              // Objects.NodeChanges when it was looked last which objects are others
	kinds      map[kindKey]*kind
	sweepAt    int     // kinds are looked through when there are so many
	dropped    []int32 // kinds that the next request says are forgotten
	freeIDs    []int32 // of kinds that are
	clock      uint64  // counts questions, for kind.used
	columns    int     // bytes
	spare      *column // of a kind that is forgotten, for another one; nil: there is none
	outbox     []*batch
	begun      bool // what is noted next is of another Collect: it goes to a request of its own

	hypothetical func(uid string) bool // of pods on nodes; nil: all are there
	said         bool                  // what the first request says: that it is about what might be, if it is
}

// dependencies are what answers depend on.
type dependencies struct {
	placed bool // what is on the node, in sum or one by one
	pods   bool // one by one
	object bool
	pod    bool
	// annotations is that those of the pod are told.
	annotations bool
	// cluster is that all nodes are told, whichever is asked about.
	cluster bool
	within  time.Duration // 0: for ever
}

func (d *dependencies) add(p *pluginv1.PluginDescription) {
	is := p.GetDepends()
	d.placed = d.placed || is.GetRequested() || is.GetPods()
	d.pods = d.pods || is.GetPods()
	d.object = d.object || is.GetObjects() || is.GetPod()
	d.pod = d.pod || is.GetPod()
	d.annotations = d.annotations || is.GetAnnotations()
	d.cluster = d.cluster || is.GetCluster()
	if within := time.Duration(is.GetMilliseconds()) * time.Millisecond; within > 0 && (d.within == 0 || within < d.within) {
		d.within = within
	}
}

// toldNode is a node as it has been told.
type toldNode struct {
	told      bool
	spec, seq cluster.Seq // of what it is itself, and of all that was told
	name      string
	object    *corev1.Node       // nil: it is to be told
	objects   uint32             // how many there have been
	pods      map[string]toldPod // by uid
}

// toldPod is a pod as it has been told.
type toldPod struct {
	kind         *kind
	hypothetical bool
}

// kindKey tells kinds apart.
type kindKey struct {
	engine.Subject
	object [sha256.Size]byte // or annotations alone; zero: without either
	uid    string            // of the only pod of the kind
}

// kind is a kind that has been told.
type kind struct {
	key    kindKey
	id     int32
	placed int     // pods on told nodes
	column *column // nil: it has not been asked about
	used   uint64  // session.clock when it was asked about last
}

// batch is a request, and what is to be done with its response.
type batch struct {
	request   *pluginv1.JudgeRequest
	questions []question
	count     int              // nodes that are asked about
	bytes     int              // about, of what is told
	specs     []*pluginv1.Node // whose objects are to be told
	sent      bool
	at        time.Duration // when it was, by service.clock
	asked     time.Duration // the same, as changes.asks counts
	within    time.Duration // of it, the response is to come
	stale     bool          // nobody asks its questions any more
}

// question is what a response answers.
type question struct {
	kind    *kind
	use     *use
	nodes   []cluster.NodeIndex
	objects []uint32 // toldNode.objects of each
	seq     cluster.Seq
	own     *ownScores // nil: verdicts are asked for
	best    bool       // with own: besides verdicts
	post    *PostFiltering
}

func newSession(limits *limits, epoch cluster.Epoch, plugins map[string]*pluginv1.PluginDescription) *session {
	is := &session{limits: limits, epoch: epoch, plugins: plugins, kinds: make(map[kindKey]*kind), sweepAt: limits.kinds}
	for _, p := range plugins {
		is.all.add(p)
	}
	return is
}

// dependsOn returns what the answers of plugins that are used depend on.
func (is *session) dependsOn(u *use) (d dependencies) {
	for _, name := range u.names() {
		d.add(is.plugins[name])
	}
	return d
}

// last returns the batch that is to be added to.
func (is *session) last() *batch {
	if n := len(is.outbox); n > 0 && !is.begun {
		if b := is.outbox[n-1]; len(b.request.Nodes) < is.limits.told && b.count < is.limits.asked && b.bytes < is.limits.bytes {
			return b
		}
	}
	b := &batch{request: &pluginv1.JudgeRequest{Profiles: is.profiles, ForgottenKinds: is.dropped, Hypothetical: is.hypothetical != nil && !is.said, TellsAnnotations: !is.said}}
	is.said = true
	is.freeIDs = append(is.freeIDs, is.dropped...)
	is.begun, is.profiles, is.dropped = false, nil, nil
	is.outbox = append(is.outbox, b)
	return b
}

// sync begins to note what has changed: which nodes are gone.
func (is *session) sync(st *cluster.State) {
	is.begun = true
	// What nobody asks any more is told nevertheless, but not asked.
	is.outbox = slices.DeleteFunc(is.outbox, func(b *batch) bool {
		r := b.request
		if b.sent { // its answers come still
			b.stale = true
			return false
		}
		b.questions, b.count, r.Questions = nil, 0, nil
		return len(r.Profiles)+len(r.Kinds)+len(r.ForgottenKinds)+len(r.Nodes)+len(r.ForgottenNodes) == 0
	})
	for len(is.nodes) < st.Nodes.Len() {
		is.nodes = append(is.nodes, toldNode{})
	}
	st.ChangedSince(is.synced, func(i cluster.NodeIndex) {
		if n := &is.nodes[i]; n.told && !st.Nodes.Live.Has(i) {
			for _, p := range n.pods {
				p.kind.placed--
			}
			b := is.last()
			b.request.ForgottenNodes = append(b.request.ForgottenNodes, int32(i))
			*n = toldNode{}
		}
	})
	is.synced = st.Version().Seq
	is.forget()
}

// forget forgets kinds that nothing needs, once there are many.
func (is *session) forget() {
	if len(is.kinds) < is.sweepAt {
		return
	}
	var idle []*kind
	for _, k := range is.kinds {
		if k.placed == 0 {
			idle = append(idle, k)
		}
	}
	slices.SortFunc(idle, func(a, b *kind) int { return cmp.Compare(a.used, b.used) })
	for _, k := range idle[:max(0, len(idle)-is.limits.kinds/2)] {
		is.drop(k)
	}
	is.sweepAt = len(is.kinds) + is.limits.kinds
}

// drop forgets a kind that nothing names. The next request says so, and only behind it the id may be another's.
func (is *session) drop(k *kind) {
	is.dropColumn(k)
	delete(is.kinds, k.key)
	is.dropped = append(is.dropped, k.id)
}

// kindOf returns a kind, and tells it if it is new. The state has its class.
func (is *session) kindOf(st *cluster.State, key kindKey, object []byte, annotations map[string]string) *kind {
	if k := is.kinds[key]; k != nil {
		return k
	}
	k := &kind{key: key}
	if n := len(is.freeIDs); n > 0 {
		k.id, is.freeIDs = is.freeIDs[n-1], is.freeIDs[:n-1]
	} else {
		k.id = int32(len(is.kinds) + len(is.dropped))
	}
	is.kinds[key] = k
	class := st.Class(key.Class)
	m := &pluginv1.Kind{
		Id: k.id, Priority: key.Priority, SchedulerName: class.Spec.SchedulerName, Object: object, Annotations: annotations,
		Requested: make(map[string]int64, len(class.Spec.Requests)),
	}
	for _, q := range class.Spec.Requests {
		m.Requested[q.Name] = q.Value
	}
	if labels := st.Labels(key.Labels); labels != nil {
		m.Namespace, m.Labels = labels.Namespace, labelsOf(labels.Labels)
	}
	b := is.last()
	b.request.Kinds, b.bytes = append(b.request.Kinds, m), b.bytes+proto.Size(m)
	return k
}

func labelsOf(labels []cluster.Label) map[string]string {
	out := make(map[string]string, len(labels))
	for _, l := range labels {
		out[l.Key] = l.Value
	}
	return out
}

// tell tells a node, if it has changed since it was told, as far as plugins care.
func (is *session) tell(st *cluster.State, i cluster.NodeIndex) {
	n := &is.nodes[i]
	spec := !n.told || n.spec < st.Nodes.SpecModified[i]
	if n.told && !spec && (!is.all.placed || n.seq >= st.Nodes.PodsModified[i]) {
		return
	}
	m := &pluginv1.Node{Id: int32(i)}
	if spec {
		m.Spec = specOf(st, i)
		n.name, n.spec, n.object = m.Spec.Name, st.Version().Seq, nil
	}
	if is.all.placed {
		m.PodCount = st.Nodes.PodCount[i]
		m.Requested = requestedOf(st, i)
	}
	if is.all.pods {
		is.tellPods(st, i, n, m)
	}
	n.told, n.seq = true, st.Version().Seq
	b := is.last() // kinds of its pods may have begun another one
	b.request.Nodes, b.bytes = append(b.request.Nodes, m), b.bytes+proto.Size(m)
	if is.all.object && spec {
		b.specs, b.bytes = append(b.specs, m), b.bytes+objectBytes
	}
}

// tellAll tells all nodes, as far as they have changed since.
func (is *session) tellAll(st *cluster.State) {
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			is.tell(st, i)
		}
	}
}

// objectBytes is how large objects of nodes are counted, so that a request is well below its bound though they are several times as large as usual ones.
const objectBytes = 160 << 10

// refresh finds which objects of told nodes are others now: they may change though nodes do not, by what Berth itself does not read. Then no answer holds that depends on the object.
func (is *session) refresh(objects Objects) {
	changes := objects.NodeChanges()
	if changes == is.refreshed { // what has been told since is as new as that, or newer
		return
	}
	is.refreshed = changes
	for i := range is.nodes {
		n := &is.nodes[i]
		if !n.told {
			continue
		}
		if objects.Node(n.name) != n.object {
			n.object, n.spec = nil, 0
			n.objects++
		}
	}
}

// addObjects tells the objects of nodes that are told, as they are now. One that has gone has none: the state will tell.
func (is *session) addObjects(objects Objects) error {
	for _, b := range is.outbox {
		for _, m := range b.specs {
			n := &is.nodes[m.Id]
			object := objects.Node(m.Spec.Name)
			if object == nil {
				continue
			}
			encoded, err := encodeNode(object)
			if err != nil {
				return err
			}
			m.Spec.Object = encoded
			if n.name == m.Spec.Name {
				n.object = object
			}
		}
		b.specs = nil
	}
	return nil
}

func encodeNode(object *corev1.Node) ([]byte, error) {
	if len(object.ManagedFields) > 0 {
		object = object.DeepCopy()
		object.ManagedFields = nil
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode node %s: %w", object.Name, err)
	}
	return encoded, nil
}

// ask asks about a node, of the state with what has been told, and at least as new as seq. Most is about how many more will be asked about behind it, 0 if that is not known.
func (is *session) ask(k *kind, u *use, seq cluster.Seq, i cluster.NodeIndex, most int) {
	b := is.last()
	n := len(b.questions)
	if n == 0 || b.questions[n-1].kind != k || b.questions[n-1].own != nil || b.questions[n-1].post != nil {
		room := min(1+most, max(1, is.limits.asked-b.count))
		b.request.Questions = append(b.request.Questions, &pluginv1.Question{Kind: k.id, Filters: u.filters, Scores: u.scores, Nodes: make([]int32, 0, room)})
		b.questions = append(b.questions, question{kind: k, use: u, seq: seq, nodes: make([]cluster.NodeIndex, 0, room), objects: make([]uint32, 0, room)})
		n++
	}
	q, told := &b.questions[n-1], b.request.Questions[n-1]
	q.nodes, told.Nodes = append(q.nodes, i), append(told.Nodes, int32(i))
	q.objects = append(q.objects, is.nodes[i].objects)
	b.count++
}

// askOwn asks for the scores of plugins that normalise them, over all nodes in one question, of the state with what has been told.
func (is *session) askOwn(k *kind, u *use, seq cluster.Seq, own *ownScores) {
	b, told := is.last(), &pluginv1.Question{Kind: k.id}
	for _, s := range u.own {
		told.Scores = append(told.Scores, s.name)
	}
	told.Nodes = make([]int32, 0, len(own.nodes))
	for _, i := range own.nodes {
		told.Nodes = append(told.Nodes, int32(i))
	}
	b.request.Questions = append(b.request.Questions, told)
	b.questions = append(b.questions, question{kind: k, use: u, nodes: own.nodes, seq: seq, own: own})
	b.count += len(own.nodes)
}

// askBest asks which nodes can run a pod, and for all that [Asking.CollectBest] says, in one question, of the state with what has been told.
func (is *session) askBest(k *kind, u *use, seq cluster.Seq, own *ownScores, totals []int64) {
	is.askOwn(k, u, seq, own)
	b := is.outbox[len(is.outbox)-1]
	q, told := &b.questions[len(b.questions)-1], b.request.Questions[len(b.questions)-1]
	q.best, q.objects = true, make([]uint32, 0, len(own.nodes))
	for _, i := range own.nodes {
		q.objects = append(q.objects, is.nodes[i].objects)
	}
	told.Filters, told.Totals = u.filters, totals
	for _, s := range u.own {
		told.Weights = append(told.Weights, s.weight)
	}
}

// tellPods tells which pods have come to a node, and left it.
func (is *session) tellPods(st *cluster.State, i cluster.NodeIndex, n *toldNode, m *pluginv1.Node) {
	if n.pods == nil {
		n.pods = make(map[string]toldPod)
	}
	there := make(map[string]bool, len(n.pods))
	var last struct { // label sets that were compared last: most pods of a node have the same two
		was, is cluster.LabelsID
		alike   bool
	}
	same := func(was, key kindKey) bool {
		if was == key {
			return true
		}
		labels := key.Labels
		if key.Labels = was.Labels; was != key {
			return false
		}
		if last.was != was.Labels || last.is != labels {
			last.was, last.is, last.alike = was.Labels, labels, st.AlikeOn(i, was.Labels, labels)
		}
		return last.alike
	}
	for _, row := range st.PodsOn(i) {
		there[row.UID] = true
		key := kindKey{Subject: engine.SubjectOf(&row.Pod)}
		hypothetical := is.hypothetical != nil && is.hypothetical(row.UID)
		if was, told := n.pods[row.UID]; told {
			if was.hypothetical == hypothetical && same(was.kind.key, key) {
				continue
			}
			was.kind.placed-- // it has other labels now, say
			m.Removed = append(m.Removed, row.UID)
		}
		k := is.kindOf(st, key, nil, nil)
		k.placed++
		n.pods[row.UID] = toldPod{k, hypothetical}
		m.Added = append(m.Added, &pluginv1.PlacedPod{Uid: row.UID, Name: row.Name, Kind: k.id, Hypothetical: hypothetical})
	}
	for uid, p := range n.pods {
		if !there[uid] {
			p.kind.placed--
			delete(n.pods, uid)
			m.Removed = append(m.Removed, uid)
		}
	}
	slices.Sort(m.Removed)
}

// requestedOf returns what is requested of what a node has. Of other resources pods may request something too, but when that is counted depends on what other nodes have.
func requestedOf(st *cluster.State, i cluster.NodeIndex) map[string]int64 {
	out := make(map[string]int64)
	for _, q := range st.Nodes.Spec[i].Allocatable {
		if r, ok := st.Resource(q.Name); ok && st.Nodes.Requested[r][i] != 0 {
			out[q.Name] = st.Nodes.Requested[r][i]
		}
	}
	return out
}

func specOf(st *cluster.State, i cluster.NodeIndex) *pluginv1.NodeSpec {
	spec := &st.Nodes.Spec[i]
	m := &pluginv1.NodeSpec{
		Name: spec.Name, Unschedulable: spec.Unschedulable, Labels: make(map[string]string, len(st.Nodes.Labels[i])), Allocatable: make(map[string]int64, len(spec.Allocatable)),
	}
	for _, l := range st.Nodes.Labels[i] {
		m.Labels[st.Symbols.Text(l.Key)] = st.Symbols.Text(l.Value)
	}
	for _, q := range spec.Allocatable {
		m.Allocatable[q.Name] = q.Value
	}
	for _, t := range spec.Taints {
		m.Taints = append(m.Taints, &pluginv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return m
}
