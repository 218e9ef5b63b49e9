package whatif

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// claiming returns a pod with claims.
func claiming(p source.Pod, names ...string) source.Pod {
	for _, name := range names {
		p.Labels.Claims = append(p.Labels.Claims, cluster.PodClaim{Name: name})
	}
	return p
}

// TestAPreemptionInAQuestionDetachesVolumesIfItSeesThem: two volumes can be attached to the node, and are. Of the one that the victim shares with another
// pod it is not detached.
func TestAPreemptionInAQuestionDetachesVolumesIfItSeesThem(t *testing.T) {
	events := []source.Event{
		setNode(aNode("a", "z", 1000)), setObject(&cluster.CSINode{Name: "a", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 3}}}),
	}
	for _, name := range []string{"own", "shared", "unused", "mine"} {
		events = append(events,
			setObject(&cluster.PersistentVolume{Name: "pv-" + name, Driver: "csi", Handle: "h-" + name}),
			setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Volume: "pv-" + name, Bound: true}))
	}
	for _, name := range []string{"own", "shared"} {
		events = append(events, setObject(&cluster.VolumeAttachment{Name: "to-a-" + name, Attacher: "csi", Node: "a", Volume: "pv-" + name}))
	}
	events = append(events,
		setPod(on(prior(claiming(aPod("low", 100), "own", "shared"), 1), "a")),
		setPod(on(prior(claiming(aPod("stays", 100), "shared", "unused"), 9), "a")))
	s := sandbox(t, events...)
	for range 2 { // the second time on what is remembered of the first
		for _, sees := range []bool{false, true} {
			try(t, s, func(w *World) error {
				settings := w.State().Settings
				settings.PreemptionSeesVolumes = sees
				if err := w.SetSettings(settings); err != nil {
					return err
				}
				id, err := w.AddPod(prior(claiming(aPod("p", 100), "mine"), 9))
				if err != nil {
					return err
				}
				got, err := Place(w, []cluster.PodID{id}, PlaceOptions{Preempt: true})
				if err != nil {
					return err
				}
				want := PodOutcome{Pod: id, UID: "p", Namespace: "default", Name: "p", Outcome: Preempts, Node: "a", Victims: []Victim{
					{UID: "low", Namespace: "default", Name: "low", Node: "a", Priority: 1},
				}}
				attached := []string{"to-a-shared"}
				if !sees {
					want.Outcome, want.Node, want.Victims, want.Nodes = Unplaced, "", nil, 1
					want.Verdicts = got[0].Verdicts
					want.Message = fmt.Sprintf("0/1 nodes are available: 1 %[1]s. preemption: 0/1 nodes are available: 1 %[1]s.", engine.ReasonVolumeLimit)
					attached = []string{"to-a-own", "to-a-shared"}
				}
				got[0].Message = strings.ReplaceAll(got[0].Message, "no new claims to deallocate, ", "")
				if diff := cmp.Diff(want, got[0]); diff != "" {
					t.Errorf("sees volumes %v (-want +got):\n%s", sees, diff)
				}
				if diff := cmp.Diff(attached, w.State().AttachmentsTo("a")); diff != "" {
					t.Errorf("sees volumes %v: attached then (-want +got):\n%s", sees, diff)
				}
				return nil
			})
		}
	}
}
