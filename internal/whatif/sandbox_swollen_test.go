package whatif

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestASandboxThatManyNodesWereTriedInIsSwollen(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 2000)))
	for round, want := range []bool{false, true} {
		err := s.Try(t.Context(), func(w *World) error {
			n, _ := w.Node("a")
			for range round + 1 {
				if err := w.AddNodesLike(n, 10_000); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Swollen(); got != want {
			t.Errorf("after %d nodes were tried it is swollen: %v, want %v", 10_000*(round+1), got, want)
		}
	}
}

// What claims have asked of a class is remembered when a question about both has ended; but not of ever more classes.
func TestASandboxThatManyClassesWereTriedInIsSwollen(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 2000)))
	for round, want := range []bool{false, true} {
		try(t, s, func(w *World) error {
			for k := range 10_000 {
				class := fmt.Sprint("class", round, "-", k)
				for _, o := range []cluster.Object{
					&cluster.StorageClass{Name: class, Provisioner: "csi", Mode: cluster.BindToFirstConsumer},
					&cluster.PersistentVolumeClaim{Namespace: "default", Name: class, UID: class, Class: class, HasRequest: true, Request: 1},
				} {
					if err := w.SetObject(o); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if got := s.Swollen(); got != want {
			t.Errorf("after %d classes were tried it is swollen: %v, want %v", 10_000*(round+1), got, want)
		}
	}
	if New(s.state, engine.EvaluatorConfig{}).Swollen() {
		t.Error("a copy of it is swollen from the beginning")
	}
}

// longNames is a pod with an ephemeral volume of its own, and so many claims with long names that it shares with those like it.
func longNames(shared int) source.Pod {
	pod := aPod("p", 1)
	pod.Labels.Claims = []cluster.PodClaim{{Name: "p-scratch", Ephemeral: true, PodUID: pod.UID}}
	for k := range shared {
		pod.Labels.Claims = append(pod.Labels.Claims, cluster.PodClaim{Name: fmt.Sprint(strings.Repeat("x", 200), k)})
	}
	return pod
}

var scratch = []ownClaim{{suffix: "-scratch", ephemeral: true, shape: cluster.PersistentVolumeClaim{Class: "made"}}}

// Each copy of a pod with a claim of its own has a label set of its own, with the names of all claims.
func TestWhatCopiesOfAPodAreCalledIsBounded(t *testing.T) {
	for copies, want := range map[int]bool{100: true, 1000: false} {
		r := workloadReader{times: 1, limit: 10_000}
		if err := r.add(longNames(250), copies, scratch); (err == nil) != want {
			t.Errorf("%d copies of a pod with 250 claims: %v, want that it may be asked: %v", copies, err, want)
		}
	}
	r := workloadReader{times: 1, limit: 10_000}
	if err := r.add(longNames(0), 10_000, scratch); err != nil {
		t.Errorf("10,000 copies of a pod with one claim: %v", err)
	}
}

// Capacity of such a pod ends sooner than that of others, and says so; and what it has made is not remembered for ever.
func TestCapacityOfAPodWithManyNamesEnds(t *testing.T) {
	pod, large := longNames(250), aNode("a", "z", 1_000_000)
	large.Allocatable[2].Value = 10_000
	objects := []source.Event{
		setNode(large), setObject(&cluster.StorageClass{Name: "made", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}),
		setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "p-scratch", UID: "u", Class: "made", Owner: pod.UID}),
	}
	for _, c := range pod.Labels.Claims[1:] {
		objects = append(objects, setObject(&cluster.PersistentVolume{Name: c.Name}),
			setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: c.Name, UID: c.Name, Volume: c.Name, Bound: true}))
	}
	s := sandbox(t, objects...)
	before := s.fold.KnownBytes()
	for round := range 2 {
		pod.Labels.Labels = []cluster.Label{{Key: "round", Value: fmt.Sprint(round)}}
		try(t, s, func(w *World) error {
			room, err := Capacity(w, pod, 1000)
			if err == nil && (!room.AtLeast || room.Pods >= 1000 || room.Pods < 100) {
				t.Errorf("%+v, want at least some hundreds, and no more counted", room)
			}
			return err
		})
	}
	if now := s.fold.KnownBytes(); now > before+maxRememberedBytes {
		t.Errorf("%d bytes of names are remembered, %d before", now, before)
	}
}
