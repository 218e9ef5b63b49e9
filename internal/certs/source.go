package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Files names PEM files. Cert and Key go together.
type Files struct {
	Cert, Key string // a certificate with what is between it and the authority, and its private key; "" for none
	CA        string // the authorities to trust, one or more
}

// checkEvery is how often, at most, the files are read. Handshakes are when they are needed.
const checkEvery = time.Second

// Source has what the newest usable files contain. It reads them again at a handshake, no more than once a second. New
// files that make no sense, which half-written ones do not, are logged once and ignored until they change. Connections
// that exist keep what they were made with. It is safe for concurrent use.
type Source struct {
	files Files
	role  string
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	checked time.Time // when the files were last read
	read    contents  // what they held then
	failed  string    // why that could not be used, or ""
	current material
}

// contents are those of the files.
type contents struct{ cert, key, ca []byte }

// material is what contents say.
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
	s := &Source{files: files, role: role, log: log, now: now, checked: now()}
	var err error
	if s.read, err = files.read(); err != nil {
		return nil, err
	}
	if s.current, err = s.parse(s.read); err != nil {
		return nil, err
	}
	return s, nil
}

// latest returns what handshakes that begin now use.
func (s *Source) latest() material {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.checked) < checkEvery {
		return s.current
	}
	s.checked = now
	read, err := s.files.read()
	if err == nil {
		if read.equal(s.read) {
			return s.current
		}
		s.read = read
		var next material
		if next, err = s.parse(read); err == nil {
			s.current, s.failed = next, ""
			s.log.Info("certificates read again", "cert", s.files.Cert, "ca", s.files.CA)
			return s.current
		}
	}
	if why := err.Error(); why != s.failed {
		s.failed = why
		s.log.Warn("certificates have changed but cannot be used; those read before are kept", "err", err)
	}
	return s.current
}

// Until returns when the certificate ends that is in use, the zero time if there is none, and the last of the authorities.
func (s *Source) Until() (own, authorities time.Time) {
	m := s.latest()
	if len(m.pairs) > 0 {
		own = m.pairs[0].Leaf.NotAfter
	}
	return own, m.rootsUntil
}

func (f Files) read() (contents, error) {
	var c contents
	for _, file := range []struct {
		name string
		into *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.CA, &c.ca}} {
		if file.name == "" {
			continue
		}
		var err error
		if *file.into, err = os.ReadFile(file.name); err != nil {
			return contents{}, err
		}
	}
	return c, nil
}

func (c contents) equal(other contents) bool {
	return bytes.Equal(c.cert, other.cert) && bytes.Equal(c.key, other.key) && bytes.Equal(c.ca, other.ca)
}

func (s *Source) parse(c contents) (material, error) {
	m := material{roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(c.ca) {
		return m, fmt.Errorf("%s: no certificate in it", s.files.CA)
	}
	m.rootsUntil = lastEnd(c.ca)
	if s.files.Cert == "" {
		return m, nil
	}
	pair, err := tls.X509KeyPair(c.cert, c.key)
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

// CommonName returns that of the certificate in use, "" if there is none. It is the name of the user that etcd takes its owner for.
func (s *Source) CommonName() string {
	m := s.latest()
	if len(m.pairs) == 0 {
		return ""
	}
	return m.pairs[0].Leaf.Subject.CommonName
}
