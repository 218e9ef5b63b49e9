// Package oracle compares Berth's decisions with kube-scheduler's own code: its cache, its framework and its plugins,
// at the version in go.mod. It is all tests, and a module of its own, so that nobody who builds Berth has to download
// k8s.io/kubernetes.
//
// Random clusters and pods of real Kubernetes objects go two ways: into kube-scheduler's cache and through its
// framework; and through source.ReduceNode and ReducePod into deltas, a cluster.State, an engine.Evaluator asked about
// several ranges, merged, and an engine.Placer. Compared are, for every pod and node: whether the node is feasible and,
// if not, plugin, code and reasons; the raw scores that are normalised, the weighted score of every plugin, the total;
// the histogram of reasons and the text of the condition; and, pod by pod, that the node a Placer chooses is one of
// kube-scheduler's maxima on the state before it. A failure is shrunk to a small cluster, and printed as YAML with the
// difference.
//
// The short run is `go test .`; a longer one is
//
//	go test -v -count 1 -timeout 0 -rapid.checks 5000 .
//
// which also prints how much was compared. A difference prints the flag that repeats it.
//
// # What is meant to differ
//
//   - ImageLocality counts the nodes that have an image as they are now. kube-scheduler keeps in a node's snapshot the
//     count of the moment the node last changed; here its snapshot is made anew for each pod, so that counts agree.
//   - The order in which kube-scheduler names insufficient extended resources is that of a Go map. Reasons are compared
//     as sets per node; messages list them sorted anyway.
//   - Where quantities are so large that 64 bits overflow, scores can fall out of 0 to 100; kube-scheduler then fails the
//     pod's cycle with an error, every time, and Berth holds the score in that range and places the pod. Filters are
//     compared all the same.
//   - Preferred node affinity that cannot be parsed (Gt with a value that is no number, which the API server lets pass)
//     fails kube-scheduler's cycle unless exactly one node is feasible. Berth never places such a pod and says why.
//   - Two pods of a node have the same host port only if somebody has bound them there without a scheduler. Berth keeps
//     the port until both are gone; kube-scheduler frees it with the first that goes or changes. No generated node has
//     two such pods.
//   - kube-scheduler does not score when one node is feasible; here it does, so that there is more to compare.
package oracle
