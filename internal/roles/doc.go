// Package roles assembles Berth's roles by hand: what each one is made of, top to bottom, in one place. A process runs
// one role over TCP, or all of them over memory; the handlers, interceptors and stubs are the same.
//
// It reads no flags and no environment, and handles no signals: that is cmd/berth's.
package roles
