package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	peerHandshake  = 10 * time.Second // of TLS, and who is wanted, until it is there
	peerPause      = 100 * time.Millisecond
	peerConns      = 4096
	peerHandshakes = 64 // of which it is not known yet who is there: of known addresses, and of others
)

// What a process answers to one that wants somebody in it.
const (
	peerHere    = 1
	peerUnknown = 2
)

// PeersConfig says where one of several processes is that are one Berth, and how they know each other. All of it is required but Known and Log.
type PeersConfig struct {
	Listener net.Listener // where this process is reached; Close closes it
	Address  string       // how the others reach it: host:port
	Server   *tls.Config  // of the connections of others to this one; it has to want a certificate
	Client   *tls.Config  // of the connections to others; it has to verify them
	// Admit returns why the other side of a connection is none of them, nil if it is one.
	Admit func(tls.ConnectionState) error
	// Known are the addresses of the others, whose handshakes others than they cannot hold up. One of them may come from another.
	Known []netip.Addr
	Log   *slog.Logger // nil discards
}

// Peers is a [Network] of several processes that are one Berth, and trust each other with everything. Each has one port for all that listens in it, over mutual TLS.
// An address is host:port/name, and a listener's is its name; names of this process are reached in memory. It is safe for concurrent use.
type Peers struct {
	cfg    PeersConfig
	inside Network
	ends   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup
	// These have room for handshakes.
	known, strange chan struct{}

	mu     sync.Mutex
	named  map[string]*peersListener
	closed bool
}

var _ Network = (*Peers)(nil)

// NewPeers returns the network, which takes connections until it is closed.
func NewPeers(cfg PeersConfig) *Peers {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Listener = Bound(cfg.Listener, Bounds{Name: "peers", All: peerConns, Each: -1})
	p := &Peers{cfg: cfg, inside: Memory(), named: make(map[string]*peersListener), known: make(chan struct{}, peerHandshakes), strange: make(chan struct{}, peerHandshakes)}
	p.ends, p.end = context.WithCancel(context.Background())
	p.work.Go(p.accept)
	return p
}

// Close ends what is under way, but for connections that somebody has accepted, and waits for it.
func (p *Peers) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	err := p.cfg.Listener.Close()
	p.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// Listen opens a name.
func (p *Peers) Listen(name string) (net.Listener, error) {
	if len(name) > 255 || strings.Contains(name, "/") {
		return nil, fmt.Errorf("listen on %s: want a name of 255 bytes at most, without slashes", name)
	}
	inside, err := p.inside.Listen(name)
	if err != nil {
		return nil, err
	}
	l := &peersListener{Listener: inside, network: p, accepted: make(chan net.Conn), done: make(chan struct{})}
	l.work.Go(l.takeInside)
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.named[inside.Addr().String()] = l
	}
	p.mu.Unlock()
	if closed {
		return nil, errors.Join(net.ErrClosed, l.Close())
	}
	return l, nil
}

// Dial implements [Network].
func (p *Peers) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if name, here := strings.CutPrefix(address, p.cfg.Address+"/"); here {
		return p.inside.Dial(name, opts...)
	}
	return dial(address, p.Connect, opts)
}

// Advertise implements [Network].
func (p *Peers) Advertise(l net.Listener, _ string) string {
	return p.cfg.Address + "/" + l.Addr().String()
}

// Connect returns a connection to who listens at an address in another process.
func (p *Peers) Connect(ctx context.Context, address string) (_ net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerHandshake)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("dial %s: %w", address, err)
		}
	}()
	host, name, found := strings.Cut(address, "/")
	if !found || name == "" || len(name) > 255 {
		return nil, errors.New("want host:port/name")
	}
	plain, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = plain.Close() // the error before is the one to tell
		}
	}()
	conn := tls.Client(plain, p.cfg.Client)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if err := p.cfg.Admit(conn.ConnectionState()); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = plain.SetDeadline(time.Unix(1, 0)) })
	answer := []byte{0}
	if _, err = conn.Write(append([]byte{byte(len(name))}, name...)); err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	switch {
	case !stop() || ctx.Err() != nil: // its deadline is over, or will be
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case answer[0] != peerHere:
		return nil, errNobodyListens
	}
	return conn, nil
}

// accept takes connections of other processes.
func (p *Peers) accept() {
	for {
		conn, err := p.cfg.Listener.Accept()
		if err == nil {
			turns := p.strange
			if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil && slices.Contains(p.cfg.Known, at.Addr().Unmap()) {
				turns = p.known
			}
			select {
			case turns <- struct{}{}:
				p.work.Go(func() {
					err := p.hand(conn)
					<-turns
					if err != nil {
						_ = conn.Close() // why is said
						p.cfg.Log.Debug("connection of a peer refused", "address", conn.RemoteAddr().String(), "err", err)
					}
				})
			default: // who comes and says nothing keeps out those who come with it, for as long as a handshake may take
				_ = conn.Close()
			}
			continue
		}
		select {
		case <-p.ends.Done():
			return
		case <-time.After(peerPause): // of open files, say
		}
	}
}

// hand finds out who is at the other end of a connection and whom it wants, and gives it to that one.
func (p *Peers) hand(plain net.Conn) error {
	ctx, cancel := context.WithTimeout(p.ends, peerHandshake)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = plain.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn := tls.Server(plain, p.cfg.Server)
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	if err := p.cfg.Admit(conn.ConnectionState()); err != nil {
		return err
	}
	if bound, ok := plain.(*boundConn); ok {
		bound.vouch("peers")
	}
	length := []byte{0}
	if _, err := io.ReadFull(conn, length); err != nil {
		return err
	}
	name := make([]byte, length[0])
	if _, err := io.ReadFull(conn, name); err != nil {
		return err
	}
	p.mu.Lock()
	l := p.named[string(name)]
	p.mu.Unlock()
	if l == nil {
		_, err := conn.Write([]byte{peerUnknown})
		return errors.Join(fmt.Errorf("it wants %q: %w", name, errNobodyListens), err)
	}
	if _, err := conn.Write([]byte{peerHere}); err != nil {
		return err
	}
	if !stop() {
		return context.Cause(ctx)
	}
	select {
	case l.accepted <- conn:
		return nil
	case <-l.done:
		return net.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// peersListener accepts connections of this process and of others.
type peersListener struct {
	net.Listener // in memory
	network      *Peers
	accepted     chan net.Conn
	once         sync.Once
	done         chan struct{} // closed when it is
	work         sync.WaitGroup
}

// takeInside accepts those of this process.
func (l *peersListener) takeInside() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil { // it is closed
			return
		}
		select {
		case l.accepted <- conn:
		case <-l.done:
			_ = conn.Close()
			return
		}
	}
}

// Accept implements net.Listener.
func (l *peersListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *peersListener) Close() error {
	var err error
	l.once.Do(func() {
		p := l.network
		p.mu.Lock()
		delete(p.named, l.Addr().String())
		p.mu.Unlock()
		close(l.done)
		err = l.Listener.Close()
		l.work.Wait()
	})
	return err
}
