package main

import (
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo starts a server that sends back what it gets, behind a proxy of the party "server". Clients are the party "client".
func echo(t *testing.T) (*Network, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	n := newNetwork()
	n.Is("nobody", 1<<30)
	n.Is("client", os.Getpid())
	t.Cleanup(func() {
		n.Close()
		l.Close()
	})
	address, err := n.Front("server", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return n, address
}

// dial connects to the echo.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends a byte.
func say(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
}

// hear reads a byte, and reports whether there was one within the limit.
func hear(t *testing.T, c net.Conn, limit time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	return err == nil
}

const (
	soon  = 30 * time.Second      // what must come, comes by then
	never = 50 * time.Millisecond // what must not come is waited for so long: longer finds no more, and less misses nothing that comes at once
)

func TestWhatIsHeldOnARouteArrivesLate(t *testing.T) {
	for _, way := range ways {
		n, address := echo(t)
		c := dial(t, address)
		say(t, c)
		if !hear(t, c, soon) {
			t.Fatal("a good network does not deliver")
		}
		held := routes("client", way, "server")
		n.Set(Condition{Hold: true}, held...)
		say(t, c)
		if hear(t, c, never) {
			t.Errorf("%s: the answer came through", way)
		}
		n.Set(Condition{}, held...)
		if !hear(t, c, soon) {
			t.Errorf("%s: what was held did not arrive", way)
		}
	}
}

func TestOtherRoutesStayGood(t *testing.T) {
	n, address := echo(t)
	c := dial(t, address)
	n.Set(Condition{Hold: true}, routes("another", "both", "server")...)
	n.Set(Condition{Hold: true}, routes("client", "both", "another")...)
	n.Reset("another", "server")
	say(t, c)
	if !hear(t, c, soon) {
		t.Error("the conditions of other parties' routes met this one")
	}
}

func TestResetBreaksConnectionsAndLetsNewOnesIn(t *testing.T) {
	n, address := echo(t)
	c := dial(t, address)
	say(t, c)
	if !hear(t, c, soon) {
		t.Fatal("a good network does not deliver")
	}
	n.Reset("server", "client")
	if hear(t, c, soon) {
		t.Error("a byte came from a connection that was reset")
	}
	c = dial(t, address)
	say(t, c)
	if !hear(t, c, soon) {
		t.Error("a new connection does not deliver")
	}
}

func TestAProxyOfAServerThatIsAwayEndsConnections(t *testing.T) {
	n := newNetwork()
	defer n.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, err := n.Front("server", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if hear(t, dial(t, address), soon) {
		t.Error("a byte came from nobody")
	}
}

func TestWhatIsHeldArrivesAlsoWhenItsSenderHasGoneAndIsBeingAnswered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	n := newNetwork()
	n.Is("client", os.Getpid())
	t.Cleanup(n.Close)
	address, err := n.Front("server", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, address)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	n.Set(Condition{Hold: true}, Route{"client", "server"})
	say(t, client)
	client.Close()
	// What a server tells of its own accord is more than connections hold: the proxy knows by then that nobody listens.
	if _, err := server.Write(make([]byte, 16<<20)); err != nil {
		t.Fatal(err)
	}
	n.Set(Condition{}, Route{"client", "server"})
	if !hear(t, server, soon) {
		t.Error("what was held has not arrived")
	}
}
