// Package system tests whole Berths: in one process, as separate processes, and on a real API server. It holds tests
// only.
package system
