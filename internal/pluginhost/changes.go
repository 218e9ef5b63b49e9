package pluginhost

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// mostChanged are as many nodes as are kept of which a service says that they have changed, until somebody asks it something. Of more, all have.
const mostChanged = 10_000

// changes are the nodes that have changed for a service, as it says: what it has been asked about them before does not hold any more. It is safe for concurrent use.
type changes struct {
	some atomic.Bool // nobody has taken what there is

	mu    sync.Mutex
	last  time.Duration            // that asks has returned, or that something was heard
	nodes map[string]time.Duration // when each was heard of last, by name
	all   time.Duration            // when it was heard last that all have changed; 0: never
}

// asks returns when a question is asked: behind all that has been heard, and before all that will be. Now is by the service's clock, from which it differs by nanoseconds.
func (c *changes) asks(now time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(now, c.last+1)
	return c.last
}

// hear notes that some nodes have changed, or all.
func (c *changes) hear(nodes []string, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	if c.nodes == nil {
		c.nodes = make(map[string]time.Duration)
	}
	for _, name := range nodes {
		if name == "" || len(name) > maxNodeName { // no node is called that
			continue
		}
		if _, ok := c.nodes[name]; !ok && len(c.nodes) >= mostChanged {
			all = true
			break
		}
		c.nodes[name] = c.last
	}
	if all {
		c.all, c.nodes = c.last, nil
	}
	c.some.Store(true)
}

// take takes what there is.
func (c *changes) take() (nodes map[string]time.Duration, all time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, c.nodes = c.nodes, nil
	c.some.Store(false)
	return nodes, c.all
}

// notes takes up which nodes have changed for the service. It comes before what looks whether answers hold. The caller holds the state's lock.
func (is *session) notes(c *changes, st *cluster.State) {
	if !c.some.Load() {
		return
	}
	nodes, all := c.take()
	if is.allChanged != all {
		is.allChanged = all
		is.hearsAll()
	}
	for name, at := range nodes {
		i := st.Nodes.ByName(name)
		if i == cluster.NoNode { // what is said of it will have been asked behind that
			continue
		}
		if grows := int(i) + 1 - len(is.changed); grows > 0 {
			is.changed = append(is.changed, make([]time.Duration, grows)...)
		}
		is.changed[i] = at
		is.hears(i)
	}
}

// changedSince reports whether a node has changed for the service since it was asked about it.
func changedSince(asked time.Duration, changed []time.Duration, all time.Duration, i cluster.NodeIndex) bool {
	return asked <= all || int(i) < len(changed) && asked <= changed[i]
}

// notes is that of all services.
func (k *Asking) notes(st *cluster.State) {
	for _, p := range k.parts {
		p.service.session.notes(&p.service.changes, st)
	}
}
