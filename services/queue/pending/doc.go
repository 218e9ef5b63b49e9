// Package pending holds the pods of one shard that wait to be scheduled, as a pure fold over the log: no clock, no
// goroutine, no I/O. It never decides where a pod goes, nor asks anybody but its [Judge] whether it could go there.
//
// # Where a pod is
//
// A pod that a [Queue] holds is in exactly one [Place]. [Queue.Apply] and [Queue.Reset] follow the log; [Queue.Pop] hands
// out attempts, and Retry, PutBack, Postpone, Await, Fail and Reject take their outcomes in; Recheck and Activate bring pods back.
//
//	                       enters
//	          ┌───────────────┴───────────────┐
//	          ▼              no gates          ▼      Pop
//	        Gated ──────────────────────▶  Active ───────────────▶ InFlight ────▶ (assumed) ────▶ gone
//	                                       ▲    ▲ ◀──────────────── │  │ ▲             │
//	                             backoff   │    │     Retry         │  │ │ Pop, early  │ the bind failed
//	                             is over   │    │ Activate          │  │ │             │
//	                                       │    │          Fail     │  │ │             │
//	                                    Backoff ◀───────────────────┘──┼─┘             │
//	                                     ▲ ▲    │                      │ Reject        │
//	                         a wake-up   │ └────┼──────────────────────┼───────────────┘
//	                                     │      │                      ▼
//	                                     └──────┴─────────────── Unschedulable
//
//	from            to              because
//	—               Gated           it has gates, or its scheduler name is left to another scheduler; or plugins of others have to let it in
//	—               Active          it has not; Backoff instead if it has failed before, and a Reset finds it backing off
//	Gated           Active          it is gated no more, and in; Backoff instead if it has failed and backs off still
//	any but assumed Gated           it has got gates, or its name is left to another: an attempt that runs is void
//	Active, Backoff Gated           a plugin of others sorts, and is to say anew where it belongs
//	InFlight,       Gated           instead of Active or Backoff, if plugins of others have to let it in
//	Unschedulable
//	Active          InFlight        Pop
//	Backoff         InFlight        Pop, if no pod is active; not after an error, nor where extenders have had it preempt nobody, or a
//	                                plugin activates it too often
//	Backoff         Active          its backoff is over; Activate, of a plugin too, but not again before it is over
//	InFlight        Active          Retry; Await, if the log up to the version says nothing of it; Reset
//	InFlight        Backoff         Fail; Postpone, for a second at most; Reject, if what would have brought it back has happened meanwhile. Active instead if it
//	                                does not back off any more
//	InFlight        Unschedulable   Reject
//	Unschedulable   Backoff         a wake-up: a node that has changed fits or could be preempted on, a hint, a change of the
//	                                pod itself or of what its claims are made of, its victims are gone or their node is of no use any
//	                                more, the first node, or it has waited for too long. Active instead if its backoff is over
//	Unschedulable   Active          Activate, of a plugin too; Backoff instead if a plugin has it active again before that is over. Its evictions
//	                                have failed
//	any             assumed         the log says that it is placed
//	assumed         Backoff         the log says that its bind failed
//	any             gone            bound, removed, being deleted, or of another shard or scheduler by now
//
// Three things are told of a pod beside its place.
//
//   - Held: others are being evicted for it. Wherever it would come back to, Active or Backoff, it is Unschedulable
//     instead, is not flushed, and nothing wakes it, until the evictions have ended.
//   - Awaited: it is InFlight, and the log will tell what has become of it. Its priority is no floor for others any more.
//   - What has happened since its attempt began: it has changed, hints would queue it, it is to be tried again in any case.
//     Reject reads it, so that no wake-up is lost between the evaluation and the end of the attempt.
//
// Assumed pods are in none of the places: they are remembered for how often they have failed, if their bind does.
//
// # Who may be tried
//
// Plugins of others at PreEnqueue let pods in: they are asked each time that a pod comes to wait, from nowhere, from its attempt, or since something has
// happened, but not as its backoff ends. It is Gated meanwhile, and while one of them keeps it out.
//
//	         Entering           Admit
//	unasked ──────────▶ asked ────────▶ in: Active or Backoff
//	   ▲                  │ Keep, Unanswered
//	   └──────────────  closed
//	    a plugin says so, or it is due; else, if the plugin's service says nothing, the pod has changed
//
// What happens while it is asked about has it asked about once more.
//
// With the answer comes where it belongs, if a plugin of others sorts: see [SortKey]. Nobody is tried without it, nor by an order that is not the newest, nor, for a while, until something has been said of all who have waited since before that.
//
// # Notes and looks
//
// Apply asks the Judge nothing: it notes what may bring unschedulable pods back, and Recheck looks, as a whole or in parts. So a
// pod that a change of the cluster helps is still Unschedulable until the next look; what happens to the pod itself shows at once,
// unless it takes a question to the Judge.
package pending
