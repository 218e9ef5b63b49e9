// Package monitoring tests the alert rules and the dashboard of deploy/: with Prometheus' own parser and engine, and against
// what a running Berth serves.
package monitoring
