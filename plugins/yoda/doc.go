// Package yoda decides which cards (GPUs) of which node a pod gets: what a pod asks for ([ParseRequest]), what is known of the cards of nodes and of who has them ([Book]), which cards of a node meet a request ([Choose]; [Book.Give] takes them too), how good a node
// is for it ([Score]), and how what it got is written down on the pod ([Grant]).
//
// All of it is a function of what it is told: there is no clock, no goroutine, no I/O and no log here, and time is an argument. It calls neither Berth nor an API server; whoever does owns a Book, locks it, and tells it what happens.
package yoda
