package main

import (
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

// linearLimit bounds the search of one partition.
const linearLimit = 2 * time.Minute

// linear checks the binds, as the proxy in front of the API server saw them, against two sequential models: a pod is a
// register that is written once, and a node is a counter that does not pass its limit. Histories are partitioned by pod, and
// by node.
func linear(entries []Entry) []Violation {
	var out []Violation
	byPod, byNode := commits(entries)
	for _, part := range []struct {
		what    string
		model   porcupine.Model
		history map[string][]porcupine.Operation
	}{{"pod", podModel.ToModel(), byPod}, {"node", nodeModel, byNode}} {
		for _, name := range slices.Sorted(maps.Keys(part.history)) {
			switch porcupine.CheckOperationsTimeout(part.model, part.history[name], linearLimit) {
			case porcupine.Illegal:
				out = append(out, Violation{Rule: RuleLinear, Text: fmt.Sprintf("no order explains the %d operations on %s %s", len(part.history[name]), part.what, name)})
			case porcupine.Unknown:
				out = append(out, Violation{Rule: RuleLinear, Text: fmt.Sprintf("not decided for %s %s within %v", part.what, name, linearLimit)})
			}
		}
	}
	return out
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
	for _, e := range entries {
		if c := e.Call; c != nil {
			switch l := of(c.UID); {
			case c.Verb == verbBind && l.began == 0:
				l.began = c.Began
			case c.Verb == verbDelete && c.Outcome == Done:
				l.deleted = true
			}
		}
		switch o := e.Object; {
		case o == nil:
		case o.Node != nil && !o.Deleted:
			room[o.Name] = max(room[o.Name], o.Node.Status.Allocatable.Cpu().MilliValue())
		case o.Node != nil:
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

// commits returns the operations on each pod and on each node.
func commits(entries []Entry) (byPod, byNode map[string][]porcupine.Operation) {
	byPod, byNode = map[string][]porcupine.Operation{}, map[string][]porcupine.Operation{}
	pods, room := lives(entries)
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
			case c.Outcome == Unknown && l.on == c.Node: // it has happened, this time or another
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
			add(verbDelete, uid, l.on, l.began, l.gone)
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

// nodeModel is a counter with a limit: the CPU that the node's pods request. A pod that is deleted is no longer counted from
// some time on between the call and the answer.
var nodeModel = porcupine.Model{
	Init: func() any { return load{} },
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
