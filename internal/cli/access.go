package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Access is what a gateway has to prove, and what is shown to it.
type Access struct {
	Files     certs.Files // CA "" means plaintext
	TokenFile string
	Token     string // if there is no file; "" means none
}

// AddFlags adds the flags that say it. What is in it already is their default.
func (a *Access) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.TokenFile, "token-file", a.TokenFile, "a file with the token to show to the gateway (default: that in BERTH_TOKEN, if any)")
	fs.StringVar(&a.Files.CA, "tls-ca", a.Files.CA, "a file with the authorities of the gateway's certificate (default: plaintext)")
	fs.StringVar(&a.Files.Cert, "tls-cert", a.Files.Cert, "a file with a certificate to show to the gateway; needs --tls-key and --tls-ca")
	fs.StringVar(&a.Files.Key, "tls-key", a.Files.Key, "the file with its private key")
}

// Dial connects to a gateway, whose certificate must be of the address's host.
func (a *Access) Dial(address string) (grpc.ClientConnInterface, func() error, error) {
	secure, err := a.credentials()
	if err != nil {
		return nil, nil, err
	}
	token, err := a.token()
	if err != nil {
		return nil, nil, err
	}
	if token != "" && secure == nil && !isLoopback(address) {
		return nil, nil, fmt.Errorf("%s is not a loopback address: a token needs TLS on the way there: give --tls-ca", address)
	}
	return connect(rpc.TCP(), address, secure, token)
}

// Tunnel is a way to a gateway through somebody who has proved to be its cluster's API server, and who has found the gateway.
type Tunnel struct {
	Dial  func(ctx context.Context) (net.Conn, error) // opens a connection to the gateway
	Host  string                                      // host and port by which the gateway's certificate knows it
	TLS   bool                                        // the gateway serves TLS
	Token string                                      // what to show to the gateway, unless Access has something
}

// Through connects to a gateway at the end of a tunnel. Its certificate is checked if --tls-ca says against what; else the
// API server's word is taken for who is at the end, as it is for kubectl exec and logs.
func (a *Access) Through(t Tunnel) (grpc.ClientConnInterface, func() error, error) {
	token, err := a.token()
	if err != nil {
		return nil, nil, err
	}
	if token == "" {
		token = t.Token
	}
	secure, err := a.credentials()
	switch {
	case err != nil:
		return nil, nil, err
	case !t.TLS:
		secure = nil
	case secure == nil:
		secure = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
	}
	return connect(tunnelled{rpc.TCP(), t.Dial}, t.Host, secure, token)
}

// tunnelled is a network in which every address is at the end of one tunnel.
type tunnelled struct {
	rpc.Network
	dial func(context.Context) (net.Conn, error)
}

func (n tunnelled) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return n.Network.Dial(address, append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return n.dial(ctx)
	}))...)
}

// connect returns a connection over which every call shows the token. No credentials are plaintext.
func connect(network rpc.Network, address string, secure credentials.TransportCredentials, token string) (grpc.ClientConnInterface, func() error, error) {
	cfg := rpc.Config{Net: network}
	if secure != nil {
		cfg.TLS = &rpc.TLS{Client: secure}
	}
	clients := rpc.NewClients(cfg)
	conn, err := clients.Conn(address)
	if err != nil {
		return nil, nil, err
	}
	if token == "" {
		return conn, clients.Close, nil
	}
	return withToken{conn, token}, clients.Close, nil
}

func (a *Access) credentials() (credentials.TransportCredentials, error) {
	if a.Files == (certs.Files{}) {
		return nil, nil
	}
	if (a.Files.Cert == "") != (a.Files.Key == "") || a.Files.CA == "" {
		return nil, errors.New("--tls-cert and --tls-key: give both, with --tls-ca, or none")
	}
	source, err := certs.Open(a.Files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return source.Credentials(), nil
}

func (a *Access) token() (string, error) {
	if a.TokenFile == "" {
		return a.Token, nil
	}
	text, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file: %s: want one token and nothing else", a.TokenFile)
	}
	return token, nil
}

// withToken shows a token with every call.
type withToken struct {
	grpc.ClientConnInterface
	token string
}

func (c withToken) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(c.shown(ctx), method, args, reply, opts...)
}

func (c withToken) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(c.shown(ctx), desc, method, opts...)
}

func (c withToken) shown(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// isLoopback reports whether a host, or host:port, is reached from this machine only. Names other than localhost are not looked up.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
