package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/certs"
)

// roleEtcd is whose certificate etcd's members have, as berth certs calls it.
const roleEtcd = "etcd"

// harnessParty is the party that the harness itself is.
const harnessParty = "harness"

const (
	authorityLife = 24 * time.Hour
	pairLife      = 12 * time.Hour
	// takeUp is how long processes may go on with certificates that have been replaced: they look once a second.
	takeUp = 1500 * time.Millisecond
)

// realm is an authority and those to whom it has given certificates, each in a directory of its own, as berth certs makes them.
// There are two: Berth's roles trust one, which is replaced at times, and etcd, which reads its authorities only once, the other. Its
// methods may be called concurrently.
type realm struct {
	dir string // absolute

	mu      sync.Mutex
	number  int               // of the authority
	parties map[string]string // the role of each
}

// newRealm makes a realm with its first authority.
func newRealm(dir string) (*realm, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &realm{dir: dir, parties: map[string]string{}}
	return r, r.found()
}

// found makes the authority that the realm has from now on.
func (r *realm) found() error {
	_, err := certs.Make(certs.Request{Dir: r.authority(r.number), CALife: authorityLife, Now: time.Now()})
	return err
}

func (r *realm) authority(number int) string {
	return filepath.Join(r.dir, fmt.Sprintf("authority-%d", number))
}

// trustFile is the file with the authorities that a party trusts.
const trustFile = "trust.crt"

// files returns where a party's are.
func (r *realm) files(party string) certs.Files {
	r.mu.Lock()
	defer r.mu.Unlock()
	base := filepath.Join(r.dir, party)
	role := r.parties[party]
	return certs.Files{Cert: filepath.Join(base, role+".crt"), Key: filepath.Join(base, role+".key"), CA: filepath.Join(base, trustFile)}
}

// enlist gives a party its first certificate.
func (r *realm) enlist(party, role string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parties[party] = role
	return errors.Join(r.issue(party, pairLife), r.trust(party, r.number))
}

// issue gives a party a new certificate over its old one. The caller holds the lock.
func (r *realm) issue(party string, life time.Duration) error {
	dir := filepath.Join(r.dir, party)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"ca.crt", "ca.key"} {
		if err := copyFile(filepath.Join(r.authority(r.number), name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	_, err := certs.Make(certs.Request{
		Dir: dir, Roles: []string{r.parties[party]}, Hosts: []string{"localhost", "127.0.0.1"}, Known: []string{roleGateway, roleEtcd},
		Callers: []string{access.IdentityMetrics}, Life: life, Now: time.Now(),
	})
	return err
}

// trust lets a party trust some authorities, and no others. The caller holds the lock.
func (r *realm) trust(party string, numbers ...int) error {
	var all []byte
	for _, n := range numbers {
		text, err := os.ReadFile(filepath.Join(r.authority(n), "ca.crt"))
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	return replaceFile(filepath.Join(r.dir, party, trustFile), all)
}

// each does something for each party.
func (r *realm) each(do func(party string) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed error
	for party := range r.parties {
		failed = errors.Join(failed, do(party))
	}
	return failed
}

// renew gives all parties new certificates.
func (r *realm) renew() error {
	return r.each(func(party string) error { return r.issue(party, pairLife) })
}

// renewOne gives a party a new certificate, which holds for some time.
func (r *realm) renewOne(party string, life time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.issue(party, life)
}

// rotate replaces the authority, in the three steps that docs/security.md tells operators to take.
func (r *realm) rotate(ctx context.Context) error {
	r.mu.Lock()
	old := r.number
	r.number++
	err := r.found()
	now := r.number
	r.mu.Unlock()
	if err != nil {
		return err
	}
	// What has been begun is ended, also when ctx ends.
	failed := r.each(func(party string) error { return r.trust(party, old, now) })
	sleep(ctx, takeUp)
	failed = errors.Join(failed, r.renew())
	sleep(ctx, takeUp)
	return errors.Join(failed, r.each(func(party string) error { return r.trust(party, now) }))
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return replaceFile(to, text)
}

// replaceFile writes a file so that whoever reads it sees the old one or the new one.
func replaceFile(name string, text []byte) error {
	if err := os.WriteFile(name+".next", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".next", name)
}

// identities are the two realms of a run with TLS; nil without.
type identities struct{ roles, etcd *realm }

// newIdentities makes both realms, with all members of etcd and the harness in them.
func newIdentities(dir string) (*identities, error) {
	ids := &identities{}
	var err error
	if ids.roles, err = newRealm(filepath.Join(dir, "tls", "roles")); err != nil {
		return nil, err
	}
	if ids.etcd, err = newRealm(filepath.Join(dir, "tls", "etcd")); err != nil {
		return nil, err
	}
	failed := ids.roles.enlist(harnessParty, access.IdentityMetrics)
	for i := range etcdMembers {
		failed = errors.Join(failed, ids.etcd.enlist(etcdName(i), roleEtcd))
	}
	return ids, failed
}

// enlist makes the certificates of a member of Berth.
func (ids *identities) enlist(id, role string) error {
	if ids == nil {
		return nil
	}
	return errors.Join(ids.roles.enlist(id, role), ids.etcd.enlist(id, role))
}

// flags returns those of a member of Berth.
func (ids *identities) flags(id string) []string {
	if ids == nil {
		return nil
	}
	own, toEtcd := ids.roles.files(id), ids.etcd.files(id)
	return []string{
		"--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-ca", own.CA,
		"--etcd-cert", toEtcd.Cert, "--etcd-key", toEtcd.Key, "--etcd-ca", toEtcd.CA,
	}
}

// etcdFlags returns those of a member of etcd, as the manifests have them.
func (ids *identities) etcdFlags(name string) []string {
	if ids == nil {
		return nil
	}
	f := ids.etcd.files(name)
	return []string{
		"--cert-file", f.Cert, "--key-file", f.Key, "--trusted-ca-file", f.CA, "--client-cert-auth", "--client-cert-allowed-hostname", certs.MemberName,
		"--peer-cert-file", f.Cert, "--peer-key-file", f.Key, "--peer-trusted-ca-file", f.CA, "--peer-client-cert-auth", "--peer-cert-allowed-cn", roleEtcd,
	}
}

// scheme returns that of URLs.
func (ids *identities) scheme() string {
	if ids == nil {
		return "http://"
	}
	return "https://"
}

// roleTLS returns how the harness connects to roles.
func (ids *identities) roleTLS() (*tls.Config, error) {
	source, err := certs.Open(ids.roles.files(harnessParty), "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return source.Client(), nil
}

// metricsHTTP returns a client of what processes tell of themselves.
func (ids *identities) metricsHTTP() (*http.Client, error) {
	if ids == nil {
		return http.DefaultClient, nil
	}
	config, err := ids.roleTLS()
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 1}}, nil
}

// grpcCredentials returns those of a client of the gateway.
func (ids *identities) grpcCredentials() (credentials.TransportCredentials, error) {
	if ids == nil {
		return insecure.NewCredentials(), nil
	}
	config, err := ids.roleTLS()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

// shortLife is how long the certificate holds that expires while it is in use: long enough for new connections to take it up.
const shortLife = 4 * time.Second

// expire gives a member a certificate that ends while it is shown, and has it make all its connections anew before and after that.
func (n *nemesis) expire(ctx context.Context, id string) (func() error, error) {
	if err := n.ids.roles.renewOne(id, shortLife); err != nil {
		return nil, err
	}
	sleep(ctx, takeUp)
	n.network.Reset("", id)
	sleep(ctx, shortLife-takeUp+time.Second)
	n.network.Reset("", id)
	return func() error { return n.ids.roles.renewOne(id, pairLife) }, nil
}

// renew gives all processes new certificates, and has them make their connections anew.
func (n *nemesis) renew(ctx context.Context) error {
	if err := errors.Join(n.ids.roles.renew(), n.ids.etcd.renew()); err != nil {
		return err
	}
	sleep(ctx, takeUp)
	n.resetAll()
	return nil
}

// rotate replaces the authority of all roles, and has them make their connections anew.
func (n *nemesis) rotate(ctx context.Context) error {
	err := n.ids.roles.rotate(ctx)
	sleep(ctx, takeUp)
	n.resetAll()
	return err
}

// resetAll breaks the connections of all members.
func (n *nemesis) resetAll() {
	for _, id := range n.crew.running() {
		n.network.Reset("", id)
	}
}
