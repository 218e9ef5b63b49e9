// Package integration runs integration tests of others, unchanged, beside the kube-scheduler that they start, and beside a Berth in its place: those that scheduler-plugins has of its own (`make scheduler-plugins-integration`), and those that kube-scheduler has of plugins
// at each extension point (`make upstream-plugins`). These look into the memory of their plugins, so that the plugins run in the process of the test.
package integration
