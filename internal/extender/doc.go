// Package extender asks kube-scheduler's HTTP extenders: webhooks that filter nodes, score them, bind pods, or have a say in preemption. What it
// sends, and what it makes of answers, is what kube-scheduler 1.36 does, to the byte and to the text of errors; test/oracle compares them.
//
// A [Set] is made once per configuration. Its methods are the steps of a scheduling attempt, in kube-scheduler's order:
//
//   - [Set.Filter], once the feasible nodes of all ranges have been merged. Extenders are asked one after the other, each about what the former has left.
//   - [Set.Prioritize], if more than one node is left. Extenders are asked at the same time. Whoever calls multiplies with [Scale].
//   - [Set.Bind], in place of the API server's binding.
//   - [Set.Preempt], between the dry runs and the choice of a candidate.
//
// Each asks only those extenders that are interested in the pod, by the names of its resources ([ResourceNames]): see [Set.Interest].
//
// # Files
//
// set.go has these steps, answers.go what is made of answers, which is pure, encode.go the bodies of requests, call.go and transport.go the edge: one
// request over HTTP, and how servers are reached. Nothing here decides where a pod goes, keeps anything from one call to the next but
// connections, or starts goroutines, but for those of a Prioritize, which it waits for.
//
// # Bounds
//
// A call ends with its context, or after the extender's httpTimeout. An extender has 64 connections at most to bind, and 64 for all else; further calls wait for one, in the same
// time. An answer has 64 MiB at most, or to a filter twice what was sent, with scores 8 MiB, about a bind 1 MiB; and at most four times as many nodes, names, reasons or scores as there are nodes that it
// was asked about, or 1,000. About preemption, it names no more victims of a node than that has pods. The text of an error has 1 KiB at most. A request has no bound: an [Observer]
// is told how large each is, for servers have bounds of their own, and say so only by refusing.
//
// # What differs from kube-scheduler
//
//   - There it panics at an answer about preemption with null for a node or a pod; here that is an error of the extender.
//   - There a negative httpTimeout is none, and a urlPrefix that is no URL fails each attempt; here a configuration with these is refused.
//   - There the objects that an extender has answered with become nodes without pods, which plugins then score. Here nobody but the next extender sees them.
//   - There the user and the password of a urlPrefix are in the texts of errors, in logs and in metrics; here nobody but the server is told them.
//   - There what an extender says of nodes that it was not asked to score is kept, and looked up by nobody; here it is dropped.
//   - There an answer about preemption may name a pod any number of times, each of which counts, and the next extender is told of each. Here too, as long as it names no more than
//     the node has.
//   - There answers have no bounds, nor have connections; and a quantity in a node of an answer that takes hours to parse takes hours.
//   - Which of several unknown nodes or pods of an answer about preemption is named in the error is left to a Go map's order there; here it is the first by name.
//   - There no call ends before its time. Here one whose context has ended is no failure of the extender: an ignorable one is not skipped for it.
package extender
