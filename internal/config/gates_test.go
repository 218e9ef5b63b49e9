package config

import (
	"maps"
	"slices"
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
	// ComponentFlagz is given, and ComponentStatusz is a beta gate like many; the deprecated and the general ones stay.
	for gate, want := range map[string]bool{"ComponentFlagz": false, "ComponentStatusz": true, "GenericWorkload": true, "SchedulerQueueingHints": false, "CPUManagerPolicyAlphaOptions": false} {
		if is := slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, "--feature-gates: "+gate+"=") }); is != want {
			t.Errorf("of %s it is said that it changes nothing: %t, want %t", gate, is, want)
		}
	}
	if want := map[string]bool{"AllowParsingUserUIDFromCertAuth": false, "CBORServingAndStorage": true, "RemoteRequestHeaderUID": false}; !maps.Equal(o.Serving, want) {
		t.Errorf("%v, want %v", o.Serving, want)
	}
	if on, ok := o.Client["WatchListClient"]; !ok || on {
		t.Errorf("%v, want WatchListClient off", o.Client)
	}
	o = Options{}
	if notes, err := o.AcceptGates([]string{"SchedulerAsyncPreemption=true"}); err != nil || len(notes)+len(o.Serving) > 0 || !o.Client["WatchListClient"] {
		t.Errorf("a gate at its default: %q, %v, %v, %v", notes, o.Serving, o.Client, err)
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
