// Package filter answers which nodes of a range can run each of several subjects, and on which of them a pod would fit if
// pods of lower priority were gone, from this worker's replica of the ledger. Every worker can answer for every range and
// subject.
//
// The package judges nothing itself: internal/engine does. It checks requests, bounds how many run at once, and waits
// briefly for a replica that is behind.
package filter
