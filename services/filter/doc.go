// Package filter answers which nodes of a range can run each of several classes, from this worker's replica of the
// ledger. Every worker can answer for every range and class.
//
// The package judges nothing itself: internal/engine does. It checks requests, bounds how many run at once, and waits
// briefly for a replica that is behind.
package filter
