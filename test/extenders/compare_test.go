//go:build extenders

package extenders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// outcome is what has become of a scene with a scheduler.
type outcome struct {
	asked  []exchange
	pods   map[string]*corev1.Pod
	bound  map[string][]string       // who has bound each pod, by the user agent
	totals map[string]map[string]int // of kube-scheduler, by pod and node
	url    string                    // of the proxy
}

// why is what a pod without a node is told. The proxy's address is another each time.
func (o *outcome) why(pod string) string {
	return strings.ReplaceAll(whyNot(o.pods[pod]), o.url, "URL")
}

// leastMargin is by how much the total of the node that is chosen is above all others, at the least. Pods which an extender does not concern are placed meanwhile by
// Berth, and not in turn: what is on a node then must not decide.
const leastMargin = 5

// outcome waits until each pod has been tried.
func (r *run) outcome(t *testing.T) *outcome {
	t.Helper()
	o := &outcome{pods: r.settled(t), asked: r.proxy.take(t), bound: r.binders(t), url: r.url}
	if r.who == theirs {
		o.totals = r.totals(t)
	}
	return o
}

// questions returns what was asked, in the order in which it was first asked. What is asked again is there once: Berth asks again if the node that is best has
// changed meanwhile, by the bind of a pod there. Of a pod that has no node, it is what was asked at its first attempt: then it has a condition with a time.
func (o *outcome) questions() (out []exchange) {
	seen, tried := make(map[string]bool), make(map[string]bool)
	for _, e := range o.asked {
		again := o.pods[e.pod].Spec.NodeName == "" && tried[e.pod]
		if key := e.Path + e.Body; !again && !seen[key] {
			seen[key], tried[e.pod] = true, true
			out = append(out, e)
		}
	}
	return out
}

// indented is a question's text, a line a field, for people to see a difference.
func (q question) indented() string {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s %s, %d bytes\n%v\n", q.Method, q.Path, q.Proto, q.Length, q.Header)
	if err := json.Indent(&out, []byte(q.Body), "", " "); err != nil {
		out.WriteString(q.Body)
	}
	return out.String()
}

// compare holds what Berth has done against what kube-scheduler has, and prints a row for each pod of a scene. Interesting are the pods that interest the extender.
func compare(t *testing.T, s *scene, interesting int, want, got *outcome) {
	t.Helper()
	// 1. The same was asked, in the same order.
	wanted, asked := want.questions(), got.questions()
	same := make(map[string]bool)
	for i := range max(len(wanted), len(asked)) {
		switch {
		case i >= len(asked):
			t.Errorf("Berth has not asked to %s of %s", wanted[i].verb(), wanted[i].pod)
		case i >= len(wanted):
			t.Errorf("Berth asks to %s of %s, and kube-scheduler does not", asked[i].verb(), asked[i].pod)
		case cmp.Equal(wanted[i].question, asked[i].question):
			same[wanted[i].pod+" "+wanted[i].verb()] = true
		default:
			diff := cmp.Diff(wanted[i].indented(), asked[i].indented())
			t.Errorf("question %d, to %s of %s (-kube-scheduler +Berth):\n%.4000s", i, wanted[i].verb(), wanted[i].pod, diff)
		}
	}
	// 2. The same nodes were chosen, but for those that are to be others, and none of these was near a tie.
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	fmt.Fprintln(rows, "pod\tkube-scheduler asks\tBerth asks\tnodes\tbest totals\tkube-scheduler\tBerth\tbound there by\there by\twritten")
	about := make(map[string]bool)
	for _, p := range s.pods {
		theirs, ours := want.pods[p.Name], got.pods[p.Name]
		var verbs, repeated []string
		nodes := "-"
		for _, e := range wanted {
			if e.pod != p.Name {
				continue
			}
			about[p.Name] = true
			verbs = append(verbs, fmt.Sprintf("%s %d B", e.verb(), len(e.Body)))
			is := "other bytes"
			if same[e.pod+" "+e.verb()] {
				is = "same bytes"
			}
			repeated = append(repeated, is)
			if e.nodes > 0 && nodes == "-" {
				nodes = fmt.Sprintf("%d, %d left", e.nodes, e.left)
			}
		}
		scores := slices.Sorted(maps.Values(want.totals[p.Name]))
		slices.Reverse(scores)
		if len(scores) > 1 && scores[0]-scores[1] < leastMargin && theirs.Spec.NodeName != "" {
			t.Errorf("the nodes of %s were nearly a tie: %v. Draw the cluster otherwise", p.Name, want.totals[p.Name])
		}
		otherwise, differs := s.differs[p.Name]
		if theirs.Spec.NodeName == ours.Spec.NodeName && differs || theirs.Spec.NodeName != ours.Spec.NodeName && ours.Spec.NodeName != otherwise {
			t.Errorf("%s is on %q with kube-scheduler, and on %q with Berth", p.Name, theirs.Spec.NodeName, ours.Spec.NodeName)
		}
		if why, is := want.why(p.Name), got.why(p.Name); why != is {
			t.Errorf("why %s has no node:\nkube-scheduler: %s\nBerth:          %s", p.Name, why, is)
		}
		node := or(ours.Spec.NodeName)
		if differs {
			node += " (as documented)"
		}
		written := ""
		if s.shows != nil {
			if written = s.shows(theirs); written != s.shows(ours) {
				t.Errorf("the extender has written into %s: %s with kube-scheduler, and %s with Berth", p.Name, written, s.shows(ours))
			}
		}
		fmt.Fprintf(rows, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\t%s\n", p.Name, strings.Join(verbs, ", "), strings.Join(repeated, ", "), nodes, scores[:min(len(scores), 3)],
			or(theirs.Spec.NodeName), node, or(strings.Join(want.bound[p.Name], " ")), or(strings.Join(got.bound[p.Name], " ")), written)
	}
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s%d questions of kube-scheduler, %d of them asked by Berth in the same order with the same bytes", table.String(), len(wanted), len(same))
	if len(about) != interesting {
		t.Errorf("%d pods interest the extender, want %d", len(about), interesting)
	}
}

func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
