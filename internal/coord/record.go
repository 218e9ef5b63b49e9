package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Intent says that a pod is to be bound to a node, and before that its claims to what has been chosen for them.
type Intent struct {
	PodUID, Namespace, Name, Node string
	Volumes                       []VolumeIntent
	// Scheduler is the scheduler name of a pod with volumes, "" if it was not recorded: where the pod is gone, nothing else says it.
	Scheduler string
	// Annotations are what was chosen for the pod, to be written with its bind.
	Annotations map[string]string
}

// VolumeIntent says what a claim in the pod's namespace is to get: a volume, or, if that is "", one that is to be provisioned for the node.
type VolumeIntent struct{ Claim, ClaimUID, Volume string }

// Batch is the intents of one commit. IDs are positive and unique among the batches that are not finished, whatever
// epoch they are of: a new leader counts on from the highest ID that ReadRecord returns.
type Batch struct {
	ID      int64
	Intents []Intent
	// With is set of the parts of what is recorded whole or not at all and is too large for one batch, but for the last of them: it is the ID of that one, which
	// is recorded when all others are. Without it they do not count. 0: the batch counts by itself.
	With int64
}

// StoredBatch is a batch that is not finished, with the epoch that recorded it.
type StoredBatch struct {
	Epoch int64
	Batch Batch
}

// Record is what a new leader takes over: the last version and the batches that are not finished, by ID.
// The zero version means that nothing has been recorded.
type Record struct {
	Version Version
	Batches []StoredBatch
	// Unfinished are parts that do not count, by ID: the epoch that recorded them ended before the last one, so nothing was done for what they say. The next leader
	// removes them no later than it records its first version, and gives no batch an ID that is one of theirs, or that they count with.
	Unfinished []StoredBatch
}

// batchValue keeps an intent in strings without names: a batch is one key, and etcd limits its size.
type batchValue struct {
	Epoch   int64      `json:"epoch"`
	Intents [][]string `json:"intents"` // UID, namespace, name, node; of each volume claim, claim's UID, volume; and the scheduler name, if it is there
	// Annotations has those of the intents that have some, by their index.
	Annotations map[int]map[string]string `json:"annotations,omitempty"`
	// With is Batch.With. A release that does not know it takes parts for batches: it carries out those of an epoch that did not come to the last one.
	With int64 `json:"with,omitempty"`
}

const (
	versionName   = "version"
	intentsPrefix = "intents/"
)

func (c *Client) versionKey() string { return c.coordPrefix() + versionName }

func (c *Client) batchKey(id int64) string { return c.coordPrefix() + batchName(id) }

// batchName is the key of a batch's intents, behind the prefix.
func batchName(id int64) string { return fmt.Sprintf("%s%019d", intentsPrefix, id) }

// encodeVersion has a fixed width, so that versions compare as their encodings do.
func encodeVersion(v Version) string { return fmt.Sprintf("%019d-%019d", v.Epoch, v.Seq) }

func decodeVersion(s string) (Version, error) {
	epoch, seq, _ := strings.Cut(s, "-")
	e, err1 := strconv.ParseInt(epoch, 10, 64)
	q, err2 := strconv.ParseInt(seq, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Version{}, fmt.Errorf("decode version %q: %w", s, err)
	}
	v := Version{Epoch: e, Seq: q}
	if e < 0 || q < 0 || encodeVersion(v) != s { // another spelling would compare as another version
		return Version{}, fmt.Errorf("decode version %q: want it as %q", s, encodeVersion(v))
	}
	return v, nil
}

// Record stores the version and a batch's intents, and removes the intents of finished batches, of this epoch or of
// earlier ones. The version and the batch, which may be nil, go in one transaction that fails with ErrFenced unless the
// term still holds; so do the last finished batches, and those that are too many for one transaction are removed
// before it, under the same guard.
//
// One Record runs at a time. Versions are of the term's epoch and never fall, and a batch is finished at a later version
// than it was recorded at: the version is what keeps a delayed duplicate of a Record whose outcome was unknown from
// undoing later ones. After an error that wraps ErrUnknown, call Record again with the same arguments until the outcome
// is known, or give up the term.
func (t *Term) Record(ctx context.Context, v Version, b *Batch, finished []int64) error {
	if err := t.record(ctx, v, b, finished); err != nil {
		return fmt.Errorf("record version %v: %w", v, err)
	}
	return nil
}

func (t *Term) record(ctx context.Context, v Version, b *Batch, finished []int64) error {
	if v.Epoch != t.epoch || v.Seq < 0 {
		return fmt.Errorf("not a version of epoch %d", t.epoch)
	}
	if t.session.over() {
		return fmt.Errorf("session is over: %w", ErrFenced)
	}
	c := t.client
	puts := []clientv3.Op{clientv3.OpPut(c.versionKey(), encodeVersion(v))}
	var batchKey, batch string
	if b != nil {
		var err error
		if batch, err = t.encodeBatch(b); err != nil {
			return err
		}
		if slices.Contains(finished, b.ID) {
			return fmt.Errorf("batch %d is both new and finished", b.ID)
		}
		batchKey = c.batchKey(b.ID)
		puts = append(puts, clientv3.OpPut(batchKey, batch))
	}
	deletes := t.deletes(finished)

	// 1. Remove what does not fit beside the puts.
	for len(puts)+len(deletes) > MaxTxnOps {
		n := min(MaxTxnOps, len(deletes))
		r, err := c.commit(ctx, []clientv3.Cmp{t.holds()}, deletes[:n], nil)
		if err != nil {
			return err
		}
		if !r.Succeeded {
			return ErrFenced
		}
		deletes = deletes[n:]
	}

	// 2. Record. etcd's comparison of values fails for a key that does not exist: the first version ever needs another.
	notLater := clientv3.Compare(clientv3.Value(c.versionKey()), "<", encodeVersion(Version{v.Epoch, v.Seq + 1}))
	first := clientv3.Compare(clientv3.CreateRevision(c.versionKey()), "=", 0)
	for _, version := range []clientv3.Cmp{notLater, first} {
		conds := []clientv3.Cmp{t.holds(), version}
		look := []clientv3.Op{clientv3.OpGet(c.leaderKey(), clientv3.WithKeysOnly()), clientv3.OpGet(c.versionKey())}
		if b != nil {
			conds = append(conds, clientv3.Compare(clientv3.CreateRevision(batchKey), "=", 0))
			look = append(look, clientv3.OpGet(batchKey))
		}
		r, err := c.commit(ctx, conds, slices.Concat(puts, deletes), look)
		if err != nil {
			return err
		}
		if r.Succeeded {
			return nil
		}

		// 3. See which condition failed.
		if !t.isHeldBy(r.Responses[0].GetResponseRange().Kvs) {
			return ErrFenced
		}
		storedVersion := valueOf(r.Responses[1].GetResponseRange().Kvs)
		storedBatch := ""
		if b != nil {
			storedBatch = valueOf(r.Responses[2].GetResponseRange().Kvs)
		}
		switch {
		case storedBatch != "" && storedBatch == batch && storedVersion == encodeVersion(v):
			return nil // an earlier attempt has succeeded and its answer was lost
		case storedBatch != "":
			return fmt.Errorf("batch %d is already recorded: %w", b.ID, ErrOutOfOrder)
		case storedVersion > encodeVersion(v):
			return fmt.Errorf("version %s is already recorded: %w", storedVersion, ErrOutOfOrder)
		}
	}
	return fmt.Errorf("version changed while it was recorded: %w", ErrOutOfOrder)
}

func valueOf(kvs []*mvccpb.KeyValue) string {
	if len(kvs) == 0 {
		return ""
	}
	return string(kvs[0].Value)
}

func (t *Term) encodeBatch(b *Batch) (string, error) {
	if b.ID <= 0 {
		return "", fmt.Errorf("batch ID %d is not positive", b.ID)
	}
	if err := b.checkWith(); err != nil {
		return "", err
	}
	value := batchValue{Epoch: t.epoch, Intents: make([][]string, len(b.Intents)), With: b.With}
	all := make([]string, 0, 4*len(b.Intents))
	for i, in := range b.Intents {
		first := len(all)
		all = append(all, in.PodUID, in.Namespace, in.Name, in.Node)
		for _, v := range in.Volumes {
			all = append(all, v.Claim, v.ClaimUID, v.Volume)
		}
		if in.Scheduler != "" {
			all = append(all, in.Scheduler)
		}
		value.Intents[i] = all[first:]
		if len(in.Annotations) > 0 {
			if value.Annotations == nil {
				value.Annotations = make(map[int]map[string]string)
			}
			value.Annotations[i] = in.Annotations
		}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("encode batch %d: %w", b.ID, err)
	}
	if len(encoded) > maxTxnBytes-MaxTxnOps*(opBytes+len(t.client.batchKey(b.ID))) {
		return "", fmt.Errorf("batch %d of %d intents: %w", b.ID, len(b.Intents), ErrTooLarge)
	}
	return string(encoded), nil
}

func (b *Batch) checkWith() error {
	if b.With != 0 && b.With <= b.ID {
		return fmt.Errorf("batch %d counts with %d: want the ID of a later batch, or 0", b.ID, b.With)
	}
	return nil
}

// deletes returns one operation per finished batch; etcd refuses to write a key twice in a transaction. They are in the order of IDs: where they take several
// transactions, the last part of what was recorded in parts never goes before the others, which would not count any more.
func (t *Term) deletes(finished []int64) []clientv3.Op {
	ids := slices.Compact(slices.Sorted(slices.Values(finished)))
	ops := make([]clientv3.Op, len(ids))
	for i, id := range ids {
		ops[i] = clientv3.OpDelete(t.client.batchKey(id))
	}
	return ops
}

// shrinkBatches bounds the batches of one transaction of Shrink.
const shrinkBatches = 32

// Shrink makes recorded batches, of this epoch or of earlier ones, what is left of them: an intent that has been decided
// leaves its batch while others of the batch stay. It fails with ErrFenced unless the term still holds. Each batch must be
// recorded. One of which nothing is left stays, empty, until it is finished: see Record. It does not run beside Record.
//
// What has been written last is what a batch is compared with before it is replaced, by its revision, so a delayed duplicate
// of a Shrink whose outcome was unknown brings nothing back. After an error that wraps ErrUnknown, call Shrink again with the
// same batches until the outcome is known, or give up the term.
func (t *Term) Shrink(ctx context.Context, batches []Batch) error {
	var some []shrunk
	size := 0
	for i := range batches {
		encoded, err := t.encodeBatch(&batches[i])
		if err != nil {
			return fmt.Errorf("shrink: %w", err)
		}
		if len(some) == shrinkBatches || len(some) > 0 && size+len(encoded) > maxTxnBytes/2 {
			if err := t.shrink(ctx, some); err != nil {
				return fmt.Errorf("shrink %d batches: %w", len(some), err)
			}
			some, size = nil, 0
		}
		some = append(some, shrunk{t.client.batchKey(batches[i].ID), encoded})
		size += len(encoded)
	}
	if len(some) == 0 {
		return nil
	}
	if err := t.shrink(ctx, some); err != nil {
		return fmt.Errorf("shrink %d batches: %w", len(some), err)
	}
	return nil
}

// shrunk is a batch on its way into etcd.
type shrunk struct{ key, value string }

func (t *Term) shrink(ctx context.Context, batches []shrunk) error {
	if t.session.over() {
		return fmt.Errorf("session is over: %w", ErrFenced)
	}
	// 1. See what is there.
	look := make([]clientv3.Op, len(batches))
	for i, b := range batches {
		look[i] = clientv3.OpGet(b.key)
	}
	there, err := t.client.commit(ctx, nil, look, nil)
	if err != nil {
		return err
	}
	conds := []clientv3.Cmp{t.holds()}
	var puts []clientv3.Op
	for i, b := range batches {
		kvs := there.Responses[i].GetResponseRange().Kvs
		switch {
		case len(kvs) == 0:
			return fmt.Errorf("%s is not recorded: %w", b.key, ErrOutOfOrder)
		case string(kvs[0].Value) == b.value:
			continue // by an earlier attempt whose answer was lost
		}
		conds = append(conds, clientv3.Compare(clientv3.ModRevision(b.key), "=", kvs[0].ModRevision))
		puts = append(puts, clientv3.OpPut(b.key, b.value))
	}
	// 2. Replace it. That nothing is left to be replaced must be known while the term holds, too.
	r, err := t.client.commit(ctx, conds, puts, []clientv3.Op{clientv3.OpGet(t.client.leaderKey(), clientv3.WithKeysOnly())})
	switch {
	case err != nil:
		return err
	case r.Succeeded:
		return nil
	case !t.isHeldBy(r.Responses[0].GetResponseRange().Kvs):
		return ErrFenced
	}
	// An earlier attempt has succeeded between the two: the next one sees that.
	return fmt.Errorf("batches changed while they were shrunk: %w", ErrUnknown)
}

// ReadRecord returns the version and the batches that are not finished as they were at one revision.
func (c *Client) ReadRecord(ctx context.Context) (Record, error) {
	rec, err := c.readRecord(ctx)
	if err != nil {
		return Record{}, fmt.Errorf("read record: %w", err)
	}
	return rec, nil
}

func (c *Client) readRecord(ctx context.Context) (Record, error) {
	var rec Record
	for try := 1; ; try++ {
		kvs, revision, err := c.list(ctx, c.coordPrefix(), intentsPrefix)
		if err != nil {
			return Record{}, err
		}
		page, err := c.page(ctx, c.versionKey(), c.versionKey()+"\x00", revision, 1)
		if errors.Is(err, ErrCompacted) && try < listTries {
			continue
		}
		if err != nil {
			return Record{}, err
		}
		if s := valueOf(page.Kvs); s != "" {
			if rec.Version, err = decodeVersion(s); err != nil {
				return Record{}, err
			}
		}
		there := make(map[int64]bool, len(kvs))
		all := make([]StoredBatch, len(kvs))
		for i, kv := range kvs {
			if all[i], err = decodeBatch(kv); err != nil {
				return Record{}, err
			}
			there[all[i].Batch.ID] = true
		}
		for _, b := range all {
			if b.counts(there, rec.Version) {
				rec.Batches = append(rec.Batches, b)
			} else {
				rec.Unfinished = append(rec.Unfinished, b)
			}
		}
		return rec, nil
	}
}

// counts reports whether a batch is recorded whole, given which others there are. A part whose last one is not there is from an epoch that ended before it, if no
// later epoch has recorded anything: that would have removed it. So what is there still has been taken over, by a release that does not know of parts, say, and removes the
// last one before others.
func (b *StoredBatch) counts(there map[int64]bool, recorded Version) bool {
	return b.Batch.With == 0 || there[b.Batch.With] || b.Epoch < recorded.Epoch
}

func decodeBatch(kv KV) (StoredBatch, error) {
	id, err := strconv.ParseInt(strings.TrimPrefix(kv.Key, intentsPrefix), 10, 64)
	if err != nil {
		return StoredBatch{}, fmt.Errorf("decode batch: key %q: %w", kv.Key, err)
	}
	if id <= 0 || batchName(id) != kv.Key { // finishing it would remove another key
		return StoredBatch{}, fmt.Errorf("decode batch: key %q: want %q", kv.Key, batchName(id))
	}
	var value batchValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return StoredBatch{}, fmt.Errorf("decode batch %d: %w", id, err)
	}
	b := Batch{ID: id, Intents: make([]Intent, len(value.Intents)), With: value.With}
	if err := b.checkWith(); err != nil {
		return StoredBatch{}, fmt.Errorf("decode batch %d: %w", id, err)
	}
	for i, in := range value.Intents {
		for len(in) < 4 {
			in = append(in, "")
		}
		b.Intents[i] = Intent{PodUID: in[0], Namespace: in[1], Name: in[2], Node: in[3], Annotations: value.Annotations[i]}
		for of := range slices.Chunk(in[4:], 3) {
			switch len(of) {
			case 3:
				b.Intents[i].Volumes = append(b.Intents[i].Volumes, VolumeIntent{of[0], of[1], of[2]})
			case 1:
				b.Intents[i].Scheduler = of[0]
			}
		}
	}
	return StoredBatch{Epoch: value.Epoch, Batch: b}, nil
}
