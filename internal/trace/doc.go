// Package trace makes the spans of attempts to place pods, and of the cycles in which they are made.
//
// An attempt is one trace. The ids of the trace and of its root span are a hash of the pod's uid and the attempt's number,
// so that the queue, which ends the attempt, and the binder make spans of the same trace, and decide alike whether there is
// one, though no message between them says so. A cycle, which is one batch of attempts, is a trace of its own; links lead
// from one to the other and back.
//
// An attempt that is not sampled costs one hash and no memory. The package reads no clock: times are arguments.
package trace
