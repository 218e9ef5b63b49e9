// Package rules holds the laws of the project as tests, one row and one reason each: who may import what, what every
// package and page must have, and whether the files that no compiler reads (pages, manifests, compose) are true.
//
// It has no code of its own. What the laws are for is in ARCHITECTURE.md.
package rules
