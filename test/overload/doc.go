// Package overload gives Berth ten times the pods that its cluster has room for, and then more calls than it answers at a
// time, and judges what came of it: by what etcd holds, by the queues' lengths, by the memory of each process, and by the
// answer of every call. The test of this package is small; make overload runs it with 100,000 pods that wait.
package overload
