// Package oracle compares Berth's decisions with kube-scheduler's own code: its cache, its queue's nominations, its
// framework and its plugins, at the version in go.mod. It is all tests, and a module of its own, so that nobody who
// builds Berth has to download k8s.io/kubernetes.
//
// Six things are compared:
//
//   - Single decisions. Random clusters of real Kubernetes objects go two ways: into kube-scheduler's cache, queue and
//     informers and through its framework; and through package source into deltas, a cluster.State, an engine.Evaluator
//     asked about several ranges, merged, and an engine.Placer. Compared are, for every pod and node: whether the node is
//     feasible and, if not, plugin, code and reasons; the weighted score of every plugin, the raw scores of those that
//     are normalised, the total; the histogram of reasons and the text of the condition; whether the node
//     that the pod is nominated to takes it; for each feasible node which volumes the claims get that wait for a consumer, and which of them are
//     to be provisioned; and, pod by pod, that the node a Placer chooses is one of kube-scheduler's
//     maxima on the state before it. The same pods are judged again and again while pods, nodes, labels, namespaces,
//     services, controllers and nominations change.
//   - Preemption, wherever no node is feasible. kube-scheduler's DefaultPreemption looks at every node, and so do dry runs
//     over several ranges, merged, over one, and node by node. Compared are: whether the pod may preempt, and why not; the
//     nodes that are candidates, with their victims in order and how many of them a PodDisruptionBudget protects; the
//     histogram of reasons why others are none; that kube-scheduler's criteria could prefer the candidates in Berth's
//     order; and the text of FailedScheduling to its end, of the whole PostFilter. Victims are evicted in between.
//   - Situations: small clusters in testdata, each about one rule of a plugin, built up object by object.
//   - Tables: the cases of kube-scheduler's own tests of the plugins that read volumes (tables_test.go), of their queueing hints (hints_test.go), and of
//     the binder of volumes (tables_binder_test.go): whether the claims can have volumes on a node and which, what is assumed and taken back, what is
//     written to an API server, and whether that is bound. The tests run as they are in the module, and tell what was given, and said
//     (upstreamtests_test.go). Each of them is a case, or it is listed why not: go test -v -run TestEachOfUpstreamsTestsIsACase . says how many.
//     The tests of the client of extenders tell as much (extenders_table_test.go).
//   - Extenders (extenders_test.go). A pod, nodes and candidates for preemption go to random HTTP extenders, which fail, change nodes, name
//     unknown ones and have none: by a kube-scheduler with nothing but extenders, and by package extender. Compared are the requests, byte by byte with
//     their headers, the nodes that are left, what was said of others, totals, victims, and errors to the text. Whole Berths place pods, and make room for
//     them, with extenders that refuse, prefer, spare and name others (extenderplacements_test.go, extenderpreemptions_test.go).
//   - Sequences. Whole Berths (a binder, queues with several shards, filter-workers and score-workers, each with a
//     replica of its own, over gRPC and etcd) place 500 pods each, among changes. Afterwards their log is played to
//     kube-scheduler, which is asked about every placement on the state before it, with what has been chosen for its claims, about the victims of every preemption,
//     and in the end whether what is left has really nowhere to go.
//
// Clusters have what volumes are made of (PersistentVolumes of CSI and of in-tree plugins, claims in every state, classes, CSINodes,
// CSIDrivers, capacities and attachments), pods have claims, ephemeral volumes and inline disks, and kube-scheduler judges them by its own
// VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone. Each text that they can say has to come
// (volumes_test.go), and each way in which a volume can be what a claim that waits gets, or misses it (waiting_test.go). In a part of the clusters that have them the feature gates of volumes are on that are off by default (gates_test.go). What Berth does not decide yet is said in undecided_test.go, counted apart and printed.
//
// In sequences, the controller of volumes is played (controller_test.go), and not kube-controller-manager's own code, which make volumes runs. What is played: a claim
// for which Berth has written something is looked at later, one write at a time, among everything else that happens. Its volume is Bound, then the claim names it, half
// bound, then that is complete, of which the real controller makes one write; or a volume is made for the node, by a provisioner that says no every fifth time, so that
// the claim loses its node. A claim whose volume is gone is Lost. In half of the sequences with volumes all claims are looked at, as the real controller does: those of classes that bind at once get a volume that is as they
// want it, or one is made; those that volumes are kept for, or that name theirs, are bound to these; and what was a claim's that is gone is Released. What is not played: volumes
// whose phase is wrong are left as they are; access modes do not keep a volume from the claim that it is kept for; no claim gets a default class; nothing is reclaimed.
// Berth waits 3 s for claims to be bound, and then tries the pod again.
//
// A difference is shrunk, and printed with the smallest cluster that shows it, as YAML. The output ends with the commands that repeat the
// cases that differed, one each. Each test draws cases of its own, unless -rapid.seed is given.
//
// The short run is `go test .`; a longer one is
//
//	go test -v -count 1 -timeout 0 . -rapid.checks=5000 -sequences=50
//
// which also prints how much was compared.
//
// # What is meant to differ
//
//   - ImageLocality counts the nodes that have an image as they are now. kube-scheduler keeps in a node's snapshot the
//     count of the moment the node last changed; here its snapshot is made anew for each pod, so that counts agree.
//   - The order in which kube-scheduler names insufficient extended resources is that of a Go map. Reasons are compared
//     as sets per node; messages list them sorted anyway.
//   - Berth counts up to 2^53 of a resource on a node, and one more of what a pod requests beyond that. Where 64 bits overflow,
//     kube-scheduler's sums and scores wrap: a pod that fits nowhere fits, or its cycle fails with an error, every time. No
//     generated node has more, and no generated requests overflow when they are added up.
//   - Preferred node affinity that cannot be parsed (Gt with a value that is no number, which the API server lets pass)
//     fails kube-scheduler's cycle unless exactly one node is feasible. Berth never places such a pod and says why.
//   - If a pod whose required node affinity names one node in every term is nominated to another node, kube-scheduler
//     gives that node the reason of the first filter it fails, and Berth the one of all nodes outside. No generated pod is.
//   - An update of a gated pod makes kube-scheduler count its nomination, which it does not count otherwise. Berth never
//     counts it. No generated gated pod is updated.
//   - Two pods of a node have the same host port only if somebody has bound them there without a scheduler, or one that
//     does not filter by NodePorts. Berth keeps the port until both are gone; kube-scheduler frees it with the first that
//     goes or changes. No generated node has two such pods, and no generated profile lacks NodePorts.
//   - Victims of the same priority that started together, or have not started, have the order in kube-scheduler that its
//     sorting and its clock happen to give. Berth takes them by id, and so does kube-scheduler here.
//   - kube-scheduler looks at a part of the nodes for victims, from a random one on; Berth, and kube-scheduler here, at all.
//     What its criteria leave equal it leaves to chance.
//   - A victim counts in Berth as if preemption had made it terminate from the moment it is chosen, before the API server
//     says so, where the question is whether a pod that is nominated to its node may preempt again. No such pod is compared
//     in that moment.
//   - Of a pod that PreFilter refuses, as its required node affinity contradicts itself or its claim does not exist,
//     kube-scheduler's text ends with "not found": PreFilter ends before DynamicResources', whose PostFilter then misses
//     what that would have left. Berth says what PostFilter says of all others.
//   - Where kube-scheduler's attempt ends with an error (a claim's class that does not say when it binds, a disk that CSI has no name for),
//     Berth has to find no node either. What it says of the pod is not compared: kube-scheduler says nothing of nodes.
//   - Where a pod is nominated to a node, and only because it counts there no plugin before refuses the node to pods of its signature, which share its volumes, and
//     then one fails, kube-scheduler's attempts of these others end with an error. To Berth that node refuses them, and others may take them. Counted apart.
//   - Of a claim that has lost the node that a volume was to be provisioned for, and has no other annotation, kube-scheduler says "selectedNode annotation
//     reset", and of others "provisioning failed". Berth does not know of other annotations, and says the latter.
//   - Where somebody has written to a volume or a claim meanwhile, kube-scheduler's write conflicts, and its attempt ends. Berth reads the object again, and
//     goes on if that still allows what was chosen. It does not begin if the claim is gone; kube-scheduler finds that out later.
//   - A claim that several pods use, and that has been given a volume that is not bound yet, gets that one or none. kube-scheduler goes on to another one, or has one
//     made, where that cannot be reached from. Only placements in sequences that differ for that are not compared, and counted.
//   - Of several CSIStorageCapacities by which there is enough room kube-scheduler scores by any, as the order of a Go map has it; Berth by the one with the most room,
//     and so does kube-scheduler here. It panics where such a one has no capacity, or a claim its class in an annotation: no scored cluster has those.
//   - Of volumes of one size that would do for a claim, and of those that are kept for it, kube-scheduler takes any, as the order of a Go map has it; Berth
//     those first that cluster.Shelf says, or else the first by name, and so does kube-scheduler here (chosen_test.go).
//   - Of several CSI drivers that a node has not, kube-scheduler names any, as the order of a Go map has it; Berth the first by name, and so does
//     kube-scheduler here (gates_test.go).
//   - What package extender says of an answer that kube-scheduler panics at, and of one beyond its bounds. No extender answers so here.
//   - Whole Berths choose the node to preempt on before others have changed the cluster; that it is the best is therefore not
//     asked of sequences, only that exactly its victims have to go when they do.
//   - kube-scheduler does not score when one node is feasible, or the one that the pod is nominated to; here it does, so
//     that there is more to compare.
package oracle
