package pluginhost

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const (
	// maxRefusals is how many different refusals an answer may have, and keptRefusals a column: then it begins anew. Within one question, there may be twice as many; further ones become anotherReason.
	maxRefusals, keptRefusals = 1_000, 4_096
	maxScore                  = 100 // when scores are weighed
	anotherReason             = "another reason"
)

// Refusal is why a plugin refuses a node.
type Refusal struct {
	Plugin, Reason string
	Unresolvable   bool
}

// column is what plugins of a service say of the nodes for a kind of pods.
type column struct {
	depends   dependencies
	answers   []answer // by node
	refusals  []Refusal
	index     map[Refusal]uint16 // one more than its place in refusals
	text      int                // bytes of refusals
	renewed   time.Duration      // when it began anew last
	scores    [][]int32          // by plugin, then by node; not normalised
	sums      sums               // what these come to
	following following          // which answers hold
	alike     bool               // of some nodes it is what was said for an earlier pod alike
	keeps     bool               // what is said may be taken for the next pod
}

// answer is what is said of a node.
type answer struct {
	seq     cluster.Seq   // of the state that it is of; 0: nothing is said
	at      time.Duration // before it was asked, as changes.asks counts, which is by service.clock
	object  uint32        // toldNode.objects then
	verdict uint16        // 0: it can run the pod; else Refusal by column.index
}

// answerBytes is the size of an answer, followBytes what is followed of it, scoreBytes that of a score, sumBytes that of what the scores of a node come to, and columnBytes about what a column takes besides.
const answerBytes, followBytes, scoreBytes, sumBytes, columnBytes = 24, 2, 4, 12, 1 << 10

func newColumn(depends dependencies, scores int) *column {
	return &column{depends: depends, index: make(map[Refusal]uint16), scores: make([][]int32, scores)}
}

// bytes returns about how much memory a column takes.
func (c *column) bytes() int {
	each := answerBytes + followBytes
	if len(c.scores) > 0 {
		each += scoreBytes*len(c.scores) + sumBytes
	}
	return columnBytes + len(c.answers)*each + c.text
}

// grow makes room for so many nodes.
func (c *column) grow(nodes int) {
	if nodes <= len(c.answers) {
		return
	}
	c.answers = append(c.answers, make([]answer, nodes-len(c.answers))...)
	for k := range c.scores {
		c.scores[k] = append(c.scores[k], make([]int32, nodes-len(c.scores[k]))...)
	}
}

// holds reports whether what a column says of a node is of the node as it is, for the service too. The caller holds the lock of the state, which has the node.
func (is *session) holds(c *column, st *cluster.State, i cluster.NodeIndex, now time.Duration) bool {
	return is.stands(c, st, i, now) && !changedSince(c.answers[i].at, is.changed, is.allChanged, i)
}

// stands is holds as far as Berth knows by itself, whatever has changed for the service.
func (is *session) stands(c *column, st *cluster.State, i cluster.NodeIndex, now time.Duration) bool {
	if int(i) >= len(c.answers) || int(i) >= len(is.nodes) {
		return false
	}
	a := &c.answers[i]
	since := st.Nodes.SpecModified[i]
	if c.depends.placed {
		since = st.Nodes.PodsModified[i]
	}
	if c.depends.object && a.object != is.nodes[i].objects {
		return false
	}
	return a.seq != 0 && a.seq >= since && (c.depends.within == 0 || now-a.at < c.depends.within)
}

// renewed is how often a column may begin anew since there are many reasons in it: meanwhile, further ones are anotherReason.
const renewed = time.Minute

// renew forgets all answers of a column if there are many reasons among them. It comes before what looks at several nodes, so that these have answers of one time.
func (is *session) renew(c *column, now time.Duration) {
	if len(c.refusals) < keptRefusals || now-c.renewed < renewed {
		return
	}
	is.forgetAnswers(c)
	c.renewed = now
}

// forgetAnswers forgets all answers of a column.
func (is *session) forgetAnswers(c *column) {
	before := c.bytes()
	c.forget()
	is.columns += c.bytes() - before
}

// forget forgets all answers.
func (c *column) forget() {
	clear(c.answers)
	clear(c.index)
	c.refusals, c.text, c.alike, c.keeps = nil, 0, false, false
	c.sums.forget()
	c.following.forget()
}

// take keeps an answer to a question, if it makes sense.
func (c *column) take(q *question, a *pluginv1.Answer, began time.Duration) error {
	if a.GetError() != "" {
		return errStated(extender.Short(a.GetError()))
	}
	if (a.GetKept() || a.GetKeeps()) && !c.depends.cluster {
		return errors.New("kept or keeps: that is only said of plugins that depend on the cluster")
	}
	if n := len(a.GetVerdicts()); n != 0 && n != len(q.nodes) {
		return fmt.Errorf("%d verdicts of %d nodes", n, len(q.nodes))
	}
	if n := len(a.GetRefusals()); n > maxRefusals {
		return fmt.Errorf("%d refusals, want at most %d", n, maxRefusals)
	}
	if n := len(a.GetScores()); n != len(q.use.scores) {
		return fmt.Errorf("scores of %d plugins, of %d were asked for", n, len(q.use.scores))
	}
	for k, s := range a.GetScores() {
		if n := len(s.GetScores()); n != len(q.nodes) {
			return fmt.Errorf("%d scores of %s for %d nodes", n, q.use.scores[k], len(q.nodes))
		}
	}
	told := make([]Refusal, len(a.GetRefusals()))
	for k, r := range a.GetRefusals() {
		if !slices.Contains(q.use.filters, r.GetPlugin()) {
			return fmt.Errorf("refusals[%d].plugin: %q was not asked to filter", k, extender.Short(r.GetPlugin()))
		}
		if r.GetReason() == "" {
			return fmt.Errorf("refusals[%d].reason: %s gives none", k, r.GetPlugin())
		}
		told[k] = Refusal{r.GetPlugin(), extender.Short(r.GetReason()), r.GetUnresolvable()}
	}
	for k, v := range a.GetVerdicts() {
		if int64(v) > int64(len(told)) {
			return fmt.Errorf("verdicts[%d]: %d, of %d refusals", k, v, len(told))
		}
	}
	for k := range q.nodes {
		if len(a.GetVerdicts()) > 0 && a.GetVerdicts()[k] != 0 {
			continue
		}
		for n, s := range a.GetScores() {
			if v := s.GetScores()[k]; v < 0 || v > q.use.most[n] {
				return fmt.Errorf("scores[%d]: %s scores %d, want 0 to %d", n, q.use.scores[n], v, q.use.most[n])
			}
		}
	}
	c.alike, c.keeps = c.alike || a.GetKept(), a.GetKeeps()
	for k, i := range q.nodes {
		is := answer{seq: q.seq, at: began, object: q.objects[k]}
		if len(a.GetVerdicts()) > 0 && a.GetVerdicts()[k] != 0 {
			is.verdict = c.indexOf(told[a.GetVerdicts()[k]-1])
		}
		c.answers[i] = is
		for n, s := range a.GetScores() {
			if is.verdict == 0 {
				c.scores[n][i] = s.GetScores()[k]
			}
		}
		c.scored(i)
	}
	c.following.answers(q.nodes, len(c.answers))
	return nil
}

// take takes the answer to a question for scores that plugins have normalised, if it makes sense.
func (o *ownScores) take(q *question, a *pluginv1.Answer) error {
	if a.GetError() != "" {
		return errStated(extender.Short(a.GetError()))
	}
	if slices.ContainsFunc(a.GetVerdicts(), func(v uint32) bool { return v != 0 }) {
		return errors.New("a node is refused, and nobody was asked to filter")
	}
	return o.takeScores(q, a)
}

// takeBest takes, of the answer to a question that asks for all at once and has verdicts that are kept, which node is chosen, and what those score that are left. Verdicts have been taken.
func (o *ownScores) takeBest(q *question, a *pluginv1.Answer) error {
	asked := o.nodes
	o.nodes = slices.DeleteFunc(slices.Clone(asked), func(i cluster.NodeIndex) bool { return q.kind.column.answers[i].verdict != 0 })
	n := a.GetChosen()
	if n == 0 {
		return nil
	}
	if int64(n) > int64(len(asked)) {
		return fmt.Errorf("chosen: %d, of %d nodes", n, len(asked))
	}
	if chosen := asked[n-1]; slices.Contains(o.nodes, chosen) {
		o.chosen = chosen
	} else {
		return fmt.Errorf("chosen: %d, which is refused", n)
	}
	if len(o.nodes) == 1 {
		return nil
	}
	return o.takeScores(q, a)
}

func (o *ownScores) takeScores(q *question, a *pluginv1.Answer) error {
	if n := len(a.GetScores()); n != len(q.use.own) {
		return fmt.Errorf("scores of %d plugins, of %d were asked for", n, len(q.use.own))
	}
	totals := make([]int64, len(o.nodes))
	for k, s := range a.GetScores() {
		by := q.use.own[k]
		if n := len(s.GetScores()); n != len(o.nodes) {
			return fmt.Errorf("%d scores of %s for %d nodes", n, by.name, len(o.nodes))
		}
		for n, v := range s.GetScores() {
			if v < 0 || v > maxScore {
				return fmt.Errorf("scores[%d]: %s scores %d, want 0 to %d", k, by.name, v, maxScore)
			}
			totals[n] += by.weight * int64(v)
		}
	}
	o.totals = totals
	return nil
}

func (c *column) indexOf(r Refusal) uint16 {
	k, ok := c.index[r]
	if !ok && len(c.refusals) >= 2*keptRefusals {
		r.Reason = anotherReason
		k, ok = c.index[r]
	}
	if !ok {
		c.refusals = append(c.refusals, r)
		c.text += len(r.Plugin) + len(r.Reason)
		k = uint16(len(c.refusals))
		c.index[r] = k
	}
	return k
}

// errStated is an error that a service has answered with: it is about one kind of pods, and the session is sound.
type errStated string

func (e errStated) Error() string { return string(e) }

// take keeps what a response says. An error that a question was answered with is returned only if all else makes sense.
func (is *session) take(b *batch, response *pluginv1.JudgeResponse, began time.Duration) error {
	if n := len(response.GetAnswers()); n != len(b.questions) {
		return fmt.Errorf("its answer makes no sense: %d answers to %d questions", n, len(b.questions))
	}
	var stated error
	for k := range b.questions {
		q := &b.questions[k]
		err := is.takeOne(q, response.GetAnswers()[k], began)
		if errors.As(err, new(errStated)) {
			if !b.stale {
				stated = err
			}
		} else if err != nil {
			return fmt.Errorf("its answer makes no sense: answers[%d]: %w", k, err)
		}
	}
	return stated
}

// takeOne keeps what the answer to a question says.
func (is *session) takeOne(q *question, a *pluginv1.Answer, began time.Duration) error {
	switch c := q.kind.column; {
	case q.own != nil && !q.best:
		return q.own.take(q, a)
	case q.post != nil:
		return q.post.take(a)
	case c == nil: // forgotten
		return nil
	default:
		before := c.bytes()
		defer func() { is.columns += c.bytes() - before }()
		if !q.best {
			return c.take(q, a, began)
		}
		verdicts := &pluginv1.Answer{Verdicts: a.GetVerdicts(), Refusals: a.GetRefusals(), Error: a.GetError(), Kept: a.GetKept(), Keeps: a.GetKeeps()}
		if err := c.take(q, verdicts, began); err != nil || !a.GetKept() {
			return err
		}
		return q.own.takeBest(q, a)
	}
}

// columnOf returns the column of a kind, for all nodes of a state, and has no more bytes kept than may be.
func (is *session) columnOf(st *cluster.State, k *kind, u *use) *column {
	is.clock++
	k.used = is.clock
	if k.column == nil {
		k.column = is.takeColumn(is.dependsOn(u), len(u.scores))
		is.columns += k.column.bytes()
	}
	before := k.column.bytes()
	k.column.grow(st.Nodes.Len())
	is.columns += k.column.bytes() - before
	if is.columns > is.limits.columns {
		is.dropColumns(k)
	}
	return k.column
}

// dropColumns forgets the answers about kinds that have not been asked about for longest, but for one kind, until there is a quarter of room.
func (is *session) dropColumns(but *kind) {
	var others []*kind
	for _, k := range is.kinds {
		if k != but && k.column != nil {
			others = append(others, k)
		}
	}
	slices.SortFunc(others, func(a, b *kind) int { return cmp.Compare(a.used, b.used) })
	for _, k := range others {
		if is.columns <= is.limits.columns/4*3 {
			return
		}
		is.dropColumn(k)
	}
}

func (is *session) dropColumn(k *kind) {
	if k.column != nil {
		is.columns -= k.column.bytes()
		k.column, is.spare = nil, k.column
	}
}

// takeColumn returns a column in which nothing is said: where each pod is a kind of its own, that of the last one.
func (is *session) takeColumn(depends dependencies, scores int) *column {
	c := is.spare
	if c == nil || len(c.scores) != scores {
		return newColumn(depends, scores)
	}
	is.spare = nil
	c.forget()
	c.depends, c.renewed = depends, 0
	return c
}
