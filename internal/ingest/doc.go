// Package ingest folds what a source tells into deltas of a state: it finds what is new, gives out indexes and ids, and says
// nothing of what is the same. It is pure: where the deltas go, and who may come in between, is its user's business.
package ingest
