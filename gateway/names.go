package gateway

import (
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// podName is what people call a pod.
type podName struct{ namespace, name string }

// names finds pods by name: among hundreds of thousands, whoever looks at each waits for memory, and so does the log meanwhile.
// It is a subscriber of the replica, and asked while nobody changes the state.
type names struct {
	mu  sync.Mutex
	ids map[podName]cluster.PodID
}

// Reset implements replica.Subscriber.
func (n *names) Reset(st *cluster.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ids = make(map[podName]cluster.PodID, st.Count(cluster.Pending)+st.Count(cluster.Assumed)+st.Count(cluster.Bound))
	for id, p := range st.Pods() {
		n.ids[podName{p.Namespace, p.Name}] = id
	}
}

// Applied implements replica.Subscriber. A pod may come before another one of its name has gone.
func (n *names) Applied(st *cluster.State, d cluster.Delta) {
	switch d := d.(type) {
	case cluster.PodSet:
		if st.Before().Pod.UID != "" {
			return // it was there, and names do not change
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		p := st.Pod(d.ID)
		n.ids[podName{p.Namespace, p.Name}] = d.ID
	case cluster.PodRemoved:
		n.mu.Lock()
		defer n.mu.Unlock()
		gone := &st.Before().Pod
		if key := (podName{gone.Namespace, gone.Name}); n.ids[key] == d.ID {
			delete(n.ids, key)
		}
	}
}

// find returns the pod of that name in the state that was last told, nil if there is none.
func (n *names) find(st *cluster.State, name podName) (cluster.PodID, *cluster.PodRow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, ok := n.ids[name]
	if !ok {
		return cluster.NoPod, nil
	}
	return id, st.Pod(id)
}
