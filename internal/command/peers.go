package command

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/roles"
)

// peerFlags say with which processes this one is one Berth.
type peerFlags struct {
	all  []string
	self string
	tls  certs.Files
}

func (f *peerFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.all, "peers", nil, "the addresses, IP:port, of 3 or 5 processes that are one Berth, this one among them: their embedded etcds are one cluster, at those ports, and their roles reach each other at the next ones; needs --data-dir (default: this one is alone)")
	fs.StringVar(&f.self, "peer-address", "", "which of --peers this one is (default: the one whose address is of this machine)")
	fs.StringVar(&f.tls.Cert, "peer-cert", "", "a file with a certificate of the role peer, for those addresses: berth certs --role peer --host IP,IP,IP makes it. Who has one that --peer-ca signed may do everything")
	fs.StringVar(&f.tls.Key, "peer-key", "", "the file with its private key")
	fs.StringVar(&f.tls.CA, "peer-ca", "", "a file with its authority, which signs nothing else")
}

// of checks the flags, beside those of where etcd keeps its data, or is, and returns the peers, nil if there are none.
func (f *peerFlags) of(dataDir string, etcdEndpoints []string) (*roles.Peers, error) {
	if len(f.all) == 0 {
		if f.self != "" || f.tls != (certs.Files{}) {
			return nil, errors.New("--peer-address, --peer-cert, --peer-key and --peer-ca: they are for --peers, which is not given")
		}
		return nil, nil
	}
	switch {
	case dataDir == "":
		return nil, errors.New("--peers: it needs --data-dir, on a disk that stays: a peer that has lost its data has to take its place anew")
	case len(etcdEndpoints) > 0:
		return nil, errors.New("--peers: it is for the embedded etcd, and --etcd-endpoints name another one: give one of them")
	case f.tls.Cert == "" || f.tls.Key == "" || f.tls.CA == "":
		return nil, errors.New("--peers: it needs --peer-cert, --peer-key and --peer-ca: berth certs --role peer --host IP,IP,IP makes them")
	case len(f.all) < 3 || len(f.all)%2 == 0:
		return nil, fmt.Errorf("--peers: %d: want 3 or 5, this one among them: fewer, or one more than an odd number, survive the loss of no more", len(f.all))
	}
	all, err := coord.Canonical(f.all)
	if err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	p := &roles.Peers{All: all, TLS: f.tls}
	for i, peer := range all {
		at := netip.MustParseAddrPort(peer)
		for _, other := range all[:i] {
			before := netip.MustParseAddrPort(other)
			if at.Addr() == before.Addr() && max(at.Port(), before.Port())-min(at.Port(), before.Port()) < 2 {
				return nil, fmt.Errorf("--peers: %s and %s want the same port: each takes its port and the next one", other, peer)
			}
		}
	}
	if f.self != "" {
		self, err := coord.Canonical([]string{f.self})
		if err != nil || !slices.Contains(all, self[0]) {
			return nil, fmt.Errorf("--peer-address: %s is not among --peers, %s", f.self, strings.Join(all, ","))
		}
		p.Self = self[0]
		return p, nil
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("--peer-address: it is not given, and this machine's addresses cannot be read: %w", err)
	}
	var here []string
	for _, peer := range all {
		at := netip.MustParseAddrPort(peer).Addr()
		if slices.ContainsFunc(mine, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr().Unmap() == at
		}) {
			here = append(here, peer)
		}
	}
	if len(here) != 1 {
		return nil, fmt.Errorf("--peer-address: it is not given, and of --peers %d are addresses of this machine: say which it is", len(here))
	}
	p.Self = here[0]
	return p, nil
}
