// Package schedulerplugins has tests only: the plugins of sigs.k8s.io/scheduler-plugins, compiled unchanged into a Berth and into a kube-scheduler, place the same pods on the same nodes. `make scheduler-plugins` runs them.
package schedulerplugins
