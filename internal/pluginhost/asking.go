package pluginhost

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Asking is about one pod, whose turn it is of all services that are asked about it. It is not safe for concurrent use.
type Asking struct {
	host    *Host
	parts   []*part
	at      time.Duration // when it was looked last what holds, by service.clock
	again   bool          // the pod is judged once more
	inquiry *Inquiry      // nil: it is about a pod that is placed
}

// part is what one service is asked.
type part struct {
	service *service
	use     use
	object  []byte // that is sent of the pod
	hash    [sha256.Size]byte
	uid     string
	kind    *kind       // nil: nothing has been collected
	seq     cluster.Seq // of the state that was collected last
	own     *ownScores  // nil: none are asked for

	annotations map[string]string // of the pod, that are sent
}

// ownScores are what plugins score that normalise their scores themselves: nodes that were asked about together, weighed, in the order in which they were asked about.
type ownScores struct {
	nodes  []cluster.NodeIndex
	totals []int64
	chosen cluster.NodeIndex // cluster.NoNode unless all was asked for at once, and one of nodes is said to be best, and can run the pod itself
}

// Services returns how many services are asked: those that have failed and are ignorable are not.
func (k *Asking) Services() int { return len(k.parts) }

// NeedsPod reports whether a service is to be sent the pod: then SetPod comes before all else.
func (k *Asking) NeedsPod() bool {
	return slices.ContainsFunc(k.parts, func(p *part) bool {
		d := p.service.session.dependsOn(&p.use)
		return d.object || d.annotations
	})
}

// SetPod says what the pod is. Nobody changes it.
func (k *Asking) SetPod(pod *corev1.Pod) error {
	for _, p := range k.parts {
		d := p.service.session.dependsOn(&p.use)
		if d.annotations {
			p.annotations = sentAnnotations(pod)
		}
		switch {
		case d.pod:
			p.uid = string(pod.UID)
			object, err := json.Marshal(pod)
			if err != nil {
				return fmt.Errorf("encode the pod: %w", err)
			}
			p.object, p.hash = object, sha256.Sum256(object)
		case d.object, d.annotations && k.inquiry != nil && Stands(pod): // whose annotations are filled in with the object
			object, err := json.Marshal(alike(pod))
			if err != nil {
				return fmt.Errorf("encode the pod: %w", err)
			}
			p.object, p.hash = object, sha256.Sum256(object)
		case d.annotations:
			p.hash = hashOf(p.annotations)
		}
	}
	return nil
}

// sentAnnotations returns the annotations of a pod as they are sent. Their values may be anything, and a message that has what is no UTF-8 cannot be.
func sentAnnotations(pod *corev1.Pod) map[string]string {
	out, cloned := pod.Annotations, false
	for name, value := range pod.Annotations {
		if utf8.ValidString(value) {
			continue
		}
		if !cloned {
			out, cloned = maps.Clone(out), true
		}
		out[name] = strings.ToValidUTF8(value, string(utf8.RuneError))
	}
	return out
}

// hashOf tells annotations apart. That of none is zero: pods without any are of one kind with those on nodes, of which none are told.
func hashOf(annotations map[string]string) (hash [sha256.Size]byte) {
	if len(annotations) == 0 {
		return hash
	}
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		for _, s := range []string{name, annotations[name]} {
			text = append(binary.AppendUvarint(text, uint64(len(s))), s...)
		}
	}
	return sha256.Sum256(text)
}

// alike returns a pod without what tells it apart from others of its kind. One that has metadata alone is what it is: it stands for another.
func alike(pod *corev1.Pod) *corev1.Pod {
	if Stands(pod) {
		return pod
	}
	out := pod.DeepCopy()
	out.ObjectMeta = metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: pod.GenerateName, Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
	}
	out.Status = corev1.PodStatus{}
	tokens := make(map[string]bool)
	out.Spec.Volumes = slices.DeleteFunc(out.Spec.Volumes, func(v corev1.Volume) bool {
		tokens[v.Name] = v.Projected != nil && strings.HasPrefix(v.Name, "kube-api-access-")
		return tokens[v.Name]
	})
	for _, containers := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return tokens[m.Name] })
		}
	}
	return out
}

func (p *part) key(subject engine.Subject) kindKey { return kindKey{subject, p.hash, p.uid} }

// Refresh has what is told next be as new as the source. It comes before what is done under the state's lock.
func (k *Asking) Refresh() {
	for _, p := range k.parts {
		if is := p.service.session; is.all.object {
			is.refresh(k.host.objects)
		}
	}
}

// now is until when what has been answered has to hold: it is told apart by when somebody asks, not by how long the answer takes.
func (k *Asking) now() time.Duration { return k.host.services[0].clock() }

// Excluded takes those out of a set of nodes that are known to be refused, and reports whether it has any left. The caller holds the state's lock.
func (k *Asking) Excluded(st *cluster.State, subject engine.Subject, among cluster.Bitmap) bool {
	now := k.now()
	k.notes(st)
	for _, p := range k.parts {
		known := p.service.session.kinds[p.key(subject)]
		if known == nil || known.column == nil || known.column.depends.cluster {
			continue
		}
		is := p.service.session
		is.renew(known.column, now)
		if is.follow(known.column, st, now) {
			refuses := known.column.following.refuses
			for w := range min(len(among), len(refuses)) {
				among[w] &^= refuses[w]
			}
			continue
		}
		for i := range min(len(known.column.answers), st.Nodes.Len()) {
			if n := cluster.NodeIndex(i); known.column.answers[i].verdict != 0 && among.Has(n) && is.holds(known.column, st, n, now) {
				among.Clear(n)
			}
		}
	}
	return among.Count() > 0
}

// Kept is what is known of nodes, without asking anybody.
type Kept struct {
	parts []keptPart
	at    time.Duration
	// Most is the most that a node can score of which something is not known: weighed, as what [Kept.Of] returns.
	Most int64
	// Known has the nodes of which Of returns that all is known, and that they are not refused; nil: only Of says that.
	Known cluster.Bitmap
	// Normalized says that scores are normalised over the nodes that are left: what a node scores depends on which these are. Then neither Most nor what Of says of scores is of use.
	Normalized bool
}

// keptPart is what a service has said.
type keptPart struct {
	follows *following      // of all nodes; nil: all else says that
	answers []answer        // of nodes that it was told
	since   []cluster.Seq   // when each node has changed last, as far as that matters
	within  time.Duration   // column.depends.within
	changed []time.Duration // session.changed
	all     time.Duration   // session.allChanged
	scores  [][]int32
	weights []int64
}

// Kept returns what is known of nodes for a pod. False: next to nothing, or whether one node can run it, or what it scores, depends on what is on others, or plugins normalise scores themselves. The caller holds the state's lock
// as long as it uses that.
func (k *Asking) Kept(st *cluster.State, subject engine.Subject) (*Kept, bool) {
	k.at = k.now()
	k.notes(st)
	out, taken := &Kept{parts: make([]keptPart, 0, len(k.parts)), at: k.at}, false
	for _, p := range k.parts {
		is := p.service.session
		p.kind = is.kinds[p.key(subject)]
		if p.kind == nil || p.kind.column == nil || is.all.object || p.kind.column.depends.cluster || len(p.use.own) > 0 {
			return nil, false
		}
		is.clock++
		p.kind.used = is.clock
		for n, name := range p.use.scores {
			out.Normalized = out.Normalized || is.plugins[name].GetNormalization() != pluginv1.Normalization_NORMALIZATION_UNSPECIFIED
			taken = taken || p.use.weights[n] < 0
			out.Most += maxScore * p.use.weights[n]
		}
		c := p.kind.column
		part := keptPart{
			answers: c.answers[:min(len(c.answers), len(is.nodes))], since: st.Nodes.SpecModified, within: c.depends.within, changed: is.changed, all: is.allChanged, scores: c.scores, weights: p.use.weights,
		}
		if c.depends.placed {
			part.since = st.Nodes.PodsModified
		}
		if is.follow(c, st, k.at) {
			part.follows = &c.following
		}
		out.parts = append(out.parts, part)
	}
	out.Known = out.known()
	return out, out.Normalized || !taken
}

// known returns Kept.Known.
func (k *Kept) known() (known cluster.Bitmap) {
	for n := range k.parts {
		f := k.parts[n].follows
		if f == nil {
			return nil
		}
		if n == 0 {
			known = slices.Clone(f.holds)
		}
		for w := range known {
			if w < len(f.holds) {
				known[w] &= f.holds[w] &^ f.refuses[w]
			} else {
				known[w] = 0
			}
		}
	}
	return known
}

// says returns whether what a service has said of a node holds, as session.holds does, and whether it refuses the node.
func (p *keptPart) says(i cluster.NodeIndex, at time.Duration) (holds, refuses bool) {
	if f := p.follows; f != nil {
		return f.holds.Has(i), f.refuses.Has(i)
	}
	if int(i) >= len(p.answers) {
		return false, false
	}
	a := &p.answers[i]
	if a.seq == 0 || a.seq < p.since[i] || p.within > 0 && at-a.at >= p.within || changedSince(a.at, p.changed, p.all, i) {
		return false, false
	}
	return true, a.verdict != 0
}

// Of returns whether all is known of a node, as session.holds does, whether it is refused, and else what it scores.
func (k *Kept) Of(i cluster.NodeIndex) (known, refused bool, score int64) {
	known = true
	for n := range k.parts {
		p := &k.parts[n]
		holds, refuses := p.says(i, k.at)
		switch {
		case !holds:
			known = false
		case refuses:
			return true, true, 0
		case !k.Normalized:
			for n, weight := range p.weights {
				score += weight * int64(p.scores[n][i])
			}
		}
	}
	return known, false, score
}

// Collect notes what is to be asked about some nodes, which the state has, for a pod whose class it has. The caller holds the state's lock, and calls Exchange then.
func (k *Asking) Collect(st *cluster.State, subject engine.Subject, nodes []cluster.NodeIndex) {
	k.at = k.now()
	k.notes(st)
	for _, p := range k.parts {
		is := p.service.session
		is.sync(st)
		if is.all.cluster {
			is.tellAll(st)
		}
		p.own, p.seq = nil, st.Version().Seq
		p.kind = is.kindOf(st, p.key(subject), p.object, p.annotations)
		c := is.columnOf(st, p.kind, &p.use)
		if !p.use.judges() {
			continue
		}
		if c.depends.cluster { // anything may have changed
			is.forgetAnswers(c)
		}
		for n, i := range nodes {
			if !is.holds(c, st, i, k.at) {
				most := 0
				if c.depends.cluster {
					most = len(nodes) - n - 1
				}
				is.tell(st, i)
				is.ask(p.kind, &p.use, st.Version().Seq, i, most)
			}
		}
	}
}

// CollectBest notes, as Collect does, that it is to be asked about some nodes, and for more in the same question: what scores those that are left, and whether the pod itself can run on the best of these, by what is scored and by totals, which is what all else
// scores each of nodes; of several the first. [Asking.Keeps] was so of the last pod, about the same nodes: without what was kept of these, nothing is answered but verdicts. False: that cannot be asked. Behind Exchange, Chosen says what has come of it.
func (k *Asking) CollectBest(st *cluster.State, subject engine.Subject, nodes []cluster.NodeIndex, totals []int64) bool {
	if len(k.parts) != 1 {
		return false
	}
	p := k.parts[0]
	is := p.service.session
	if len(p.use.own) == 0 || len(p.use.scores) > 0 || !is.dependsOn(&p.use).cluster || len(nodes) > is.limits.asked {
		return false
	}
	k.Collect(st, subject, nil) // all nodes are told
	p.own = &ownScores{nodes: slices.Clone(nodes), chosen: cluster.NoNode}
	is.askBest(p.kind, &p.use, p.seq, p.own, totals)
	return true
}

// Chosen returns the node that the pod itself can run on, if [Asking.CollectBest] has had that answered, of exactly these nodes that are left, in order; then [Asking.Score] adds what was asked for, to these. Else cluster.NoNode.
func (k *Asking) Chosen(left []cluster.NodeIndex) cluster.NodeIndex {
	for _, p := range k.parts {
		if p.own != nil && slices.Equal(p.own.nodes, left) {
			return p.own.chosen
		}
	}
	return cluster.NoNode
}

// Anew reports whether services are asked anew for each pod which nodes can run it, or what these score, and nothing that they say is kept: then they may be asked about some nodes first, and about
// others only if they leave too few of these.
func (k *Asking) Anew() bool {
	anew := false
	for _, p := range k.parts {
		if len(p.use.filters)+len(p.use.scores)+len(p.use.own) == 0 {
			continue
		}
		if anew = p.service.session.dependsOn(&p.use).cluster; !anew {
			return false
		}
	}
	return anew
}

// Keeps reports of what has been answered about nodes whether some service may take it for the next pod, and whether some has taken what it had said for an earlier one.
func (k *Asking) Keeps() (keeps, kept bool) {
	for _, p := range k.parts {
		if c := p.kind.column; c != nil {
			keeps, kept = keeps || c.keeps, kept || c.alike
		}
	}
	return keeps, kept
}

// CollectMore notes that further nodes are to be asked about, as they were when others were collected: they were in the state then, whatever has become of them. [Asking.Anew] holds.
func (k *Asking) CollectMore(nodes []cluster.NodeIndex) {
	for _, p := range k.parts {
		if !p.use.judges() {
			continue
		}
		for n, i := range nodes {
			p.service.session.ask(p.kind, &p.use, p.seq, i, len(nodes)-n-1)
		}
	}
}

// ScoresApart reports whether some plugin normalises its scores itself: of the nodes that are left, [Asking.CollectScores] has to ask for these, before [Asking.Score].
func (k *Asking) ScoresApart() bool {
	return slices.ContainsFunc(k.parts, func(p *part) bool { return len(p.use.own) > 0 })
}

// CollectScores notes that scores are to be asked for which plugins normalise themselves, over some nodes, all of which were collected and are not refused. The caller holds the state's lock, and calls
// Exchange then. What has been answered about these nodes has to hold still when the pod is placed, so that the scores are of the same state.
func (k *Asking) CollectScores(st *cluster.State, subject engine.Subject, nodes []cluster.NodeIndex) {
	for _, p := range k.parts {
		if len(p.use.own) == 0 {
			continue
		}
		is := p.service.session
		is.sync(st)
		if is.all.cluster {
			is.tellAll(st)
		}
		p.kind = is.kindOf(st, p.key(subject), p.object, p.annotations)
		is.columnOf(st, p.kind, &p.use)
		for _, i := range nodes {
			is.tell(st, i)
		}
		p.own = &ownScores{nodes: slices.Clone(nodes), chosen: cluster.NoNode}
		is.askOwn(p.kind, &p.use, st.Version().Seq, p.own)
	}
}

// CollectChosen notes that it is to be asked once more about a node that was collected and not refused, the one that the pod is to get: by itself, in the state in which it was asked about, of services that have said of some nodes what they had said for an
// earlier pod. False: there is nothing to ask. Behind Exchange, Refusal says what has come of it.
func (k *Asking) CollectChosen(i cluster.NodeIndex) (asks bool) {
	for _, p := range k.parts {
		if is := p.service.session; len(p.use.filters) > 0 && p.kind.column != nil && p.kind.column.alike {
			asks = true
			is.ask(p.kind, &p.use, p.kind.column.answers[i].seq, i, 0)
		}
	}
	return asks
}

// Exchange asks what has been collected, of all services even if one fails: what is to be told to others would pile up, and what they say is kept. If it returns [ErrAgain], all is to be done once more, from Begin on. Another error ends the attempt; it names the service.
func (k *Asking) Exchange(ctx context.Context) error {
	var failed error
	for n := 0; n < len(k.parts); {
		p, err := k.parts[n], error(nil)
		if is := p.service.session; is.all.object {
			err = is.addObjects(k.host.objects)
		}
		if err == nil {
			err = p.service.exchange(ctx)
		}
		skipped := err != nil && !errors.Is(err, ErrAgain)
		if skipped {
			if err = k.skip(ctx, p.service, err); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		failed = cmp.Or(failed, err)
		if skipped && err == nil {
			p.done()
			k.parts = slices.Delete(k.parts, n, n+1)
			continue
		}
		n++
	}
	return failed
}

// Refuses reports whether a node is refused that was collected.
func (k *Asking) Refuses(i cluster.NodeIndex) bool {
	for _, p := range k.parts {
		if p.kind.column.answers[i].verdict != 0 {
			return true
		}
	}
	return false
}

// Refusal returns why a node is refused that was collected, false if it is not.
func (k *Asking) Refusal(i cluster.NodeIndex) (Refusal, bool) {
	for _, p := range k.parts {
		if v := p.kind.column.answers[i].verdict; v != 0 {
			return p.kind.column.refusals[v-1], true
		}
	}
	return Refusal{}, false
}

// Known returns why a node is refused that need not have been collected, false if it is not known to be. Some were collected. The caller holds the state's lock.
func (k *Asking) Known(st *cluster.State, i cluster.NodeIndex) (Refusal, bool) {
	k.notes(st)
	for _, p := range k.parts {
		if c := p.kind.column; p.service.session.holds(c, st, i, k.at) && c.answers[i].verdict != 0 {
			return c.refusals[c.answers[i].verdict-1], true
		}
	}
	return Refusal{}, false
}

// Score adds to totals, those of nodes that were collected and are not refused, what plugins score these, normalised over them, and weighed. If scores are apart, the nodes are those that CollectScores
// was given, in that order, or are those of CollectBest that are left.
func (k *Asking) Score(nodes []cluster.NodeIndex, totals []int64) {
	for _, p := range k.parts {
		if p.own != nil {
			for n, total := range p.own.totals {
				totals[n] += total
			}
		}
		if len(p.use.scores) > 0 {
			p.kind.column.addScores(p.use.by, p.use.weights, nodes, totals)
		}
	}
}

// ScoreTotals is Score of nodes that have totals, to these. Indexes are those of the nodes.
func (k *Asking) ScoreTotals(indexes []cluster.NodeIndex, nodes []engine.NodeTotal) {
	for _, p := range k.parts {
		if p.own != nil {
			for n, total := range p.own.totals {
				nodes[n].Total += total
			}
		}
		if len(p.use.scores) > 0 {
			p.kind.column.addTotals(p.use.by, p.use.weights, indexes, nodes)
		}
	}
}

// Again says that the pod is judged once more, since what was answered did not hold.
func (k *Asking) Again() { k.again = true }

// Holds reports whether what has been answered about a node, which was collected, is of the node as it is. What was asked for only now holds however long that took; and, behind [Asking.Again], also if the node has changed for
// the service meanwhile: so one that changes all the time is judged again once, and keeps no pod from being placed. The caller holds the state's lock.
func (k *Asking) Holds(st *cluster.State, i cluster.NodeIndex) bool {
	k.notes(st)
	return !slices.ContainsFunc(k.parts, func(p *part) bool {
		if len(p.use.filters)+len(p.use.scores)+len(p.use.own) == 0 { // it says nothing about nodes
			return false
		}
		is, c := p.service.session, p.kind.column
		if k.again && is.stands(c, st, i, k.at) && c.answers[i].at >= k.at {
			return false
		}
		return !is.holds(c, st, i, k.at)
	})
}

// Heard reports whether services have said that nodes have changed since it was collected.
func (k *Asking) Heard() bool {
	return slices.ContainsFunc(k.parts, func(p *part) bool { return p.service.changes.some.Load() })
}

// Done has nothing kept that is of this pod alone. It is called whatever has become of it.
func (k *Asking) Done() {
	for _, p := range k.parts {
		p.done()
	}
}

func (p *part) done() {
	if is := p.service.session; is != nil && p.uid != "" && p.kind != nil && is.kinds[p.kind.key] == p.kind {
		is.drop(p.kind)
	}
}
