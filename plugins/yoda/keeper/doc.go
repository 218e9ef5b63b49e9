// Package keeper has the one book of a process in which stands who has which cards ([yoda.Book]). It hears of nodes, of what collectors tell, and of pods from the API server, and of what is reserved from Yoda's plugins, and says what follows: which nodes are
// others now, and which pods are worth trying again.
//
// A card is never free only because somebody has said that a pod is not placed after all: what was reserved is given back when the API server has been asked, and says that the pod is not bound. It may be bound though nobody here knows: a stream may have ended
// between a bind and the word of it.
//
// [Cards] is the state, without I/O and without a clock: time is an argument. [Watch] tells it what the API server says.
package keeper
