// Package score answers which of the eligible nodes of a range are the best for each of several subjects, from this
// worker's replica of the ledger. Every worker can answer for every range and subject.
//
// The package scores nothing itself: internal/engine does. It checks requests, bounds how many run at once, and waits
// briefly for a replica that is behind.
package score
