// Package doctor says what stands in the way of Berth in a cluster, before it takes over, and what to do about it. It reads, and asks the API server what it may: it writes nothing
// but reviews of its own rights, which the API server keeps nowhere.
package doctor
