// Package kubetest runs a real Kubernetes control plane, etcd and kube-apiserver, for tests and measurements, and
// checks what a scheduler did to it.
//
// It has four parts: Build compiles the programs from their Go modules and caches them; Start and StartT run them on
// loopback; CreateNodes and CreatePods fill the cluster quickly; Check, CheckPreemption, CheckVolumes, Watch,
// WatchScheduled and WatchFailures tell, from the API server alone, whether a node is over its allocatable, a pod was bound
// twice, is where its constraints forbid it to be, had to go for nothing or does not have the volumes that it claims, when pods
// were bound and their events came, and what was said about pods that have no node.
//
// It runs no kubelet and no controllers: nodes are objects that are always ready, bound pods stay Pending in phase, and
// nothing is garbage collected. Bound pods that are told to go stay terminating, unless PlayKubelets removes them, and claims stay unbound,
// unless PlayVolumeController binds them. It is test code: no server imports it. It needs a Unix system, and Linux for Process.Usage
// and for children that die with their parent however it ends.
package kubetest
