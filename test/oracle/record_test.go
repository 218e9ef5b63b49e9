package oracle

import (
	"errors"
	"fmt"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// record is the log of one epoch, from its beginning: it follows a replica.
type record struct {
	mu      sync.Mutex
	resets  int
	version cluster.Version
	deltas  []cluster.Delta
	pending map[cluster.PodID]bool // pods without a node
	assumed map[cluster.PodID]bool
	leaving map[cluster.PodID]bool // pods that terminate
	victims map[cluster.PodID]bool // pods that are to be evicted, but do not terminate yet
}

func newRecord() *record {
	return &record{
		pending: make(map[cluster.PodID]bool), assumed: make(map[cluster.PodID]bool),
		leaving: make(map[cluster.PodID]bool), victims: make(map[cluster.PodID]bool),
	}
}

// Reset notes that a snapshot was loaded: one, of an empty cluster.
func (r *record) Reset(st *cluster.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets++
	r.version = st.Version()
}

// Applied notes a delta.
func (r *record) Applied(st *cluster.State, d cluster.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = st.Version()
	r.deltas = append(r.deltas, d)
	switch d := d.(type) {
	case cluster.PodAssumed:
		delete(r.pending, d.ID)
		r.assumed[d.ID] = true
	case cluster.PodBound:
		delete(r.assumed, d.ID)
	case cluster.PodForgotten:
		delete(r.assumed, d.ID)
		delete(r.victims, d.ID) // it waited for its claims, and is not deleted for that
		r.pending[d.ID] = true
	case cluster.PodRemoved:
		delete(r.pending, d.ID)
		delete(r.assumed, d.ID)
		delete(r.leaving, d.ID)
		delete(r.victims, d.ID)
	case cluster.PreemptionStarted:
		for _, id := range d.Victims {
			if !r.leaving[id] {
				r.victims[id] = true
			}
		}
	case cluster.PreemptionEnded:
		for _, id := range d.Spared {
			delete(r.victims, id)
		}
	case cluster.PodSet:
		if d.Pod.Deleting {
			r.leaving[d.ID] = true
			delete(r.victims, d.ID)
		}
		if d.Pod.NodeName != "" {
			delete(r.pending, d.ID)
			delete(r.assumed, d.ID)
		} else if !r.assumed[d.ID] {
			r.pending[d.ID] = true
		}
	}
}

// ready returns why nothing can be told yet: what is told before the first snapshot would be missing in the record.
func (r *record) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resets == 0 {
		return errors.New("no snapshot yet")
	}
	return nil
}

// settled returns why the record may go on although the binder is at a version, and queues hold so many pods.
func (r *record) settled(v cluster.Version, queued int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.version != v:
		return fmt.Errorf("the record is at version %v, the binder at %v", r.version, v)
	case len(r.assumed) > 0:
		return fmt.Errorf("%d pods are assumed and not bound", len(r.assumed))
	case len(r.victims) > 0:
		return fmt.Errorf("%d pods are to be evicted", len(r.victims))
	case len(r.pending) != queued:
		return fmt.Errorf("%d pods are pending, %d in queues", len(r.pending), queued)
	}
	return nil
}

// all returns the deltas. It is an error if some are missing.
func (r *record) all() ([]cluster.Delta, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resets != 1 {
		return nil, fmt.Errorf("the follower has loaded %d snapshots", r.resets)
	}
	return r.deltas, nil
}
