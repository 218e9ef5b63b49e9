// Package roles assembles Berth's roles by hand: what each one is made of, top to bottom, in one place. A process runs
// one role over TCP, or all of them over memory; the handlers, interceptors and stubs are the same.
//
// It reads no flags and no environment, and handles no signals: that is internal/command's.
//
// # Locks
//
// This is the order in which locks are taken. Who holds one of these takes only ones that are further down, and not a second one of the
// same name, such as that of another shard. A lock that is not here is never held together with another. Each is released by the function
// that has taken it. A test in test/rules reads this list and compares it with the program.
//
//	kube.teller.mu             events of the API server go to the ledger one at a time
//	offline.service.mu         a client's questions about a file, one at a time
//	replica.Replica.mu         the state that all read; subscribers hear of a change under it
//	queue.Service.mu           which shards a member owns: all of them hear of a change, or none
//	queue.shard.mu             the queue of one shard
//	binder.ledger.mu           the ledger: a transaction, with all that is told of it
//	binder.reservations.mu     which gangs wait, and for which of them room is reserved
//	binder.groupTurns.mu       who has the turn of groups, and who waits for it
//	engine.Evaluator.mu        which evaluations there are; not held while one is used
//	engine.evaluation.mu       what is known of one signature
//	engine.interner.mu         the groups of a signature, which several goroutines number
//	engine.budgets.mu          the budgets of a state, by namespace
//	engine.spaceBudgets.mu     which budgets of a namespace select which labels
//	queue.guarded.mu           when a panic was last logged
//	queue.asker.mu             pods that extenders are to be asked about
//	queue.reporter.mu          reports that wait for the binder
//	queue.binding.mu           attempts between commit and bind
//	queue.directory.mu         who is alive
//	queue.floors.mu            the priorities that shards work at
//	gateway.feed.mu            recent placements
//	gateway.names.mu           pods by name
//	gateway.rates.mu           how many pods were placed lately
//	gateway.tail.mu            what the sandbox has not been told of the log
//	binder.extenders.mu        which extenders are being asked, and nodes as they are sent
//	binder.recorder.mu         placements to be recorded, and batches that are
//	binder.reportLane.mu       reports to be written
//	binder.preparing.mu        placements whose claims are to be bound, and what is chosen for these
//	binder.flights.mu          calls under way, by namespace
//	binder.troubles.mu         namespaces whose binds were withdrawn
//	binder.windows.mu          how many unbound pods namespaces may have
//	binder.eventLane.mu        events to be written again
//	pluginhost.placing.mu      on which stream a plugin service is told of placements
//	pluginhost.placeStream.mu  which steps of placements are under way on a stream
//	pluginhost.changes.mu      which nodes have changed for a plugin service
//	pluginhost.doubts.mu       how often in a row nothing has come of a process of a plugin service
//	discovered.Service.mu      to which process of a plugin service there is a connection
//	gateway.peers.mu           who is alive, and leads
//	rpc.Clients.mu             connections, by address
//	kube.Source.mu             what a source has been told of the API server
//	kube.mirror.mu             objects as the API server has told them
//	binder.bound.mu            how much of something is taken
//	binder.names.mu            whether shared scheduler names are the term's
//	binder.turns.mu            what waits for workers, by namespace
//	replica.Feed.mu            which term's log is open
//	replica.sharedSnapshot.mu  the snapshot that followers share
//	replica.term.mu            the last deltas of the log
//	gateway.watchers.mu        the watches that run
//	rpc.boundListener.mu       connections of a server
//	rpc.heldRequest.mu         whose a request is
//	rpc.heldRequests.mu        requests of all connections, by connection
//	rpc.counted.mu             streams of one connection
//	rpc.held.mu                streams or requests of all connections
//	rpc.unread.mu              answers that clients have not read
//	rpc.Gate.mu                whose turn it is
//	rpc.Share.mu               what callers hold of a bound
package roles
