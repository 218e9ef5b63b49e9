// Package whatif answers what would happen: it applies hypothetical changes to a copy of the cluster, schedules on it exactly
// as Berth would, and takes everything back. Nothing that it does is seen outside.
//
// A Sandbox holds the copy and its own Evaluator. Within Sandbox.Try a World offers the changes; Place, Capacity, Drain and
// Compare are questions about a World. The package is pure: no clock, no I/O, but that
// plugins of others are asked, if a question has any to ask ([WithPlugins]).
package whatif
