package cluster_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// TestScenarios runs testdata/*.txt. A file is a story in paragraphs: comments, commands one per line, "----", and what the
// commands print, up to an empty line. The state lives from paragraph to paragraph. With -rewrite, what they print is written into
// the files.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t, st: cluster.New(start)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var printed []string
			for _, words := range clustertest.Commands(d.FullCmd(), d.Input) {
				printed = append(printed, s.run(words)...)
			}
			if err := clustertest.Recompute(s.st); err != nil {
				d.Fatalf(t, "after %s\n%v", d, err)
			}
			return strings.Join(printed, "\n")
		})
	})
}

type scenario struct {
	t  *testing.T
	st *cluster.State
}

// run runs one command and returns what it prints: for a delta nothing, unless it is refused.
func (s *scenario) run(words []string) []string {
	switch words[0] {
	case "show":
		return s.show(words[1])
	case "changed-since":
		var names []string
		s.st.Nodes.ChangedSince(cluster.Seq(s.number(words[1])), cluster.Range{End: 1 << 20}, func(i cluster.NodeIndex) {
			names = append(names, fmt.Sprint(i))
		})
		if names == nil {
			return []string{"no node has changed"}
		}
		return []string{"changed: " + strings.Join(names, " ")}
	case "restore-from-snapshot":
		other := restored(s.t, s.st)
		same := other.Digest() == s.st.Digest() && clustertest.Dump(other) == clustertest.Dump(s.st)
		s.st = other
		return []string{fmt.Sprintf("the same state: %v", same)}
	}
	if err := s.st.Apply(s.delta(words)); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func (s *scenario) number(word string) int64 {
	n, err := strconv.ParseInt(word, 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// delta reads a delta, such as "node 0 is node-a cpu=4000 taint=k:v:NoSchedule".
func (s *scenario) delta(words []string) cluster.Delta {
	a := s.arguments(words)
	switch words[0] {
	case "settings":
		return cluster.SettingsSet{Settings: cluster.Settings{Shards: int32(s.number(a.take("shards", "0"))), Seed: uint64(s.number(a.take("seed", "0")))}}
	case "class":
		c := cluster.ClassSpec{SchedulerName: "berth"}
		for _, word := range a.all("port") {
			c.HostPorts = append(c.HostPorts, cluster.HostPort{IP: "0.0.0.0", Protocol: "TCP", Port: int32(s.number(word))})
		}
		c.Requests = a.quantities()
		for _, q := range c.Requests {
			switch q.Name {
			case "cpu":
				c.NonZeroCPU = q.Value
			case "memory":
				c.NonZeroMemory = q.Value
			}
		}
		return cluster.ClassDefined{ID: cluster.ClassID(a.id), Spec: c}
	case "node":
		n := cluster.Node{Name: a.name, Unschedulable: a.take("cordoned", "no") == "yes"}
		n.Labels = a.labels()
		for _, word := range a.all("taint") {
			parts := strings.SplitN(word, ":", 3)
			n.Taints = append(n.Taints, cluster.Taint{Key: parts[0], Value: parts[1], Effect: parts[2]})
		}
		for _, word := range a.all("image") {
			name, size, _ := strings.Cut(word, ":")
			n.Images = append(n.Images, cluster.Image{Names: []string{name}, Size: s.number(size)})
		}
		n.Allocatable = a.quantities()
		return cluster.NodeSet{Index: cluster.NodeIndex(a.id), Node: n}
	case "node-removed":
		return cluster.NodeRemoved{Index: cluster.NodeIndex(a.id)}
	case "namespace":
		key, value, _ := strings.Cut(a.take("label", "team:none"), ":")
		return cluster.NamespaceSet{Name: words[1], Labels: []cluster.Label{{Key: key, Value: value}}}
	case "namespace-removed":
		return cluster.NamespaceRemoved{Name: words[1]}
	case "labels":
		set := cluster.LabelSet{Namespace: "default", Labels: a.labels()}
		set.Controller.Kind, set.Controller.Name, _ = strings.Cut(a.take("controller", ""), ":")
		return cluster.LabelsDefined{ID: cluster.LabelsID(a.id), Set: set}
	case "selector":
		d := cluster.SelectorSet{Kind: words[1], Namespace: "default", Name: a.name}
		for _, l := range a.labels() {
			d.Selector.Requirements = append(d.Selector.Requirements, cluster.Requirement{Key: l.Key, Operator: "In", Values: []string{l.Value}})
		}
		return d
	case "selector-removed":
		return cluster.SelectorRemoved{Kind: words[1], Namespace: "default", Name: a.name}
	case "pod":
		return cluster.PodSet{ID: cluster.PodID(a.id), Assumed: a.take("assumed", "no") == "yes", Pod: cluster.Pod{
			UID: a.name, Namespace: "default", Name: a.name, Class: cluster.ClassID(s.number(a.take("class", "1"))),
			NodeName: a.take("on", ""), Deleting: a.take("deleting", "no") == "yes",
			Labels: cluster.LabelsID(s.number(a.take("labels", "0"))), Nominated: a.take("nominated", ""),
		}}
	case "nominated":
		return cluster.PodNominated{ID: cluster.PodID(a.id), Node: a.name}
	case "preemption":
		d := cluster.PreemptionStarted{ID: cluster.PodID(a.id), Node: cluster.NodeIndex(s.number(a.take("at", "0")))}
		for _, id := range a.all("victim") {
			d.Victims = append(d.Victims, cluster.PodID(s.number(id)))
		}
		return d
	case "preemption-ended":
		d := cluster.PreemptionEnded{ID: cluster.PodID(a.id)}
		for _, id := range a.all("spared") {
			d.Spared = append(d.Spared, cluster.PodID(s.number(id)))
		}
		d.Failed = len(d.Spared) > 0
		return d
	case "budget":
		b := cluster.Budget{Namespace: "default", Name: words[1], Allowed: int32(s.number(a.take("allowed", "0"))), Disrupted: a.all("disrupted")}
		for _, l := range a.labels() {
			b.Selector.Requirements = append(b.Selector.Requirements, cluster.Requirement{Key: l.Key, Operator: "In", Values: []string{l.Value}})
		}
		return cluster.ObjectSet{Object: &b}
	case "budget-removed":
		return cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.BudgetKind, Namespace: "default", Name: words[1]}}
	case "assumed":
		return cluster.PodAssumed{ID: cluster.PodID(a.id), Node: cluster.NodeIndex(s.number(a.take("at", "0"))), Attempt: int32(s.number(a.take("attempt", "1")))}
	case "bound":
		return cluster.PodBound{ID: cluster.PodID(a.id)}
	case "forgotten":
		return cluster.PodForgotten{ID: cluster.PodID(a.id), Reason: "conflict"}
	case "pod-removed":
		return cluster.PodRemoved{ID: cluster.PodID(a.id)}
	}
	s.t.Fatalf("unknown command %q", words)
	return nil
}

// arguments are the words behind a command: a number, "is" and a name, and key=value in any order.
type arguments struct {
	s     *scenario
	id    int64
	name  string
	pairs [][2]string
}

func (s *scenario) arguments(words []string) *arguments {
	a := &arguments{s: s}
	for i, word := range words[1:] {
		key, value, paired := strings.Cut(word, "=")
		switch {
		case paired:
			a.pairs = append(a.pairs, [2]string{key, value})
		case word == "is":
		case i == 0 && !strings.HasPrefix(words[0], "namespace") && !strings.HasPrefix(words[0], "selector") && !strings.HasPrefix(words[0], "budget"):
			a.id = s.number(word)
		default:
			a.name = word
		}
	}
	return a
}

// all takes the values of a key away.
func (a *arguments) all(key string) []string {
	var values []string
	a.pairs = slices.DeleteFunc(a.pairs, func(p [2]string) bool {
		if p[0] == key {
			values = append(values, p[1])
		}
		return p[0] == key
	})
	return values
}

func (a *arguments) take(key, unset string) string {
	if values := a.all(key); len(values) > 0 {
		return values[0]
	}
	return unset
}

// labels are the values of label=key:value.
func (a *arguments) labels() []cluster.Label {
	var labels []cluster.Label
	for _, word := range a.all("label") {
		key, value, _ := strings.Cut(word, ":")
		labels = append(labels, cluster.Label{Key: key, Value: value})
	}
	return labels
}

// quantities are all pairs that are left.
func (a *arguments) quantities() []cluster.Quantity {
	var out []cluster.Quantity
	for _, p := range a.pairs {
		out = append(out, cluster.Quantity{Name: p[0], Value: a.s.number(p[1])})
	}
	slices.SortFunc(out, func(a, b cluster.Quantity) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *scenario) show(what string) []string {
	st := s.st
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch what {
	case "version":
		add("version %v", st.Version())
	case "settings":
		add("%d shards, seed %d", st.Settings.Shards, st.Settings.Seed)
	case "classes":
		for _, c := range st.Classes() {
			add("class %d has %d pods", c.ID, c.Pods)
		}
	case "nodes":
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			add("%s", s.node(i))
		}
	case "images":
		for sym := range cluster.Symbol(st.Symbols.Len()) {
			if image := st.Image(sym); image.Nodes > 0 {
				add("%s: %d bytes, on %d nodes", st.Symbols.Text(sym), image.Size, image.Nodes)
			}
		}
		add("images last changed at %d", st.ImagesModified)
	case "namespaces":
		for _, name := range []string{"dev", "prod"} {
			if labels, known := st.Namespace(name); known {
				add("%s %v", name, labels)
			}
		}
	case "labels":
		for _, l := range st.LabelSets() {
			add("label set %d %v has %d pods", l.ID, l.Labels, l.Pods)
		}
	case "selectors":
		for d := range st.Snapshot() {
			if d, ok := d.(cluster.SelectorSet); ok {
				add("%s %s selects %v", d.Kind, d.Name, d.Selector.Requirements)
			}
		}
		add("last changed at %d", st.SelectorsModified("default"))
	case "budgets":
		for d := range st.Objects() {
			b := d.Object.(*cluster.Budget)
			add("%s protects %v, %d may go", b.Name, b.Selector.Requirements, b.Allowed)
			for _, l := range st.LabelSets() {
				add("  pod-a with label set %d: %v", l.ID, b.Protects("pod-a", &l.LabelSet))
			}
		}
		add("last changed at %d", st.ObjectsModified(cluster.BudgetKind))
	case "nominations":
		for _, node := range slices.Sorted(st.NominatedNodes()) {
			add("nominated to %s: pods %v", node, st.NominatedOn(node))
		}
	case "pods":
		for id, p := range st.Pods() {
			add("pod %d %s: %s", id, p.Name, place(p))
		}
		add("%d pending, %d assumed, %d bound; next id %d",
			st.Count(cluster.Pending), st.Count(cluster.Assumed), st.Count(cluster.Bound), st.FreePod())
	default:
		s.t.Fatalf("show what? %q", what)
	}
	if lines == nil {
		lines = []string{"none"}
	}
	return lines
}

func place(p *cluster.PodRow) string {
	text := p.Phase.String()
	if p.Placed() {
		text += " on " + p.NodeName
		if p.Node == cluster.NoNode {
			text += ", which is not known"
		}
	}
	if p.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d", p.Attempt)
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{p.Deleting, "deleting"}, {p.Preempting, "preempting"}, {p.Victim, "a victim"}} {
		if flag.set {
			text += ", " + flag.text
		}
	}
	return text
}

func (s *scenario) node(i cluster.NodeIndex) string {
	n := &s.st.Nodes
	if !n.Live.Has(i) {
		return fmt.Sprintf("%d: no node", i)
	}
	text := fmt.Sprintf("%d: %s requested cpu %d/%d memory %d/%d pods %d/%d",
		i, n.Spec[i].Name, n.Requested[cluster.CPU][i], n.Allocatable[cluster.CPU][i],
		n.Requested[cluster.Memory][i], n.Allocatable[cluster.Memory][i], n.PodCount[i], n.AllowedPods[i])
	for r := range s.st.Resources() {
		if id := cluster.ResourceID(r); id > cluster.EphemeralStorage && n.Requested[id][i]+n.Allocatable[id][i] > 0 {
			text += fmt.Sprintf(" %s %d/%d", s.st.ResourceName(id), n.Requested[id][i], n.Allocatable[id][i])
		}
	}
	for _, p := range n.Ports[i] {
		text += fmt.Sprintf(", port %d of %d pods", p.Port, p.Count)
	}
	for _, l := range n.Labels[i] {
		text += fmt.Sprintf(", label %s=%s", s.st.Symbols.Text(l.Key), s.st.Symbols.Text(l.Value))
	}
	for _, taint := range n.Taints(i) {
		text += fmt.Sprintf(", taint %s=%s effect %d", s.st.Symbols.Text(taint.Key), s.st.Symbols.Text(taint.Value), taint.Effect)
	}
	if n.Unschedulable.Has(i) {
		text += ", cordoned"
	}
	return text
}
