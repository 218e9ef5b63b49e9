package kubetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports are below Linux's and macOS' ephemeral ranges: the kernel gives none of them to an outgoing connection, so a
// server that is stopped finds its port free when it starts again.
const (
	firstPort = 20000
	lastPort  = 32000
)

// claims holds what keeps the ports that this process has chosen from being chosen again, here or in another process, before
// somebody listens on them or while nobody does: a socket for datagrams of the same number each. They are held until the process ends.
var claims struct {
	mu   sync.Mutex
	held []net.PacketConn
}

// FreePorts returns n loopback ports, as strings, on which nobody listens and which it has returned to nobody whose process runs still.
func FreePorts(n int) ([]string, error) {
	claims.mu.Lock()
	defer claims.mu.Unlock()
	var ports []string
	for range 1000 {
		port := strconv.Itoa(firstPort + rand.IntN(lastPort-firstPort))
		claim, err := claimPort(port)
		if err != nil {
			continue
		}
		claims.held = append(claims.held, claim)
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %w", n, errors.New("none in 1000 tries"))
}

// FreePairs is as FreePorts, but that the next port after each is free as well.
func FreePairs(n int) ([]string, error) {
	claims.mu.Lock()
	defer claims.mu.Unlock()
	var ports []string
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		one, err := claimPort(strconv.Itoa(port))
		if err != nil {
			continue
		}
		next, err := claimPort(strconv.Itoa(port + 1))
		if err != nil {
			one.Close()
			continue
		}
		claims.held = append(claims.held, one, next)
		if ports = append(ports, strconv.Itoa(port)); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free pairs of ports: %w", n, errors.New("none in 1000 tries"))
}

// claimPort returns what holds a port on which nobody listens, or an error if somebody does or holds it.
func claimPort(port string) (net.PacketConn, error) {
	address := net.JoinHostPort("127.0.0.1", port)
	claim, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		claim.Close()
		return nil, err
	}
	l.Close()
	return claim, nil
}
