package whatif

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Why pods stay on a node that is drained.
const (
	staysDeleting = "it is being deleted"
	staysDaemon   = "it is kept to its node, as pods of a DaemonSet are"
	staysMirror   = "it looks like the mirror of a static pod of its node"
)

// Moved is a pod that had to leave its node.
type Moved struct {
	PodOutcome
	From string
	// Protected are the PodDisruptionBudgets that do not allow it to be evicted now: a drain waits for them.
	Protected []string
}

// Stay is a pod that a drain leaves where it is, and why.
type Stay struct {
	Pod                        cluster.PodID
	UID, Namespace, Name, Node string
	Why                        string
}

// Evict cordons nodes and makes their pods pending, as their controllers would make them again elsewhere; it returns them with
// the nodes that they were on, in the order of their ids. Pods of DaemonSets and mirrors of static pods stay, as with
// kubectl drain; so does what is being deleted already. The ledger does not know controllers of all kinds: a pod that only its own node may run counts as one of a
// DaemonSet, and one with the name and the toleration that kubelets give to mirrors as a mirror.
func Evict(w *World, nodes ...string) ([]Moved, []Stay, error) {
	st := w.State()
	for _, name := range nodes {
		if err := w.Cordon(name, true); err != nil {
			return nil, nil, fmt.Errorf("drain: %w", err)
		}
	}
	var ids []cluster.PodID
	for _, name := range nodes {
		for id := range st.PodsOn(st.Nodes.ByName(name)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids) // a node may be named twice
	if len(ids) > MaxPods {
		return nil, nil, fmt.Errorf("drain: %w: %d pods, at most %d are possible", ErrTooMuch, len(ids), MaxPods)
	}
	var moved []Moved
	var stays []Stay
	var account engine.Disruptions
	for _, id := range ids {
		row := st.Pod(id)
		if why := staysWhy(st, row); why != "" {
			stays = append(stays, Stay{id, row.UID, row.Namespace, row.Name, row.NodeName, why})
			continue
		}
		moved = append(moved, Moved{
			PodOutcome: PodOutcome{Pod: id, UID: row.UID, Namespace: row.Namespace, Name: row.Name},
			From:       row.NodeName, Protected: protectors(st, row, &account),
		})
	}
	for k := range moved {
		var err error
		if moved[k].Pod, err = w.unbind(moved[k].Pod); err != nil {
			return nil, nil, fmt.Errorf("drain: %w", err)
		}
	}
	return moved, stays, nil
}

// unbind makes a placed pod a new one that is pending, and the claims of its ephemeral volumes new ones. It returns its id, which may be another.
func (w *World) unbind(id cluster.PodID) (cluster.PodID, error) {
	pod, _ := w.Pod(id)
	if err := w.RemovePod(id); err != nil {
		return cluster.NoPod, err
	}
	for _, own := range ownClaimsOf(w.State(), &pod) {
		if own.ephemeral {
			claim := own.shape
			claim.UID = "new:" + claim.UID // what is kept for the other one is not kept for it
			if err := w.make(&claim); err != nil {
				return cluster.NoPod, err
			}
		}
	}
	return w.AddPod(Unbound(pod))
}

// staysWhy returns why a drain leaves a pod where it is, "" if it does not.
func staysWhy(st *cluster.State, row *cluster.PodRow) string {
	spec := &st.Class(row.Class).Spec
	labels := st.Labels(row.Labels)
	everything := func(t cluster.Toleration) bool {
		return t.Key == "" && t.Operator == "Exists" && t.Effect == "NoExecute"
	}
	switch {
	case row.Deleting:
		return staysDeleting // it goes by itself: nobody evicts it, nor places it elsewhere
	case row.RequiredNode != "" && row.RequiredNode == row.NodeName, keptTo(spec, row.NodeName):
		return staysDaemon
	case strings.HasSuffix(row.Name, "-"+strings.ToLower(row.NodeName)) && slices.ContainsFunc(spec.Tolerations, everything) &&
		(labels == nil || labels.Controller == cluster.Controller{}):
		return staysMirror
	}
	return ""
}

// keptTo reports whether node affinity leaves pods of a class only that node, where the profile does not know them by a required node.
func keptTo(spec *cluster.ClassSpec, node string) bool {
	return spec.HasRequired && len(spec.Required) > 0 && !slices.ContainsFunc(spec.Required, func(t cluster.NodeSelectorTerm) bool {
		return len(t.Fields) != 1 || !slices.Equal(t.Fields[0].Values, []string{node})
	})
}
