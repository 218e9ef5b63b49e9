package coord

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzVersion: a version that is read is one that could have been written, and has one spelling.
func FuzzVersion(f *testing.F) {
	f.Add(encodeVersion(Version{Epoch: 7, Seq: 12}))
	f.Add("1-2-3")
	f.Add("-1--1")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := decodeVersion(s)
		if err != nil {
			return
		}
		if back := encodeVersion(v); back != s {
			t.Errorf("%q was read as %v, which is written %q", s, v, back)
		}
	})
}

// FuzzBatch: a record that is read is one that could have been written.
func FuzzBatch(f *testing.F) {
	f.Add("intents/0000000000000000007", []byte(`{"epoch":3,"intents":[["uid","ns","name","node"]]}`))
	f.Add("intents/7", []byte(`{"epoch":3,"intents":[["uid","ns","name","node","more"]]}`))
	f.Add("intents/0000000000000000008", []byte(`{"epoch":3,"intents":[["uid","ns","name","node","claim","of","volume","claim","of",""]]}`))
	f.Add("intents/0000000000000000009", []byte(`{"epoch":3,"intents":[["uid","ns","name","node","claim","of","volume","name"]]}`))
	f.Add("intents/0000000000000000010", []byte(`{"epoch":3,"intents":[["uid","ns","name","node"]],"annotations":{"0":{"example.com/cards":"GPU-1"},"7":{"a":"b"}}}`))
	f.Add("intents/0000000000000000011", []byte(`{"epoch":3,"intents":[["uid","ns","name","node"]],"with":12}`))
	f.Add("intents/0000000000000000011", []byte(`{"epoch":3,"intents":[["uid","ns","name","node"]],"with":11}`))
	f.Add("intents/-7", []byte(`{"epoch":-3,"intents":[["","","",""],null]}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		b, err := decodeBatch(KV{Key: key, Value: value})
		if err != nil {
			return
		}
		term := Term{client: &Client{prefix: "/"}, epoch: b.Epoch}
		written, err := term.encodeBatch(&b.Batch)
		if err != nil {
			if len(value) < maxTxnBytes/4 {
				t.Fatalf("%+v was read and cannot be written: %v", b, err)
			}
			return // JSON may be longer when it is written than when it was read
		}
		if want := term.client.coordPrefix() + key; term.client.batchKey(b.Batch.ID) != want {
			t.Fatalf("key %q was read as batch %d", key, b.Batch.ID)
		}
		back, err := decodeBatch(KV{Key: key, Value: []byte(written)})
		if diff := cmp.Diff(b, back, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%v (-read +written and read again):\n%s", err, diff)
		}
	})
}

// FuzzMember: a member that is read is one that could have registered.
func FuzzMember(f *testing.F) {
	f.Add("members/queue/queue-0", []byte(`{"address":"10.0.0.1:7070"}`))
	f.Add("members/queue/a/b", []byte(`{"address":""}`))
	f.Add("members//", []byte(`null`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		m, err := decodeMember(KV{Key: key, Value: value})
		if err != nil {
			return
		}
		if err := m.check(); err != nil {
			t.Errorf("%+v was read and could not have been written: %v", m, err)
		}
		again, err := json.Marshal(memberValue{Address: m.Address})
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeMember(KV{Key: membersPrefix + string(m.Role) + "/" + m.ID, Value: again})
		if err != nil || back != m {
			t.Errorf("%+v comes back as %+v, %v", m, back, err)
		}
	})
}

// FuzzShard: the owner of a shard that is read is one that could have claimed it.
func FuzzShard(f *testing.F) {
	f.Add("shards/000003", []byte("queue-0"), int64(12))
	f.Add("shards/-3", []byte(""), int64(0))
	f.Add("shards/99999999999999999999", []byte("q"), int64(1))
	f.Fuzz(func(t *testing.T, key string, value []byte, revision int64) {
		o, err := decodeShard(KV{Key: key, Value: value, CreateRevision: revision})
		if err != nil {
			return
		}
		c := Client{prefix: "/"}
		if o.Shard < 0 || o.Owner == "" || o.Revision != revision {
			t.Errorf("%q, %q were read as %+v", key, value, o)
		}
		if want := c.coordPrefix() + key; c.shardKey(o.Shard) != want {
			t.Errorf("key %q was read as shard %d", key, o.Shard)
		}
	})
}

func FuzzLeader(f *testing.F) {
	f.Add([]byte(`{"id":"binder-0","address":"10.0.0.1:7070","campaign":3}`), int64(7))
	f.Add([]byte(`{"id":""}`), int64(7))
	f.Add([]byte(`null`), int64(0))
	f.Fuzz(func(t *testing.T, value []byte, revision int64) {
		l, err := decodeLeader(KV{Key: leaderName, Value: value, CreateRevision: revision})
		if err != nil {
			return
		}
		if l.ID == "" || l.Epoch != revision {
			t.Errorf("%q was read as %+v", value, l)
		}
	})
}
