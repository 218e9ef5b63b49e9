package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Text renders an explanation for a person at a terminal: the cause in one sentence, then what the nodes say, then what would
// help. It ends with a newline.
func Text(x Explanation) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s", x.Headline())
	line("")
	line("%s", x.facts())
	if len(x.NotAsked) > 0 {
		line("Plugins of others are not asked here: %s. What follows is so without them.", strings.Join(x.NotAsked, ", "))
	}
	for _, note := range x.Notes {
		line("Note: %s.", note)
	}
	if x.Group != nil && x.Group.Lacking == "" {
		b.WriteString("\n" + x.Group.Text())
	}
	if len(x.Rejections) > 0 {
		line("")
		x.rejections(&b)
		if x.Devices != "" {
			line("%s", x.Devices)
		}
	}
	if len(x.Claims) > 0 && x.Cause != Placed {
		line("")
		x.writeClaims(&b)
	}
	if len(x.Nearest) > 0 && x.Cause != Placed {
		line("")
		line("Nearest misses:")
		for k := range x.Nearest {
			x.Nearest[k].write(&b)
		}
	}
	if x.Here != nil && !x.Here.Feasible {
		line("")
		line("Were it not there, this would keep it off:")
		x.Here.Miss.write(&b)
	}
	if x.Cause == Rejected && x.alone() { // what would help a group has been said
		line("")
		x.help(&b)
	}
	if len(x.Candidates) > 0 {
		line("")
		line("Best nodes, with what each plugin adds (weight x normalised score):")
		x.candidates(&b)
	}
	return b.String()
}

func (x *Explanation) name() string { return x.Pod.Namespace + "/" + x.Pod.Name }

// Headline says the cause in one sentence.
func (x *Explanation) Headline() string {
	name := x.name()
	switch x.Cause {
	case Placed:
		return fmt.Sprintf("%s is on %s%s.", name, x.Pod.Node, x.here())
	case Deleting:
		return fmt.Sprintf("%s is not tried: it is being deleted.", name)
	case Gated:
		return fmt.Sprintf("%s is not tried: %s %s to be removed.", name, plural(len(x.Pod.Gates), "scheduling gate ", "scheduling gates ")+list(x.Pod.Gates), plural(len(x.Pod.Gates), "has", "have"))
	case NoProfile:
		return fmt.Sprintf("%s is not tried: no profile of Berth has the scheduler name %q.", name, x.Pod.Profile)
	case Yielded:
		return fmt.Sprintf("%s is not tried: pods of %s are left to another scheduler: %s.", name, x.Pod.Profile, x.Pod.YieldedTo)
	case Unsupported:
		return fmt.Sprintf("%s is not placed: %s (%s).", name, x.Pod.Unsupported, x.Pod.UnsupportedPlugin)
	case Preempting:
		return fmt.Sprintf("%s waits until pods of lower priority have left %s.", name, x.Pod.Nominated)
	case Incomplete:
		return fmt.Sprintf("%s is not tried: %s.", name, x.Group.Lacking)
	case NoNodes:
		return fmt.Sprintf("%s is pending because there is no node.", name)
	case Fits, Rejected:
		if x.Group != nil && !x.Group.Fits {
			return fmt.Sprintf("%s is pending with its PodGroup: %s.", name, x.Group.says())
		}
	}
	switch {
	case x.Cause == Fits && !x.alone():
		return fmt.Sprintf("%s is pending, though its PodGroup %s fits: it waits for its turn.", name, x.Group.Name)
	case x.Cause == Fits:
		return fmt.Sprintf("%s is pending, though %s can take it: it waits for its turn.", name, ofNodes(x.Feasible, x.Nodes))
	}
	if x.Pod.RequiredNode != "" && len(x.Nearest) == 0 {
		return fmt.Sprintf("%s is pending because it may go to no node but %s, and there is no such node.", name, x.Pod.RequiredNode)
	}
	if x.Pod.RequiredNode != "" {
		return fmt.Sprintf("%s is pending because it may go to no node but %s, which cannot take it.", name, x.Pod.RequiredNode)
	}
	rejections := slices.Clone(x.Rejections)
	slices.SortStableFunc(rejections, func(a, b engine.Rejection) int { return int(b.Nodes - a.Nodes) })
	var says []string
	for k := range rejections {
		says = append(says, fmt.Sprintf("%s %s", count(rejections[k].Nodes), rejections[k].Short()))
	}
	return fmt.Sprintf("%s is pending because none of %s can take it: %s.", name, nodes(x.Nodes), strings.Join(says, ", "))
}

// here says how a placed pod's node would fare now.
func (x *Explanation) here() string {
	switch {
	case !x.Judged:
		return ", but not by Berth: no profile has its scheduler name"
	case x.Here == nil:
		return ", which is not known"
	case !x.Here.Feasible:
		return ", which could not take it now"
	case x.Pod.RequiredNode != "":
		return ", the only node that it may go to"
	case x.Here.Best:
		return ", still the best node for it"
	}
	return ", which is not the best node for it now: the cluster has changed since, or it was not placed by score"
}

// facts is a line of what else is known.
func (x *Explanation) facts() string {
	p := &x.Pod
	says := []string{
		fmt.Sprintf("As of version %v", x.Version), fmt.Sprintf("profile %s", p.Profile), fmt.Sprintf("priority %d", p.Priority),
		fmt.Sprintf("class %d, shared by %d pending and %d placed", p.Class, p.ClassPending, p.ClassPlaced),
	}
	if p.RequiredNode != "" {
		says = append(says, "required node "+p.RequiredNode)
	}
	if p.Nominated != "" {
		says = append(says, "nominated to "+p.Nominated)
	}
	if p.Deleting {
		says = append(says, "being deleted")
	}
	return strings.Join(says, "; ") + "."
}

// rejections writes the table whose first column adds up to the nodes.
func (x *Explanation) rejections(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODES\tREJECTED BY\tEVICTION COULD HELP\tREASONS")
	for k := range x.Rejections {
		r := &x.Rejections[k]
		var reasons []string
		for _, reason := range engine.MergeVerdicts(resolvable(r.Reasons)) {
			text := reason.Reason
			if len(r.Reasons) > 1 {
				text += " (" + count(reason.Count) + ")"
			}
			reasons = append(reasons, text)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", count(r.Nodes), r.Plugin, helps(r), strings.Join(reasons, ", "))
	}
	fmt.Fprintf(t, "%s\tfeasible\t\t\n", count(x.Feasible))
	fmt.Fprintf(t, "%s\tin all\t\t\n", count(x.Nodes))
	t.Flush() // a Builder never fails
	trimLines(b)
}

// resolvable makes counts alike that differ in that only: the table has a column for it.
func resolvable(counts []engine.VerdictCount) []engine.VerdictCount {
	out := slices.Clone(counts)
	for k := range out {
		out[k].Unresolvable = false
	}
	return out
}

func helps(r *engine.Rejection) string {
	switch r.Unresolvable {
	case 0:
		return "yes"
	case r.Nodes:
		return "no"
	}
	return fmt.Sprintf("on %s", count(r.Nodes-r.Unresolvable))
}

func (m *Miss) write(b *strings.Builder) {
	fmt.Fprintf(b, "  %s\n", m.Name)
	for _, detail := range m.Details() {
		fmt.Fprintf(b, "    %s\n", detail)
	}
}

// trimLines takes the spaces from the ends of lines.
func trimLines(b *strings.Builder) {
	lines := strings.Split(b.String(), "\n")
	for k := range lines {
		lines[k] = strings.TrimRight(lines[k], " ")
	}
	b.Reset()
	b.WriteString(strings.Join(lines, "\n"))
}

// Details say in plain words what a node lacks, in the order of Lacks.
func (m *Miss) Details() []string {
	out := make([]string, len(m.Lacks))
	for k := range m.Lacks {
		out[k] = m.Lacks[k].Text(m.Blockers[k])
	}
	return out
}

// help writes what would help.
func (x *Explanation) help(b *strings.Builder) {
	switch len(x.Changes) {
	case 0:
		if x.ByPlugins {
			fmt.Fprintln(b, "What change would help is for plugins of others to say.")
			return
		}
		fmt.Fprintln(b, "No single change helps.")
	case 1:
		fmt.Fprintln(b, "One change would help:")
	default:
		fmt.Fprintln(b, "Any one of these changes would help, the smallest first:")
	}
	for k := range x.Changes {
		fmt.Fprintf(b, "  %d. %s\n", k+1, &x.Changes[k])
	}
	if x.NoPreemption != "" {
		fmt.Fprintf(b, "The pod does not preempt others: %s\n", x.NoPreemption)
	}
}

// String says the change in plain words.
func (c *Change) String() string {
	var what []string
	opens := fmt.Sprintf("Then it fits %s.", c.Node)
	if c.Opens > 1 {
		opens = fmt.Sprintf("Then it fits %s, %s among them.", nodes(c.Opens), c.Node)
	}
	switch c.Kind {
	case ReduceRequests:
		for _, r := range c.Requests {
			what = append(what, fmt.Sprintf("%s from %s to %s", r.Resource, engine.AmountText(r.Resource, r.From), engine.AmountText(r.Resource, r.To)))
		}
		return fmt.Sprintf("Request less: %s. %s", strings.Join(what, ", "), opens)
	case Tolerate:
		for _, t := range c.Tolerations {
			what = append(what, engine.TaintText(cluster.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}))
		}
		return fmt.Sprintf("Tolerate %s. %s", list(what), opens)
	case DropConditions:
		return fmt.Sprintf("Drop %s. %s", strings.Join(c.dropped(), ", and "), opens)
	case LabelNode:
		for _, l := range c.Labels {
			if l.Remove {
				what = append(what, "remove label "+l.Key)
			} else {
				what = append(what, "set label "+l.Key+"="+l.Value)
			}
		}
		return fmt.Sprintf("On %s, %s.", c.Node, list(what))
	case Uncordon:
		return fmt.Sprintf("Uncordon %s.", c.Node)
	case RemoveTaints:
		for _, t := range c.Taints {
			what = append(what, engine.TaintText(t))
		}
		return fmt.Sprintf("Remove %s %s from %s.", plural(len(what), "taint", "taints"), list(what), c.Node)
	case CreateClaim:
		what = append(what, fmt.Sprintf("Create %s %s, with %s that can be reached from there", plural(len(c.Claims), "claim", "claims"), list(c.Claims), plural(len(c.Claims), "a volume", "volumes")))
		for k := range c.Volumes {
			what = append(what, "add "+c.Volumes[k].String())
		}
		return strings.Join(what, ", and ") + ". " + opens
	case AddVolume:
		for k := range c.Volumes {
			what = append(what, c.Volumes[k].String())
		}
		return fmt.Sprintf("Add %s. %s", strings.Join(what, ", and "), opens)
	case AddNode:
		if c.there {
			if len(c.Labels) == 0 {
				return fmt.Sprintf("Add one node like %s, but where the pod's volumes are.", c.Node)
			}
			for _, l := range c.Labels {
				what = append(what, l.Key+"="+l.Value)
			}
			return fmt.Sprintf("Add one node like %s, but with %s.", c.Node, list(what))
		}
		return fmt.Sprintf("Add one node like %s.", c.Node)
	}
	for _, v := range c.Victims {
		name := "a pod"
		if v.Name != "" {
			name = v.Namespace + "/" + v.Name
		}
		what = append(what, fmt.Sprintf("%s (priority %d)", name, v.Priority))
	}
	violations := ""
	if c.Violations > 0 {
		violations = fmt.Sprintf(" A PodDisruptionBudget protects %d of %d.", c.Violations, len(c.Victims))
	}
	return fmt.Sprintf("Evict %s from %s, as preemption would.%s", list(what), c.Node, violations)
}

// dropped says what DropConditions drops, by where it stands.
func (c *Change) dropped() (out []string) {
	var selector, affinity []string
	term := 0 // the only one of which conditions go
	for k := range c.Conditions {
		text := engine.RequirementText(&c.Conditions[k].Requirement)
		if c.Conditions[k].Term < 0 {
			selector = append(selector, text)
		} else {
			affinity, term = append(affinity, text), c.Conditions[k].Term
		}
	}
	if len(selector) > 0 {
		out = append(out, list(selector)+" from its node selector")
	}
	switch {
	case c.AllTerms && c.Terms > 1:
		out = append(out, fmt.Sprintf("its required node affinity, all %d terms of it", c.Terms))
	case c.AllTerms:
		out = append(out, fmt.Sprintf("its required node affinity (%s)", list(affinity)))
	case len(affinity) > 0 && c.Terms > 1:
		out = append(out, fmt.Sprintf("%s from term %d of its required node affinity", list(affinity), term+1))
	case len(affinity) > 0:
		out = append(out, list(affinity)+" from its required node affinity")
	}
	return out
}

// candidates writes the best nodes with what each plugin adds: its weighted score, and how it comes about.
func (x *Explanation) candidates(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\tNODE\tTOTAL")
	for _, s := range x.Candidates[0].Scores {
		fmt.Fprintf(t, "\t%s", s.Plugin)
	}
	fmt.Fprintln(t)
	row := func(mark string, c *Candidate) {
		fmt.Fprintf(t, "%s\t%s\t%d", mark, c.Node, c.Total)
		for _, s := range c.Scores {
			fmt.Fprintf(t, "\t%d = %d x %d (raw %d)", s.Weighted(), s.Weight, s.Normalized, s.Raw)
		}
		fmt.Fprintln(t)
	}
	listed := false
	for k := range x.Candidates {
		mark := strconv.Itoa(k + 1)
		if x.Here != nil && x.Here.Node == x.Candidates[k].Node {
			mark, listed = mark+" *", true
		}
		row(mark, &x.Candidates[k])
	}
	if x.Here != nil && x.Here.Feasible && !listed {
		row("*", &x.Here.Candidate)
	}
	t.Flush() // a Builder never fails
	trimLines(b)
	if x.Here != nil {
		fmt.Fprintln(b, "* is where the pod is. Scores are as if it were not placed.")
	}
}

func list(what []string) string {
	if len(what) < 2 {
		return strings.Join(what, "")
	}
	return strings.Join(what[:len(what)-1], ", ") + " and " + what[len(what)-1]
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func nodes(n int32) string { return count(n) + plural(int(n), " node", " nodes") }

func ofNodes(some, all int32) string { return count(some) + " of " + nodes(all) }

// count writes a number with commas.
func count(n int32) string {
	s := strconv.Itoa(int(n))
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}
