package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tale makes a history by hand: each call adds to it, a second after the one before.
type tale struct {
	entries  []Entry
	now      Micros
	revision int64 // of Berth's etcd
	version  int64 // of the API server's objects
	local    bool  // the cluster is the local source, and the two orders are one
	batch    int
	open     []string // keys of intents
}

func (h *tale) add(e Entry) {
	h.now += 1e6
	e.At = h.now
	h.entries = append(h.entries, e)
}

// elect makes a binder the elected one and returns its epoch.
func (h *tale) elect() int64 {
	h.revision++
	h.add(Entry{Key: &Key{Revision: h.revision, Created: h.revision, Name: keyLeader, Value: `{"id":"binder-0"}`}})
	return h.revision
}

// depose removes the elected binder.
func (h *tale) depose() {
	h.revision++
	h.add(Entry{Key: &Key{Revision: h.revision, Name: keyLeader, Deleted: true}})
}

// record writes the version of an epoch, with a batch of one intent.
func (h *tale) record(epoch, seq int64, uid, node string) {
	h.revision++
	h.batch++
	h.add(Entry{Key: &Key{Revision: h.revision, Created: h.revision, Name: keyVersion, Value: fmt.Sprintf("%019d-%019d", epoch, seq)}})
	h.open = append(h.open, keyIntents+fmt.Sprint(h.batch))
	h.add(Entry{Key: &Key{Revision: h.revision, Created: h.revision, Name: keyIntents + fmt.Sprint(h.batch),
		Value: fmt.Sprintf(`{"epoch":%d,"intents":[[%q,"default",%q,%q]]}`, epoch, uid, uid, node)}})
}

// finish removes all intents.
func (h *tale) finish() {
	for _, key := range h.open {
		h.revision++
		h.add(Entry{Key: &Key{Revision: h.revision, Name: key, Deleted: true}})
	}
	h.open = nil
}

// next returns the revision of the next change of an object.
func (h *tale) next() int64 {
	if h.local {
		h.revision++
		return h.revision
	}
	h.version++
	return h.version
}

// epoch is when hand-written runs of the local source begin.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock returns what the machine's clock says when the next entry is added.
func (h *tale) clock() *time.Time {
	if !h.local {
		return nil
	}
	now := epoch.Add(h.now.Duration() + time.Second)
	return &now
}

// node stores a node.
func (h *tale) node(n *corev1.Node) {
	h.add(Entry{Object: &Object{Revision: h.next(), Name: n.Name, Node: n}})
}

// outrun lets a follower miss so many changes, and load no snapshot afterwards.
func (h *tale) outrun(changes int) {
	h.add(Entry{Fault: &Fault{Kind: lostFollower, Phase: phaseBegin}})
	for range changes {
		h.node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ballastNode}})
	}
	h.add(Entry{Fault: &Fault{Kind: lostFollower, Phase: phaseEnd, Missed: "snapshots of gateway-0 stayed 1"}})
}

// pod stores a new pod, whose uid is its name.
func (h *tale) pod(p *corev1.Pod) {
	p.UID = types.UID(p.Name)
	h.add(Entry{Call: &Call{Verb: verbCreate, Began: h.now, Returned: h.now, UID: p.Name, Name: "default/" + p.Name, Outcome: Done}})
	h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/" + p.Name, UID: p.Name, Pod: p, Written: h.clock()}})
}

// store stores a change of a pod: where it is, and why it is nowhere.
func (h *tale) store(name, on, reason string) {
	h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/" + name, UID: name, On: on, Reason: reason}})
}

// placed writes a placement of the local source, which its writer says it wrote at some time.
func (h *tale) placed(name, on string, written *time.Time) {
	h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/" + name, UID: name, On: on, Placed: true, Written: written}})
}

// remove removes a pod.
func (h *tale) remove(name string) {
	began := h.now
	h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/" + name, Deleted: true}})
	h.add(Entry{Call: &Call{Verb: verbDelete, Began: began, Returned: h.now, UID: name, Name: "default/" + name, Outcome: Done}})
}

// bind lets the proxy see a bind.
func (h *tale) bind(name, on string, outcome Outcome) {
	h.add(Entry{Call: &Call{Verb: verbBind, Began: h.now, Returned: h.now + 1000, UID: name, Name: "default/" + name, Node: on, Outcome: outcome}})
}

// place does all that makes a pod bound as it should be.
func (h *tale) place(epoch, seq int64, name, on string) {
	h.record(epoch, seq, name, on)
	h.bind(name, on, Done)
	h.store(name, on, "")
}

// seat places so many seated pods on one node.
func (h *tale) seat(pods int) {
	h.node(trimNode(seatNode(0)))
	for i := range pods {
		name := fmt.Sprintf("seated-%d", i)
		h.pod(seated(name, seatedProfiles[i%len(seatedProfiles)]))
		h.place(h.newest(), int64(20+i), name, seatNode(0).Name)
	}
}

// hooked has a webhook fail the bind of a pod, whose intent is there for some time.
func (h *tale) hooked(lasts Micros) {
	h.now += recovery
	h.add(Entry{Fault: &Fault{Number: 1, Kind: hookFails, Phase: phaseBegin}})
	h.record(h.newest(), 20, "d", "node-02")
	intents := h.entries[len(h.entries)-1].Key
	intents.Value = strings.ReplaceAll(intents.Value, "default", tenantNamespace)
	h.now += lasts
	h.finish()
	h.now += heldLimit
	h.add(Entry{Fault: &Fault{Number: 1, Kind: hookFails, Phase: phaseEnd}})
}

// sized returns node number i with so much CPU (milli-CPU).
func sized(i int, cpu int64) *corev1.Node {
	n := node(i)
	n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	return trimNode(n)
}

// good is a history in which nothing is wrong: two terms, pods that come, go and are bound, and one that fits nowhere.
func good() *tale {
	h := &tale{}
	for i := range 4 {
		h.node(trimNode(node(i)))
	}
	first := h.elect()
	h.pod(pod(classHuge, "huge", 10*nodeCPU))
	h.store("huge", "", corev1.PodReasonUnschedulable)
	h.pod(pod(classBig, "a", 3000))
	h.place(first, 10, "a", "node-00")
	h.depose()
	second := h.elect()
	h.pod(pod(classBig, "b", 3000))
	h.place(second, 4, "b", "node-01")
	h.remove("a")
	h.pod(pod(classBig, "c", 3000))
	h.place(second, 9, "c", "node-00")
	h.add(Entry{Exit: &Exit{Name: "queue-0", Asked: true}})
	return h
}

// newest returns the epoch of the binder that is elected at the end.
func (h *tale) newest() int64 {
	for _, e := range slices.Backward(h.entries) {
		if e.Key != nil && e.Key.Name == keyLeader {
			return e.Key.Created
		}
	}
	return 0
}

func TestEachKindOfViolationIsFound(t *testing.T) {
	port := func(name string) *corev1.Pod { return withPort(pod(classPort, name, 10)) }
	apart := func(name string) *corev1.Pod { return apart(pod(classApart, name, 10), "g") }
	spread := func(name string) *corev1.Pod { return spread(pod(classSpread, name, 10), "g") }

	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"nothing", "", "", func(*tale) {}},
		{"a pod changes its node", RuleBoundTwice, "was on node-01 and is on \"node-02\"", func(h *tale) {
			h.record(h.newest(), 20, "b", "node-02")
			h.store("b", "node-02", "")
		}},
		{"a pod loses its node", RuleBoundTwice, "is on \"\"", func(h *tale) { h.store("b", "", "") }},
		{"a node is overcommitted", RuleOvercommit, "7 of cpu requested, 4 allocatable", func(h *tale) {
			h.pod(pod(classBig, "d", 4000))
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a node shrinks under its pods", "", "", func(h *tale) { h.node(sized(1, 1000)) }},
		{"a node shrinks while a bind is under way", "", "", func(h *tale) {
			h.pod(pod(classBig, "d", 1000))
			h.node(sized(1, 3000))
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a node has been too small for long", RuleOvercommit, "node-01", func(h *tale) {
			h.node(sized(1, 3000))
			h.now += 2 * staleness
			h.node(sized(1, 3500))
			h.pod(pod(classBig, "d", 1000))
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a pod goes to a node that takes none", RuleConstraint, "unschedulable", func(h *tale) {
			n := trimNode(node(2))
			n.Spec.Unschedulable = true
			h.node(n)
			h.now += 2 * staleness
			h.node(n.DeepCopy())
			h.pod(pod(classPlain, "d", 10))
			h.place(h.newest(), 20, "d", "node-02")
		}},
		{"a pod goes to a node with a taint", RuleConstraint, "taint", func(h *tale) {
			h.node(trimNode(node(plainNodes)))
			h.pod(pod(classPlain, "d", 10))
			h.place(h.newest(), 20, "d", node(plainNodes).Name)
		}},
		{"a pod goes to no node", RuleConstraint, "does not exist", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.place(h.newest(), 20, "d", "node-77")
		}},
		{"all seats of a node are taken, and taken again", "", "", func(h *tale) {
			h.seat(seatsEach)
			h.remove("seated-0")
			h.pod(seated("d", seatedProfiles[1]))
			h.place(h.newest(), 40, "d", seatNode(0).Name)
		}},
		{"more pods are seated than there are seats", RulePlugin, "4 are seated there, on 3 seats", func(h *tale) { h.seat(seatsEach + 1) }},
		{"a seated pod is where there are no seats", RulePlugin, "has no seats", func(h *tale) {
			h.pod(seated("d", seatedProfiles[0]))
			h.place(h.newest(), 20, "d", "node-02")
		}},
		{"two pods use one host port", RuleConstraint, "host port 8080", func(h *tale) {
			h.pod(port("d"))
			h.pod(port("e"))
			h.place(h.newest(), 20, "d", "node-02")
			h.place(h.newest(), 21, "e", "node-02")
		}},
		{"one pod uses the host port after the other", "", "", func(h *tale) {
			h.pod(port("d"))
			h.pod(port("e"))
			h.place(h.newest(), 20, "d", "node-02")
			h.remove("d")
			h.place(h.newest(), 21, "e", "node-02")
		}},
		{"pods that must be apart are together", RuleConstraint, "pod anti-affinity", func(h *tale) {
			h.pod(apart("d"))
			h.pod(apart("e"))
			h.place(h.newest(), 20, "d", "node-02")
			h.place(h.newest(), 21, "e", "node-02")
		}},
		{"pods are not spread", RuleConstraint, "more than 1 apart", func(h *tale) {
			h.pod(spread("d"))
			h.pod(spread("e"))
			h.place(h.newest(), 20, "d", "node-00")
			h.place(h.newest(), 21, "e", "node-03")
		}},
		{"pods are not spread, and one is deleted then", RuleConstraint, "more than 1 apart", func(h *tale) {
			h.pod(spread("d"))
			h.pod(spread("e"))
			h.place(h.newest(), 20, "d", "node-00")
			h.place(h.newest(), 21, "e", "node-03")
			h.remove("d")
		}},
		{"pods are spread until one is deleted", "", "", func(h *tale) {
			for i, name := range []string{"d", "e", "f", "g"} {
				h.pod(spread(name))
				h.place(h.newest(), 20+int64(i), name, node(i).Name)
			}
			h.remove("e")
		}},
		{"pods are spread, but one is deleted before its bind is done", "", "", func(h *tale) {
			for i, name := range []string{"d", "e", "f", "g"} {
				h.pod(spread(name))
				if name == "e" {
					h.record(h.newest(), 20+int64(i), name, node(i).Name)
					continue
				}
				h.place(h.newest(), 20+int64(i), name, node(i).Name)
			}
			h.remove("e")
		}},
		{"pods are spread, and others come after one has been deleted", "", "", func(h *tale) {
			for i, name := range []string{"d", "e"} {
				h.pod(spread(name))
				h.place(h.newest(), 20+int64(i), name, node(i).Name)
			}
			h.pod(spread("f"))
			h.pod(spread("g"))
			h.remove("d")
			h.place(h.newest(), 22, "f", "node-00")
			h.place(h.newest(), 23, "g", "node-03")
		}},
		{"a pod is bound without a record", RuleUnrecorded, "pod default/d", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.bind("d", "node-02", Done)
			h.store("d", "node-02", "")
		}},
		{"a pod is bound elsewhere than recorded", RuleUnrecorded, "node-03", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.record(h.newest(), 20, "d", "node-02")
			h.bind("d", "node-03", Done)
			h.store("d", "node-03", "")
		}},
		{"a version goes back", RuleVersion, "was written over", func(h *tale) { h.record(h.newest(), 8, "b", "node-01") }},
		{"a deposed binder writes", RuleFenced, "was elected", func(h *tale) {
			old := h.newest()
			h.depose()
			h.elect()
			h.record(old, 20, "b", "node-01")
		}},
		{"a binder writes when none is elected", RuleFenced, "when epoch 0 was elected", func(h *tale) {
			old := h.newest()
			h.depose()
			h.record(old, 20, "b", "node-01")
		}},
		{"intents vanish when no binder is elected", RuleFenced, "was deleted", func(h *tale) {
			h.depose()
			h.revision++
			h.add(Entry{Key: &Key{Revision: h.revision, Name: keyIntents + "1", Deleted: true}})
		}},
		{"a pod that fits is left", RuleLost, "would fit", func(h *tale) { h.pod(pod(classPlain, "d", 10)) }},
		{"a pod that does not fit is not told", RuleLost, "fits nowhere", func(h *tale) { h.pod(pod(classHuge, "d", 10*nodeCPU)) }},
		{"a pod that cannot be told to replicas is not told why", RuleLost, "fits nowhere", func(h *tale) { h.pod(pod(classUntold, "d", 10)) }},
		{"a pod that cannot be told to replicas is told why", "", "", func(h *tale) {
			h.pod(pod(classUntold, "d", 10))
			h.store("d", "", corev1.PodReasonUnschedulable)
		}},
		{"a pod that cannot be told to replicas is placed", RuleConstraint, "no replica", func(h *tale) {
			h.pod(pod(classUntold, "d", 10))
			h.place(h.newest(), 20, "d", "node-02")
		}},
		{"a refused bind comes back with a new binder, when its room is another's", RuleOvercommit, "node-02", func(h *tale) {
			h.pod(pod(classBig, "d", 3000))
			h.record(h.newest(), 20, "d", "node-02") // and was refused
			h.pod(pod(classBig, "e", 3000))
			h.place(h.newest(), 21, "e", "node-02")
			h.depose()
			h.elect()
			h.bind("d", "node-02", Done)
			h.store("d", "node-02", "")
		}},
		{"room is held for a bind that a webhook fails", RuleGiven, "tenant/d", func(h *tale) { h.hooked(heldLimit + 2e6) }},
		{"room is given back that a webhook lets nobody have", "", "", func(h *tale) { h.hooked(heldLimit - 5e6) }},
		{"a process dies", RuleProcess, "nobody had told it to", func(h *tale) {
			h.add(Entry{Exit: &Exit{Name: "binder-0", Error: "exit status 2"}})
		}},
		{"a process does not end when it is told to", RuleProcess, "was told to end", func(h *tale) {
			h.add(Entry{Exit: &Exit{Name: "queue-0", Asked: true, Error: "signal: killed"}})
		}},
		{"two binds of a pod are accepted", RuleLinear, "pod b", func(h *tale) { h.bind("b", "node-01", Done) }},
		{"a bind is accepted, and the pod is elsewhere", RuleLinear, "pod d", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.record(h.newest(), 20, "d", "node-02")
			h.bind("d", "node-03", Done)
			h.store("d", "node-02", "")
		}},
		{"the outcome of a bind is not known, and it was done", "", "", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.record(h.newest(), 20, "d", "node-02")
			h.bind("d", "node-02", Unknown)
			h.bind("d", "node-02", Refused)
			h.store("d", "node-02", "")
		}},
		{"a bind comes again when its pod has gone, and gets no answer", "", "", func(h *tale) {
			h.pod(pod(classBig, "d", 3000))
			h.place(h.newest(), 20, "d", "node-02")
			h.version++
			h.add(Entry{Object: &Object{Revision: h.version, Name: "default/d", Deleted: true}})
			h.bind("d", "node-02", Unknown)
			h.pod(pod(classBig, "e", 3000))
			h.place(h.newest(), 21, "e", "node-02")
		}},
		{"more is bound to a node than it has room for", RuleLinear, "node node-01", func(h *tale) {
			h.pod(pod(classBig, "d", 3000))
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a pod is bound in the room of one that Berth has evicted", "", "", func(h *tale) {
			h.pod(pod(classBig, "d", 3000))
			h.version++
			h.add(Entry{Object: &Object{Revision: h.version, Name: "default/b", Deleted: true}})
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a replica that differs is not found out", RuleFound, "stayed 0", func(h *tale) {
			h.add(Entry{Fault: &Fault{Kind: diverge, Phase: phaseEnd, Missed: "resyncs of score-worker-0 stayed 0"}})
		}},
		{"a follower that the log has outrun loads no snapshot", RuleFound, "stayed 1", func(h *tale) { h.outrun(leastChanges) }},
		{"a follower that the log has not outrun yet loads none", "", "", func(h *tale) { h.outrun(leastChanges - 1) }},
		{"a node grew just before a pod was placed", "", "", func(h *tale) {
			h.node(sized(1, 5000))
			h.pod(pod(classBig, "d", 2000))
			h.place(h.newest(), 20, "d", "node-01")
		}},
		{"a node grew long after a pod was placed", RuleOvercommit, "node-01", func(h *tale) {
			h.pod(pod(classBig, "d", 2000))
			h.record(h.newest(), 20, "d", "node-01")
			h.now += 10 * staleness
			h.node(sized(1, 5000))
			h.bind("d", "node-01", Done)
			h.store("d", "node-01", "")
		}},
		{"a node shrank during a fault, of which word came late", "", "", func(h *tale) {
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseBegin}})
			h.pod(pod(classBig, "d", 1000))
			h.node(sized(1, 3000))
			h.now += 10 * staleness
			h.place(h.newest(), 20, "d", "node-01")
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseEnd}})
		}},
		{"an intent is left", RuleLeft, keyIntents, func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.place(h.newest(), 20, "d", "node-02")
			h.open = h.open[:len(h.open)-1]
		}},
		{"a pod was created and is not in the history", RuleHistory, "is not in it", func(h *tale) {
			h.add(Entry{Call: &Call{Verb: verbCreate, UID: "d", Name: "default/d", Outcome: Done}})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := good()
			tt.tell(h)
			h.finish()
			h.add(Entry{Mark: End})
			found := Check(h.entries)
			if tt.rule == "" {
				for _, v := range found {
					t.Errorf("found %s", v)
				}
				return
			}
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == tt.rule && strings.Contains(v.Text, tt.says) }) {
				t.Errorf("found %v, want %q with %q", found, tt.rule, tt.says)
			}
		})
	}
}

// goodLocal is a history of the local source in which nothing is wrong: two terms, pods that come, go and are placed.
func goodLocal() *tale {
	h := &tale{local: true}
	h.add(Entry{Mode: &Mode{Source: sourceLocal, Began: epoch}})
	for i := range 4 {
		h.node(trimNode(node(i)))
	}
	h.elect()
	h.pod(pod(classBig, "a", 3000))
	h.placed("a", "node-00", h.clock())
	h.depose()
	h.pod(pod(classBig, "b", 3000))
	h.elect()
	h.placed("b", "node-01", h.clock())
	h.remove("a")
	h.pod(pod(classBig, "c", 3000))
	h.placed("c", "node-00", h.clock())
	h.pod(pod(classHuge, "huge", 10*nodeCPU))
	h.store("huge", "", corev1.PodReasonUnschedulable)
	return h
}

func TestEachKindOfViolationOfTheLocalSourceIsFound(t *testing.T) {
	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"nothing", "", "", func(*tale) {}},
		{"a pod is placed when no binder is elected", RuleFenced, "no binder was elected", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			h.depose()
			h.placed("d", "node-02", h.clock())
		}},
		{"a pod is placed before any binder was elected", RuleFenced, "no binder was elected", func(h *tale) {
			*h = tale{local: true, entries: h.entries[:5], now: h.now, revision: 4}
			h.pod(pod(classPlain, "d", 10))
			h.placed("d", "node-02", h.clock())
		}},
		{"a placement of a deposed binder arrives in the next term", RuleFenced, "later than", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			written := h.clock()
			h.now += 3e6
			h.depose()
			h.pod(pod(classPlain, "e", 10)) // others write meanwhile
			h.elect()
			h.placed("e", "node-02", h.clock())
			h.placed("d", "node-02", written)
		}},
		{"a placement is written at once and arrives late, in one term", "", "", func(h *tale) {
			h.pod(pod(classPlain, "d", 10))
			written := h.clock()
			h.now += 3e6
			h.placed("d", "node-02", written)
		}},
		{"a placement is replaced", RuleBoundTwice, "was on node-01 and is on \"node-02\"", func(h *tale) { h.placed("b", "node-02", h.clock()) }},
		{"a placement vanishes, and its pod stays", RuleBoundTwice, "is on \"\"", func(h *tale) { h.store("b", "", "") }},
		{"a placement has no pod", RuleHistory, "had not been created", func(h *tale) { h.placed("d", "node-02", h.clock()) }},
		{"a pod is placed that has gone", RuleHistory, "when it had gone", func(h *tale) { h.placed("a", "node-02", h.clock()) }},
		{"a node is overcommitted", RuleOvercommit, "7 of cpu requested", func(h *tale) {
			h.pod(pod(classBig, "d", 4000))
			h.placed("d", "node-01", h.clock())
		}},
		{"more is placed on a node than it has room for", RuleLinear, "node node-01", func(h *tale) {
			h.pod(pod(classBig, "d", 4000))
			h.placed("d", "node-01", h.clock())
		}},
		{"a pod is placed twice", RuleLinear, "pod b", func(h *tale) { h.placed("b", "node-02", h.clock()) }},
		{"a pod goes to a node that has long taken none", RuleConstraint, "unschedulable", func(h *tale) {
			n := trimNode(node(2))
			n.Spec.Unschedulable = true
			h.node(n)
			h.now += 2 * staleness
			h.node(n.DeepCopy())
			h.pod(pod(classPlain, "d", 10))
			h.placed("d", "node-02", h.clock())
		}},
		{"pods are not spread", RuleConstraint, "more than 1 apart", func(h *tale) {
			for i, name := range []string{"d", "e"} {
				h.pod(spread(pod(classSpread, name, 10), "g"))
				h.placed(name, node(3*i).Name, h.clock())
			}
		}},
		{"pods are not spread, but one was on its way when one was deleted", "", "", func(h *tale) {
			for i, name := range []string{"d", "e"} {
				h.pod(spread(pod(classSpread, name, 10), "g"))
				h.placed(name, node(3*i).Name, h.clock())
			}
			h.pod(spread(pod(classSpread, "f", 10), "g"))
			h.remove("d")
			h.placed("f", "node-01", h.clock())
		}},
		{"a pod that fits is left", RuleLost, "would fit", func(h *tale) { h.pod(pod(classPlain, "d", 10)) }},
		{"a pod that does not fit is not told", RuleLost, "fits nowhere", func(h *tale) { h.pod(pod(classHuge, "d", 10*nodeCPU)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := goodLocal()
			tt.tell(h)
			h.add(Entry{Mark: End})
			found := Check(h.entries)
			if tt.rule == "" {
				for _, v := range found {
					t.Errorf("found %s", v)
				}
				return
			}
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == tt.rule && strings.Contains(v.Text, tt.says) }) {
				t.Errorf("found %v, want %q with %q", found, tt.rule, tt.says)
			}
		})
	}
}

func TestABatchThatIsWrittenAgainIsNotDecidedAgain(t *testing.T) {
	h := good()
	h.pod(pod(classBig, "d", 2000))
	h.record(h.newest(), 20, "d", "node-01") // which has no room
	h.now += 10 * staleness
	h.node(sized(1, 5000))
	batch := *h.entries[len(h.entries)-2].Key // what is left of it
	h.revision++
	batch.Revision = h.revision
	h.add(Entry{Key: &batch})
	h.bind("d", "node-01", Done)
	h.store("d", "node-01", "")
	h.finish()
	h.add(Entry{Mark: End})
	if found := Check(h.entries); !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == RuleOvercommit }) {
		t.Errorf("found %v, want %q", found, RuleOvercommit)
	}
}

func TestAHistoryWithoutAnEndIsNotWhole(t *testing.T) {
	found := Check(good().entries)
	if len(found) != 1 || found[0].Rule != RuleHistory {
		t.Errorf("found %v, want one violation of %q", found, RuleHistory)
	}
}

func TestEntriesAreJudgedInTheOrderOfTheStores(t *testing.T) {
	h := good()
	h.finish()
	h.add(Entry{Mark: End})
	// The removal that makes room is told last of all.
	i := slices.IndexFunc(h.entries, func(e Entry) bool { return e.Object != nil && e.Object.Deleted })
	late := h.entries[i]
	h.entries = append(slices.Delete(h.entries, i, i+1), late)
	if found := Check(h.entries); len(found) > 0 {
		t.Errorf("found %v, want nothing", found)
	}
}
