package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The verbs of calls.
const (
	verbBind   = "bind"
	verbCreate = "create"
	verbDelete = "delete"
	verbLook   = "look" // at where a pod is, when all is over
)

// bindTo is what porcupine sees of a bind as it concerns a pod, or of a look at where the pod is.
type bindTo struct {
	verb, node string
}

// fill is what it sees of a bind, or of the end of a pod, as it concerns a node. All of them have happened.
type fill struct {
	verb, uid string
	cpu       int64 // that the pod requests, in milli-CPU
	room      int64 // that the node has, when it is largest
}

// linearLimit bounds the search of one part of a history. What is not decided in it counts as a violation.
const linearLimit = time.Minute

// linear checks the binds, as the proxy in front of the API server saw them, or as the local source tells of them, against two sequential models: a pod is a
// register that is written once, and a node is a counter that does not pass its limit. Histories are partitioned by pod, and
// by node.
func linear(entries []Entry) []Violation {
	var out []Violation
	byPod, byNode := commits(entries)
	judge := func(what, name string, model porcupine.Model, history []porcupine.Operation) {
		at := Micros(history[0].Call)
		switch porcupine.CheckOperationsTimeout(model, history, linearLimit) {
		case porcupine.Illegal:
			out = append(out, Violation{RuleLinear, at, fmt.Sprintf("no order explains the %d operations on %s %s", len(history), what, name)})
		case porcupine.Unknown:
			out = append(out, Violation{RuleLinear, at, fmt.Sprintf("not decided for %d operations on %s %s within %v", len(history), what, name, linearLimit)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byPod)) {
		judge("pod", name, podModel.ToModel(), byPod[name])
	}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		var before load
		for _, part := range parts(byNode[name]) {
			judge("node", name, nodeModel(before), part)
			before = before.behind(part)
		}
	}
	return out
}

// partSize is how many operations of a node are judged together, at least: the search takes time that grows with the square
// of it.
const partSize = 500

// parts cuts the history of a node where no operation is under way.
func parts(history []porcupine.Operation) [][]porcupine.Operation {
	slices.SortStableFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var out [][]porcupine.Operation
	begin, returned := 0, int64(math.MinInt64)
	for i, op := range history {
		if i-begin >= partSize && op.Call > returned {
			out = append(out, history[begin:i])
			begin = i
		}
		returned = max(returned, op.Return)
	}
	return append(out, history[begin:])
}

// life is what a history tells of a pod, all in all.
type life struct {
	pod     *corev1.Pod
	began   Micros // its first bind
	on      string // its node
	landed  Micros // when it was seen to be there
	gone    Micros // when it was seen to be gone; 0: it was not
	deleted bool   // by the workload, which knows when
}

// clockError is how far the harness's clock, which is monotonic, and the machine's may be apart by the end of a run.
const clockError = Micros(time.Second / time.Microsecond)

// placements returns the binds of the local source, as calls that were made when their writer says, and had returned when they were
// seen.
func placements(entries []Entry) []Entry {
	began := modeOf(entries).Began
	var out []Entry
	for _, e := range entries {
		if o := e.Object; o != nil && o.Placed && o.Written != nil {
			call := &Call{Verb: verbBind, Began: Micros(o.Written.Sub(began).Microseconds()) - clockError, Returned: e.At, UID: o.UID, Name: o.Name, Node: o.On, Outcome: Done}
			out = append(out, Entry{At: e.At, Call: call})
		}
	}
	return out
}

// lives returns the lives of all pods by uid, and the most CPU that each node has had.
func lives(entries []Entry) (pods map[string]*life, room map[string]int64) {
	pods, room = map[string]*life{}, map[string]int64{}
	named := map[string]string{} // uid by name, of the newest
	of := func(uid string) *life {
		if pods[uid] == nil {
			pods[uid] = &life{}
		}
		return pods[uid]
	}
	for _, e := range slices.Concat(placements(entries), entries) {
		if c := e.Call; c != nil {
			switch l := of(c.UID); {
			case c.Verb == verbBind && l.began == 0:
				l.began = max(c.Began, 1)
			case c.Verb == verbDelete && c.Outcome == Done:
				l.deleted = true
			}
		}
		switch o := e.Object; {
		case o == nil:
		case o.Node != nil && !o.Deleted:
			room[o.Name] = max(room[o.Name], o.Node.Status.Allocatable.Cpu().MilliValue())
		case !o.ofPod():
		case o.Deleted:
			of(named[o.Name]).gone = e.At
		default:
			l := of(o.UID)
			if o.Pod != nil {
				l.pod, named[o.Name] = o.Pod, o.UID
			}
			if o.On != "" && l.on == "" {
				l.on, l.landed = o.On, e.At
			}
		}
	}
	return pods, room
}

// late is how long after a pod has gone the history may say so.
const late = Micros(10 * time.Second / time.Microsecond)

// commits returns the operations on each pod and on each node.
func commits(entries []Entry) (byPod, byNode map[string][]porcupine.Operation) {
	byPod, byNode = map[string][]porcupine.Operation{}, map[string][]porcupine.Operation{}
	pods, room := lives(entries)
	entries = slices.Concat(entries, placements(entries))
	add := func(verb, uid, node string, from, to Micros) {
		input := fill{verb, uid, milliCPU(pods[uid].pod), room[node]}
		byNode[node] = append(byNode[node], porcupine.Operation{Input: input, Call: int64(from), Return: int64(to)})
	}
	// 1. What was called.
	for _, e := range entries {
		c := e.Call
		if c == nil || pods[c.UID].pod == nil {
			continue
		}
		l := pods[c.UID]
		switch {
		case c.Verb == verbBind:
			p := porcupine.Operation{Input: bindTo{c.Verb, c.Node}, Output: c.Outcome, Call: int64(c.Began), Return: int64(c.Returned)}
			if c.Outcome == Unknown { // it may still happen, at any time
				p.Return = math.MaxInt64
			}
			byPod[c.UID] = append(byPod[c.UID], p)
			switch {
			case c.Outcome == Done:
				add(verbBind, c.UID, c.Node, c.Began, c.Returned)
			case c.Outcome == Unknown && l.on == c.Node && c.Began < l.landed: // it has happened, this time or another
				add(verbBind, c.UID, c.Node, c.Began, max(c.Returned, l.landed))
			}
		case c.Verb == verbDelete && c.Outcome == Done && l.on != "":
			add(verbDelete, c.UID, l.on, c.Began, c.Returned)
		}
	}
	// 2. What came of it.
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		l := pods[uid]
		if l.pod != nil && l.gone > 0 && l.on != "" && l.began > 0 && !l.deleted { // evicted by Berth, or nobody knows when
			add(verbDelete, uid, l.on, max(l.began, l.gone-late), l.gone)
		}
		if len(byPod[uid]) > 0 {
			look := porcupine.Operation{Input: bindTo{verbLook, l.on}, Call: math.MaxInt64, Return: math.MaxInt64}
			byPod[uid] = append(byPod[uid], look)
		}
	}
	return byPod, byNode
}

func milliCPU(p *corev1.Pod) int64 {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}

// podModel is a register: the pod's node, written once.
var podModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		node, op := state.(string), input.(bindTo)
		switch {
		case op.verb == verbLook && node == op.node, output == Refused:
			return []any{node}
		case op.verb == verbLook:
			return nil
		case output == Done && node == "":
			return []any{op.node}
		case output == Done:
			return nil
		case node == "": // unknown
			return []any{node, op.node}
		}
		return []any{node}
	},
}

// load is what is on a node, as a value that can be compared: the sum of the requests, and which pods they are of.
type load struct {
	cpu  int64
	pods string // uids, each with the separator, in order
}

const separator = ","

func (l load) has(uid string) bool { return strings.Contains(l.pods, uid+separator) }

func (l load) with(uid string, cpu int64) load {
	all := append(strings.SplitAfter(l.pods, separator), uid+separator)
	slices.Sort(all)
	return load{l.cpu + cpu, strings.Join(all, "")}
}

func (l load) without(uid string, cpu int64) load {
	return load{l.cpu - cpu, strings.Replace(l.pods, uid+separator, "", 1)}
}

// behind returns the load after operations, in whatever order: all pods that have come and not gone.
func (l load) behind(part []porcupine.Operation) load {
	for _, verb := range []string{verbBind, verbDelete} {
		for _, o := range part {
			switch op := o.Input.(fill); {
			case op.verb != verb:
			case verb == verbBind && !l.has(op.uid):
				l = l.with(op.uid, op.cpu)
			case verb == verbDelete && l.has(op.uid):
				l = l.without(op.uid, op.cpu)
			}
		}
	}
	return l
}

// nodeModel is a counter with a limit: the CPU that the node's pods request, which is so much at first. A pod that is
// deleted is no longer counted from some time on between the call and the answer.
func nodeModel(first load) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			l, op := state.(load), input.(fill)
			switch {
			case op.verb == verbBind && l.has(op.uid): // the answer to the first bind was lost
				return true, l
			case op.verb == verbBind:
				next := l.with(op.uid, op.cpu)
				return next.cpu <= op.room, next
			case l.has(op.uid):
				return true, l.without(op.uid, op.cpu)
			}
			return false, l // it can only go after it has come
		},
	}
}
