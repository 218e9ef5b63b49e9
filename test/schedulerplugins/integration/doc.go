// Package integration has one test only: it runs the integration tests that scheduler-plugins has of its own, unchanged, beside the kube-scheduler that they start, and beside a Berth in its place. `make scheduler-plugins-integration` runs it.
package integration
