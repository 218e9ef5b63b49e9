// Package local is a cluster without Kubernetes: nodes, pods, namespaces, services, controllers, PodDisruptionBudgets, PodGroups, and what
// volumes are made of, are ordinary manifests kept in etcd, and so are the placements of the pods. Everything is in etcd and nothing else, so it survives the restart of any process.
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
//	local/poddisruptionbudgets/<namespace>/<name>    policyv1.PodDisruptionBudget as JSON: of it also what status says
//	local/persistentvolumes/<name>                   v1.PersistentVolume as JSON: of it also the spec and status.phase
//	local/persistentvolumeclaims/<namespace>/<name>  v1.PersistentVolumeClaim as JSON: the same, and its owners
//	local/storageclasses/<name>                      storagev1.StorageClass as JSON, and so on: of these what scheduling reads
//	local/csinodes/<name>
//	local/csidrivers/<name>
//	local/csistoragecapacities/<namespace>/<name>
//	local/volumeattachments/<name>
//	local/podgroups/<namespace>/<name>               schedulingv1alpha2.PodGroup as JSON: its spec. No conditions of it are kept:
//	                                                 those of its pods say why they wait
//	local/placements/<uid>         {"namespace","name","node","time"}: the pod is on the node
//	local/conditions/<uid>         {"namespace","name","reason","message","nominated","time"}: why the pod is not placed,
//	                               and the node that a binder has nominated it to
//
// Placements and conditions are only written while the pod's key has the create revision they were decided for, and go away
// with it. A pod that is evicted is deleted at once, and nothing is kept of it.
// Until a binder has said which node a pod is nominated to, "" included, status.nominatedNodeName of its manifest counts; a
// pod on a node is nominated to none. No controller computes how many disruptions a budget allows: it is what
// status.disruptionsAllowed of the manifest says, 0 if it says nothing, and stays that whoever is evicted. None makes or attaches
// volumes either. A claim that waits for its first consumer is bound to a volume that is there, in both manifests, as the pod is placed; applying a manifest
// that does not say so leaves it bound.
// A namespace is but a name with labels: a pod may name one that was never applied, and removing one keeps its pods.
// The package runs nothing: no controller makes pods, and a placed pod stays as it is until it is deleted or applied with a phase of Succeeded or Failed.
package local
