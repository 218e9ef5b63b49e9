package coord

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// busy is an etcd that has too much to do for so many transactions.
type busy struct {
	clientv3.KV
	left int
}

func (b *busy) Txn(ctx context.Context) clientv3.Txn { return &busyTxn{b, b.KV.Txn(ctx)} }

type busyTxn struct {
	of *busy
	clientv3.Txn
}

func (t *busyTxn) If(conds ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(conds...); return t }
func (t *busyTxn) Then(ops ...clientv3.Op) clientv3.Txn  { t.Txn = t.Txn.Then(ops...); return t }
func (t *busyTxn) Else(ops ...clientv3.Op) clientv3.Txn  { t.Txn = t.Txn.Else(ops...); return t }

func (t *busyTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.of.left--; t.of.left >= 0 {
		return nil, rpctypes.ErrTooManyRequests
	}
	return t.Txn.Commit()
}

func TestWhileEtcdHasTooMuchToDoWritesAreTriedAgain(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	whole := c.txns
	s := newSession(t, c, lasting)
	defer closeSession(t, s)
	var term *Term
	for what, write := range map[string]func() error{
		"stand":    func() error { return s.Stand(within(t), "b") },
		"register": func() error { return s.Register(within(t), Member{RoleBinder, "b", "address"}) },
		"claim":    func() error { _, err := s.ClaimShard(within(t), 1, "b"); return err },
		"campaign": func() (err error) { term, err = c.Campaign(within(t), s, "b", "address"); return err },
	} {
		etcd := &busy{whole, 3}
		c.txns = etcd
		if err := write(); err != nil || etcd.left >= 0 {
			t.Errorf("%s: %v, %d refusals left; want none", what, err, etcd.left)
		}
	}
	// Not for ever: whoever waits is told, and that nothing was written.
	c.txns = &busy{whole, 1 << 30}
	c.requestTimeout = time.Second
	v := Version{term.Epoch(), 1}
	if err := term.Record(within(t), v, nil, nil); !errors.Is(err, ErrBusy) || errors.Is(err, ErrUnknown) {
		t.Errorf("an etcd that is busy on: %v, want %v", err, ErrBusy)
	}
	c.txns, c.requestTimeout = whole, defaultTimeout
	if r, err := c.ReadRecord(within(t)); err != nil || r.Version != (Version{}) {
		t.Errorf("recorded %v, %v", r.Version, err)
	}
	if err := term.Record(within(t), v, nil, nil); err != nil {
		t.Error(err)
	}
}
