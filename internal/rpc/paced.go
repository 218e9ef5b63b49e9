package rpc

import (
	"net"
	"sync"
	"time"
)

const (
	// pacedAhead is how many bytes are read of a client, beyond those that it has taken, while writes wait for it.
	pacedAhead = 16 << 10
	// pacedQuiet is for how long nothing is written at least by who has written all there is.
	pacedQuiet = 2 * time.Millisecond
)

// paced is a connection of a client that is read from no faster than it reads. What answers frames of HTTP/2 that are of no request, such as pings,
// is no answer of a handler, and waits for the client in no bound of a [held]'s. net/http keeps up to 10,000 of them, which is 0.6 MiB of a
// connection, before it ends that. A client that does not read for long is not paced for long: a write has a deadline.
//
// It is for servers that do not look at frames: who does so, as a [counted], knows more.
type paced struct {
	net.Conn

	mu     sync.Mutex
	writes int           // under way
	ahead  int           // bytes that have been read while there were any, less those that were written since
	wrote  time.Time     // when a write last ended
	ended  chan struct{} // closed when a write ends; nil: nobody waits for it
}

// Read implements net.Conn.
func (c *paced) Read(b []byte) (int, error) {
	for wait := c.tooFar(); wait != nil; wait = c.tooFar() {
		wait()
	}
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes > 0 || c.ahead > 0 {
		c.ahead += n
	}
	return n, err
}

// tooFar returns what to wait for before more is read, nil if there is nothing.
func (c *paced) tooFar() (wait func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := pacedQuiet - time.Since(c.wrote)
	switch {
	case c.writes == 0 && left <= 0: // the server has nothing more to say
		c.ahead = 0
		return nil
	case c.ahead < pacedAhead:
		return nil
	case c.writes == 0:
		return func() { time.Sleep(left) }
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	ended := c.ended
	return func() { <-ended }
}

// Write implements net.Conn.
func (c *paced) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes--
	c.ahead, c.wrote = max(c.ahead-n, 0), time.Now()
	if c.ended != nil {
		close(c.ended)
		c.ended = nil
	}
	return n, err
}
