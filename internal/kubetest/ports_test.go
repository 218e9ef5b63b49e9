package kubetest

import (
	"net"
	"testing"
)

// A port is returned once, whether anybody listens on it yet or not.
func TestAPortIsReturnedOnce(t *testing.T) {
	of := map[string]bool{}
	for range 100 {
		ports, err := FreePorts(5)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range ports {
			if of[port] {
				t.Fatalf("port %s is returned twice, of %d", port, len(of))
			}
			of[port] = true
		}
	}
}

func TestAPortOnWhichSomebodyListensIsNotFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if claim, err := claimPort(port); err == nil {
		claim.Close()
		t.Errorf("port %s is free", port)
	}
	ports, err := FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	if claim, err := claimPort(ports[0]); err == nil { // as another process would
		claim.Close()
		t.Errorf("port %s, which is somebody's, is free", ports[0])
	}
}
