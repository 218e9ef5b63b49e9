package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Route is one direction between two parties of the network: what From sends to To. An empty name stands for everybody.
type Route struct{ From, To string }

// Condition is how a route behaves. The zero value is a good network.
type Condition struct {
	// Hold keeps what is sent until the route is good again, as a network does that loses packets and is repaired:
	// connections survive, and what was sent arrives late.
	Hold bool
	// Delay is added to everything that is sent.
	Delay time.Duration
	// Rate is how many bytes a second get through; 0: any number.
	Rate int
}

// Network is a TCP proxy in front of each party. Parties connect to each other through it, so that each direction between
// two of them can be spoilt. Its methods may be called concurrently.
type Network struct {
	mu         sync.Mutex
	pids       map[string]int // the parties' processes, by name: the newest of each
	conditions map[Route]Condition
	changed    chan struct{} // closed and replaced when conditions change
	tampers    map[Route]tamper
	conns      map[*conn]bool
	listeners  []net.Listener
	closed     bool
	work       sync.WaitGroup
}

// conn is a proxied connection.
type conn struct {
	client, server string // names of the parties
	a, b           net.Conn
	cancel         context.CancelFunc // ends what waits for a route
}

// newNetwork returns a good network without parties.
func newNetwork() *Network {
	return &Network{pids: map[string]int{}, conditions: map[Route]Condition{}, changed: make(chan struct{}), conns: map[*conn]bool{}, tampers: map[Route]tamper{}}
}

// Is says which process a party is, so that its connections are known to be its own.
func (n *Network) Is(party string, pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pids[party] = pid
}

// Front opens a proxy for a party that listens at target, and returns its address.
func (n *Network) Front(party, target string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen for %s: %w", party, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners = append(n.listeners, l)
	n.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			n.work.Go(func() { n.serve(c, party, target) })
		}
	})
	return l.Addr().String(), nil
}

func (n *Network) processes() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.pids)
}

// Set changes how routes behave. A later condition of a route replaces an earlier one.
func (n *Network) Set(c Condition, routes ...Route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range routes {
		if c == (Condition{}) {
			delete(n.conditions, r)
		} else {
			n.conditions[r] = c
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Tamper lets a function change the HTTP/2 frames that a server sends to a client, on connections that begin from now on;
// nil: no longer.
func (n *Network) Tamper(t tamper, routes ...Route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range routes {
		if t == nil {
			delete(n.tampers, r)
		} else {
			n.tampers[r] = t
		}
	}
}

// Reset breaks the connections between two parties, whoever has opened them.
func (n *Network) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if matches(a, c.client) && matches(b, c.server) || matches(b, c.client) && matches(a, c.server) {
			c.reset()
		}
	}
}

func matches(pattern, name string) bool { return pattern == "" || pattern == name }

// Close breaks all connections and waits for the end of everything.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	for _, l := range n.listeners {
		l.Close()
	}
	for c := range n.conns {
		c.reset()
	}
	n.mu.Unlock()
	n.work.Wait()
}

// reset breaks the connection: what is under way is lost.
func (c *conn) reset() {
	c.cancel()
	for _, end := range []net.Conn{c.a, c.b} {
		if t, ok := end.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // an error means that the connection is gone already
		}
		end.Close()
	}
}

// serve proxies one connection until either end closes it.
func (n *Network) serve(from net.Conn, party, target string) {
	defer from.Close()
	client := ""
	if at, err := netip.ParseAddrPort(from.RemoteAddr().String()); err == nil {
		client, _ = ownerOf(at, n.processes())
	}
	to, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return // nobody is there: the client sees its connection end
	}
	defer to.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &conn{client: client, server: party, a: from, b: to, cancel: cancel}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.conns[c] = true
	back := io.Writer(from)
	if t := n.tampers[Route{party, client}]; t != nil {
		back = &frames{to: from, tamper: t}
	}
	n.mu.Unlock()
	var pipes sync.WaitGroup
	pipes.Go(func() { n.pipe(ctx, Route{client, party}, to, from, to) })
	pipes.Go(func() { n.pipe(ctx, Route{party, client}, from, to, back) })
	pipes.Wait()
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
}

// pipe copies what is sent on a route, in its condition, until its sender is done or the connection breaks. Out writes to
// the receiver's end.
func (n *Network) pipe(ctx context.Context, r Route, to, from net.Conn, out io.Writer) {
	buf := make([]byte, 16<<10)
	for {
		got, err := from.Read(buf)
		if got > 0 {
			if n.pass(ctx, r, got) != nil {
				return
			}
			if _, err := out.Write(buf[:got]); err != nil {
				// Nobody listens. The sender learns that by the other direction, behind what is held there.
				_, _ = io.Copy(io.Discard, from)
				return
			}
		}
		if err != nil {
			if n.pass(ctx, r, 0) != nil { // the end is held, too
				return
			}
			if t, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
				_ = t.CloseWrite() // an error means that the connection is gone already
			} else {
				to.Close()
			}
			return
		}
	}
}

// pass returns when so many bytes have got through a route. An error means that the connection is broken.
func (n *Network) pass(ctx context.Context, r Route, bytes int) error {
	for {
		c, changed := n.condition(r)
		wait := c.Delay
		if c.Rate > 0 {
			wait += time.Duration(bytes) * time.Second / time.Duration(c.Rate)
		}
		if !c.Hold && wait == 0 {
			return nil
		}
		var timeout <-chan time.Time
		if !c.Hold {
			timeout = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return errors.New("the connection is broken")
		case <-timeout:
			return nil
		case <-changed:
		}
	}
}

// condition returns the condition of a route, the worst of those that are said of it, and what is closed when it may have changed.
func (n *Network) condition(r Route) (Condition, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var worst Condition
	for said, c := range n.conditions {
		if !matches(said.From, r.From) || !matches(said.To, r.To) {
			continue
		}
		worst.Hold = worst.Hold || c.Hold
		worst.Delay = max(worst.Delay, c.Delay)
		if c.Rate > 0 && (worst.Rate == 0 || c.Rate < worst.Rate) {
			worst.Rate = c.Rate
		}
	}
	return worst, n.changed
}
