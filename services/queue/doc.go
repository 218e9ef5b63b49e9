// Package queue owns shards of the pods that wait to be scheduled, and drives their cycles: pop a batch, ask the
// filter-workers, ask the score-workers, hand the candidates to the binder; then, for pods that fit nowhere, ask the
// filter-workers which pods of lower priority are in the way, and have the binder preempt them.
//
// Order is global by priority: a shard pops no pod below the floor of another, the highest priority of the other's pods
// that are active or being tried. Members tell each other their floors; what one has said last counts for 1.5 s.
//
// [Service] owns shards under an etcd lease, one driver goroutine each, and answers what they hold: each is a
// [pending.Queue], which the replica's log and the driver change under the shard's lock.
//
// The package never decides where a pod goes: workers say where it can, the binder says where it does. It keeps
// nothing that its next owner could not rebuild from the log, except how often a pod has failed.
package queue
