// Package cluster is the ledger's state machine: nodes, classes, pods and namespaces in columns, changed only by
// applying deltas in order. What it only keeps, such as PodDisruptionBudgets, is an [Object] of some kind: one more kind is a
// type and a row in a table.
//
// State.Apply has no clock, no I/O and no goroutine, so two states that applied the same deltas are equal; Digest
// proves it cheaply. The binder owns the authoritative state and makes the deltas; every other role holds a replica
// that folds them.
//
// The package does not decide anything: what fits where is internal/engine's, and how deltas travel is
// internal/wire's.
package cluster
