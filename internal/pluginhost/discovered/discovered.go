// Package discovered reaches a plugin service whose processes announce where they are. There is one connection at a time, to one of them, since what a process is told on one stream it may go by on another.
package discovered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// dialEach is how long it takes at most to find out whether somebody listens at an address.
const dialEach = 2 * time.Second

// Service is the connection to a service. An announcement decides only where a connection is made next: one that there is stays until it breaks, or [Service.Leave] is called, so that a service that works goes on
// while etcd is away, and whatever is announced. It is safe for concurrent use.
type Service struct {
	name string
	log  *slog.Logger
	conn *grpc.ClientConn

	mu    sync.Mutex
	known bool            // what is announced
	now   coord.Announced // that
	last  string          // the address that was tried last
	open  net.Conn        // what has come of that, perhaps closed since; nil: nothing
	count uint64          // as many connections have been made
	said  string          // the address that was logged last
}

// New returns a service that does not know yet what is announced, and is not connected: see Follow and Connect.
func New(name string, log *slog.Logger) *Service {
	return &Service{name: name, log: log.With("service", name)}
}

// Connect has the service connected by clients, whose network is to dial by [Service.Dial]. It comes before any call, and does not wait.
func (s *Service) Connect(clients *rpc.Clients) (err error) {
	s.conn, err = clients.Conn(s.name)
	return err
}

// Follow takes in what is announced until the channel is closed, or ctx ends, and returns nil.
func (s *Service) Follow(ctx context.Context, all <-chan coord.Announced) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case now, more := <-all:
			if !more {
				return nil
			}
			s.mu.Lock()
			s.known, s.now = true, now
			s.mu.Unlock()
		}
	}
}

// absent returns why there is nobody to connect to, nil if there is somebody.
func (s *Service) absent() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.now.Addresses) > 0:
		return nil
	case !s.known:
		return errors.New("what is announced in etcd is not known yet")
	case s.now.Ignored != nil:
		return fmt.Errorf("no process of the service is announced in etcd, but for what makes no sense: %w", s.now.Ignored)
	}
	return errors.New("no process of the service is announced in etcd")
}

// inTurn returns the addresses that are announced, in order, the one behind that which was tried last first.
func (s *Service) inTurn() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := slices.BinarySearch(s.now.Addresses, s.last)
	if found {
		at++
	}
	return slices.Concat(s.now.Addresses[at:], s.now.Addresses[:at])
}

// tried notes what has come of an address. What there was before is closed: nobody goes on there.
func (s *Service) tried(address string, conn net.Conn) {
	s.mu.Lock()
	was := s.open
	if s.last, s.open = address, conn; conn != nil {
		s.count++
	}
	s.mu.Unlock()
	if was != nil {
		_ = was.Close() // as a rule, it is
	}
}

// Dial connects to the next process that somebody listens for. Whether it is one of the service is for whoever goes on with the connection: if it is not, the next one is dialled next.
func (s *Service) Dial(ctx context.Context) (net.Conn, error) {
	err := s.absent()
	for _, address := range s.inTurn() {
		var conn net.Conn
		if conn, err = dial(ctx, address); err == nil {
			s.tried(address, conn)
			return conn, nil
		}
		s.tried(address, nil)
		if ctx.Err() != nil {
			break
		}
	}
	if err == nil { // it has gone meanwhile
		err = errors.New("no process of the service is announced in etcd")
	}
	return nil, err
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialEach)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// Connected returns the number of the connection that there is, or was last: they are counted from 1. 0: there has been none.
func (s *Service) Connected() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Leave ends a connection, by its number, if it is the one that there is, and another address is announced, which is tried next.
func (s *Service) Leave(connection uint64) {
	s.mu.Lock()
	conn, address := s.open, s.last
	if conn == nil || connection != s.count || !slices.ContainsFunc(s.now.Addresses, func(other string) bool { return other != address }) {
		s.mu.Unlock()
		return
	}
	s.open = nil
	s.mu.Unlock()
	s.log.Warn("plugin service: left for another process of it", "address", address)
	_ = conn.Close() // its streams end by that
}

// Invoke makes a call of a connection. Where nobody is announced, and none is connected, it fails at once, and says so.
func (s *Service) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := s.away(); err != nil {
		return err
	}
	return s.conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream begins a stream, as Invoke makes a call.
func (s *Service) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := s.away(); err != nil {
		return nil, err
	}
	stream, err := s.conn.NewStream(ctx, desc, method, opts...)
	if err == nil {
		s.say()
	}
	return stream, err
}

func (s *Service) away() error {
	if err := s.absent(); err != nil && s.conn.GetState() != connectivity.Ready {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// say says which process it is now.
func (s *Service) say() {
	s.mu.Lock()
	address, again := s.last, s.last == s.said
	s.said = address
	s.mu.Unlock()
	if !again {
		s.log.Info("plugin service: connected to a process that is announced", "address", address)
	}
}
