package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatTheLocalSourceStoresOfAPodIsOneObject(t *testing.T) {
	made := metav1.NewTime(epoch)
	later := epoch.Add(time.Second)
	p := pod(classPlain, "p", 10)
	p.UID, p.CreationTimestamp = "u", made
	var reader localReader
	var got []*Object
	revision := number(0)
	change := func(key string, value any) { // nil deletes
		revision++
		e := etcdEvent{KV: etcdKV{Key: []byte(prefix + key), Mod: revision}}
		if value == nil {
			e.Type = "DELETE"
		} else {
			var err error
			if e.KV.Value, err = json.Marshal(value); err != nil {
				t.Fatal(err)
			}
		}
		o, err := reader.read(e)
		if err != nil {
			t.Fatal(err)
		}
		if o != nil && o.Node != nil {
			o.Node = nil // it is trimmed as an API server's
		}
		got = append(got, o)
	}
	said := func(node, reason string) map[string]any {
		return map[string]any{"namespace": "default", "name": "p", "node": node, "reason": reason, "time": later}
	}
	change(keyNodes+"node-00", node(0))
	change(keyPods+"default/p", p)
	change(keyConditions+"u", said("", corev1.PodReasonUnschedulable))
	change(keyPlacements+"u", said("node-00", ""))
	change(keyPods+"default/p", p)   // a label, say
	change(keyPlacements+"u", nil)   // which must not be
	change(keyPods+"default/p", nil) // with all that is its
	change(keyPlacements+"u", nil)
	change(keyConditions+"u", nil)
	change(keyLocal+"services/default/s", map[string]any{})
	v, c := localVolumes()[0], claimOf("c", storageLocal)
	v.UID, c.UID = "vu", "cu"
	change(keyVolumes+v.Name, v)
	change(keyClaims+"default/c", c)
	change(keyClaims+"default/c", nil)
	change(keyVolumes+v.Name, nil)

	const reason = corev1.PodReasonUnschedulable
	want := []*Object{
		{Revision: 1, Name: "node-00"},
		{Revision: 2, Name: "default/p", UID: "u", Pod: trimPod(p), Written: &made.Time},
		{Revision: 3, Name: "default/p", UID: "u", Reason: reason, Written: &later},
		{Revision: 4, Name: "default/p", UID: "u", On: "node-00", Placed: true, Reason: reason, Written: &later},
		{Revision: 5, Name: "default/p", UID: "u", On: "node-00", Reason: reason, Written: &made.Time},
		{Revision: 6, Name: "default/p", UID: "u", Reason: reason},
		{Revision: 7, Name: "default/p", Deleted: true},
		nil, nil, nil,
		{Revision: 11, Name: v.Name, UID: "vu", Volume: trimVolume(v)},
		{Revision: 12, Name: "default/c", UID: "cu", Claim: trimClaim(c)},
		{Revision: 13, Name: "default/c", Deleted: true, Claim: &corev1.PersistentVolumeClaim{}},
		{Revision: 14, Name: v.Name, Deleted: true, Volume: &corev1.PersistentVolume{}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}
