package local

import (
	"context"
	"fmt"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// Evict deletes the pod, with all that is its, in a transaction that holds only if the fence does. There is no grace
// period, since nothing runs, and so no condition that anybody could read.
func (s *Source) Evict(ctx context.Context, fence coord.Cond, e source.Eviction) error {
	for range podTries {
		pod, err := s.read(ctx, e.Namespace, e.Name)
		if err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", e.Namespace, e.Name, err)
		}
		if pod == nil || pod.uid != e.UID {
			return nil
		}
		key := podKey(e.Namespace, e.Name)
		ok, _, err := s.etcd.Txn(ctx, []coord.Cond{fence, coord.IfCreateRevision(key, pod.createRevision)}, deletePod(key, e.UID))
		if err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", e.Namespace, e.Name, err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("evict pod %s/%s: %w", e.Namespace, e.Name, errChanged)
}

// Preempted does nothing: there are no events, and of the pod nothing is left.
func (s *Source) Preempted(context.Context, source.Eviction) error { return nil }

// Unsupported writes nothing: there are no events.
func (s *Source) Unsupported(context.Context, source.Unsupported) error { return nil }
