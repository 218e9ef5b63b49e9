package pluginhost

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// following is of which nodes the answers of a column hold, and which of these are refused, so that nobody has to look at each answer for each pod. It follows the state and the service by what has changed. What depends on the time, or on objects, it cannot follow.
type following struct {
	holds, refuses cluster.Bitmap
	follows        bool                // else all nodes are to be looked at
	seq            cluster.Seq         // of the state that it is of
	heard          uint64              // session.heard that it is of
	answered       []cluster.NodeIndex // what is said of these has been answered since
}

// forget has all nodes looked at again.
func (f *following) forget() { f.follows, f.answered = false, f.answered[:0] }

// answers notes that something is said anew of some of so many nodes.
func (f *following) answers(nodes []cluster.NodeIndex, of int) {
	switch {
	case !f.follows:
	case len(f.answered)+len(nodes) > of/4: // as soon looked at all of them
		f.forget()
	default:
		f.answered = append(f.answered, nodes...)
	}
}

// follow brings what is known of a column up to a state, whose lock the caller holds, and to what the service has said. False: that cannot be done.
func (is *session) follow(c *column, st *cluster.State, now time.Duration) bool {
	if c.depends.within > 0 || c.depends.object || c.depends.cluster {
		return false
	}
	f := &c.following
	nodes := len(c.answers)
	f.holds, f.refuses = f.holds.Grow(nodes), f.refuses.Grow(nodes)
	look := func(i cluster.NodeIndex) {
		if int(i) < nodes {
			holds := is.holds(c, st, i, now)
			f.holds.Put(i, holds)
			f.refuses.Put(i, holds && c.answers[i].verdict != 0)
		}
	}
	if f.follows && f.heard >= is.forgot {
		st.ChangedSince(f.seq, look)
		for _, i := range is.heard[f.heard-is.forgot:] {
			look(i)
		}
		for _, i := range f.answered {
			look(i)
		}
	} else {
		for i := range nodes {
			look(cluster.NodeIndex(i))
		}
	}
	f.follows, f.seq, f.heard, f.answered = true, st.Version().Seq, is.forgot+uint64(len(is.heard)), f.answered[:0]
	return true
}

// mostHeard is of how many changes a session knows for columns that have not followed them yet.
const mostHeard = 4096

// hears notes that a node has changed for the service.
func (is *session) hears(i cluster.NodeIndex) {
	if len(is.heard) == mostHeard {
		is.hearsAll()
	}
	is.heard = append(is.heard, i)
}

// hearsAll notes that all nodes have changed for the service, or so many that it does not matter which.
func (is *session) hearsAll() {
	is.forgot += uint64(len(is.heard)) + 1
	is.heard = is.heard[:0]
}
