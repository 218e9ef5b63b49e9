// Package rpcs has a fuzz target for each RPC of each role, named after it: what is sent, to a whole Berth in this process,
// is any bytes, or a message that is filled from them. There is no code outside its tests.
package rpcs
