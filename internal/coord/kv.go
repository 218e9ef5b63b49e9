package coord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MaxTxnOps is how many operations, and how many conditions, one transaction may have: etcd's default limit.
const MaxTxnOps = 128

const (
	// maxTxnBytes is etcd's default limit for a request, less some room for its encoding.
	maxTxnBytes = 1536*1024 - 16*1024
	// opBytes is a generous guess at what the encoding adds to the key and the value of one operation.
	opBytes = 64

	// List and Scan ask for pages of about so many bytes, and of so many keys: the first and, at most, the others.
	pageBytes = 8 << 20
	firstPage = 1000
	lastPage  = 20000
	listTries = 3 // how often List starts again because etcd has compacted the revision it was reading
)

// KV is a key, relative to the client's prefix, with its value. CreateRevision is the etcd revision at which the key
// came into being, ModRevision that of its last change. A deleted key has no value and the revision of its deletion.
type KV struct {
	Key                         string
	Value                       []byte
	CreateRevision, ModRevision int64
}

// Cond is a condition of a transaction; make one with IfAbsent, IfCreateRevision, IfModRevision or Term.Guard.
type Cond struct {
	target   func(key string) clientv3.Cmp
	operator string
	key      string
	revision int64
	term     *Term // the term that a guard is of, otherwise nil
}

// IfAbsent holds if the key does not exist.
func IfAbsent(key string) Cond {
	return Cond{target: clientv3.CreateRevision, operator: "=", key: key}
}

// IfCreateRevision holds if the key was created at revision and has not been deleted since.
func IfCreateRevision(key string, revision int64) Cond {
	return Cond{target: clientv3.CreateRevision, operator: "=", key: key, revision: revision}
}

// IfModRevision holds if the key was last changed at revision.
func IfModRevision(key string, revision int64) Cond {
	return Cond{target: clientv3.ModRevision, operator: "=", key: key, revision: revision}
}

// Op is a write of a transaction; make one with Put or Delete.
type Op struct {
	key    string
	value  []byte
	delete bool
}

// Put sets the value of a key. The value must not change until the transaction has returned.
func Put(key string, value []byte) Op { return Op{key: key, value: value} }

// Delete removes a key; it is no error if the key does not exist.
func Delete(key string) Op { return Op{key: key, delete: true} }

func (c *Client) kvPrefix() string { return c.prefix + "kv/" }

// Get returns a key, or nil when it does not exist, and the revision of the answer, which is linearizable.
func (c *Client) Get(ctx context.Context, key string) (*KV, int64, error) {
	if key == "" {
		return nil, 0, errors.New("get key: the key is empty")
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	r, err := c.etcd.Get(ctx, c.kvPrefix()+key)
	if err != nil {
		return nil, 0, fmt.Errorf("get %q: %w", key, c.readError(err))
	}
	if len(r.Kvs) == 0 {
		return nil, r.Header.Revision, nil
	}
	kv := relative(r.Kvs[0], c.kvPrefix())
	return &kv, r.Header.Revision, nil
}

// List returns the keys that start with prefix, in order, as they were at one revision, which it returns too.
// It reads in pages of about 8 MiB, each with the request timeout.
func (c *Client) List(ctx context.Context, prefix string) ([]KV, int64, error) {
	kvs, revision, err := c.list(ctx, c.kvPrefix(), prefix)
	if err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefix, err)
	}
	return kvs, revision, nil
}

// Scan is List for more keys than there is memory for: it calls visit for each of them, and keeps no more than a page. They
// are as they were at revision, or, if that is 0, at the newest, which it returns, so that a second prefix can be scanned
// as it was then. visit may take its time. After an error, which wraps ErrCompacted if etcd no longer has the revision,
// only some have been visited.
func (c *Client) Scan(ctx context.Context, prefix string, revision int64, visit func(KV)) (int64, error) {
	revision, err := c.scan(ctx, c.kvPrefix(), prefix, revision, visit)
	if err != nil {
		return 0, fmt.Errorf("scan %q: %w", prefix, err)
	}
	return revision, nil
}

// list reads the keys that start with base+prefix; the keys it returns are relative to base.
func (c *Client) list(ctx context.Context, base, prefix string) ([]KV, int64, error) {
	for try := 1; ; try++ {
		var kvs []KV
		revision, err := c.scan(ctx, base, prefix, 0, func(kv KV) { kvs = append(kvs, kv) })
		switch {
		case err == nil:
			return kvs, revision, nil
		case !errors.Is(err, ErrCompacted) || try == listTries:
			return nil, 0, err
		}
	}
}

func (c *Client) scan(ctx context.Context, base, prefix string, revision int64, visit func(KV)) (int64, error) {
	from, end := base+prefix, clientv3.GetPrefixRangeEnd(base+prefix)
	keys, bytes := 0, 0
	for limit := int64(firstPage); ; limit = pageLimit(keys, bytes) {
		page, err := c.page(ctx, from, end, revision, limit)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			keys++
			bytes += len(kv.Key) + len(kv.Value)
			visit(relative(kv, base))
		}
		if !page.More {
			return revision, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// pageLimit returns how many keys the next page of a list has, given how many have been read and how large they were. For each
// page, etcd counts all keys that are left: pages of a fixed number of keys would make the time of a list grow with its square.
func pageLimit(keys, bytes int) int64 {
	return int64(min(max(pageBytes/max(bytes/max(keys, 1), 1), firstPage), lastPage))
}

func (c *Client) page(ctx context.Context, from, end string, revision, limit int64) (*clientv3.GetResponse, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	r, err := c.etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
	return r, c.readError(err)
}

// relative is what the package shows of an etcd key.
func relative(kv *mvccpb.KeyValue, base string) KV {
	return KV{
		Key:            string(bytes.TrimPrefix(kv.Key, []byte(base))),
		Value:          kv.Value,
		CreateRevision: kv.CreateRevision,
		ModRevision:    kv.ModRevision,
	}
}

// Txn applies all ops if all conds hold, and none otherwise. It reports whether they held and the revision of the
// answer: that of the writes if they did. When the guard of a term does not hold the error wraps ErrFenced.
// A key may be written once per transaction, and there may be at most MaxTxnOps conds and as many ops.
func (c *Client) Txn(ctx context.Context, conds []Cond, ops []Op) (ok bool, revision int64, err error) {
	if len(conds) > MaxTxnOps || len(ops) > MaxTxnOps {
		return false, 0, fmt.Errorf("run transaction: %d conditions and %d operations, at most %d each are possible", len(conds), len(ops), MaxTxnOps)
	}
	cmps := make([]clientv3.Cmp, 0, len(conds))
	var guards []*Term
	var whenFalse []clientv3.Op
	for _, cond := range conds {
		switch {
		case cond.term != nil:
			if cond.term.session.over() {
				return false, 0, fmt.Errorf("run transaction in epoch %d: session is over: %w", cond.term.epoch, ErrFenced)
			}
			guards = append(guards, cond.term)
			whenFalse = append(whenFalse, clientv3.OpGet(c.leaderKey(), clientv3.WithKeysOnly()))
			cmps = append(cmps, cond.term.holds())
		case cond.key == "" || cond.target == nil:
			return false, 0, errors.New("run transaction: a condition has no key")
		case cond.revision < 0:
			return false, 0, fmt.Errorf("run transaction: condition on %q: revision %d", cond.key, cond.revision)
		default:
			cmps = append(cmps, clientv3.Compare(cond.target(c.kvPrefix()+cond.key), cond.operator, cond.revision))
		}
	}
	writes := make([]clientv3.Op, 0, len(ops))
	size := 0
	for _, op := range ops {
		if op.key == "" {
			return false, 0, errors.New("run transaction: an operation has no key")
		}
		size += len(c.kvPrefix()) + len(op.key) + len(op.value) + opBytes
		if op.delete {
			writes = append(writes, clientv3.OpDelete(c.kvPrefix()+op.key))
		} else {
			writes = append(writes, clientv3.OpPut(c.kvPrefix()+op.key, string(op.value)))
		}
	}
	if size > maxTxnBytes {
		return false, 0, fmt.Errorf("run transaction of %d bytes: %w", size, ErrTooLarge)
	}

	r, err := c.commit(ctx, cmps, writes, whenFalse)
	if err != nil {
		return false, 0, fmt.Errorf("run transaction: %w", err)
	}
	if !r.Succeeded {
		for i, term := range guards {
			if now := r.Responses[i].GetResponseRange().Kvs; !term.isHeldBy(now) {
				return false, r.Header.Revision, fmt.Errorf("run transaction in epoch %d: %w", term.epoch, ErrFenced)
			}
		}
	}
	return r.Succeeded, r.Header.Revision, nil
}

// commit runs one transaction. While etcd has too much to do, and writes nothing, it is tried again, for as long as a request may take.
func (c *Client) commit(ctx context.Context, conds []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if !c.begin() {
		return nil, errClosed
	}
	defer c.work.Done()
	ctx, cancel := c.request(ctx)
	defer cancel()
	for pause := firstDelay; ; pause = min(2*pause, maxDelay) {
		r, err := c.txns.Txn(ctx).If(conds...).Then(then...).Else(otherwise...).Commit()
		err = c.writeError(err)
		if !errors.Is(err, ErrBusy) || !sleepUntil(ctx, time.Now().Add(pause)) {
			return r, err
		}
	}
}
