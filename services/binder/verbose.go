package binder

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/source"
)

// The messages of this file, and of other lines about what becomes of pods, are kube-scheduler's: people search for them.

// logEvent logs what the source tells, before the ledger has it, if so much is logged.
func (t *term) logEvent(e *source.Event) {
	log := logs.V(t.log, logs.Attempts)
	if log == nil {
		return
	}
	switch e.Kind {
	case source.NodeSet:
		if t.ledger.knowsNode(e.Node.Name) {
			if log = logs.V(t.log, logs.Debug); log != nil {
				log.Info("Update event for node", "node", e.Node.Name)
			}
			return
		}
		log.Info("Add event for node", "node", e.Node.Name)
	case source.NodeGone:
		log.Info("Delete event for node", "node", e.Node.Name)
	case source.PodSet:
		pod := e.Pod.Namespace + "/" + e.Pod.Name
		row, known := t.ledger.knownPod(e.Pod.UID)
		switch {
		case e.Pod.NodeName != "" && (!known || row.Phase != cluster.Bound):
			log.Info("Add event for scheduled pod", "pod", pod, "node", e.Pod.NodeName)
		case e.Pod.NodeName == "" && !known:
			log.Info("Add event for unscheduled pod", "pod", pod)
		default:
			if log = logs.V(t.log, logs.Debug); log == nil {
				return
			}
			if e.Pod.NodeName != "" {
				log.Info("Update event for scheduled pod", "pod", pod)
				return
			}
			log.Info("Update event for unscheduled pod", "pod", pod)
		}
	case source.PodGone:
		row, known := t.ledger.knownPod(e.Pod.UID)
		if !known {
			return
		}
		if pod := row.Namespace + "/" + row.Name; row.Phase != cluster.Bound {
			log.Info("Delete event for unscheduled pod", "pod", pod)
		} else {
			log.Info("Delete event for scheduled pod", "pod", pod)
		}
	}
}

func (l *ledger) knowsNode(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Nodes.ByName(ingest.Sound(name)) != cluster.NoNode
}

// knownPod returns a pod as the ledger has it.
func (l *ledger) knownPod(uid string) (cluster.PodRow, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.state.PodByUID(ingest.Sound(uid)); ok {
		return *l.state.Pod(id), true
	}
	return cluster.PodRow{}, false
}

// logReports logs why pods were not placed, if so much is logged, but for those that are handed in again, by their indexes.
func (t *term) logReports(reports []source.Report, left []int) {
	log := logs.V(t.log, logs.Outcomes)
	for i, r := range reports {
		if len(left) > 0 && left[0] == i {
			left = left[1:]
			continue
		}
		if r.Reason == "" {
			continue // a nomination, and nothing else
		}
		if r.Reason == reasonError {
			t.log.Error("Error scheduling pod; retrying", "pod", r.Namespace+"/"+r.Name, "err", r.Message) // at any verbosity, as kube-scheduler does
			continue
		}
		if log == nil {
			continue
		}
		if r.Message == engine.NoNodes {
			log.Info("Unable to schedule pod; no nodes are registered to the cluster; waiting", "pod", r.Namespace+"/"+r.Name)
			continue
		}
		log.Info("Unable to schedule pod; no fit; waiting", "pod", r.Namespace+"/"+r.Name, "err", r.Message)
	}
}
