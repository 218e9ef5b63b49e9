// Package explain says why a pod is where it is, or nowhere: which plugin rejects which nodes, which nodes come nearest and what
// exactly they lack, what single change would help, and how its best nodes score.
//
// Explain asks a whatif.Sandbox, a copy of the cluster, and takes every hypothesis back. A change is told only after it has
// been made there and a node could take the pod. Text renders an Explanation for a terminal. The package is pure: no clock, no
// I/O, but that plugins of others are asked as whatif does.
package explain
