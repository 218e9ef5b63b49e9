package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// Server returns the configuration of a listener, for gRPC and for HTTP. A client's certificate must be signed by one
// of the authorities. Clients without one are let in if anyone is true, and have no role then.
func (s *Source) Server(anyone bool) *tls.Config {
	clients := tls.RequireAndVerifyClientCert
	if anyone {
		clients = tls.VerifyClientCertIfGiven
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := s.latest()
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Time:         s.now,
				Certificates: m.pairs,
				ClientCAs:    m.roots,
				ClientAuth:   clients,
				NextProtos:   []string{"h2", "http/1.1"},
				// A ticket would stand for a certificate that is not looked at again.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// Client returns the configuration of connections to other roles: the server's certificate must be signed by one of the
// authorities and name a role. Which role it has to be depends on the call; see [PeerRole].
func (s *Source) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if m := s.latest(); len(m.pairs) > 0 {
				return &m.pairs[0], nil
			}
			return new(tls.Certificate), nil
		},
		InsecureSkipVerify: true, // of host names, which roles do not have; everything else is verified here:
		VerifyConnection:   s.verifyServer,
	}
}

func (s *Source) verifyServer(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server has shown no certificate")
	}
	leaf, between := state.PeerCertificates[0], x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: s.latest().roots, Intermediates: between, CurrentTime: s.now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("verify the server's certificate: %w", err)
	}
	_, err = roleOf(leaf)
	return err
}

// Credentials returns those of connections to servers that are known by host name, such as etcd and, for people, the
// gateway.
func (s *Source) Credentials() credentials.TransportCredentials {
	return hostCredentials{credentials.NewTLS(s.hostClient()), s}
}

func (s *Source) hostClient() *tls.Config {
	m := s.latest()
	return &tls.Config{MinVersion: tls.VersionTLS12, Time: s.now, RootCAs: m.roots, Certificates: m.pairs} // etcd may be older than Berth
}

// hostCredentials configure each handshake by the files of that time.
type hostCredentials struct {
	credentials.TransportCredentials // of the time they were made
	source                           *Source
}

func (c hostCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.source.hostClient()).ClientHandshake(ctx, authority, conn)
}

func (c hostCredentials) Clone() credentials.TransportCredentials { return c }
