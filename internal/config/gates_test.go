package config

import (
	"strings"
	"testing"
)

func TestGatesAreTakenAsKubeSchedulerTakesThem(t *testing.T) {
	var o Options
	notes, err := o.AcceptGates([]string{"AllAlpha=true", "VolumeLimitScaling=false", "AllBeta=false", " kube:ComponentFlagz=true ", ""})
	if err != nil {
		t.Fatal(err)
	}
	if !o.StorageCapacityScoring || o.VolumeLimitScaling {
		t.Errorf("the gates are %+v: want what is given of one, and of all else", o)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "--feature-gates: AllAlpha=true is for those that Berth has (StorageCapacityScoring") {
		t.Errorf("%q", notes)
	}
	// Each that kube-scheduler reads has a reason of its own.
	for name := range fixed() {
		if is := knownGates()[name]; !is.locked && name != "AllAlpha" && name != "AllBeta" && strings.Contains(why(name), "does not read") {
			t.Errorf("%s: %s", name, why(name))
		}
		if is, ok := knownGates()[name]; !ok || is.on != fixed()[name].on {
			t.Errorf("%s: %+v, where it is said to be %+v", name, is, fixed()[name])
		}
	}
}
