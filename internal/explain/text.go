package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/api/resource"

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
	if len(x.Rejections) > 0 {
		line("")
		x.rejections(&b)
		if x.Devices != "" {
			line("%s", x.Devices)
		}
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
	if x.Cause == Rejected {
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
	case NoNodes:
		return fmt.Sprintf("%s is pending because there is no node.", name)
	case Fits:
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
		says = append(says, fmt.Sprintf("%s %s", count(rejections[k].Nodes), short(&rejections[k])))
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

// short says what a plugin's rejection means, after a number of nodes.
func short(r *engine.Rejection) string {
	switch r.Plugin {
	case engine.NodeUnschedulable:
		return plural(int(r.Nodes), "is cordoned", "are cordoned")
	case engine.NodeUnsupported:
		return plural(int(r.Nodes), "is", "are") + " unsupported"
	case engine.NodeName:
		return plural(int(r.Nodes), "has another name", "have other names")
	case engine.TaintToleration:
		return plural(int(r.Nodes), "has", "have") + " a taint that it does not tolerate"
	case engine.NodeAffinity:
		return plural(int(r.Nodes), "does", "do") + " not match its node selector or affinity"
	case engine.NodePorts:
		return plural(int(r.Nodes), "has", "have") + " its host port taken"
	case engine.NodeResourcesFit:
		var what []string
		for _, reason := range r.Reasons {
			name := strings.TrimPrefix(reason.Reason, engine.ReasonInsufficient)
			if reason.Reason == engine.ReasonTooManyPods {
				name = "room for one more pod"
			}
			if !slices.Contains(what, name) {
				what = append(what, name)
			}
		}
		return plural(int(r.Nodes), "lacks ", "lack ") + strings.Join(what, " or ")
	case engine.PodTopologySpread:
		return "would break its topology spread"
	case engine.InterPodAffinity:
		return plural(int(r.Nodes), "is", "are") + " excluded by affinity or anti-affinity between pods"
	case engine.NodeDeclaredFeatures:
		return plural(int(r.Nodes), "lacks", "lack") + " a feature that it needs"
	}
	return plural(int(r.Nodes), "is", "are") + " rejected by " + r.Plugin
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
		out[k] = lackText(&m.Lacks[k], m.Blockers[k])
	}
	return out
}

// lackText says what a node lacks, with the numbers.
func lackText(l *engine.Lack, by Blocker) string {
	has := func(what string) string {
		if !l.HasValue {
			return what + " is missing"
		}
		return fmt.Sprintf("%s is %q", what, l.Value)
	}
	blocker := ""
	if by.Name != "" {
		blocker = fmt.Sprintf(" by %s/%s on %s", by.Namespace, by.Name, by.Node)
	}
	switch {
	case l.Resource == "pods":
		return fmt.Sprintf("pods: %d of %d are taken", l.Capacity-l.Free, l.Capacity)
	case l.Resource != "":
		return fmt.Sprintf("%s: requests %s, %s free of %s", l.Resource, amount(l.Resource, l.Requested), amount(l.Resource, l.Free), amount(l.Resource, l.Capacity))
	case l.Taint != nil:
		return fmt.Sprintf("taint %s is not tolerated", taintText(*l.Taint))
	case l.Plugin == engine.NodeAffinity && l.Wanted == nil:
		return "no required node affinity term can match any node"
	case l.Plugin == engine.NodeAffinity && l.Field:
		return "wanted: " + requirementText(l.Wanted)
	case l.Plugin == engine.NodeAffinity:
		of := ""
		if l.Reason == engine.ReasonNodeAffinityEnforced {
			of = " by the profile"
		}
		return fmt.Sprintf("%s, wanted%s: %s", has("label "+l.Wanted.Key), of, requirementText(l.Wanted))
	case l.Port != nil:
		return fmt.Sprintf("host port %s is taken%s", portText(l.Port), blocker)
	case l.Feature != "":
		return fmt.Sprintf("feature %s is not declared", l.Feature)
	case l.Name != "":
		return fmt.Sprintf("the pod asks for the node %s", l.Name)
	case l.NoKey:
		return fmt.Sprintf("label %s is missing, and the pod's %s needs it", l.TopologyKey, ruleOf(l))
	case l.Plugin == engine.PodTopologySpread:
		with := ""
		if l.Self {
			with = " and would have one more"
		}
		return fmt.Sprintf("topology spread over %s: %q has %d matching %s%s, the least of all domains is %d, and maxSkew is %d",
			l.TopologyKey, l.Value, l.Count, plural(int(l.Count), "pod", "pods"), with, l.Least, l.Spread.MaxSkew)
	case l.Reason == engine.ReasonAffinity:
		return fmt.Sprintf("affinity: no pod that matches %s is in %s=%s", termsText(l.Terms), l.TopologyKey, l.Value)
	case l.Reason == engine.ReasonAntiAffinity:
		return fmt.Sprintf("anti-affinity of the pod: %s in %s=%s%s", termsText(l.Terms), l.TopologyKey, l.Value, kept(by))
	case l.Reason == engine.ReasonExistingAntiAffinity:
		return fmt.Sprintf("anti-affinity of a placed pod against %s in %s=%s%s", termsText(l.Terms), l.TopologyKey, l.Value, kept(by))
	case l.Plugin == engine.NodeUnschedulable:
		return "the node is cordoned"
	case l.Plugin == engine.NodeUnsupported:
		return "the node is unsupported: its events say why"
	}
	return l.Reason
}

func kept(by Blocker) string {
	if by.Name == "" {
		return ""
	}
	return fmt.Sprintf(": %s/%s on %s", by.Namespace, by.Name, by.Node)
}

func ruleOf(l *engine.Lack) string {
	if l.Plugin == engine.PodTopologySpread {
		return "topology spread"
	}
	return "affinity"
}

func taintText(t cluster.Taint) string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

func portText(p *cluster.HostPort) string {
	if p.IP == "0.0.0.0" {
		return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return fmt.Sprintf("%s:%d/%s", p.IP, p.Port, p.Protocol)
}

// requirementText writes a requirement as a label selector.
func requirementText(r *cluster.Requirement) string {
	switch r.Operator {
	case "In":
		if len(r.Values) == 1 {
			return r.Key + "=" + r.Values[0]
		}
		return r.Key + " in (" + strings.Join(r.Values, ", ") + ")"
	case "NotIn":
		return r.Key + " not in (" + strings.Join(r.Values, ", ") + ")"
	case "Exists":
		return r.Key
	case "DoesNotExist":
		return "!" + r.Key
	case "Gt":
		return r.Key + ">" + strings.Join(r.Values, ", ")
	case "Lt":
		return r.Key + "<" + strings.Join(r.Values, ", ")
	}
	return r.Key + " " + r.Operator + " " + strings.Join(r.Values, ", ")
}

func termsText(terms []cluster.PodTerm) string {
	var out []string
	for k := range terms {
		var of []string
		for r := range terms[k].Selector.Requirements {
			of = append(of, requirementText(&terms[k].Selector.Requirements[r]))
		}
		switch {
		case terms[k].Selector.Nothing:
			of = []string{"nothing"}
		case len(of) == 0:
			of = []string{"every pod"}
		}
		out = append(out, strings.Join(of, ","))
	}
	return strings.Join(out, " and ")
}

// amount writes a quantity as Kubernetes does.
func amount(name string, value int64) string {
	switch {
	case name == "cpu":
		return resource.NewMilliQuantity(value, resource.DecimalSI).String()
	case name == "memory", name == "ephemeral-storage", strings.HasPrefix(name, "hugepages-"):
		return resource.NewQuantity(value, resource.BinarySI).String()
	}
	return strconv.FormatInt(value, 10)
}

// help writes what would help.
func (x *Explanation) help(b *strings.Builder) {
	switch len(x.Changes) {
	case 0:
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
			what = append(what, fmt.Sprintf("%s from %s to %s", r.Resource, amount(r.Resource, r.From), amount(r.Resource, r.To)))
		}
		return fmt.Sprintf("Request less: %s. %s", strings.Join(what, ", "), opens)
	case Tolerate:
		for _, t := range c.Tolerations {
			what = append(what, taintText(cluster.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}))
		}
		return fmt.Sprintf("Tolerate %s. %s", list(what), opens)
	case DropConditions:
		for k := range c.Conditions {
			what = append(what, requirementText(&c.Conditions[k].Requirement))
		}
		from := "node selector"
		if c.Conditions[0].Term >= 0 {
			from = "required node affinity"
		}
		return fmt.Sprintf("Drop %s from its %s. %s", list(what), from, opens)
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
			what = append(what, taintText(t))
		}
		return fmt.Sprintf("Remove %s %s from %s.", plural(len(what), "taint", "taints"), list(what), c.Node)
	case AddNode:
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
