// Package binder owns the ledger. Of all binders one is active: it has been elected in etcd, folds what its source
// tells into the ledger, publishes the log, and is the only one that places pods.
//
// A placement is made in four steps: assumed in the ledger (and so in the log); recorded in etcd, with its intent, in
// a transaction that fails if another binder has been elected; written to the source; bound in the ledger. Its states, and all steps
// between them, are in placement.go. A binder that finds itself deposed drops everything it has and starts over as a candidate.
//
// The ledger changes in transactions, of which others see all or nothing: see ledger.update.
//
// A preemption is checked on the live ledger, started there, and carried out in a lane of its own: see carryOut.
//
// Writes to the source go through lanes that do not wait for each other: binds, preemptions, events, reports. Each is
// bounded, and each write has a deadline.
//
// The binder does not choose among all nodes: it takes the candidates that queue shards bring, brings them up to date
// with the live ledger, and places each pod on the best. Only for pods that interest extenders it looks at nodes itself, in short turns
// with the ledger: where they fit (ask.go), and whom they could preempt (askpreempt.go).
package binder
