package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// whyCandidates is how many nodes why shows of a pod that fits: who wants more asks for scores.
const whyCandidates = 3

func whyCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	var n namespaceFlag
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "Say why a pod is where it is, or nowhere, and what would help",
		Long: "Why explains one pod: the cause in a sentence, which plugin rejects how many nodes, which nodes come nearest and\n" +
			"what exactly they lack, and changes each of which, alone, would let the pod be scheduled now. Each of them has\n" +
			"been tried on a copy of the cluster. It changes nothing.",
		Example: fmt.Sprintf("  %[1]s why train-0\n  %[1]s why train-0 -n ml -o json\n  %[1]s why train-0 -o jsonpath='{.suggestions[0].text}'", opt.Program),
		Args:    onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.explain(cmd.Context(), opt, &o, &n, args[0], func(x *schedulingv1.ExplainPodResponse) func(*table) {
				return func(t *table) { t.why(x, opt.Program) }
			})
		},
	}
	c.add(cmd, opt)
	c.addOffline(cmd, opt)
	o.add(cmd)
	n.add(cmd)
	cmd.ValidArgsFunction = completePods(&c, opt)
	return cmd
}

func scoresCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	var n namespaceFlag
	cmd := &cobra.Command{
		Use:   "scores POD",
		Short: "Show the best nodes for a pod, with the scores of each plugin",
		Long: "Scores shows what each plugin says of the best nodes: its weighted score, which is its weight times the normalised\n" +
			"score of 0 to 100; with -o wide, also how it comes about. Of a placed pod: as if it were not placed, in the cluster\n" +
			"as it is now.",
		Example: fmt.Sprintf("  %[1]s scores web-1 -n shop -o wide", opt.Program),
		Args:    onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.explain(cmd.Context(), opt, &o, &n, args[0], func(x *schedulingv1.ExplainPodResponse) func(*table) {
				return func(t *table) { t.scores(x, opt.Program) }
			})
		},
	}
	c.add(cmd, opt)
	c.addOffline(cmd, opt)
	o.add(cmd)
	n.add(cmd)
	cmd.ValidArgsFunction = completePods(&c, opt)
	return cmd
}

// onePod says in words what is missing.
func onePod(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return fmt.Errorf("%s takes the name of one pod", cmd.Name())
	case strings.Contains(args[0], "/"):
		namespace, name, _ := strings.Cut(args[0], "/")
		return fmt.Errorf("%q is no name of a pod: say %s -n %s", args[0], name, namespace)
	}
	return nil
}

// explain asks about a pod and shows the answer.
func (c *connection) explain(ctx context.Context, opt Options, o *output, n *namespaceFlag, pod string, text func(*schedulingv1.ExplainPodResponse) func(*table)) error {
	if err := o.check(); err != nil {
		return err
	}
	namespace, err := n.get(opt)
	if err != nil {
		return err
	}
	return c.with(ctx, opt, func(s *session) error {
		x, err := ask(ctx, s, s.ExplainPod, &schedulingv1.ExplainPodRequest{Namespace: namespace, Name: pod})
		if err != nil {
			return err
		}
		return o.show(opt, answer{x, func() []string { return podNames([]*schedulingv1.Pod{x.GetPod()}) }, text(x)})
	})
}

// why writes an explanation: the cause, what the nodes say, and what would help.
func (t *table) why(x *schedulingv1.ExplainPodResponse, program string) {
	t.line("%s", x.GetSummary())
	t.gap()
	t.line("%s", t.facts(x))
	if plugins := x.GetNotAsked(); len(plugins) > 0 {
		t.line("Plugins of others are not asked here: %s. What follows is so without them.", strings.Join(plugins, ", "))
	}
	for _, note := range x.GetNotes() {
		t.line("Note: %s.", note)
	}
	if text := x.GetGroup().GetText(); text != "" {
		t.gap()
		for line := range strings.Lines(text) {
			t.line("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	if ahead := x.GetPod().GetAhead(); len(ahead) > 0 {
		t.gap()
		t.line("Ahead of it:")
		for _, a := range ahead {
			first := ""
			if a.GetName() != "" { // else the caller may not be told
				first = fmt.Sprintf(", first %s/%s", a.GetNamespace(), a.GetName())
			}
			t.line("  %s of priority %d%s", count(a.GetPods()), a.GetPriority(), first)
		}
	}
	if x.GetNodes() > 0 && len(x.GetRejected()) > 0 {
		t.gap()
		t.rejections(x)
	}
	if len(x.GetClaims()) > 0 && x.GetPod().GetNode() == "" {
		t.gap()
		t.claims(x)
	}
	if len(x.GetMisses()) > 0 {
		t.gap()
		t.line("Nearest misses:")
		for _, m := range x.GetMisses() {
			t.line("  %s", m.GetNode())
			for _, o := range m.GetObstacles() {
				t.line("    %s", t.obstacle(o))
			}
		}
	}
	if x.GetPod().GetNode() == "" && x.GetFeasible() == 0 && x.GetNodes() > 0 && x.GetGroup() == nil { // what would help a group has been said
		t.gap()
		t.suggestions(x)
	}
	if shown := x.GetCandidates(); len(shown) > 0 {
		t.gap()
		if !t.wide && len(shown) > whyCandidates {
			shown = best(shown, whyCandidates)
		}
		t.candidates(x, shown)
		t.line("")
		t.line("%s scores %s -n %s -o wide shows more of them, and how the scores come about.", program, x.GetPod().GetName(), x.GetPod().GetNamespace())
	}
}

// claims writes how far each claim has come, and what is in its way.
func (t *table) claims(x *schedulingv1.ExplainPodResponse) {
	t.line("Claims:")
	for _, c := range x.GetClaims() {
		t.line("  %s %s.", c.GetName(), c.GetText())
		if x.GetNodes() > 0 && c.GetNodes() >= 0 {
			t.line("    Nothing is in its way on %s of %s.", count(c.GetNodes()), counted(x.GetNodes(), "node", "nodes"))
		}
		if c.GetNodes() == 0 && x.GetNodes() > 0 && c.GetState() != schedulingv1.ClaimState_CLAIM_STATE_BOUND && c.GetState() < schedulingv1.ClaimState_CLAIM_STATE_PROVISIONING {
			continue // what keeps the pod off all nodes has been said
		}
		for _, o := range c.GetObstacles() {
			t.line("    On %s, such as %s: %s", counted(o.GetNodes(), "node", "nodes"), strings.Join(o.GetExamples(), ", "), o.GetDetail())
		}
	}
}

// facts is a sentence of what else is known of a pod.
func (t *table) facts(x *schedulingv1.ExplainPodResponse) string {
	p := x.GetPod()
	says := []string{"As of version " + versionText(x.GetVersion())}
	if p.GetState() != schedulingv1.PodState_POD_STATE_UNSPECIFIED {
		state := stateName(p.GetState())
		if since := t.age(p.GetSince()); since != "" {
			state += " for " + since
		}
		says = append(says, state)
	}
	says = append(says, fmt.Sprintf("priority %d", p.GetPriority()))
	if p.GetShard() >= 0 && p.GetNode() == "" {
		where := fmt.Sprintf("shard %d", p.GetShard())
		if p.GetState() == schedulingv1.PodState_POD_STATE_ACTIVE {
			where += ", " + count(p.GetPosition()) + " ahead of it"
		}
		says = append(says, where)
	}
	if p.GetAttempts() > 0 {
		says = append(says, counted(p.GetAttempts(), "attempt", "attempts"))
	}
	if p.GetNominatedNode() != "" {
		says = append(says, "nominated to "+p.GetNominatedNode())
	}
	if p.GetVictim() {
		says = append(says, "being evicted for another pod")
	}
	if x.GetProfile() != "" {
		says = append(says, "profile "+x.GetProfile())
	}
	class := x.GetClassPods()
	says = append(says, fmt.Sprintf("class %d, shared by %s pending and %s placed", p.GetClass(), count(class.GetPending()), count(class.GetAssumed()+class.GetBound())))
	return strings.Join(says, "; ") + "."
}

// rejections writes the table whose first column adds up to the nodes.
func (t *table) rejections(x *schedulingv1.ExplainPodResponse) {
	t.row("NODES", "REJECTED BY", "EVICTION COULD HELP", "REASON", "SUCH AS")
	for _, v := range x.GetRejected() {
		t.row(count(v.GetNodes()), v.GetPlugin(), helps(v), v.GetReason(), examples(v, t.wide))
	}
	t.cells(count(x.GetFeasible()), "feasible")
	t.cells(count(x.GetNodes()), "in all")
}

// helps says on how many of a verdict's nodes the eviction of pods could help.
func helps(v *schedulingv1.Verdict) string {
	switch n := v.GetUnresolvableNodes(); {
	case v.GetUnresolvable():
		return "no"
	case n > 0:
		return "on " + count(v.GetNodes()-n)
	}
	return "yes"
}

// examples are some of a verdict's nodes, one unless all are wanted.
func examples(v *schedulingv1.Verdict, all bool) string {
	names := v.GetExamples()
	if !all && len(names) > 1 {
		names = names[:1]
	}
	return strings.Join(names, ",")
}

// obstacle says what is in the way, as exactly as it is known.
func (t *table) obstacle(o *schedulingv1.Obstacle) string {
	text := cmp.Or(o.GetDetail(), o.GetReason())
	if t.wide {
		return o.GetPlugin() + ": " + text
	}
	return text
}

func (t *table) suggestions(x *schedulingv1.ExplainPodResponse) {
	switch len(x.GetSuggestions()) {
	case 0:
		t.line("No single change is known to help.")
	case 1:
		t.line("This change would help:")
	default:
		t.line("Any one of these changes would help, the smallest first:")
	}
	for k, s := range x.GetSuggestions() {
		t.line("  %d. %s", k+1, s.GetText())
	}
	if x.GetNoPreemption() != "" {
		t.line("It does not preempt others: %s", x.GetNoPreemption())
	}
}

// best returns the first of the candidates, and the chosen one if it is further down.
func best(all []*schedulingv1.Candidate, first int) []*schedulingv1.Candidate {
	shown := slices.Clone(all[:first])
	for _, c := range all[first:] {
		if c.GetChosen() {
			shown = append(shown, c)
		}
	}
	return shown
}

// scores writes the candidates of a pod.
func (t *table) scores(x *schedulingv1.ExplainPodResponse, program string) {
	p := x.GetPod()
	if len(x.GetCandidates()) == 0 {
		t.line("%s/%s has no candidates: %s", p.GetNamespace(), p.GetName(), x.GetSummary())
		t.line("%s why %s -n %s says more.", program, p.GetName(), p.GetNamespace())
		return
	}
	t.candidates(x, x.GetCandidates())
	t.gap()
	t.line("%s of %s could take %s/%s; as of version %s.", count(x.GetFeasible()), counted(x.GetNodes(), "node", "nodes"),
		p.GetNamespace(), p.GetName(), versionText(x.GetVersion()))
}

// ranked is how many candidates are told in their order. Behind them comes the node of the pod, if it is none of them.
const ranked = 10

// candidates writes nodes with their scores by plugin; wide: with how the scores come about.
func (t *table) candidates(x *schedulingv1.ExplainPodResponse, shown []*schedulingv1.Candidate) {
	header := []string{"RANK", "NODE", "TOTAL"}
	for _, s := range shown[0].GetScores() {
		header = append(header, s.GetPlugin())
	}
	t.row(header...)
	chosen := false
	for _, c := range shown {
		rank := ""
		if k := slices.Index(x.GetCandidates(), c); k < ranked {
			rank = strconv.Itoa(k + 1)
		}
		if c.GetChosen() {
			rank, chosen = strings.TrimSpace(rank+" *"), true
		}
		cells := []string{rank, c.GetNode(), strconv.FormatInt(c.GetTotal(), 10)}
		for _, s := range c.GetScores() {
			cells = append(cells, t.score(s))
		}
		t.row(cells...)
	}
	if chosen {
		t.line("* is where the pod is. Scores are as if it were not placed, in the cluster as it is now.")
	}
}

func (t *table) score(s *schedulingv1.PluginScore) string {
	weighted := s.GetWeight() * s.GetNormalized()
	if !t.wide {
		return strconv.FormatInt(weighted, 10)
	}
	return fmt.Sprintf("%d = %d x %d (raw %d)", weighted, s.GetWeight(), s.GetNormalized(), s.GetRaw())
}

// counted is a number of things.
func counted(n int32, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// count writes a number with commas.
func count(n int32) string {
	s := strconv.Itoa(int(n))
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}
