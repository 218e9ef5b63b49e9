package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// Version is a position in Berth's log: the epoch of the binder that wrote it and the position within that epoch.
type Version struct{ Epoch, Seq int64 }

// String returns "epoch/seq".
func (v Version) String() string { return fmt.Sprintf("%d/%d", v.Epoch, v.Seq) }

const (
	defaultPrefix  = "/berth/"
	defaultTimeout = 5 * time.Second

	// A connection that answers neither data nor pings for keepAliveTime + keepAliveTimeout is given up.
	// etcd closes connections that ping more often than every 5 s; gRPC itself allows no less than 10 s.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 4 * time.Second

	// maxReconnectDelay bounds the wait between two attempts to connect, so that etcd's return is seen soon.
	maxReconnectDelay = 2 * time.Second
)

// Config says how to reach etcd. Only Endpoints is required, or Embedded.
type Config struct {
	Endpoints      []string                         // of etcd's members: "host:port", "http://host:port" or "https://host:port", https for all or for none; or "unix:///path" of one on this machine
	Embedded       *Embedded                        // the etcd of this process, if that is the one; nil Endpoints are its
	Prefix         string                           // every key starts with it; "" means /berth/; a missing slash at the end is added
	Role           Role                             // whose leases no other role can end or hang keys on: see NewSession; "" where etcd has no users
	Credentials    credentials.TransportCredentials // for https endpoints, and only those; nil means the system's roots and no client certificate
	Log            *slog.Logger                     // nil means no log
	DialTimeout    time.Duration                    // how long one attempt to connect may take; 0 means 5 s
	RequestTimeout time.Duration                    // how long one request may take; 0 means 5 s
}

// Client talks to etcd. Its methods are safe for concurrent use.
type Client struct {
	etcd           *clientv3.Client
	txns           clientv3.KV    // for transactions: etcd, or an embedded etcd without a connection in between
	kv             pb.KVClient    // for errors that keep their reason: clientv3 reduces them to "deadline exceeded"
	leases         pb.LeaseClient // as above
	endpoints      []*endpoint
	inUse          atomic.Pointer[inUse]
	prefix         string
	role           Role // "": no session has a mark
	requestTimeout time.Duration
	log            *slog.Logger

	// ctx ends when Close is called; work counts the goroutines and transactions that end with it.
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex // guards closed, so that nothing is added to work once Close waits for it
	closed bool
	work   sync.WaitGroup
}

// Connect returns a client. It does not wait for etcd, which may come later; see Client.Ready.
// An error names the field of cfg that makes no sense.
func Connect(cfg Config) (*Client, error) {
	if cfg.Embedded != nil && cfg.Endpoints == nil {
		cfg.Endpoints = cfg.Embedded.Endpoints()
	}
	endpoints, err := cfg.endpoints()
	if err != nil {
		return nil, err
	}
	for _, d := range []struct {
		field string
		value *time.Duration
	}{{"DialTimeout", &cfg.DialTimeout}, {"RequestTimeout", &cfg.RequestTimeout}} {
		if *d.value < 0 {
			return nil, fmt.Errorf("etcd %s: %v is negative", d.field, *d.value)
		}
		if *d.value == 0 {
			*d.value = defaultTimeout
		}
	}
	if cfg.Prefix == "" {
		cfg.Prefix = defaultPrefix
	}
	if !strings.HasSuffix(cfg.Prefix, "/") {
		cfg.Prefix += "/"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay = 100 * time.Millisecond
	reconnect.MaxDelay = maxReconnectDelay
	if cfg.Credentials != nil && !strings.HasPrefix(endpoints[0], "https:") {
		return nil, fmt.Errorf("etcd Endpoints: %q: want https, since there are Credentials", cfg.Endpoints)
	}
	c := &Client{prefix: cfg.Prefix, role: cfg.Role, requestTimeout: cfg.RequestTimeout, log: cfg.Log}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: cfg.DialTimeout}),
		grpc.WithIdleTimeout(0), // the connections to all members are there when one is needed
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
	}
	if cfg.Credentials != nil {
		options = append(options, grpc.WithTransportCredentials(cfg.Credentials)) // instead of the client's own, which never change
	}
	if c.etcd, err = clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions:          options,
		Logger:               zap.NewNop(), // whatever it would say is in the errors that calls return
	}); err != nil {
		c.cancel()
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	c.txns = c.etcd
	if cfg.Embedded != nil {
		c.txns = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(cfg.Embedded.kv), c.etcd)
	}
	c.kv = pb.NewKVClient(c.etcd.ActiveConnection())
	c.leases = pb.NewLeaseClient(c.etcd.ActiveConnection())
	for _, name := range endpoints {
		conn, err := c.etcd.Dial(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect to etcd at %s: %w", name, err), c.Close())
		}
		conn.Connect()
		c.endpoints = append(c.endpoints, &endpoint{name, conn})
	}
	c.use(c.endpoints[rand.N(len(c.endpoints))]) // clients spread over the members
	if len(c.endpoints) > 1 {
		c.start(c.ctx, c.stayWithWhoAnswers)
	}
	return c, nil
}

// endpoints checks the endpoints and returns them in the form that etcd's client takes.
func (cfg Config) endpoints() ([]string, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("etcd Endpoints: empty, want at least one host:port")
	}
	schemes := map[string]bool{}
	out := make([]string, 0, len(cfg.Endpoints))
	for i, endpoint := range cfg.Endpoints {
		bad := func(why string) error {
			return fmt.Errorf("etcd Endpoints[%d]: %q: %s; want host:port, http://host:port, https://host:port or unix:///path", i, endpoint, why)
		}
		scheme, hostport, found := strings.Cut(endpoint, "://")
		if !found {
			scheme, hostport = "http", endpoint
		}
		if scheme == unixScheme {
			if !filepath.IsAbs(hostport) {
				return nil, bad("the path is not absolute")
			}
			schemes[scheme] = true
			out = append(out, endpoint)
			continue
		}
		if scheme != "http" && scheme != "https" {
			return nil, bad("unknown scheme")
		}
		hostport = strings.TrimSuffix(hostport, "/")
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return nil, bad(err.Error())
		}
		if _, err := url.Parse(scheme + "://" + hostport); err != nil || host == "" || strings.ContainsAny(host, "/?#@ ") {
			return nil, bad("not a host name or address")
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, bad("the port is not a number from 1 to 65535")
		}
		schemes[scheme] = true
		out = append(out, scheme+"://"+hostport)
	}
	if len(schemes) > 1 {
		return nil, fmt.Errorf("etcd Endpoints: %q mixes schemes: want one of http, https and unix", cfg.Endpoints)
	}
	return out, nil
}

// Ready makes one linearizable read, which needs a majority of etcd's members, and returns why it did not succeed.
// It takes no longer than the request timeout, and returns at once when no endpoint accepts a connection.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := c.request(ctx)
	defer cancel()
	_, err := c.kv.Range(ctx, &pb.RangeRequest{Key: []byte(c.leaderKey()), CountOnly: true}, grpc.WaitForReady(false))
	if err != nil {
		return fmt.Errorf("read from etcd at %s: %w", c.names(), err)
	}
	return nil
}

// Close ends the requests, sessions and watches of the client, waits for them, and closes its connections.
// Leases are not revoked; close sessions first to give them up at once.
func (c *Client) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
	if closed {
		return nil
	}
	err := c.etcd.Close()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	for _, e := range c.endpoints {
		err = errors.Join(err, e.conn.Close())
	}
	if err != nil {
		return fmt.Errorf("close connections to etcd: %w", err)
	}
	return nil
}

// start runs work until it returns, with a context that ends with ctx and with the client.
// It reports false, and runs nothing, when the client is closed.
func (c *Client) start(ctx context.Context, work func(ctx context.Context)) bool {
	if !c.begin() {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	go func() {
		defer c.work.Done()
		defer cancel()
		defer stop()
		work(ctx)
	}()
	return true
}

// begin makes Close wait until work.Done is called. It reports false when the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// request returns the context of one request to etcd, which ends with the client as well.
func (c *Client) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.requestTimeout)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
