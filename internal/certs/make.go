package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// backdate is how long before its making a certificate begins to hold, for machines whose clocks are behind.
const backdate = time.Hour

// Authority signs certificates. It is kept as ca.crt and ca.key.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that holds until now + life.
func NewAuthority(now time.Time, life time.Duration) (*Authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "berth"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs no other authorities
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &Authority{}
	var err error
	a.cert, a.key, err = sign(template, nil)
	return a, err
}

// Issue makes a key pair for a role, with names and IP addresses under which people know its owner. It holds until
// now + life, and no longer than the authority does.
func (a *Authority) Issue(role string, hosts []string, now time.Time, life time.Duration) (cert, key []byte, err error) {
	if now.After(a.cert.NotAfter) {
		return nil, nil, fmt.Errorf("the authority expired on %v", a.cert.NotAfter)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: role},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{identity(role)},
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	made, secret, err := sign(template, a)
	if err != nil {
		return nil, nil, err
	}
	return encode(made, secret)
}

// PEM returns the authority's certificate and its private key.
func (a *Authority) PEM() (cert, key []byte, err error) { return encode(a.cert, a.key) }

// sign makes a key for a certificate, and the certificate, signed by an authority or, if that is nil, by itself.
func sign(template *x509.Certificate, by *Authority) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

func encode(cert *x509.Certificate, key *ecdsa.PrivateKey) (certPEM, keyPEM []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key of %s: %w", cert.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Request says what Make is to make.
type Request struct {
	Dir          string   // made if it is not there
	Roles        []string // a key pair each
	Hosts        []string // names and IP addresses of those in Known
	Known        []string // the roles that are known by host name, of which certificates have Hosts
	Callers      []string // those that serve nothing, of which certificates do not have MemberName
	Apart        bool     // each key pair, with a copy of ca.crt, goes into a directory of its own, Dir/<role>
	CALife, Life time.Duration
	Now          time.Time
}

// Make writes <role>.crt and <role>.key for each role into a directory, or one of its own, signed by the authority in ca.crt and ca.key
// there, which it makes if neither exists. Key pairs that exist are replaced, each file at once. It returns one line per
// thing it did.
func Make(r Request) (did []string, err error) {
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return nil, err
	}
	path := func(name string) string { return filepath.Join(r.Dir, name) }
	until := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }

	// 1. The authority.
	a, err := loadAuthority(path("ca.crt"), path("ca.key"))
	switch {
	case err == nil:
		did = append(did, fmt.Sprintf("%s: kept, holds until %s", path("ca.crt"), until(a.cert.NotAfter)))
	case errors.Is(err, errNoAuthority):
		if a, err = NewAuthority(r.Now, r.CALife); err != nil {
			return nil, err
		}
		if err := writePair(path("ca"), a.PEM); err != nil {
			return nil, err
		}
		did = append(did, fmt.Sprintf("%s, ca.key: made, holds until %s", path("ca.crt"), until(a.cert.NotAfter)))
	default:
		return nil, err
	}

	// 2. The roles.
	for _, role := range r.Roles {
		var hosts []string
		if slices.Contains(r.Known, role) {
			hosts = slices.Clone(r.Hosts)
		}
		if !slices.Contains(r.Callers, role) {
			hosts = append(hosts, MemberName)
		}
		base := path(role)
		if r.Apart {
			base = filepath.Join(base, role)
			if err := a.trustedIn(path(role)); err != nil {
				return did, err
			}
		}
		err := writePair(base, func() (cert, key []byte, err error) { return a.Issue(role, hosts, r.Now, r.Life) })
		if err != nil {
			return did, err
		}
		line := fmt.Sprintf("%s.crt, %s.key: made for %v", base, role, identity(role))
		if len(hosts) > 0 {
			line += fmt.Sprintf(" %v", hosts)
		}
		did = append(did, line)
	}
	return did, nil
}

// trustedIn writes ca.crt into a directory, which is made if it is not there.
func (a *Authority) trustedIn(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cert, _, err := a.PEM()
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, "ca.crt"), cert, 0o644)
}

var errNoAuthority = errors.New("no authority")

// loadAuthority returns errNoAuthority if neither file exists.
func loadAuthority(certFile, keyFile string) (*Authority, error) {
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return nil, errNoAuthority
	case certErr != nil || keyErr != nil:
		return nil, fmt.Errorf("an authority is both files, and nothing is overwritten: %w", errors.Join(certErr, keyErr))
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return nil, fmt.Errorf("%s: no certificate in it", certFile)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if block, _ = pem.Decode(keyPEM); block == nil {
		return nil, fmt.Errorf("%s: no key in it", keyFile)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s: is not the key of %s", keyFile, certFile)
	}
	return &Authority{cert, key}, nil
}

// writePair writes base.key, which only its owner can read, and base.crt.
func writePair(base string, pair func() (cert, key []byte, err error)) error {
	cert, key, err := pair()
	if err != nil {
		return err
	}
	return errors.Join(replace(base+".key", key, 0o600), replace(base+".crt", cert, 0o644))
}

// replace writes a file so that readers see the old one or the new one, whole.
func replace(name string, data []byte, mode fs.FileMode) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(next, data, mode); err != nil {
		return err
	}
	return os.Rename(next, name)
}
