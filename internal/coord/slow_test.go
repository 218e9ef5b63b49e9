package coord

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// commits is an etcd whose transactions are committed by a function, which has the one that does it.
type commits struct {
	clientv3.KV
	commit func(puts bool, really func() (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error)
}

func (c *commits) Txn(ctx context.Context) clientv3.Txn { return &committed{Txn: c.KV.Txn(ctx), by: c} }

type committed struct {
	clientv3.Txn
	by   *commits
	puts bool
}

func (t *committed) If(conds ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(conds...); return t }
func (t *committed) Else(ops ...clientv3.Op) clientv3.Txn  { t.Txn = t.Txn.Else(ops...); return t }
func (t *committed) Commit() (*clientv3.TxnResponse, error) {
	return t.by.commit(t.puts, t.Txn.Commit)
}

func (t *committed) Then(ops ...clientv3.Op) clientv3.Txn {
	for _, op := range ops {
		t.puts = t.puts || op.IsPut()
	}
	t.Txn = t.Txn.Then(ops...)
	return t
}

// renewals counts those of leases.
type renewals struct {
	pb.LeaseClient
	began chan struct{}
}

func (l *renewals) LeaseKeepAlive(ctx context.Context, opts ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	select {
	case l.began <- struct{}{}:
	default:
	}
	return l.LeaseClient.LeaseKeepAlive(ctx, opts...)
}

func TestALeaseIsRenewedWhileTheKeyOfTheRolesOwnTakesLong(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	c.role = RoleQueue
	leases := &renewals{LeaseClient: c.leases, began: make(chan struct{})}
	c.leases = leases
	c.txns = &commits{c.txns, func(_ bool, really func() (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
		for range 5 { // which is longer than the lease lasts by itself
			select {
			case <-leases.began:
			case <-time.After(patient):
				return nil, errors.New("the lease is not renewed")
			}
		}
		return really()
	}}
	s := newSession(t, c, time.Second)
	defer closeSession(t, s)
	if s.over() {
		t.Error("the session is over when it begins")
	}
}

// etcd says so of a write that it has applied, if there is no room any more behind it, and of all later ones.
func TestACandidateWhoseKeyIsWrittenThoughEtcdIsFullIsElected(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	s := newSession(t, c, lasting)
	defer closeSession(t, s)
	var full atomic.Bool
	whole := c.txns
	c.txns = &commits{whole, func(puts bool, really func() (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
		if !puts {
			return really()
		}
		if !full.Swap(true) {
			if _, err := really(); err != nil {
				return nil, err
			}
		}
		return nil, rpctypes.ErrNoSpace
	}}
	term, err := c.Campaign(within(t), s, "b", "address")
	if err != nil {
		t.Fatal(err)
	}
	c.txns = whole
	if l := next(t, c.WatchLeader(t.Context())); l.Epoch != term.Epoch() || l.ID != "b" {
		t.Errorf("etcd names %+v, the term has epoch %d", l, term.Epoch())
	}
}
