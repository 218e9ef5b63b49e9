package whatif

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// crowd is so many nodes, and a class with so many volumes that can be reached from all of them.
func crowd(nodes, volumes int) []source.Event {
	events := []source.Event{setObject(&cluster.StorageClass{Name: "late", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer})}
	for k := range nodes {
		events = append(events, setNode(aNode(fmt.Sprint("n", k), "z", 1000)))
	}
	for k := range volumes {
		events = append(events, setObject(&cluster.PersistentVolume{Name: fmt.Sprint("v", k), Class: "late", Capacity: 10, Mode: "Filesystem", Available: true}))
	}
	return events
}

// choosy is a pod with so many claims that select volumes which there are not; and the claims.
func choosy(name string, claims int, key func(k int) string) (pod source.Pod, made []source.Event) {
	pod = aPod(name, 100)
	for k := range claims {
		claim := &cluster.PersistentVolumeClaim{
			Namespace: "default", Name: fmt.Sprintf("%s-%d", name, k), Class: "late", HasRequest: true, Request: 5, Mode: "Filesystem",
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key(k), Operator: "In", Values: []string{"x"}}}},
		}
		claim.UID = "uid-" + claim.Name
		pod.Labels.Claims = append(pod.Labels.Claims, cluster.PodClaim{Name: claim.Name})
		made = append(made, setObject(claim))
	}
	return pod, made
}

// A question about pods with many claims ends, and lets others have their turn, between few nodes, whether there is a place for them or not.
func TestPodsWithManyClaimsAreTriedInParts(t *testing.T) {
	const nodes, claims = 128, 32
	for provisioner, want := range map[string]Outcome{"kubernetes.io/no-provisioner": Unplaced, "csi": Placed} {
		pod, made := choosy("p", claims, func(int) string { return "none" })
		made = append(made, setObject(&cluster.StorageClass{Name: "late", Provisioner: provisioner, Mode: cluster.BindToFirstConsumer}))
		s := sandbox(t, append(crowd(nodes, 3), made...)...)
		enough := errors.New("enough")
		for _, most := range []int{nodes * 10, 3} {
			paused := 0
			ctx := WithPause(t.Context(), func() error {
				if paused++; paused > most {
					return enough
				}
				return nil
			})
			err := s.Try(ctx, func(w *World) error {
				id, err := w.AddPod(pod)
				if err != nil {
					return err
				}
				paused = 0
				outcomes, err := Place(w, []cluster.PodID{id}, PlaceOptions{})
				if err == nil && outcomes[0].Outcome != want {
					t.Errorf("%s: %+v, want %v", provisioner, outcomes[0], want)
				}
				return err
			})
			switch {
			case most == 3 && !errors.Is(err, enough):
				t.Errorf("%s: it ends with %v, want that others have had enough", provisioner, err)
			case most > 3 && (err != nil || paused < nodes/2):
				t.Errorf("%s: others had a turn %d times while %d nodes were tried with %d claims: %v", provisioner, paused, nodes, claims, err)
			}
		}
	}
}

// So are those that might preempt others.
func TestPreemptionByPodsWithManyClaimsIsTriedInParts(t *testing.T) {
	const nodes, claims = 64, 32
	pod, made := choosy("p", claims, func(int) string { return "none" })
	pod.Priority = 1
	events := append(crowd(nodes, 3), append(made, setObject(&cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}))...)
	for k := range nodes {
		small := aPod(fmt.Sprint("small", k), 1000)
		small.NodeName = fmt.Sprint("n", k)
		events = append(events, setPod(small))
	}
	paused, before := 0, 0
	err := sandbox(t, events...).Try(WithPause(t.Context(), func() error { paused++; return nil }), func(w *World) error {
		id, err := w.AddPod(pod)
		if err != nil {
			return err
		}
		before = paused
		found, err := w.DryRun(id)
		if err == nil && found.Count != nodes {
			t.Errorf("%d candidates, want %d", found.Count, nodes)
		}
		return err
	})
	if err != nil || paused-before < nodes/2 {
		t.Errorf("others had a turn %d times while a pod might preempt on %d nodes with %d claims: %v", paused-before, nodes, claims, err)
	}
}

// What a question brings is bounded so that one node is no long piece of work: claims that select each by labels of its own are compared with each volume.
func TestWhatIsComparedIsBounded(t *testing.T) {
	for claims, want := range map[int]bool{30: true, 35: false} {
		pod, made := choosy("p", claims, func(k int) string { return fmt.Sprint("none", k) })
		load := Workload{Objects: append(crowd(1, 8000), made...), Pods: []source.Pod{pod}}
		s := sandbox(t)
		err := s.Try(t.Context(), func(w *World) error {
			_, err := w.Add(load)
			return err
		})
		if (err == nil) != want || err != nil && !errors.Is(err, ErrTooMuch) {
			t.Errorf("%d claims and 8000 volumes: %v, want that it may be asked: %v", claims, err, want)
		}
	}
	// Those that are alike cost no more than one.
	pod, made := choosy("p", 200, func(int) string { return "none" })
	try(t, sandbox(t), func(w *World) error {
		_, err := w.Add(Workload{Objects: append(crowd(1, 8000), made...), Pods: []source.Pod{pod}})
		return err
	})
}
