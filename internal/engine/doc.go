// Package engine judges where pods can go and how good each place is: kube-scheduler's filters and scores, evaluated
// per class over the columns of a cluster.State.
//
// A class is compiled once into a program: its strings become symbols, its requests become columns. An Evaluator keeps
// per class what it found for each node, so that a class is evaluated again only on the nodes that changed since. A
// Placer places the pods of one batch, in order, on the live ledger, and proves each choice to be the best one or says
// that it cannot. What everybody who places pods has to decide alike is in choice.go, once. For a pod that fits nowhere, dry runs
// find the nodes where it would fit if pods of lower priority were gone, and which of them: kube-scheduler's DefaultPreemption.
//
// The two hard parts have an example in numbers each, which the tests run (example_test.go): ExamplePlacer shows why a choice is
// proven although most nodes were not looked at, and Example_topologyProfiles how nodes are judged by what pods elsewhere count.
//
// Each plugin is one file, named as kube-scheduler names it, with its formula, its reason texts and its Descriptor, and one row of the table
// in plugins.go. All that Berth knows of a plugin is there, also what others ask: where it runs, what its hints are, what an explanation says.
// A class is compiled to the functions of those that have something to say about it.
//
// The package is pure: no clock, no I/O, no gRPC. It never changes a State; cutting nodes into ranges, merging answers
// of several workers over the network and applying placements are the callers' work.
package engine
