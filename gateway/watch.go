package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// watchBatch is how many placements a watcher takes from the feed at a time.
const watchBatch = 256

// watchesOfOne is how many watches one caller may have. Who looks at placements needs one, or one for each page that is open; the service
// accounts of a namespace are one caller, with whatever watches for them; and behind a load balancer an address is several people. Each watch
// has every placement sent, which no turn and no rate bounds.
const watchesOfOne = 50

// WatchPlacements implements SchedulingService.
//
// When the epoch changes, or the gateway's replica loads a snapshot, the stream goes on with what differs from before;
// those messages carry the old version, which cannot be resumed from, until all of them are sent.
func (s *Service) WatchPlacements(req *schedulingv1.WatchPlacementsRequest, stream grpc.ServerStreamingServer[schedulingv1.WatchPlacementsResponse]) error {
	if err := s.loaded(); err != nil {
		return err
	}
	position, err := s.openWatch(stream.Context(), req.GetFrom())
	if err != nil {
		return err
	}

	// Send waits for a client that does not read, and only the end of this method ends such a Send: so another
	// goroutine sends, which the service owns.
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	messages, failed := make(chan any), make(chan error, 1)
	over, err := s.watchers.start(rpc.CallerOf(ctx), func() {
		for {
			select {
			case message := <-messages:
				if err := stream.SendMsg(message); err != nil {
					failed <- err
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	if err != nil {
		return err
	}
	defer over()

	// send hands over a message when the one before it is on its way.
	stall := time.NewTimer(s.cfg.Stall)
	defer stall.Stop()
	send := func(message any) error {
		stall.Reset(s.cfg.Stall)
		select {
		case messages <- message:
			return nil
		case err := <-failed:
			return err
		case <-stall.C:
			return errTooSlow()
		case <-s.watchers.stopping:
			return errStopping()
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	idle := time.NewTimer(s.cfg.Heartbeat)
	defer idle.Stop()
	buffer := make([]placement, watchBatch)
	for {
		n, version, changed, err := s.feed.next(position, buffer)
		if err != nil {
			return err
		}
		for i := range n {
			if err := send(buffer[i].encoded); err != nil {
				return err
			}
		}
		position += uint64(n)
		if n > 0 {
			continue
		}
		idle.Reset(s.cfg.Heartbeat)
		select {
		case <-changed:
		case <-idle.C:
			if err := send(&schedulingv1.WatchPlacementsResponse{Version: versionOf(version)}); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-s.watchers.stopping:
			return errStopping()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// openWatch returns where in the feed a watch from a version begins. A version that the replica has not come to yet,
// because another gateway's had, is waited for as long as the replica waits.
func (s *Service) openWatch(ctx context.Context, from *schedulingv1.Version) (position uint64, err error) {
	if from == nil {
		position, _, err = s.feed.open(nil)
		return position, err
	}
	var violations []rpc.Violation
	if from.GetEpoch() < 0 {
		violations = append(violations, rpc.Violation{Field: "from.epoch", Description: "negative"})
	}
	if from.GetSeq() < 0 {
		violations = append(violations, rpc.Violation{Field: "from.seq", Description: "negative"})
	}
	if err := rpc.Invalid(violations...); err != nil {
		return 0, err
	}
	want := cluster.Version{Epoch: cluster.Epoch(from.GetEpoch()), Seq: cluster.Seq(from.GetSeq())}
	position, behind, err := s.feed.open(&want)
	if behind {
		if err := s.cfg.Replica.Read(ctx, want, func(*cluster.State) error { return nil }); err != nil {
			return 0, replica.Status(err)
		}
		if position, behind, err = s.feed.open(&want); behind {
			return 0, errBehind(want, s.cfg.Replica.Version())
		}
	}
	return position, err
}

func messageOf(p *placement) *schedulingv1.WatchPlacementsResponse {
	message := &schedulingv1.WatchPlacementsResponse{Version: versionOf(p.resume)}
	if p.uid != "" {
		message.Pod, message.Uid = p.namespace+"/"+p.name, p.uid
		message.Node, message.Placed = p.node, p.placed
	}
	return message
}
