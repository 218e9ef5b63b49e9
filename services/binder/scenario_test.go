package binder

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios print into their files")

// TestScenarios runs the scripts of testdata. Each line is a command; what is indented below it is what it prints.
func TestScenarios(t *testing.T) {
	for _, file := range []string{"testdata/commit.txt"} {
		t.Run(file, func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &scenario{t: t, term: pureTerm(t, nil)}
			got := s.run(string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-want +got):\n%s\nrun with -rewrite and read the difference", file, diff)
			}
		})
	}
}

type scenario struct {
	t        *testing.T
	term     *term
	offer    offer
	prepared *binderv1.CommitRequest
}

func (s *scenario) run(script string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimRight(script, "\n") + "\n") {
		if strings.HasPrefix(line, "    ") {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, printed := range s.command(strings.Fields(line)) {
			out.WriteString("    " + printed + "\n")
		}
	}
	return out.String()
}

func (s *scenario) command(words []string) []string {
	s.t.Helper()
	var names []string
	args := make(map[string]string)
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			args[key] = value
		} else {
			names = append(names, w)
		}
	}
	st := s.term.ledger.state
	switch words[0] {
	case "node":
		n := node(names[0], int64(s.number(args["cpu"])))
		n.Unschedulable = slices.Contains(names, "unschedulable")
		observe(s.t, s.term, n)
	case "remove":
		observe(s.t, s.term, source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: names[0]}})
	case "pod":
		p := pinned(pod(names[0], int64(s.number(args["cpu"]))), args["pin"])
		p.Deleting = slices.Contains(names, "deleting")
		if uid := args["uid"]; uid != "" {
			p.UID = uid
		}
		if gate := args["gate"]; gate != "" {
			p.Gates = []string{gate}
		}
		observe(s.t, s.term, p)
	case "delete":
		observe(s.t, s.term, gone(names[0]))
	case "evaluate":
		s.offer = evaluate(st, s.number(names[0]))
	case "prepare":
		s.prepared = requestOf(st, s.offer, 1, names...)
	case "commit":
		if names[0] == "prepared" {
			return s.commit(s.prepared)
		}
		attempt := int32(1)
		if a := args["attempt"]; a != "" {
			attempt = int32(s.number(a))
		}
		return s.commit(requestOf(st, s.offer, attempt, names...))
	case "bound", "forget":
		id, _ := st.PodByUID(names[0])
		b := source.Binding{UID: names[0], Node: st.Pod(id).NodeName}
		var err error
		if words[0] == "bound" {
			err = s.term.ledger.bound(b)
		} else {
			_, err = s.term.ledger.forget(b, "the script says so")
		}
		if err != nil {
			s.t.Fatal(err)
		}
	case "show":
		return s.show(st)
	default:
		s.t.Fatalf("unknown command %q", words)
	}
	return nil
}

func (s *scenario) number(text string) int {
	s.t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *scenario) commit(req *binderv1.CommitRequest) []string {
	s.t.Helper()
	resp, err := s.term.commit(req)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for i, o := range resp.Outcomes {
		line := req.Pods[i].Uid + ": " + resultText(o.Result)
		if o.Result == binderv1.Outcome_RESULT_ASSUMED || o.Result == binderv1.Outcome_RESULT_PLACED {
			line += " on " + s.term.ledger.state.Nodes.Spec[o.Node].Name
		}
		out = append(out, line)
	}
	return out
}

func (s *scenario) show(st *cluster.State) []string {
	var out []string
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if !st.Nodes.Live.Has(i) {
			continue
		}
		var pods []string
		for _, row := range st.PodsOn(i) {
			pods = append(pods, row.Name)
		}
		slices.Sort(pods)
		if len(pods) == 0 {
			pods = []string{"no pods"}
		}
		out = append(out, fmt.Sprintf("%s: %d of %d, %s", st.Nodes.Spec[i].Name,
			st.Nodes.Requested[cluster.CPU][i], st.Nodes.Allocatable[cluster.CPU][i], strings.Join(pods, " ")))
	}
	return out
}
