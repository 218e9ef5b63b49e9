// Package coord is everything Berth does with etcd: sessions under a lease, members, the election of the binder,
// the owners of queue shards, the recorded version with its intents, and a plain key-value store for the local source
// of manifests. Only it and the packages below it import etcd's client or server.
//
// # How a write is fenced
//
// Whoever acts on Berth's state holds something in etcd: a [Term] (the binder) or a shard claim (a queue). Both end
// in two ways at once. The session's Done channel closes by the local clock before the lease can have expired, so that
// a live holder stops in time; and every granting write is a transaction guarded by the create revision of the
// holder's key, so that a holder that was too late to notice writes nothing and gets [ErrFenced].
//
// # What a failed write means
//
// An error that wraps [ErrUnknown] leaves open whether etcd has applied, or will still apply, the write. Record, Register,
// ClaimShard, ReleaseShard and Resign are idempotent: repeat them. Any other error means that nothing was written.
//
// # Keys
//
//	<prefix>coord/members/<role>/<id>   {"address"}, under the member's lease
//	<prefix>coord/leader                {"id","address","campaign"}, under the leader's lease; its create revision is the epoch
//	<prefix>coord/shards/<number>       the owner's member ID, under its lease; its create revision is the shard's lease revision
//	<prefix>coord/version               <epoch>-<seq>, fixed width, so that etcd can compare two versions
//	<prefix>coord/intents/<batch>       {"epoch","intents"}, and "annotations" and "with" where there are some: see [Batch]
//	<prefix>plugins/<service>/<process> {"address"}, under the lease of a process with plugins of others: see packages announced and announcer
//	<prefix>kv/<key>                    the keys of Get, List, Scan, Watch and Txn
//
// The package decides nothing about scheduling, does not know what the keys under kv/ mean, and does not retry a write
// on its own except where its documentation says so.
package coord
