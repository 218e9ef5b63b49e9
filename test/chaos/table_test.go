package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

	got := Summarize(h.entries)
	want := Summary{
		Duration: 61 * time.Second, Scheduled: 11, Injected: 4, Calm: 2 * time.Second,
		Faults: []FaultCount{{apiPause, 2, 7 * time.Second, 9 * time.Second}, {etcdPause, 1, 4 * time.Second, 4 * time.Second}, {leaseRevoke, 1, 0, 9 * time.Second}},
		Peaks:  []Peak{{roleFilter, 7 << 20}, {roleQueue, 3 << 20}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	got.print(&out, []Violation{{RuleLost, 7 * s, "pod x"}})
	for _, line := range []string{"revoke binder's lease  1         -                         9.0 s", "11 pods scheduled in 61 s", "peak memory of a process: filter-worker 7 MiB, queue 3 MiB", "1 violations", "7.000s  no pod is lost or stuck: pod x"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("printed\n%s\nwithout %q", out.String(), line)
		}
	}
}
