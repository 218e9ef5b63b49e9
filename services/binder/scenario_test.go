package binder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/test/bubble"
)

// TestScenarios runs the scripts of testdata: comments, commands one per line, "----", and what the commands print, up to an
// empty line. With -rewrite, what they print is written into the files.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		bubble.Test(t, func(t *testing.T) {
			src := newFakeSource()
			s := &scenario{t: t, src: src, term: pureTerm(t, src)}
			datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
				var printed []string
				for _, words := range clustertest.Commands(d.FullCmd(), d.Input) {
					printed = append(printed, s.command(words)...)
				}
				return strings.Join(printed, "\n")
			})
		})
	})
}

type scenario struct {
	t        *testing.T
	src      *fakeSource
	term     *term
	offer    offer
	prepared *binderv1.CommitRequest
	told     int  // evictions printed before
	read     mark // of the log
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
		p := requiring(pod(names[0], int64(s.number(args["cpu"]))), args["required-node"])
		p.Deleting = slices.Contains(names, "deleting")
		p.NodeName, p.Nominated = args["on"], args["nominated"]
		if value := args["app"]; value != "" {
			p = app(p, value)
		}
		if priority := args["priority"]; priority != "" {
			p.Priority = int32(s.number(priority))
		}
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
			_, _, err = s.term.ledger.forget(b, "the script says so", noNode)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	case "budget":
		apps := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{args["app"]}}}}
		observe(s.t, s.term, source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "default", Name: "b", Selector: apps}})
	case "preempt":
		return s.preempt(names[0], args)
	case "refuse":
		s.src.change(func() {
			s.src.refuse = func(e source.Eviction) error {
				if slices.Contains(names, e.Name) {
					return errFake
				}
				return nil
			}
		})
	case "evict":
		return s.evict()
	case "reports":
		return s.reports()
	case "log":
		return s.log()
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

// preempt asks for a preemption at this version.
func (s *scenario) preempt(name string, args map[string]string) []string {
	s.t.Helper()
	st := s.term.ledger.state
	s.read = s.term.mark()
	req := preemptOf(st, name, args["on"], strings.Split(args["victims"], ",")...)
	if n := args["attempt"]; n != "" {
		req.Attempt = int32(s.number(n))
	}
	if n := args["claim"]; n != "" {
		req.ShardRevision = int64(s.number(n))
	}
	if n := args["violations"]; n != "" {
		req.Candidate.Violations = int32(s.number(n))
	}
	resp, err := s.term.preempt(req)
	if err != nil {
		return []string{fmt.Sprintf("%v %s", status.Code(err), rpc.ReasonOf(err))}
	}
	return []string{strings.ToLower(strings.TrimPrefix(resp.Result.String(), "RESULT_"))}
}

// preemptOf asks for a preemption by its names at a state's version.
func preemptOf(st *cluster.State, name, on string, victims ...string) *binderv1.PreemptRequest {
	id := func(uid string) int32 {
		if id, ok := st.PodByUID(uid); ok {
			return int32(id)
		}
		return 1000
	}
	req := &binderv1.PreemptRequest{
		ShardRevision: 1, Version: wire.ToVersion(st.Version()), Attempt: 1,
		Pod:       &binderv1.PodReport{Id: id(name), Uid: name, Reason: "Unschedulable", Message: "no room"},
		Candidate: &filterv1.PreemptionCandidate{Node: int32(st.Nodes.ByName(on))},
	}
	for _, v := range victims {
		req.Candidate.Victims = append(req.Candidate.Victims, id(v))
	}
	return req
}

// evict carries out the preemptions that wait, and prints what the source was asked.
func (s *scenario) evict() []string {
	s.t.Helper()
	for p, of := s.term.preemptions.next(); of != nil; p, of = s.term.preemptions.next() {
		if err := s.term.carryOut(s.t.Context(), p); err != nil {
			s.t.Fatal(err)
		}
		s.term.preempting.giveAll(p.of)
		s.term.preemptions.done(of)
	}
	var names []string
	for _, e := range s.src.evicted[s.told:] {
		names = append(names, e.Name+" for "+e.PreemptorName)
	}
	s.told = len(s.src.evicted)
	slices.Sort(names)
	var out []string
	for i, name := range names {
		if i > 0 && names[i-1] == name {
			out[len(out)-1] += ", again"
		} else {
			out = append(out, "evicted "+name)
		}
	}
	return append(out, s.log()...)
}

// reports empties the report lane.
func (s *scenario) reports() (out []string) {
	for {
		r, ok := s.term.reports.next()
		if !ok {
			return out
		}
		line := r.Name + ":"
		if r.Reason != "" {
			line += fmt.Sprintf(" %s: %s", r.Reason, r.Message)
		}
		if r.Nominate {
			line += fmt.Sprintf(" (nominated to %q)", r.Nominated)
		}
		out = append(out, line)
		s.term.reports.written(r.UID)
	}
}

// log prints what followers have been told since it was printed last.
func (s *scenario) log() (out []string) {
	st := s.term.ledger.state
	name := func(id cluster.PodID) string {
		if row := st.Pod(id); row != nil {
			return row.Name
		}
		return "?"
	}
	names := func(ids []cluster.PodID) string {
		var out []string
		for _, id := range ids {
			out = append(out, name(id))
		}
		return strings.Join(out, " ")
	}
	for _, d := range logSince(s.t, s.term, s.read) {
		line := strings.TrimPrefix(fmt.Sprintf("%T", d), "cluster.")
		switch d := d.(type) {
		case cluster.PodNominated:
			line += fmt.Sprintf(" %s to %q", name(d.ID), d.Node)
		case cluster.PreemptionStarted:
			line += fmt.Sprintf(" for %s on %s: %s", name(d.ID), st.Nodes.Spec[d.Node].Name, names(d.Victims))
		case cluster.PreemptionEnded:
			line += " for " + name(d.ID)
			if d.Failed {
				line += ", to be tried again"
			}
			if len(d.Spared) > 0 {
				line += ", spared: " + names(d.Spared)
			}
		case cluster.PodSet:
			line += " " + name(d.ID)
		}
		out = append(out, "log: "+line)
	}
	s.read = s.term.mark()
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
			pod := row.Name
			if row.Victim {
				pod += "(victim)"
			}
			pods = append(pods, pod)
		}
		slices.Sort(pods)
		if len(pods) == 0 {
			pods = []string{"no pods"}
		}
		for _, id := range st.NominatedOn(st.Nodes.Spec[i].Name) {
			pod := st.Pod(id).Name + "(nominated)"
			if st.Pod(id).Preempting {
				pod = st.Pod(id).Name + "(preempting)"
			}
			pods = append(pods, pod)
		}
		out = append(out, fmt.Sprintf("%s: %d of %d, %s", st.Nodes.Spec[i].Name,
			st.Nodes.Requested[cluster.CPU][i], st.Nodes.Allocatable[cluster.CPU][i], strings.Join(pods, " ")))
	}
	return out
}
