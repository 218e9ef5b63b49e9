package coord

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const candidatesPrefix = "candidates/"

// Stand tells the leader, until the session ends, that a candidate would serve if it were elected. It is idempotent.
func (s *Session) Stand(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("stand for election: id: empty")
	}
	if s.over() {
		return fmt.Errorf("stand for election as %s: %w", id, ErrSessionLost)
	}
	put := clientv3.OpPut(s.client.coordPrefix()+candidatesPrefix+id, "", clientv3.WithLease(s.lease))
	if _, err := s.client.commit(ctx, nil, []clientv3.Op{put}, nil); err != nil {
		return fmt.Errorf("stand for election as %s: %w", id, s.refused(err))
	}
	return nil
}

// Contested reports whether a candidate of another session stands for election.
func (t *Term) Contested(ctx context.Context) (bool, error) {
	ctx, cancel := t.client.request(ctx)
	defer cancel()
	prefix := t.client.coordPrefix() + candidatesPrefix
	r, err := t.client.kv.Range(ctx, &pb.RangeRequest{
		Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), // KeysOnly would leave out the leases
	}, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("read who stands for election: %w", err)
	}
	for _, kv := range r.Kvs {
		if clientv3.LeaseID(kv.Lease) != t.session.lease {
			return true, nil
		}
	}
	return false, nil
}
