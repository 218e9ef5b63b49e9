// Package shadow says what Berth would have done in a cluster whose pods another scheduler binds: for each pod that is bound, where Berth would have put it in the state just before, and whether
// kube-scheduler's choice is explained by what Berth does otherwise on purpose.
//
// kube-scheduler decides on one pod after the other, and binds each in a goroutine of its own: binds arrive in another order than that of the decisions, and a decision sees pods whose binds
// have not arrived. So a pod that went elsewhere is looked at again with the binds around it in other orders, of which the one that explains the choice is told. kube-scheduler also stops
// looking at nodes when it has found enough; Berth looks at all. Its node then need not be the best, but the best of as many as are enough.
//
// The package is pure, but that it measures how long it takes: it is told what a source tells, and when. It never changes anything but its own copy of the state.
package shadow
