package roles

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Peers are processes that run every role and are one Berth: their embedded etcds are one cluster, and their roles reach each other. Each has two ports: that of its
// address for etcd, and the next one for roles.
type Peers struct {
	Self string      // this process's address: IP:port
	All  []string    // of all, this one among them
	TLS  certs.Files // a certificate of the role peer, with the addresses of all or of this one; whoever has one of the authority may do everything
}

// ForRoles returns the address of a peer's roles.
func (Peers) ForRoles(peer string) (string, error) {
	at, err := netip.ParseAddrPort(peer)
	if err != nil || at.Port() == 0 || at.Port()+1 == 0 {
		return "", fmt.Errorf("peers: %q: want an IP address and a port, as 10.0.0.1:10270, of which the next one is for roles", peer)
	}
	return netip.AddrPortFrom(at.Addr(), at.Port()+1).String(), nil
}

// open listens for the roles of the others, and returns who this process is to them. Close the network.
func (p *Peers) open(log *slog.Logger) (*rpc.Peers, *certs.Source, error) {
	self, err := p.ForRoles(p.Self)
	if err != nil {
		return nil, nil, err
	}
	identity, err := certs.Open(p.TLS, coord.PeerRole, log)
	if err != nil {
		return nil, nil, fmt.Errorf("read TLS files of peers: %w", err)
	}
	host, _, _ := net.SplitHostPort(self) // it is one
	if err := identity.NamesHost(host); err != nil {
		return nil, nil, fmt.Errorf("%s: others reach the etcd of this peer by its address: %w", p.TLS.Cert, err)
	}
	if name := identity.CommonName(); name != coord.PeerRole { // by which etcd goes
		return nil, nil, fmt.Errorf("%s: its common name is %q, want %s", p.TLS.Cert, name, coord.PeerRole)
	}
	l, err := net.Listen("tcp", self)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for peers: %w", err)
	}
	var known []netip.Addr
	for _, peer := range p.All {
		known = append(known, netip.MustParseAddrPort(peer).Addr()) // as it has been checked
	}
	return rpc.NewPeers(rpc.PeersConfig{
		Listener: l, Address: self, Known: known, Server: identity.Server(false), Client: identity.Client(), Log: log,
		Admit: func(state tls.ConnectionState) error {
			if role := certs.PeerRole(state); role != coord.PeerRole {
				return fmt.Errorf("its certificate is of the role %q, want %s", role, coord.PeerRole)
			}
			return nil
		},
	}), identity, nil
}

// etcd returns how the embedded etcd finds the others.
func (p *Peers) etcd(network *rpc.Peers) *coord.Peers {
	return &coord.Peers{
		Self: p.Self, All: p.All, Cert: p.TLS.Cert, Key: p.TLS.Key, CA: p.TLS.CA, Listen: network.Listen,
		Connect: func(ctx context.Context, peer, name string) (net.Conn, error) {
			address, err := p.ForRoles(peer)
			if err != nil {
				return nil, err
			}
			return network.Connect(ctx, address+"/"+name)
		},
	}
}
