package kubetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports are below Linux's and macOS' ephemeral ranges: the kernel gives none of them to an outgoing connection, so a
// server that is stopped finds its port free when it starts again.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreePorts returns n distinct loopback ports, as strings, on which nobody listened a moment ago.
func FreePorts(n int) ([]string, error) {
	var ports []string
	for range 1000 {
		port := strconv.Itoa(firstPort + rand.IntN(lastPort-firstPort))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are chosen, so that they are distinct
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %w", n, errors.New("none in 1000 tries"))
}
