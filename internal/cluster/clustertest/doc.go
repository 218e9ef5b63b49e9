// Package clustertest is for tests that need ledgers: it makes random deltas, describes a state as text, and recomputes
// what a state keeps up to date. It takes its randomness from the caller.
package clustertest
