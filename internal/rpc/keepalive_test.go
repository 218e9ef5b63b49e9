package rpc

import "testing"

// A server that allows fewer pings than its clients send hangs up on them when they are idle.
func TestClientPingsNoOftenerThanServersAllow(t *testing.T) {
	if serverPingFloor > clientPingEvery {
		t.Errorf("servers allow a ping every %v, clients send one every %v", serverPingFloor, clientPingEvery)
	}
}
