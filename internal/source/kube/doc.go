// Package kube is a Kubernetes cluster as the binder sees it: it watches nodes, pods, namespaces, services and
// controllers through an API server, binds pods, and writes their events and conditions. It implements [source.Source].
//
// It watches with client-go's reflectors, the part of informers that lists, watches, resumes and lists again, but
// keeps no objects: each is reduced where it arrives and told at once, and only its identity is kept, so that a change
// that was missed while the API server was away is found by comparison. The pods it tells are those on a node, whoever
// placed them, and those of its own scheduler names that wait for one.
//
// Binds, events, conditions and watches each have connections and rate limits of their own, so that none waits for another.
// A bind is not guarded by etcd, which an API server knows nothing of: whoever calls Bind must have recorded its
// intents under the fence before. What guards the cluster itself is that a bind names the pod's uid and that the API server
// binds a pod once.
//
// The package decides nothing and retries no bind, other than client-go does within the request's timeout when the API
// server asks for it with Retry-After.
package kube
