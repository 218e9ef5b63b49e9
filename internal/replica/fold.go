package replica

import (
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// The reasons for dropping a state or a snapshot, for the metric.
const (
	resyncSnapshot = "snapshot" // it cannot be loaded, or is not the ledger
	resyncDigest   = "digest"   // the ledger's digest is another
	resyncGap      = "gap"      // deltas are missing
	resyncDecode   = "decode"   // a delta does not decode
	resyncRefused  = "refused"  // a delta does not apply
)

// folding folds the messages of one stream into the replica. Only its goroutine changes the replica's state, so it
// may read it without the lock.
type folding struct {
	replica *Replica
	epoch   cluster.Epoch  // older ones are not followed
	loading *cluster.State // the snapshot under way; nil if none is
}

// message folds one message. After an error the stream is of no more use.
func (f *folding) message(m *logv1.FollowResponse) error {
	v := wire.Version(m.GetVersion())
	if v.Epoch < f.epoch || v.Seq < 0 {
		return fmt.Errorf("fold message of version %v: want epoch %d or later", v, f.epoch)
	}
	switch m.GetKind() {
	case logv1.FollowResponse_KIND_SNAPSHOT_FIRST:
		f.loading = cluster.New(v)
		return f.load(m)
	case logv1.FollowResponse_KIND_SNAPSHOT_MORE:
		return f.load(m)
	case logv1.FollowResponse_KIND_SNAPSHOT_LAST:
		if err := f.load(m); err != nil {
			return err
		}
		return f.publish(v, m.GetDigest(), m.GetHead())
	case logv1.FollowResponse_KIND_DELTAS:
		return f.deltas(v, m)
	case logv1.FollowResponse_KIND_HEARTBEAT:
		return f.heartbeat(v, m)
	}
	return fmt.Errorf("fold message of kind %d: unknown", m.GetKind())
}

// load adds a part to the snapshot under way. The state that others read stays as it is.
func (f *folding) load(m *logv1.FollowResponse) error {
	if f.loading == nil {
		return f.reject(fmt.Errorf("load snapshot of version %v: it has no first part", wire.Version(m.GetVersion())))
	}
	for i, b := range m.GetDeltas() {
		d, err := wire.Decode(b)
		if err == nil {
			err = f.loading.Apply(d)
		}
		if err != nil {
			return f.reject(fmt.Errorf("load snapshot of version %v, delta %d of a part: %w", wire.Version(m.GetVersion()), i, err))
		}
	}
	return nil
}

// reject gives up the snapshot under way. The state that others read stays.
func (f *folding) reject(why error) error {
	f.loading = nil
	f.replica.metrics.resyncs.WithLabelValues(resyncSnapshot).Inc()
	f.replica.cfg.Log.Error("snapshot rejected", "err", why)
	return why
}

// publish makes the snapshot the state that others read.
func (f *folding) publish(v cluster.Version, digest uint64, head *logv1.Version) error {
	st := f.loading
	f.loading = nil
	st.Restore(v)
	if st.Digest() != digest {
		return f.reject(fmt.Errorf("load snapshot of version %v: its digest is %016x, the ledger's is %016x", v, st.Digest(), digest))
	}
	r := f.replica
	r.mu.Lock()
	r.state = st
	for _, s := range r.subscribers {
		s.Reset(st)
	}
	r.wake()
	r.hear(v, head)
	r.metrics.snapshots.Inc()
	r.mu.Unlock()
	r.cfg.Log.Info("snapshot loaded", "version", v, "nodes", st.Nodes.Count(), "digest", fmt.Sprintf("%016x", digest))
	return nil
}

// deltas applies a run of deltas. Readers see all of it or nothing.
func (f *folding) deltas(v cluster.Version, m *logv1.FollowResponse) error {
	r := f.replica
	st := r.state
	count := cluster.Seq(len(m.GetDeltas()))
	if f.loading != nil {
		return f.reject(fmt.Errorf("load snapshot: deltas up to version %v came before its last part", v))
	}
	if st == nil || v.Epoch != st.Version().Epoch || v.Seq != st.Version().Seq+count {
		return r.distrust(resyncGap, fmt.Errorf("%d deltas up to version %v do not follow version %v", count, v, r.Version()))
	}
	ds := make([]cluster.Delta, 0, count)
	for i, b := range m.GetDeltas() {
		d, err := wire.Decode(b)
		if err != nil {
			return r.distrust(resyncDecode, fmt.Errorf("delta %d up to version %v: %w", i, v, err))
		}
		ds = append(ds, d)
	}
	if err := r.apply(ds, v, m.GetHead()); err != nil {
		return r.distrust(resyncRefused, err)
	}
	r.metrics.deltas.Add(float64(count))
	return nil
}

// apply applies deltas under one lock. After an error the state is not to be read any more: it is gone.
func (r *Replica) apply(ds []cluster.Delta, v cluster.Version, head *logv1.Version) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wake()
	for _, d := range ds {
		if err := r.state.Apply(d); err != nil {
			err = fmt.Errorf("apply %T behind version %v: %w", d, r.state.Version(), err)
			r.state = nil
			return err
		}
		for _, s := range r.subscribers {
			s.Applied(r.state, d)
		}
	}
	r.hear(v, head)
	return nil
}

// heartbeat compares the state with the ledger.
func (f *folding) heartbeat(v cluster.Version, m *logv1.FollowResponse) error {
	r := f.replica
	if f.loading != nil {
		return f.reject(fmt.Errorf("load snapshot: a heartbeat of version %v came before its last part", v))
	}
	if v != r.Version() {
		return r.distrust(resyncGap, fmt.Errorf("heartbeat of version %v does not follow version %v", v, r.Version()))
	}
	if have := r.Digest(); have != m.GetDigest() {
		return r.distrust(resyncDigest, fmt.Errorf("digest at version %v is %016x, the ledger's is %016x", v, have, m.GetDigest()))
	}
	r.hear(v, m.GetHead())
	return nil
}

// hear notes that the binder has spoken of the state.
func (r *Replica) hear(v cluster.Version, head *logv1.Version) {
	now := time.Now()
	r.heard.Store(&now)
	if h := wire.Version(head); v.Less(h) {
		v = h
	}
	r.head.Store(&v)
}

// wake wakes readers that wait for a change. The caller holds the lock.
func (r *Replica) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// distrust drops the state, so that the next stream begins with a snapshot, and returns why.
func (r *Replica) distrust(reason string, why error) error {
	r.mu.Lock()
	r.state = nil
	r.wake()
	r.mu.Unlock()
	r.metrics.resyncs.WithLabelValues(reason).Inc()
	r.cfg.Log.Error("state dropped: it cannot be trusted", "reason", reason, "err", why)
	return fmt.Errorf("fold the log: %w", why)
}
