package pending

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// TestScenarios runs the scripts of testdata: comments, commands one per line, "----", and what the commands print, up to an
// empty line. With -rewrite, what they print is written into the files.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newScenario(t)
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			var printed []string
			for _, words := range clustertest.Commands(d.FullCmd(), d.Input) {
				printed = append(printed, s.command(words)...)
			}
			return strings.Join(printed, "\n")
		})
	})
}

type scenario struct {
	t        *testing.T
	st       *cluster.State
	queue    *Queue
	start    time.Time
	now      time.Time
	attempts map[string]Attempt // by pod, the latest
	popped   map[string]cluster.Version
	classes  map[int64]cluster.ClassID
	heard    []string // by the observer, since it was asked last
}

func (s *scenario) Incoming(_ *cluster.Pod, to Place, event string) {
	s.heard = append(s.heard, fmt.Sprintf("%v: %s", to, event))
}

func (s *scenario) Scheduled(attempts int32, took time.Duration, flushed bool) {
	line := fmt.Sprintf("scheduled: attempt %d, %v after it was active", attempts, took)
	if flushed {
		line += ", thanks to the flush"
	}
	s.heard = append(s.heard, line)
}

func (s *scenario) Unresolved() { s.heard = append(s.heard, "unresolved") }

func newScenario(t *testing.T) *scenario {
	start := time.Unix(1_700_000_000, 0)
	s := &scenario{
		t: t, st: cluster.New(cluster.Version{Epoch: 1}), queue: NewQueue(0, newCPUJudge()), start: start, now: start,
		attempts: make(map[string]Attempt), popped: make(map[string]cluster.Version), classes: make(map[int64]cluster.ClassID),
	}
	s.queue.Observe(s)
	s.apply(settings(1))
	return s
}

func (s *scenario) apply(d cluster.Delta) {
	s.t.Helper()
	if err := s.st.Apply(d); err != nil {
		s.t.Fatal(err)
	}
	s.queue.Apply(s.now, s.st, d)
	s.queue.Recheck(s.now, s.st)
}

func (s *scenario) command(words []string) []string {
	s.t.Helper()
	name := ""
	if len(words) > 1 {
		name = words[1]
	}
	args := make(map[string]string)
	for _, w := range words[min(2, len(words)):] {
		key, value, _ := strings.Cut(w, "=")
		args[key] = value
	}
	switch words[0] {
	case "at":
		d, err := time.ParseDuration(name)
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.start.Add(d)
	case "node":
		at := s.st.Nodes.ByName(name)
		if at == cluster.NoNode {
			at = s.st.Nodes.Free()
		}
		s.apply(cluster.NodeSet{Index: at, Node: cluster.Node{Name: name, Allocatable: cpu(number(s.t, args["cpu"]))}})
	case "pod":
		s.setPod(name, args)
	case "gone":
		s.apply(cluster.PodRemoved{ID: s.pod(name)})
	case "pop":
		s.queue.Recheck(s.now, s.st)
		var names []string
		for _, a := range s.queue.Pop(s.now, int(number(s.t, name))) {
			pod := s.st.Pod(a.ID).Name
			s.attempts[pod], s.popped[pod] = a, s.st.Version()
			names = append(names, fmt.Sprintf("%s, attempt %d", pod, a.Number))
		}
		if names == nil {
			names = []string{"nothing is ready"}
		}
		return names
	case "unschedulable":
		s.queue.Reject(s.now, s.st, s.attempts[name], Diagnosis{Version: s.popped[name]})
	case "activate":
		return []string{map[bool]string{true: "yes", false: "no"}[s.queue.Activate(s.now, s.pod(name))]}
	case "preempt":
		at := s.st.Nodes.ByName(args["node"])
		var victims []cluster.PodID
		for id, row := range s.st.PodsOn(at) {
			if row.Priority < s.st.Pod(s.pod(name)).Priority {
				victims = append(victims, id)
			}
		}
		s.apply(cluster.PreemptionStarted{ID: s.pod(name), Node: at, Victims: victims})
	case "evicted":
		s.apply(cluster.PreemptionEnded{ID: s.pod(name)})
	case "spared":
		d := cluster.PreemptionEnded{ID: s.pod(name), Failed: true}
		for id, row := range s.st.Pods() {
			if row.Victim {
				d.Spared = append(d.Spared, id)
			}
		}
		s.apply(d)
	case "nominated":
		s.apply(cluster.PodNominated{ID: s.pod(name), Node: args["node"]})
	case "floor":
		if floor, ok := s.queue.PriorityFloor(); ok {
			return []string{fmt.Sprint(floor)}
		}
		return []string{"none"}
	case "next":
		at, ok := s.queue.Next()
		switch {
		case !ok:
			return []string{"not by time alone"}
		case !at.After(s.now):
			return []string{"now"}
		}
		return []string{fmt.Sprint(at.Sub(s.start).Round(time.Second))}
	case "heard":
		heard := s.heard
		s.heard = nil
		if heard == nil {
			return []string{"nothing"}
		}
		return heard
	case "retry":
		s.queue.Retry(s.now, s.attempts[name])
	case "error":
		s.queue.Fail(s.now, s.attempts[name], "an error")
	case "assumed":
		s.apply(cluster.PodAssumed{ID: s.pod(name), Node: s.st.Nodes.ByName(args["node"]), Attempt: s.attempts[name].Number})
	case "bound":
		s.apply(cluster.PodBound{ID: s.pod(name)})
	case "forgotten":
		s.apply(cluster.PodForgotten{ID: s.pod(name), Reason: "bind refused"})
	case "rebuild":
		s.queue = NewQueue(0, newCPUJudge())
		s.queue.Observe(s)
		s.queue.Reset(s.now, s.st)
	case "show":
		return s.show()
	default:
		s.t.Fatalf("unknown command %q", words[0])
	}
	return nil
}

func (s *scenario) pod(name string) cluster.PodID {
	id, ok := s.st.PodByUID(name)
	if !ok {
		s.t.Fatalf("no pod %q", name)
	}
	return id
}

func (s *scenario) setPod(name string, args map[string]string) {
	milli := number(s.t, args["cpu"])
	class, ok := s.classes[milli]
	if !ok || s.st.Class(class) == nil {
		class = cluster.ClassID(s.st.Version().Seq)
		s.classes[milli] = class
		s.apply(cluster.ClassDefined{ID: class, Spec: cpuClass(milli)})
	}
	pod := cluster.Pod{UID: name, Name: name, Class: class, RequiredNode: args["required-node"], NodeName: args["node"], Created: s.now.UnixNano()}
	if args["priority"] != "" {
		pod.Priority = int32(number(s.t, args["priority"]))
	}
	if args["gate"] != "" {
		pod.Gates = []string{args["gate"]}
	}
	id, known := s.st.PodByUID(name)
	if known {
		pod.Created = s.st.Pod(id).Created
	} else {
		id = s.st.FreePod()
	}
	s.apply(cluster.PodSet{ID: id, Pod: pod})
}

func (s *scenario) show() []string {
	var lines []string
	for e := range s.queue.Entries(s.queue.IDs()) {
		line := fmt.Sprintf("%s: %v", e.Pod.Name, e.Place)
		if !e.BackoffUntil.IsZero() {
			line += fmt.Sprintf(" until %v", e.BackoffUntil.Sub(s.start))
		}
		lines = append(lines, line)
	}
	if lines == nil {
		return []string{"empty"}
	}
	slices.Sort(lines)
	return lines
}

func number(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
