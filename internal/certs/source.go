package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"time"

	"github.com/berth-scheduler/berth/internal/reread"
)

// Files names PEM files. Cert and Key go together.
type Files struct {
	Cert, Key string // a certificate with what is between it and the authority, and its private key; "" for none
	CA        string // the authorities to trust, one or more
}

// Source has what the newest usable files contain. It reads them again at a handshake, see reread.Value. Connections
// that exist keep what they were made with. It is safe for concurrent use.
type Source struct {
	files Files
	role  string
	now   func() time.Time
	value *reread.Value[material]
}

// material is what files say.
type material struct {
	pairs []tls.Certificate // one or none
	roots *x509.CertPool
	// rootsUntil is when the last of the authorities ends.
	rootsUntil time.Time
}

// Open reads the files. The certificate must be that of role, unless role is "".
func Open(files Files, role string, log *slog.Logger) (*Source, error) {
	return open(files, role, log, time.Now)
}

func open(files Files, role string, log *slog.Logger, now func() time.Time) (*Source, error) {
	s := &Source{files: files, role: role, now: now}
	var err error
	s.value, err = reread.Open(reread.Config[material]{
		Files: []string{files.Cert, files.Key, files.CA}, Parse: s.parse, What: "certificates", Log: log, Now: now,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// latest returns what handshakes that begin now use.
func (s *Source) latest() material { return s.value.Latest() }

// Names returns the host names that the certificate is for that is in use.
func (s *Source) Names() []string {
	if m := s.latest(); len(m.pairs) > 0 {
		return m.pairs[0].Leaf.DNSNames
	}
	return nil
}

// Until returns when the certificate ends that is in use, the zero time if there is none, and the last of the authorities.
func (s *Source) Until() (own, authorities time.Time) {
	m := s.latest()
	if len(m.pairs) > 0 {
		own = m.pairs[0].Leaf.NotAfter
	}
	return own, m.rootsUntil
}

// parse reads a certificate, its key, and authorities.
func (s *Source) parse(contents [][]byte) (material, error) {
	cert, key, ca := contents[0], contents[1], contents[2]
	m := material{roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(ca) {
		return m, fmt.Errorf("%s: no certificate in it", s.files.CA)
	}
	m.rootsUntil = lastEnd(ca)
	if s.files.Cert == "" {
		return m, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return m, fmt.Errorf("%s with %s: %w", s.files.Cert, s.files.Key, err)
	}
	if now := s.now(); now.After(pair.Leaf.NotAfter) {
		return m, fmt.Errorf("%s: expired on %v", s.files.Cert, pair.Leaf.NotAfter)
	}
	if s.role != "" {
		if role, err := roleOf(pair.Leaf); err != nil {
			return m, fmt.Errorf("%s: %w", s.files.Cert, err)
		} else if role != s.role {
			return m, fmt.Errorf("%s: is of role %s, and this is a %s", s.files.Cert, role, s.role)
		}
	}
	m.pairs = []tls.Certificate{pair}
	return m, nil
}

// lastEnd returns when the last of some PEM certificates ends. What is no certificate is left out, as a CertPool does.
func lastEnd(text []byte) time.Time {
	var last time.Time
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.NotAfter.After(last) {
			last = cert.NotAfter
		}
	}
	return last
}

// NamesHost returns an error if the certificate in use, if there is one, is not for a host name or an IP address.
func (s *Source) NamesHost(host string) error {
	if m := s.latest(); len(m.pairs) > 0 {
		return m.pairs[0].Leaf.VerifyHostname(host)
	}
	return nil
}

// CommonName returns that of the certificate in use, "" if there is none. It is the name of the user that etcd takes its owner for.
func (s *Source) CommonName() string {
	m := s.latest()
	if len(m.pairs) == 0 {
		return ""
	}
	return m.pairs[0].Leaf.Subject.CommonName
}
