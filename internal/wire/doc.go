// Package wire translates between the messages that Berth's roles exchange and the types of internal/cluster and
// internal/engine. It is the only place where the two meet.
//
// A delta is encoded as a berth.log.v1.Delta. What Decode returns equals what Encode was given, but that an empty list
// may come back as nil, so that two states fed the same deltas, one directly and one over the wire, are equal.
//
// Decoding checks that numbers are within the bounds of their types and lists have the lengths they must have. It does
// not check whether a delta belongs to a state: cluster.State.Apply does. The package keeps no state, and does not
// know how messages travel.
package wire
