package queue

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/internal/cluster"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// Bounds of the requests, as the proto says them.
const (
	standardPage  = 100
	maxPage       = 1000
	maxUIDs       = 1000
	maxAheads     = 10
	maxPriorities = 10

	// pageBytes ends a page early: answers that are not read yet are kept, as many as a connection has streams.
	pageBytes = 512 << 10
)

// listed is a pod on its way to an answer.
type listed struct {
	shard *shard
	pending.Entry
}

// key orders the pods of a list.
func (l *listed) key() [3]string { return [3]string{l.Pod.Namespace, l.Pod.Name, l.Pod.UID} }

func compareKeys(a, b [3]string) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]), cmp.Compare(a[2], b[2]))
}

// ListPending pages through the pods of the owned shards, by namespace and name. It looks at every pod, but keeps no more
// than two pages of them, however many wait.
func (s *Service) ListPending(_ context.Context, request *queuev1.ListPendingRequest) (*queuev1.ListPendingResponse, error) {
	size, after, err := page(request)
	if err != nil {
		return nil, err
	}
	var pods []listed
	var bound *[3]string // what is not below it is not among the first
	cut := func() {
		slices.SortFunc(pods, func(a, b listed) int { return compareKeys(a.key(), b.key()) })
		if len(pods) > size+1 { // the one more tells that there is a next page
			last := pods[size].key()
			pods, bound = pods[:size+1], &last
		}
	}
	for _, sh := range s.owned() {
		for some := range sh.entries() {
			for _, e := range some {
				l := listed{shard: sh, Entry: e}
				key := l.key()
				if after != nil && compareKeys(key, *after) <= 0 || bound != nil && compareKeys(key, *bound) >= 0 {
					continue
				}
				if pods = append(pods, l); len(pods) >= 2*(size+1) {
					cut()
				}
			}
		}
	}
	cut()
	response := &queuev1.ListPendingResponse{}
	if len(pods) > size {
		pods = pods[:size]
		response.NextPageToken = token(pods[size-1].key())
	}
	response.Pods = fitting(s.answer(pods, false), pageBytes)
	if n := len(response.GetPods()); n < len(pods) {
		response.NextPageToken = token(pods[n-1].key())
	}
	return response, nil
}

// fitting returns the first of the pods, at least one if there is any, until they take so many bytes.
func fitting(pods []*queuev1.PendingPod, bytes int) []*queuev1.PendingPod {
	for n, pod := range pods {
		if bytes -= proto.Size(pod); bytes <= 0 {
			return pods[:n+1]
		}
	}
	return pods
}

// GetPending returns what the owned shards know of pods.
func (s *Service) GetPending(ctx context.Context, request *queuev1.GetPendingRequest) (*queuev1.GetPendingResponse, error) {
	if err := checkUIDs(request.GetUids()); err != nil {
		return nil, err
	}
	var pods []listed
	err := s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		owned := make(map[int32]*shard)
		for _, sh := range s.owned() {
			owned[sh.number] = sh
		}
		for _, uid := range request.GetUids() {
			id, ok := st.PodByUID(uid)
			if !ok {
				continue
			}
			number, _ := pending.ShardOf(st, st.Pod(id))
			sh := owned[number]
			if sh == nil {
				continue
			}
			sh.mu.Lock()
			if e, ok := sh.queue.Entry(id); ok && e.Pod.UID == uid {
				pods = append(pods, listed{shard: sh, Entry: e})
			}
			sh.mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return nil, replica.Status(err)
	}
	return &queuev1.GetPendingResponse{Pods: s.answer(pods, request.GetAhead())}, nil
}

// checkUIDs returns what is wrong with the uids of a request.
func checkUIDs(uids []string) error {
	var violations []rpc.Violation
	if n := len(uids); n > maxUIDs {
		violations = append(violations, rpc.Violation{Field: "uids", Description: fmt.Sprintf("%d of them, at most %d are possible", n, maxUIDs)})
	}
	for i, uid := range uids {
		if uid == "" {
			violations = append(violations, rpc.Violation{Field: fmt.Sprintf("uids[%d]", i), Description: "empty"})
		}
	}
	return rpc.Invalid(violations...)
}

// Activate makes pods of the owned shards active, whatever they wait for.
func (s *Service) Activate(ctx context.Context, request *queuev1.ActivateRequest) (*queuev1.ActivateResponse, error) {
	if err := checkUIDs(request.GetUids()); err != nil {
		return nil, err
	}
	response := &queuev1.ActivateResponse{}
	err := s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		owned := s.owned()
		for _, uid := range request.GetUids() {
			id, ok := st.PodByUID(uid)
			if !ok {
				continue
			}
			for _, sh := range owned {
				sh.with(func(q *pending.Queue, now time.Time) {
					if q.Activate(now, id) {
						response.Uids = append(response.Uids, uid)
					}
				})
			}
		}
		return nil
	})
	if err != nil {
		return nil, replica.Status(err)
	}
	s.floors.announce()
	return response, nil
}

// GetShards returns the owned shards with their depths and floors, by their numbers.
func (s *Service) GetShards(context.Context, *queuev1.GetShardsRequest) (*queuev1.GetShardsResponse, error) {
	response := &queuev1.GetShardsResponse{}
	floors := s.ownFloors()
	for _, sh := range s.owned() {
		n, looks := sh.depth()
		shard := &queuev1.Shard{
			Shard: sh.number, Gated: int32(n[pending.Gated]), Active: int32(n[pending.Active]), Backoff: int32(n[pending.Backoff]),
			Unschedulable: int32(n[pending.Unschedulable]), InFlight: int32(n[pending.InFlight]), Looks: looks,
		}
		if floor, ok := floors.working[sh.number]; ok {
			shard.PriorityFloor = &floor
		}
		response.Shards = append(response.Shards, shard)
	}
	return response, nil
}

// page validates a request for a page.
func page(request *queuev1.ListPendingRequest) (size int, after *[3]string, err error) {
	var violations []rpc.Violation
	size = int(request.GetPageSize())
	switch {
	case size < 0:
		violations = append(violations, rpc.Violation{Field: "page_size", Description: fmt.Sprintf("%d is negative", size)})
	case size == 0:
		size = standardPage
	}
	if t := request.GetPageToken(); t != "" {
		b, err := base64.RawURLEncoding.DecodeString(t)
		parts := strings.Split(string(b), "\x00")
		if err != nil || len(parts) != 3 {
			violations = append(violations, rpc.Violation{Field: "page_token", Description: "not a token of an earlier page"})
		} else {
			after = (*[3]string)(parts)
		}
	}
	return min(size, maxPage), after, rpc.Invalid(violations...)
}

func token(key [3]string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(key[:], "\x00")))
}

// answer writes pods as messages, with the positions of active ones; of the first few with who is ahead, if that is asked for.
func (s *Service) answer(pods []listed, ahead bool) []*queuev1.PendingPod {
	out := make([]*queuev1.PendingPod, 0, len(pods))
	for i, l := range pods {
		p := &queuev1.PendingPod{
			Uid: l.Pod.UID, Namespace: l.Pod.Namespace, Name: l.Pod.Name, State: state(l.Place), Since: timestamppb.New(l.Since),
			Attempts: l.Attempts, Message: l.Message, Verdicts: wire.ToVerdicts(l.Verdicts), Shard: l.shard.number, Priority: l.Pod.Priority,
		}
		if l.Place == pending.Active {
			priorities := 0
			if ahead && i < maxAheads {
				priorities = maxPriorities
			}
			standing := l.shard.standing(l.ID, priorities)
			p.Position, p.Ahead = int32(standing.Position), aheadOf(standing)
		}
		if !l.BackoffUntil.IsZero() {
			p.BackoffUntil = timestamppb.New(l.BackoffUntil)
		}
		out = append(out, p)
	}
	return out
}

func aheadOf(s pending.Standing) (out []*queuev1.Ahead) {
	for _, a := range s.Ahead {
		out = append(out, &queuev1.Ahead{Priority: a.Priority, Pods: int32(a.Pods), Namespace: a.Namespace, Name: a.Name})
	}
	return out
}

func state(p pending.Place) queuev1.State {
	switch p {
	case pending.Gated:
		return queuev1.State_STATE_GATED
	case pending.Active:
		return queuev1.State_STATE_ACTIVE
	case pending.Backoff:
		return queuev1.State_STATE_BACKOFF
	case pending.Unschedulable:
		return queuev1.State_STATE_UNSCHEDULABLE
	case pending.InFlight:
		return queuev1.State_STATE_IN_FLIGHT
	}
	return queuev1.State_STATE_UNSPECIFIED
}
