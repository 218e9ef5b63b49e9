package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// chose records an intent of a pod with choices: each is a claim, whose uid is its name, and a volume, "" for one that is to be made.
func (h *tale) chose(epoch, seq int64, uid, node string, choices ...string) {
	h.record(epoch, seq, uid, node)
	in := []string{uid, "default", uid, node}
	for ; len(choices) > 0; choices = choices[2:] {
		in = append(in, choices[0], choices[0], choices[1])
	}
	text, err := json.Marshal([][]string{in})
	if err != nil {
		panic(err) // they are strings
	}
	h.entries[len(h.entries)-1].Key.Value = fmt.Sprintf(`{"epoch":%d,"intents":%s}`, epoch, text)
}

// volume stores a volume as it is made, or with the claim of a uid.
func (h *tale) volume(v *corev1.PersistentVolume, claim string) {
	v = v.DeepCopy()
	v.UID = types.UID("of " + v.Name)
	v.Status.Phase = corev1.VolumeAvailable
	if v.Spec.ClaimRef = nil; claim != "" {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim, UID: types.UID(claim)}
		v.Status.Phase = corev1.VolumeBound
	}
	h.add(Entry{Object: &Object{Revision: h.next(), Name: v.Name, UID: string(v.UID), Volume: trimVolume(v)}})
}

// leaving stores a volume with the claim of a uid that is being deleted, and is held by something.
func (h *tale) leaving(v *corev1.PersistentVolume, claim string) {
	v = v.DeepCopy()
	v.DeletionTimestamp = new(metav1.Now())
	h.volume(v, claim)
}

// claim stores a claim, with the volume and the selected node that it has.
func (h *tale) claim(name, class, bound, node string) {
	c := claimOf(name, class)
	c.UID = types.UID(name)
	if bound != "" {
		c.Spec.VolumeName = bound
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	if node != "" {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, node)
	}
	h.add(Entry{Object: &Object{Revision: h.next(), Name: "default/" + name, UID: name, Claim: trimClaim(c)}})
}

// gone removes a claim, or a volume.
func (h *tale) gone(name string) {
	o := &Object{Revision: h.next(), Name: name, Deleted: true, Volume: &corev1.PersistentVolume{}}
	if strings.Contains(name, "/") {
		o.Volume, o.Claim = nil, &corev1.PersistentVolumeClaim{}
	}
	h.add(Entry{Object: o})
}

// where returns the node that the first local volume, and those that come a round later, can be reached from.
var where = storageNode(0).Name

// goodClaims is a history in which pods get what they claim: a local volume, one that is made, and the volume of a pod that has gone.
func goodClaims() *tale {
	h := good()
	for i := range storageNodes {
		h.node(trimNode(storageNode(i)))
	}
	local := localVolumes()
	for i := range 2 {
		h.volume(local[i*storageNodes], "") // both of the first node
	}
	h.claim("c", storageLocal, "", "")
	h.pod(claiming(classLocal, "p", "c"))
	h.chose(h.newest(), 20, "p", where, "c", "local-00")
	h.volume(local[0], "c")
	h.claim("c", storageLocal, "local-00", "")
	h.bind("p", where, Done)
	h.store("p", where, "")

	h.claim("m", storageMade, "", "")
	h.pod(claiming(classMade, "q", "m"))
	h.chose(h.newest(), 21, "q", where, "m", "")
	h.claim("m", storageMade, "", where)
	h.provide("m")
	h.bind("q", where, Done)
	h.store("q", where, "")
	return h
}

// provide makes a volume for a claim, which is bound to it.
func (h *tale) provide(claim string) {
	c := claimOf(claim, storageMade)
	c.UID = types.UID(claim)
	v := madeVolume(c, storageNode(0).Labels[corev1.LabelTopologyZone])
	h.volume(v, claim)
	h.claim(claim, storageMade, v.Name, where)
}

// waits stores a claim of a local volume and a pod that uses it.
func (h *tale) waits(pod string) {
	h.claim("d", storageLocal, "", "")
	h.pod(claiming(classLocal, pod, "d"))
}

func TestEachKindOfViolationOfVolumesIsFound(t *testing.T) {
	local := localVolumes()
	second := local[storageNodes]
	tests := []struct {
		name string
		rule Rule // empty: nothing is wrong
		says string
		tell func(h *tale)
	}{
		{"nothing", "", "", func(*tale) {}},
		{"a volume is given to another claim", RulePromise, "was claim default/c's, and is claim default/d's", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", "local-00")
			h.volume(local[0], "d")
		}},
		{"a volume is given to another claim when the first has gone, by nobody's leave", RulePromise, "and is claim default/d's", func(h *tale) {
			h.remove("p")
			h.gone("default/c")
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", "local-00")
			h.volume(local[0], "d")
		}},
		{"a volume is taken from a claim that is bound to it", RulePromise, "taken from claim default/c", func(h *tale) { h.volume(local[0], "") }},
		{"a volume is taken from a claim that is not bound yet", RulePromise, "taken from claim default/d", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.volume(second, "d")
			h.volume(second, "")
		}},
		{"a volume is taken back from a claim that has gone, and given to another", "", "", func(h *tale) {
			h.remove("p")
			h.gone("default/c")
			h.volume(local[0], "")
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", "local-00")
			h.volume(local[0], "d")
			h.claim("d", storageLocal, "local-00", "")
			h.bind("r", where, Done)
			h.store("r", where, "")
		}},
		{"a claim gets a second volume", RulePromise, "claim default/c has volume local-00, and gets volume " + second.Name, func(h *tale) {
			h.chose(h.newest(), 30, "p", where, "c", second.Name)
			h.volume(second, "c")
		}},
		{"a volume is made for a claim that has one", RulePromise, "claim default/c has volume local-00, and gets volume pvc-c", func(h *tale) {
			c := claimOf("c", storageLocal)
			c.UID = "c"
			h.volume(madeVolume(c, "zone-0"), "c")
		}},
		{"a claim gets a second volume while the first goes, to which it is bound", RulePromise, "claim default/c has volume local-00, and gets volume " + second.Name, func(h *tale) {
			h.leaving(local[0], "c")
			h.chose(h.newest(), 30, "p", where, "c", second.Name)
			h.volume(second, "c")
		}},
		{"a claim gets a second volume while the first goes, to which it is not bound", "", "", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.volume(second, "d")
			h.leaving(second, "d")
			h.volume(local[2*storageNodes], "")
			h.chose(h.newest(), 31, "r", where, "d", local[2*storageNodes].Name)
			h.volume(local[2*storageNodes], "d")
			h.claim("d", storageLocal, local[2*storageNodes].Name, "")
			h.bind("r", where, Done)
			h.store("r", where, "")
		}},
		{"a claim gets a second volume when the first has gone", "", "", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.volume(second, "d")
			h.gone(second.Name)
			h.volume(local[2*storageNodes], "")
			h.chose(h.newest(), 31, "r", where, "d", local[2*storageNodes].Name)
			h.volume(local[2*storageNodes], "d")
			h.claim("d", storageLocal, local[2*storageNodes].Name, "")
			h.bind("r", where, Done)
			h.store("r", where, "")
		}},
		{"a claim is bound to another volume", RulePromise, "was bound to volume local-00, and is bound to \"" + second.Name, func(h *tale) { h.claim("c", storageLocal, second.Name, "") }},
		{"a claim is to be provided for another node", RulePromise, "was to be made for node " + where, func(h *tale) {
			other := storageNode(1).Name
			h.claim("d", storageMade, "", "")
			h.pod(claiming(classMade, "r", "d"))
			h.chose(h.newest(), 30, "r", where, "d", "")
			h.claim("d", storageMade, "", where)
			h.chose(h.newest(), 31, "r", other, "d", "")
			h.claim("d", storageMade, "", other)
		}},
		{"a provisioner has said no, and the claim is to be provided for another node", "", "", func(h *tale) {
			h.claim("d", storageMade, "", "")
			h.pod(claiming(classMade, "r", "d"))
			h.chose(h.newest(), 30, "r", storageNode(1).Name, "d", "")
			h.claim("d", storageMade, "", storageNode(1).Name)
			h.claim("d", storageMade, "", "")
			h.chose(h.newest(), 31, "r", where, "d", "")
			h.claim("d", storageMade, "", where)
			h.provide("d")
			h.bind("r", where, Done)
			h.store("r", where, "")
		}},
		{"a volume is given to a claim without a record", RuleUnrecorded, "was given to claim default/d", func(h *tale) {
			h.waits("r")
			h.record(h.newest(), 30, "r", where)
			h.volume(second, "d")
		}},
		{"another volume than the recorded one is given to a claim", RuleUnrecorded, second.Name + " was given", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", local[2*storageNodes].Name)
			h.volume(second, "d")
		}},
		{"a node is selected without a record", RuleUnrecorded, "is to be made for node", func(h *tale) {
			h.claim("d", storageMade, "", "")
			h.record(h.newest(), 30, "d", where)
			h.claim("d", storageMade, "", where)
		}},
		{"a pod is bound before its claim", RuleClaimed, "it is not bound", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.volume(second, "d")
			h.bind("r", where, Done)
			h.store("r", where, "")
			h.claim("d", storageLocal, second.Name, "")
		}},
		{"a pod is bound elsewhere than its volume is", RuleClaimed, "cannot be reached", func(h *tale) {
			h.pod(claiming(classHeir, "r", "c"))
			h.place(h.newest(), 30, "r", storageNode(1).Name)
		}},
		{"a pod is bound whose claim does not exist", RuleClaimed, "does not exist", func(h *tale) {
			h.pod(claiming(classHeir, "r", "x"))
			h.place(h.newest(), 30, "r", where)
		}},
		{"a pod is bound long after its claim has gone", RuleClaimed, "does not exist", func(h *tale) {
			h.pod(claiming(classHeir, "r", "c"))
			h.gone("default/c")
			h.now += 2 * staleness
			h.place(h.newest(), 30, "r", where)
		}},
		{"a pod is bound as its claim goes", "", "", func(h *tale) {
			h.pod(claiming(classHeir, "r", "c"))
			h.record(h.newest(), 30, "r", where)
			h.gone("default/c")
			h.bind("r", where, Done)
			h.store("r", where, "")
		}},
		{"a claim is bound to a volume that is not its", RuleClaimed, "is not its", func(h *tale) {
			h.waits("r")
			h.claim("d", storageLocal, "local-00", "")
			h.place(h.newest(), 30, "r", where)
		}},
		{"a pod is left for which there is a volume", RuleLost, "would fit", func(h *tale) { h.waits("r") }},
		{"a pod is left whose claim is bound", RuleLost, "would fit", func(h *tale) { h.pod(claiming(classHeir, "r", "c")) }},
		{"a pod is left whose claim has been given a volume", RuleLost, "would fit", func(h *tale) {
			h.waits("r")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.volume(second, "d")
			h.store("r", "", corev1.PodReasonUnschedulable)
		}},
		{"a pod is left for which a volume can be made", RuleLost, "would fit", func(h *tale) {
			h.claim("d", storageMade, "", "")
			h.pod(claiming(classMade, "r", "d"))
			h.store("r", "", corev1.PodReasonUnschedulable)
		}},
		{"a pod whose claim is missing is not told", RuleLost, "fits nowhere", func(h *tale) { h.pod(claiming(classHeir, "r", "x")) }},
		{"a pod of which one of two claims can be bound is not told", RuleLost, "fits nowhere", func(h *tale) {
			h.claim("d", storageLocal, "", "")
			h.claim("e", storageLocal, "", "")
			h.pod(claiming(classPair, "r", "d", "e")) // there is but one
		}},
		{"a pod that is never to be bound is told", "", "", func(h *tale) {
			h.claim("d", storageLocal, "", "")
			h.claim("e", storageLocal, "", "")
			h.pod(claiming(classPair, "r", "d", "e"))
			h.store("r", "", corev1.PodReasonUnschedulable)
			h.pod(claiming(classUnclaimed, "s", "d"))
			h.store("s", "", corev1.PodReasonUnschedulable)
		}},
		{"an intent with choices is left", RuleLeft, keyIntents, func(h *tale) {
			h.waits("r")
			h.volume(second, "")
			h.chose(h.newest(), 30, "r", where, "d", second.Name)
			h.open = h.open[:len(h.open)-1]
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := goodClaims()
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

func TestAClaimOfTheLocalSourceIsBoundWithoutARecord(t *testing.T) {
	h := goodLocal()
	for i := range storageNodes {
		h.node(trimNode(storageNode(i)))
	}
	v := localVolumes()[0]
	h.volume(v, "")
	h.waits("r")
	h.volume(v, "d")
	h.claim("d", storageLocal, v.Name, "")
	h.placed("r", where, h.clock())
	h.add(Entry{Mark: End})
	for _, v := range Check(h.entries) {
		t.Errorf("found %s", v)
	}
}
