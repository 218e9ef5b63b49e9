// Package replica is both ends of Berth's log: Feed, from which the active binder serves it, and Replica, which
// follows it into a cluster.State that others read.
//
// A Replica is empty until its first snapshot is whole; then it answers for its version, and from there on only
// deltas come. When the stream breaks it resumes behind the last delta it has applied. A new epoch, or a position
// that the binder no longer keeps, brings a new snapshot; until that is whole the state it had stays readable and
// grows old. A replica that is told something it cannot fold (a delta that does not decode or apply, a gap, another
// digest than its own) drops its state and starts from nothing: it never answers from a state it cannot trust.
//
// A Feed encodes each delta once, keeps the most recent ones, and never waits for a follower: one that falls out of
// what is kept is cut off. The deltas of one transaction travel in one message, and a Replica shows all deltas of a message or
// none of them: so nobody reads half of a transaction.
//
// The package does not judge what the deltas mean, and does not choose the binder: internal/coord says who leads.
package replica
