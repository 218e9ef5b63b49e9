// Package scenarios tells stories about whole Berths: what users do to a cluster, and what its pods, events and metrics
// then say. It holds tests only. Each file of testdata is a story. It is played twice, on a cluster of manifests and on a
// real API server, and must print the same.
//
// # How to write a story
//
// A line is a command, a comment or empty. Below commands stands "----", and what they print, up to an empty line. Write the
// commands and "----", run
//
//	go test ./test/scenarios -run '/my-story' -rewrite
//
// and read what it has written. The first command may be berth, which says how Berth is started; a story begins with no
// nodes and no pods. Every command that changes something returns when Berth knows of it, so the order of the lines is the
// order in which Berth sees them. Names are a, or a,b, or w1..9. Labels are key:value,key:value.
//
//	berth [shards=4 queues=2 filters=2 batch=8]
//	                           starts Berth so; what is not named is one, and batch Berth's default
//	node N [cpu=4 memory=32Gi pods=110 labels=L taints=key=value:Effect cordoned]
//	pod P [cpu= memory= priority= labels=L gates=a,b tolerates=key selector=L port= scheduler= grace=
//	       never-preempts apart=L@topology near=L@topology spread=L@topology]
//	                           required (anti-)affinity and spread with pods of labels L; by hostname if not said
//	update node N ..., update pod P ...
//	                           what is named changes, and prints "refused" if that is not allowed; cordoned=no uncordons
//	resize P cpu=              changes the requests of a pod
//	delete node|pod|budget N   a pod with grace= ends only with "delete pod P now", since there is no kubelet
//	budget B protects=L allows=1
//	bind P N                   binds a pod as another scheduler would
//	await P bound [N]          waits until it is so; or gated, unschedulable, gone, nominated [N]
//	await P rested             waits until pods that are unschedulable would not have to back off: they wake in order
//	await P event Scheduled    waits until a pod has an event of the reason
//	settle                     waits until Berth has nothing to do, and its cluster says what Berth knows
//	show [P]                   prints pods: where they are, and reason and message of PodScheduled
//	count                      prints how many pods are where
//	nodes                      prints what Berth believes is on the nodes
//	queue [P]                  prints what the queue knows of the pods that wait: attempts and verdicts
//	events P                   prints the pod's events, each once; also those of a pod that is gone
//	metrics NAME               prints a metric of all members together, by its other labels
//
// Commands below a line "kube", up to their "----", are only for API servers: elsewhere what they print stands as it is.
//
// Nothing may depend on timing. Use await for what must happen, and settle before show: settle alone cannot know that
// something is still to come. Give pods that compete different priorities, and nodes that must not tie different sizes; let
// pods that compete once they wake be rested, since those in backoff go in the order in which it ends.
package scenarios
