// Package pluginhost asks plugins that are services of their own: the client of berth.plugin.v1. The binder asks, about one pod of a service at a time, right before it
// places it, as it asks extenders. What makes services fast is that their answers are kept.
//
// A [Host] has the services of a configuration. Of a pod whose turn it is, [Host.Begin] makes an [Asking], whose steps are:
//
//   - [Asking.Excluded], under the lock of the state: the nodes that are known to be refused.
//   - [Asking.Collect], under that lock: of some nodes, what is to be asked, as the state is then. It has no more than what has changed since it was told last.
//   - [Asking.Exchange], without any lock: it is asked.
//   - [Asking.Refusal] and [Asking.Score]: what the answers are.
//   - [Asking.CollectScores], under the lock again, and [Asking.Exchange], before [Asking.Score], if [Asking.ScoresApart]: some plugins normalise their scores themselves, and see all nodes that are left.
//   - [Asking.CollectChosen] and [Asking.Exchange], about the node that is chosen: whether it can run the pod itself, where a service has said of nodes what it had said for an earlier one.
//   - [Asking.CollectBest] and [Asking.Exchange] in place of all these, where a service takes what it had said of some nodes for an earlier pod: all is asked in one question, and [Asking.Chosen] is the node.
//   - [Asking.Holds], under the lock again: whether the answer about a node is of the node as it is now. Only then may a pod be placed there.
//
// What people ask about what might be, in a copy of the state, is an [Inquiry]: it asks the same in the same way, by sessions of its own, which a binder passes on ([Passage]).
//
// # What is kept
//
// A stream to a service is a session. In it are told once: nodes, the pods on them, and kinds of pods, which are pods that filters and scores treat alike ([engine.Subject]), and
// whose objects or annotations are alike if the service wants these. The answers about a kind are a column: by node, the verdict, the scores, and the seq of the state that they are of. An answer
// holds until what it depends on has changed, as the service has described: the node itself, or what is placed there too, or so many milliseconds have passed. So a pod of a kind
// that has been placed a thousand times costs one question about one node: that of the last pod.
//
// A session ends with the epoch of the state, when a call fails, takes too long or makes no sense, or when the service ends it, and with it all that is kept. The next question begins another one; for
// some time after a failure it is answered with that instead. It does not end since somebody who asks goes: what was asked is answered for whoever comes next.
//
// # Bounds
//
// Columns have 128 MiB at most in a service, those of kinds that have not been asked about for longest go first. A request tells at most 1,000 nodes and about 4 MiB, and asks about as many nodes as the
// service answers in a quarter of its time, 50,000 at most; further ones are in the next. A response has 16 MiB at most. A session has one goroutine, which waits for responses and so knows when the stream has
// ended; whoever ends the session waits for it.
package pluginhost
