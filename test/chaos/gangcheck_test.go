package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
)

// podGroup stores a PodGroup, or its end.
func (h *tale) podGroup(g *schedulingv1alpha2.PodGroup, deleted bool) {
	o := &Object{Revision: h.next(), Name: "default/" + g.Name, Deleted: deleted, Group: g}
	if deleted {
		o.Group = &schedulingv1alpha2.PodGroup{}
	}
	h.add(Entry{Object: o})
}

// gang stores a gang g of three, and pods of it, g-0 and so on, each of which requests so much CPU.
func (h *tale) gang(pods int, cpu int64, inRack bool) *schedulingv1alpha2.PodGroup {
	g := podGroup("g", 3, inRack)
	h.podGroup(g, false)
	h.members(g, 0, pods, cpu)
	return g
}

// members stores pods of a gang.
func (h *tale) members(g *schedulingv1alpha2.PodGroup, from, to int, cpu int64) {
	for i := from; i < to; i++ {
		h.pod(ganged(pod(classGang, fmt.Sprintf("g-%d", i), cpu), g))
	}
}

// intend records that pods of the gang go to some nodes, g-0 to the first of them, in one transaction.
func (h *tale) intend(nodes ...string) {
	var intents []string
	for i, on := range nodes {
		uid := fmt.Sprintf("g-%d", i)
		intents = append(intents, fmt.Sprintf("[%q,%q,%q,%q]", uid, "default", uid, on))
	}
	h.record(h.newest(), 20, "g-0", nodes[0])
	h.entries[len(h.entries)-1].Key.Value = fmt.Sprintf(`{"epoch":%d,"intents":[%s]}`, h.newest(), strings.Join(intents, ","))
}

// land binds a pod of the gang, as is recorded.
func (h *tale) land(i int, on string) {
	h.bind(fmt.Sprintf("g-%d", i), on, Done)
	h.store(fmt.Sprintf("g-%d", i), on, "")
}

// together places pods of the gang as it should be.
func (h *tale) together(nodes ...string) {
	h.intend(nodes...)
	for i, on := range nodes {
		h.land(i, on)
	}
}

// late has all pods of a gang placed in one transaction, and the last of three bound later than may be; meanwhile something happens.
func (h *tale) late(meanwhile func()) {
	h.gang(3, 100, false)
	h.intend("node-02", "node-02", "node-03")
	h.land(0, "node-02")
	h.land(1, "node-02")
	meanwhile()
	h.now += wholeWithin
	h.land(2, "node-03")
}

// Of the nodes of a good history, the first two are of rack-0, with 1 CPU left each, and the others of rack-1, with 4.
func TestEachKindOfViolationOfGangsIsFound(t *testing.T) {
	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"a gang is placed together", "", "", func(h *tale) {
			h.gang(3, 100, true)
			h.together("node-02", "node-03", "node-03")
		}},
		{"a gang is recorded pod by pod", RuleWhole, "by which there had been one of 1 pods", func(h *tale) {
			h.gang(3, 100, false)
			for i := range 3 {
				h.place(h.newest(), int64(20+i), fmt.Sprintf("g-%d", i), "node-02")
			}
		}},
		{"a pod lacks when a gang is recorded", RuleWhole, "by which there had been one of 2 pods", func(h *tale) {
			h.gang(3, 100, false)
			h.together("node-02", "node-03")
			h.place(h.newest(), 21, "g-2", "node-02")
		}},
		{"a pod lacks that has just gone", "", "", func(h *tale) {
			h.gang(3, 100, false)
			h.intend("node-02", "node-03", "node-03")
			h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/g-0", Deleted: true}})
			h.land(1, "node-03")
			h.land(2, "node-03")
		}},
		{"a pod comes back, and is placed by itself", "", "", func(h *tale) {
			g := h.gang(3, 100, true)
			h.together("node-02", "node-03", "node-03")
			h.remove("g-1")
			h.now += 2 * staleness
			h.members(g, 3, 4, 100)
			h.place(h.newest(), 30, "g-3", "node-02")
		}},
		{"a gang is bound that has too few pods", RuleWhole, "its gang has 2 pods, and wants 3", func(h *tale) {
			h.gang(2, 100, false)
			h.together("node-02", "node-03")
		}},
		{"a gang is bound of which a pod has long gone", RuleWhole, "its gang has 2 pods, and wants 3", func(h *tale) {
			h.gang(3, 100, false)
			h.remove("g-2")
			h.now += 2 * staleness
			h.together("node-02", "node-03")
		}},
		{"a gang is bound without a PodGroup", RuleWhole, "there has been no PodGroup", func(h *tale) {
			h.members(podGroup("g", 3, false), 0, 3, 100)
			h.together("node-02", "node-03", "node-03")
		}},
		{"a gang is bound whose PodGroup has long gone", RuleWhole, "when its PodGroup had gone", func(h *tale) {
			g := h.gang(3, 100, false)
			h.podGroup(g, true)
			h.now += 2 * staleness
			h.together("node-02", "node-03", "node-03")
		}},
		{"a gang is bound whose PodGroup has just gone", "", "", func(h *tale) {
			g := h.gang(3, 100, false)
			h.intend("node-02", "node-03", "node-03")
			h.podGroup(g, true)
			for i, on := range []string{"node-02", "node-03", "node-03"} {
				h.land(i, on)
			}
		}},
		{"a gang is bound slowly", RuleWhole, "no fault was near", func(h *tale) { h.late(func() {}) }},
		{"a gang is bound slowly, with a fault", "", "", func(h *tale) {
			h.late(func() {
				h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseBegin}})
				h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseEnd}})
			})
		}},
		{"a gang is bound slowly, long after a fault", RuleWhole, "no fault was near", func(h *tale) {
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseBegin}})
			h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseEnd}})
			h.now += recovery
			h.late(func() {})
		}},
		{"a gang is bound slowly, as a bind was refused", "", "", func(h *tale) { h.late(func() { h.bind("g-2", "node-03", Refused) }) }},
		{"a gang is bound slowly, and a fault comes when it should be done", RuleWhole, "no fault was near", func(h *tale) {
			h.late(func() {
				h.now += wholeWithin
				h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseBegin}})
				h.add(Entry{Fault: &Fault{Number: 1, Kind: cutAPI, Phase: phaseEnd}})
			})
		}},
		{"a gang is bound slowly, of which a pod is deleted meanwhile", "", "", func(h *tale) {
			h.gang(4, 100, false)
			h.intend("node-02", "node-02", "node-03", "node-03")
			h.land(0, "node-02")
			h.remove("g-0")
			h.now += wholeWithin
			h.land(1, "node-02")
			h.land(2, "node-03")
			h.land(3, "node-03")
		}},
		{"a part of a gang is left", RuleWhole, "2 of at least 3 pods of gang default/g are bound", func(h *tale) {
			h.gang(3, 3000, false)
			h.intend("node-02", "node-03", "node-00")
			h.land(0, "node-02")
			h.land(1, "node-03")
			h.store("g-2", "", corev1.PodReasonUnschedulable)
		}},
		{"a part of a gang is left whose room is another's, as its bind was refused", "", "", func(h *tale) {
			h.gang(3, 3000, false)
			h.intend("node-02", "node-03", "node-00")
			h.land(0, "node-02")
			h.land(1, "node-03")
			h.bind("g-2", "node-00", Refused)
			h.store("g-2", "", corev1.PodReasonUnschedulable)
		}},
		{"a gang is in two racks", RuleDomain, "is on node-03, where that is \"rack-1\"", func(h *tale) {
			h.gang(3, 100, true)
			h.together("node-03", "node-03", "node-01")
		}},
		{"a gang that wants no rack is in two", "", "", func(h *tale) {
			h.gang(3, 100, false)
			h.together("node-03", "node-03", "node-01")
		}},
		{"a gang is in no rack", RuleDomain, "has no label rack", func(h *tale) {
			n := node(4)
			delete(n.Labels, rackLabel)
			h.node(trimNode(n))
			h.gang(3, 100, true)
			h.together("node-04", "node-04", "node-04")
		}},
		{"a gang that fits in a rack is left", RuleLost, "would fit on rack=rack-1, and 3 of its 3 pods", func(h *tale) { h.gang(3, 2000, true) }},
		{"a gang that fits in no rack is left", "", "", func(h *tale) {
			h.gang(3, 3000, true)
			for i := range 3 {
				h.store(fmt.Sprintf("g-%d", i), "", corev1.PodReasonUnschedulable)
			}
		}},
		{"a gang that fits in no rack is not told", RuleLost, "that does not fit has a condition that says \"\"", func(h *tale) { h.gang(3, 3000, true) }},
		{"a gang that fits in two racks together, and wants none, is left", RuleLost, "would fit on nodes of no domain", func(h *tale) {
			h.node(sized(0, 7000))
			h.gang(3, 4000, false)
		}},
		{"a gang that fits in two racks together, and wants one, is left", "", "", func(h *tale) {
			h.node(sized(0, 7000))
			h.gang(3, 4000, true)
			for i := range 3 {
				h.store(fmt.Sprintf("g-%d", i), "", corev1.PodReasonUnschedulable)
			}
		}},
		{"a gang that fits on nodes that take none is left", "", "", func(h *tale) {
			for i := 2; i < 4; i++ {
				n := trimNode(node(i))
				if n.Spec.Unschedulable = i == 2; i == 3 {
					n.Spec.Taints = []corev1.Taint{{Key: "keep", Effect: corev1.TaintEffectNoSchedule}}
				}
				h.node(n)
			}
			h.gang(3, 1000, true)
			for i := range 3 {
				h.store(fmt.Sprintf("g-%d", i), "", corev1.PodReasonUnschedulable)
			}
		}},
		{"a pod that fits beside a whole gang is left", RuleLost, "1 of its 4 pods", func(h *tale) {
			h.gang(4, 1000, true)
			h.together("node-02", "node-02", "node-02")
		}},
		{"a pod that fits in another rack than its gang is left", "", "", func(h *tale) {
			h.gang(4, 1000, true)
			h.node(sized(0, 5000))
			h.together("node-00", "node-00", "node-01")
			h.store("g-3", "", corev1.PodReasonUnschedulable)
		}},
		{"a gang that has too few pods is left", "", "", func(h *tale) { h.gang(2, 100, false) }},
		{"a gang that has no PodGroup is left", "", "", func(h *tale) { h.members(podGroup("g", 3, false), 0, 3, 100) }},
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

func TestGangsOfTheLocalSourceAreJudgedByTheirPlacements(t *testing.T) {
	part := func(h *tale) {
		h.gang(3, 100, true)
		h.placed("g-0", "node-02", h.clock())
		h.placed("g-1", "node-02", h.clock())
	}
	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"a gang is placed", "", "", func(h *tale) {
			part(h)
			h.placed("g-2", "node-03", h.clock())
		}},
		{"a part of a gang is left", RuleLost, "would fit on rack=rack-1, and 1 of its 3 pods", part},
		{"a gang is placed slowly", RuleWhole, "no fault was near", func(h *tale) {
			part(h)
			h.now += wholeWithin
			h.placed("g-2", "node-03", h.clock())
		}},
		{"a gang is placed long after a fault that it met", RuleWhole, "no fault was near", func(h *tale) {
			h.add(Entry{Fault: &Fault{Number: 1, Kind: killActive, Phase: phaseBegin}})
			part(h)
			h.add(Entry{Fault: &Fault{Number: 1, Kind: killActive, Phase: phaseEnd}})
			h.now += 3 * wholeWithin
			h.placed("g-2", "node-03", h.clock())
		}},
		{"a gang is in two racks", RuleDomain, "is on node-02", func(h *tale) {
			part(h)
			h.placed("g-2", "node-00", h.clock())
		}},
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
