package command

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// tlsFlags are how a role proves who it is.
type tlsFlags struct {
	roles, etcd   certs.Files
	plaintext     bool
	etcdPlaintext bool
}

func (f *tlsFlags) add(fs *pflag.FlagSet) {
	addTLS(fs, &f.roles)
	fs.BoolVar(&f.plaintext, "insecure-plaintext", false, "serve without TLS on addresses that are not loopback: whoever reaches them can read and change everything")
}

// addEtcd adds the flags of how a process proves to etcd who it is.
func (f *tlsFlags) addEtcd(fs *pflag.FlagSet) {
	fs.BoolVar(&f.etcdPlaintext, "etcd-insecure-plaintext", false, "use endpoints of etcd without TLS that are not loopback: whoever is on the way there can read and write what it holds, and so place pods")
	fs.StringVar(&f.etcd.CA, "etcd-ca", "", "a file with the authorities of etcd, whose endpoints are https then (default: the system's)")
	fs.StringVar(&f.etcd.Cert, "etcd-cert", "", "a file with a certificate to show to etcd; needs --etcd-key and --etcd-ca")
	fs.StringVar(&f.etcd.Key, "etcd-key", "", "the file with its private key")
}

// addTLS adds the flags of a role's identity.
func addTLS(fs *pflag.FlagSet, files *certs.Files) {
	fs.StringVar(&files.Cert, "tls-cert", "", "a file with the certificate of this role, as berth certs makes it; needs --tls-key and --tls-ca (default: plaintext)")
	fs.StringVar(&files.Key, "tls-key", "", "the file with its private key")
	fs.StringVar(&files.CA, "tls-ca", "", "a file with the authorities of all roles; it and the others are read again when they change")
}

func checkTLS(files certs.Files) error {
	if files != (certs.Files{}) && (files.Cert == "" || files.Key == "" || files.CA == "") {
		return errors.New("--tls-cert, --tls-key and --tls-ca: give all three, or none for plaintext")
	}
	return nil
}

// finish checks the flags.
func (f *tlsFlags) finish(etcdEndpoints []string) error {
	if err := checkTLS(f.roles); err != nil {
		return err
	}
	if (f.etcd.Cert == "") != (f.etcd.Key == "") || f.etcd.Cert != "" && f.etcd.CA == "" {
		return errors.New("--etcd-cert and --etcd-key: give both, with --etcd-ca, or none")
	}
	for _, endpoint := range etcdEndpoints {
		if f.etcd.CA != "" && !strings.HasPrefix(endpoint, "https://") {
			return fmt.Errorf("--etcd-endpoints: %q: want https://, since --etcd-ca is given", endpoint)
		}
		if !f.etcdPlaintext && !isPrivate(endpoint) {
			return fmt.Errorf("--etcd-endpoints: %q is plaintext to another machine: want https://, with --etcd-ca if the system does not know its authority, or --etcd-insecure-plaintext", endpoint)
		}
	}
	return nil
}

// allows refuses to serve plaintext where other machines can reach it.
func (f *tlsFlags) allows(flag, address string) error {
	if f.plaintext || f.roles.Cert != "" || address == "" || isLoopback(address) {
		return nil
	}
	return fmt.Errorf("%s: %s is not a loopback address, and there is no TLS: give --tls-cert, --tls-key and --tls-ca (berth certs makes them), or --insecure-plaintext", flag, address)
}

// isPrivate reports whether what is said to an endpoint of etcd stays on this machine, or is encrypted.
func isPrivate(endpoint string) bool {
	scheme, address, found := strings.Cut(endpoint, "://")
	if !found {
		address = endpoint
	}
	return scheme == "https" || scheme == "unix" || isLoopback(strings.TrimSuffix(address, "/"))
}

// isLoopback reports whether a host, or host:port, is reached from this machine only. Names other than localhost are not looked up.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// asRole is how a command that is given a role's certificate calls others, whatever their role.
func asRole(files certs.Files) (rpc.Config, error) {
	if err := checkTLS(files); err != nil || files == (certs.Files{}) {
		return rpc.Config{}, err
	}
	source, err := certs.Open(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return rpc.Config{}, err
	}
	return rpc.Config{TLS: &rpc.TLS{Client: credentials.NewTLS(source.Client())}}, nil
}
