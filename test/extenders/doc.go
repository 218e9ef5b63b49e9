// Package extenders runs scheduler extenders that others have written, TopoLVM's and gpushare's, beside kube-scheduler and beside Berth, and compares what
// these ask them and where their pods go. It holds tests only, and these only with the build tag extenders: "make extenders" runs them, and builds the
// extenders first, from the modules below this directory.
//
// A cluster is made once, with all its pods, and stopped. Each scheduler is then given an etcd that begins with a copy of what was stored: so both see the
// same objects to the byte, uids, resource versions, times and managedFields included, and what they send can be compared as it is. Nothing is
// normalized. Each has an extender of its own. Between them is a proxy that notes each request and each answer (proxy_test.go).
//
// Pods have priorities of their own, so that both try them in the same order, and kube-scheduler has a parallelism of 1, since with more it sends nodes in
// the order in which its goroutines find them. That no choice was a tie, of which kube-scheduler draws one, is read from its own log of total scores.
package extenders
