package whatif

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
)

// Comparison is what two settings make of the same pods.
type Comparison struct {
	A, B   Usage // of the cluster under each
	Pods   int   // that were to be placed under each
	OnlyA  int   // placed under A only
	OnlyB  int   // placed under B only
	Moved  int   // placed on different nodes
	Same   int   // placed on the same node
	Differ []Difference
	Notes  []string // which plugins of others have not been asked under one or the other
}

// Difference is a pod that is not in the same place, in the order of the pods.
type Difference struct {
	UID, Namespace, Name string
	A, B                 string // the node; "": none
}

// Compare places pods under two settings and says what differs: in particular profiles, of other configurations. Pods that are
// placed are made pending first; see Everything. The World is as before when it returns.
func Compare(w *World, a, b cluster.Settings, pods []cluster.PodID, o PlaceOptions) (Comparison, error) {
	outcomesA, usageA, notes, err := w.under(a, pods, o)
	if err != nil {
		return Comparison{}, fmt.Errorf("compare: %w", err)
	}
	outcomesB, usageB, more, err := w.under(b, pods, o)
	if err != nil {
		return Comparison{}, fmt.Errorf("compare: %w", err)
	}
	out := Comparison{A: usageA, B: usageB, Pods: len(pods), Notes: notes}
	for _, note := range more {
		if !slices.Contains(notes, note) {
			out.Notes = append(out.Notes, note)
		}
	}
	for k := range outcomesA {
		one, two := &outcomesA[k], &outcomesB[k]
		switch {
		case one.Node == two.Node:
			if one.Node != "" {
				out.Same++
			}
			continue
		case two.Node == "":
			out.OnlyA++
		case one.Node == "":
			out.OnlyB++
		default:
			out.Moved++
		}
		out.Differ = append(out.Differ, Difference{one.UID, one.Namespace, one.Name, one.Node, two.Node})
	}
	return out, nil
}

// Everything returns all pods that a scheduler could place anew: those that are placed and are neither kept to their node nor
// being deleted, and those that are pending. In queue order.
func Everything(w *World) []cluster.PodID {
	st := w.State()
	var ids []cluster.PodID
	for id, row := range st.Pods() {
		if !row.Deleting && (!row.Placed() || row.Node != cluster.NoNode && staysWhy(st, row) == "" && st.Profile(st.Class(row.Class).Spec.SchedulerName) != nil) {
			ids = append(ids, id)
		}
	}
	slices.SortStableFunc(ids, func(a, b cluster.PodID) int { return compareTurn(st.Pod(a), st.Pod(b)) })
	return ids
}

// under places pods under settings and takes it back.
func (w *World) under(settings cluster.Settings, pods []cluster.PodID, o PlaceOptions) (outcomes []PodOutcome, usage Usage, notes []string, err error) {
	if len(pods) > MaxPods {
		return nil, usage, nil, fmt.Errorf("%w: %d pods, at most %d are possible", ErrTooMuch, len(pods), MaxPods)
	}
	err = w.Try(func() error {
		if err := w.SetSettings(settings); err != nil {
			return err
		}
		st := w.State()
		again := make([]cluster.PodID, len(pods))
		for k, id := range pods {
			row := st.Pod(id)
			if row == nil {
				return fmt.Errorf("there is no pod %d", id)
			}
			again[k] = id
			if row.Placed() {
				var err error
				if again[k], err = w.unbind(id); err != nil {
					return err
				}
			}
		}
		var err error
		outcomes, err = Place(w, again, o)
		usage, notes = UsageOf(st), NotAskedOf(w, again)
		return err
	})
	return outcomes, usage, notes, err
}

// GroupsStay is what Configured says where Coscheduling may matter, which adds pods to groups, or does not, when they come.
const GroupsStay = "Coscheduling: which pods are of its PodGroups stays as it is now, whatever a configuration says"

// Configured returns the settings of a State with the profiles and backoffs of a KubeSchedulerConfiguration, in YAML or JSON, and what that sets
// and means nothing to Berth. Feature gates, which no configuration says, are those of the settings.
func Configured(st *cluster.State, configuration []byte) (cluster.Settings, []string, error) {
	settings := st.Settings
	cfg, err := config.Decode(configuration)
	if err != nil {
		return cluster.Settings{}, nil, err
	}
	completed, err := config.Complete(cfg, config.OptionsOf(settings.Profiles))
	if err != nil {
		return cluster.Settings{}, nil, err
	}
	settings.Profiles = completed.Profiles
	settings.InitialBackoffSeconds = *completed.Config.PodInitialBackoffSeconds
	settings.MaxBackoffSeconds = *completed.Config.PodMaxBackoffSeconds
	notes := completed.Notes
	if len(completed.Coscheduling) > 0 || hasCoscheduling(st) {
		notes = append(notes, GroupsStay)
	}
	return settings, notes, nil
}

// hasCoscheduling reports whether a pod is of a PodGroup of Coscheduling.
func hasCoscheduling(st *cluster.State) bool {
	for _, row := range st.Pods() {
		if key, _ := cluster.GroupOf(&row.Pod); key.Coscheduling() {
			return true
		}
	}
	return false
}
