package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// Network is how servers listen and clients reach them. It is safe for concurrent use.
type Network interface {
	// Listen opens address. For TCP it is host:port, and port 0 picks a free one. For memory it is any name, and
	// the empty name picks a free one. The address of the listener is what it got.
	Listen(address string) (net.Listener, error)

	// Dial returns a connection that connects when it is first used. It carries none of the behaviour that
	// [Clients] adds, which is why roles use Clients.
	Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error)

	// Advertise returns what others dial to reach l. For TCP, address is the host, or host:port, by which this
	// machine is known; a missing part, or port 0, is taken from l. When neither names a host, because l listens
	// on all interfaces, the answer is loopback, which only peers on the same machine can use.
	// For memory it is the name of l.
	Advertise(l net.Listener, address string) string
}

// TCP returns the network of separate processes.
func TCP() Network { return tcp{} }

type tcp struct{}

func (tcp) Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

func (tcp) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return dial(address, func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}, opts)
}

func (tcp) Advertise(l net.Listener, address string) string {
	host, port := splitAddress(l.Addr().String())
	wantHost, wantPort := splitAddress(address)
	if wantHost != "" {
		host = wantHost
	}
	if wantPort != "" && wantPort != "0" {
		port = wantPort
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// splitAddress splits host:port, host, :port and IPv6 literals with or without brackets. A missing part is empty.
func splitAddress(address string) (host, port string) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		return host, port
	}
	return strings.Trim(address, "[]"), ""
}

// Memory returns a network inside this process. Names of one Memory are unknown to every other.
// Dialing a name that nobody listens on fails as a refused connection does, and works once somebody listens.
func Memory() Network {
	return &memory{listeners: make(map[string]*memoryListener)}
}

// memoryBuffer is how many bytes one direction of a memory connection holds before its writer waits.
const memoryBuffer = 256 << 10

var (
	errNobodyListens = errors.New("connection refused: nobody listens")
	errNameInUse     = errors.New("name already in use")
)

type memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener
	unnamed   int // how many free names were handed out
}

func (m *memory) Listen(address string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for address == "" {
		m.unnamed++
		if name := "memory-" + strconv.Itoa(m.unnamed); m.listeners[name] == nil {
			address = name
		}
	}
	if m.listeners[address] != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, errNameInUse)
	}
	l := &memoryListener{Listener: bufconn.Listen(memoryBuffer), name: memoryAddr(address), network: m}
	m.listeners[address] = l
	return l, nil
}

func (m *memory) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return dial(address, func(ctx context.Context, address string) (net.Conn, error) {
		m.mu.Lock()
		l := m.listeners[address]
		m.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("dial %s: %w", address, errNobodyListens)
		}
		conn, err := l.DialContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", address, err)
		}
		return conn, nil
	}, opts)
}

func (m *memory) Advertise(l net.Listener, _ string) string { return l.Addr().String() }

// memoryListener frees its name when it is closed.
type memoryListener struct {
	*bufconn.Listener
	name    memoryAddr
	network *memory
}

func (l *memoryListener) Addr() net.Addr { return l.name }

func (l *memoryListener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[string(l.name)] == l {
		delete(l.network.listeners, string(l.name))
	}
	l.network.mu.Unlock()
	return l.Listener.Close()
}

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }

// dial creates a connection whose address goes to dialer as it is: each attempt resolves the name again, where
// gRPC's own DNS resolver would keep the address of a restarted peer for up to 30 seconds. Proxies from the
// environment and service configs from DNS are not used.
func dial(address string, dialer func(context.Context, string) (net.Conn, error), opts []grpc.DialOption) (*grpc.ClientConn, error) {
	if address == "" {
		return nil, errors.New("dial: the address is empty")
	}
	base := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialer),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}
