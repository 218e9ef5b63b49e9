package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-helpers/storage/volume"
)

func TestPausesArePutDownToTheFaultsDuringWhichTheyWere(t *testing.T) {
	h := &tale{}
	bind := func(at Micros, uid string) {
		h.entries = append(h.entries, Entry{At: at, Object: &Object{Name: "default/" + uid, UID: uid, On: "n"}})
	}
	fault := func(at Micros, number int, kind Kind, phase string) {
		h.entries = append(h.entries, Entry{At: at, Fault: &Fault{Number: number, Kind: kind, Phase: phase}})
	}
	mark := func(at Micros, m Mark) { h.entries = append(h.entries, Entry{At: at, Mark: m}) }
	const s = Micros(1e6)
	bind(1*s, "a")
	mark(2*s, Calm)
	bind(3*s, "b")
	bind(5*s, "c") // 2 s without faults
	mark(5*s, Faulty)
	fault(6*s, 1, apiPause, phaseBegin)
	bind(12*s, "d") // 7 s
	fault(13*s, 1, apiPause, phaseEnd)
	bind(14*s, "d") // of a pod that is bound already
	bind(16*s, "e") // 4 s, begins during the fault
	bind(17*s, "f")
	fault(20*s, 2, etcdPause, phaseBegin)
	bind(21*s, "g") // 4 s
	fault(21*s, 2, etcdPause, phaseEnd)
	bind(24*s, "h") // 3 s, begins in the aftermath
	bind(34*s, "i") // 10 s, begins after it
	fault(35*s, 3, apiPause, phaseBegin)
	fault(36*s, 4, leaseRevoke, phaseBegin)
	bind(43*s, "j") // 9 s, with two faults
	fault(44*s, 4, leaseRevoke, phaseEnd)
	fault(45*s, 3, apiPause, phaseEnd)
	mark(46*s, Healing)
	bind(60*s, "k")
	mark(61*s, End)
	for _, u := range []Usage{{Name: "filter-worker-0", Peak: 5 << 20}, {Name: "queue-1", Peak: 3 << 20}, {Name: "filter-worker-2", Peak: 7 << 20}} {
		h.entries = append(h.entries, Entry{At: 61 * s, Usage: &u})
	}

	claim := claimOf("c", storageLocal)
	for range 2 { // when it is bound, and when it changes
		claim.Spec.VolumeName, claim.Annotations = "v", map[string]string{volume.AnnBindCompleted: "yes"}
		h.entries = append(h.entries, Entry{At: 61 * s, Object: &Object{Name: "default/c", UID: "cu", Claim: claim}})
	}

	got := Summarize(h.entries)
	want := Summary{
		Duration: 61 * time.Second, Scheduled: 11, Claims: 1, Injected: 4, Calm: 2 * time.Second,
		Faults: []FaultCount{
			{Kind: apiPause, Count: 2, Alone: 7 * time.Second, Median: 7 * time.Second, Longest: 9 * time.Second},
			{Kind: etcdPause, Count: 1, Alone: 4 * time.Second, Median: 4 * time.Second, Longest: 4 * time.Second},
			{Kind: leaseRevoke, Count: 1, Longest: 9 * time.Second},
		},
		Peaks: []Peak{{roleFilter, 7 << 20}, {roleQueue, 3 << 20}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	got.print(&out, []Violation{{RuleLost, 7 * s, "pod x"}})
	for _, line := range []string{"| revoke binder's lease | 1 | - | - | 9.0 s | - |", "11 pods scheduled in 61 s", "1 claims bound", "peak memory of a process: filter-worker 7 MiB, queue 3 MiB", "1 violations", "7.000s  no pod is lost or stuck: pod x"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("printed\n%s\nwithout %q", out.String(), line)
		}
	}
}

func TestProbesAreCountedByTheFaultsThatTheyMet(t *testing.T) {
	const ms = Micros(1000)
	var entries []Entry
	at := func(at Micros, e Entry) { e.At = at; entries = append(entries, e) }
	uid := 0
	probe := func(from, took Micros, ends Object) {
		uid++
		name := fmt.Sprint("probe-", uid)
		at(from, Entry{Object: &Object{Name: name, UID: name, Pod: pod(classProbe, name, 1)}})
		ends.Name = name
		if !ends.Deleted {
			ends.UID = name
		}
		at(from+took, Entry{Object: &ends})
		at(from+took+1, Entry{Object: &ends}) // it changes again
	}
	fault := func(when Micros, number int, kind Kind, phase string) {
		at(when, Entry{Fault: &Fault{Number: number, Kind: kind, Phase: phase}})
	}
	bound := Object{On: "n"}
	probe(1*ms, 5*ms, bound) // before all is up
	at(10*ms, Entry{Mark: Calm})
	for i := range 100 {
		probe(20*ms+Micros(i), 10*ms+Micros(i)*ms, bound)
	}
	fault(3000*ms, 1, pluginKill, phaseBegin)
	probe(3001*ms, 40*ms, bound)
	probe(3002*ms, 60*ms, Object{Deleted: true}) // it has not been bound
	fault(4000*ms, 1, pluginKill, phaseEnd)
	probe(4001*ms, 900*ms, bound) // in the aftermath
	fault(9000*ms, 2, pluginLie, phaseBegin)
	fault(9000*ms, 3, leaseRevoke, phaseBegin)
	probe(9001*ms, 900*ms, bound) // who knows by which
	fault(9900*ms, 2, pluginLie, phaseEnd)
	fault(9900*ms, 3, leaseRevoke, phaseEnd)
	probe(15000*ms, 900*ms, bound) // in the recovery from the other
	fault(30000*ms, 4, pluginLie, phaseBegin)
	fault(30000*ms, 5, leaseRevoke, phaseBegin) // neither ends
	probe(30001*ms, 900*ms, bound)
	p := seated("s", seatedProfiles[0])
	at(9901*ms, Entry{Object: &Object{Name: "s", UID: "s", Pod: p}})
	for range 2 {
		at(9902*ms, Entry{Object: &Object{Name: "s", UID: "s", On: "n"}})
	}

	got := Summarize(entries)
	want := []Placing{
		{"", 100, 59500 * time.Microsecond, 108 * time.Millisecond},
		{pluginKill, 2, 50 * time.Millisecond, 60 * time.Millisecond},
	}
	if diff := cmp.Diff(want, got.Placing); diff != "" || got.Seated != 1 {
		t.Errorf("%d seated, want 1; placing (-want +got):\n%s", got.Seated, diff)
	}
	var out bytes.Buffer
	got.print(&out, nil)
	for _, line := range []string{
		"1 pods of plugin services bound",
		`during "no fault": 100, bound after 0.059 s in the median, 0.108 s at the 99th percentile`,
		`during "kill plugin service": 2, bound after 0.050 s`,
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("printed\n%s\nwithout %q", out.String(), line)
		}
	}
}

func TestAFailoverEndsWithTheFirstBindAfterTheElection(t *testing.T) {
	const s = Micros(1e6)
	at := func(at Micros, e Entry) Entry { e.At = at; return e }
	bind := func(uid string) Entry { return Entry{Object: &Object{Name: "default/" + uid, UID: uid, On: "n"}} }
	fault := func(number int, phase string) Entry {
		return Entry{Fault: &Fault{Number: number, Kind: killActive, Phase: phase}}
	}
	elected := Entry{Key: &Key{Name: keyLeader, Created: 1}}
	got := Summarize([]Entry{
		at(1*s, elected), at(2*s, bind("a")),
		at(10*s, fault(1, phaseBegin)), at(10*s+1000, bind("b")), // it was on its way
		at(11*s, fault(1, phaseEnd)), at(13*s, elected), at(14*s, bind("c")), at(15*s, bind("d")),
		at(20*s, fault(2, phaseBegin)), at(22*s, elected), at(28*s, bind("e")), at(28*s, fault(2, phaseEnd)),
	})
	if diff := cmp.Diff([]time.Duration{4 * time.Second, 8 * time.Second}, got.Failovers); diff != "" {
		t.Errorf("failovers (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	got.print(&out, nil)
	if want := "active binder killed 2 times: binding again after 8.0 s at most, 6.0 s in the median; 1 later than 5.0 s"; !strings.Contains(out.String(), want) {
		t.Errorf("printed\n%s\nwithout %q", out.String(), want)
	}
}
