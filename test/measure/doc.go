// Package measure is what the programs that measure have in common: what machine this is, how figures of several
// repetitions are told, and how a profile of a running process is taken.
package measure
