// Package kube is a Kubernetes cluster as the binder sees it: it watches nodes, pods, namespaces, services, controllers,
// PodDisruptionBudgets, and what volumes are made of, through an API server, binds and evicts pods, and writes their events, conditions and nominations.
// It implements [source.Source].
//
// It watches with client-go's reflectors, the part of informers that lists, watches, resumes and lists again, but
// keeps no objects: each is reduced where it arrives and told at once, and only its identity is kept, so that a change
// that was missed while the API server was away is found by comparison. The pods it tells are those on a node, whoever
// placed them, and those of its own scheduler names that wait for one.
//
// Binds, events, conditions, preemptions (evictions and nominations) and watches each have connections and a rate limit of
// their own, so that none waits for another. Neither a bind nor an eviction is guarded by etcd, which an API server knows
// nothing of: whoever calls Bind must have recorded its intents under the fence before. What guards the cluster itself is
// that each write names the pod's uid and that the API server binds a pod once.
//
// The package decides nothing and retries no write, other than client-go does within the request's timeout when the API
// server asks for it with Retry-After.
package kube
