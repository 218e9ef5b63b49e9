// Package local is a cluster without Kubernetes: nodes, pods, namespaces, services and controllers are ordinary manifests
// kept in etcd, and so are the placements of the pods. Everything is in etcd and nothing else, so it survives the restart of any process.
//
// [Store] is how manifests get in and out; the gateway uses it. [Source] is how the binder sees them; it implements
// [source.Source]. They may be in different processes.
//
// # Keys, below the prefix that package coord gives to plain keys
//
//	local/nodes/<name>             v1.Node as JSON
//	local/namespaces/<name>        v1.Namespace as JSON
//	local/pods/<namespace>/<name>  v1.Pod as JSON; its create revision is, with its uid, the pod's identity
//	local/services/<namespace>/<name>                v1.Service as JSON, and so on: of these only names, labels,
//	local/replicationcontrollers/<namespace>/<name>  annotations and selectors
//	local/replicasets/<namespace>/<name>
//	local/statefulsets/<namespace>/<name>
//	local/placements/<uid>         {"namespace","name","node","time"}: the pod is on the node
//	local/conditions/<uid>         {"namespace","name","reason","message","time"}: why the pod is not placed
//
// A placement is only written while the pod's key has the create revision it was decided for, and goes away with it.
// A namespace is but a name with labels: a pod may name one that was never applied, and removing one keeps its pods.
// The package runs nothing: no controller makes pods, and a placed pod stays as it is until it is deleted or applied with a phase of Succeeded or Failed.
package local
