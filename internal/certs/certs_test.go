package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/berth-scheduler/berth/internal/reread"
)

// day is when the tests take place; certificates are made then.
var day = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// member is the files of one process, and a clock that it and everybody else reads.
type member struct {
	t     *testing.T
	files Files
	clock *time.Time
	log   bytes.Buffer
}

func newMember(t *testing.T, clock *time.Time) *member {
	dir := t.TempDir()
	return &member{t: t, clock: clock, files: Files{Cert: filepath.Join(dir, "a.crt"), Key: filepath.Join(dir, "a.key"), CA: filepath.Join(dir, "ca.crt")}}
}

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority(day, 30*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// pair gives the member a key pair of a role, that holds for a day.
func (m *member) pair(by *Authority, role string, hosts ...string) *member {
	m.t.Helper()
	cert, key, err := by.Issue(role, hosts, *m.clock, 24*time.Hour)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(m.files.Cert, cert)
	m.write(m.files.Key, key)
	return m
}

// trust gives the member the authorities that it trusts.
func (m *member) trust(authorities ...*Authority) *member {
	m.t.Helper()
	var all []byte
	for _, a := range authorities {
		cert, _, err := a.PEM()
		if err != nil {
			m.t.Fatal(err)
		}
		all = append(all, cert...)
	}
	m.write(m.files.CA, all)
	return m
}

func (m *member) write(name string, data []byte) {
	m.t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) open(role string) *Source {
	m.t.Helper()
	s, err := open(m.files, role, slog.New(slog.NewTextHandler(&m.log, nil)), func() time.Time { return *m.clock })
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// connect makes a TLS connection over a socket, sends a byte back over it, since a server's refusal comes behind the
// client's handshake, and returns what each side thinks of the other.
func connect(t *testing.T, server, client *tls.Config) (atServer, atClient tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			serverErr = err
			return
		}
		conn := tls.Server(raw, server)
		defer conn.Close()
		if serverErr = conn.Handshake(); serverErr == nil {
			atServer = conn.ConnectionState()
			_, serverErr = conn.Write([]byte{1})
		}
	}()
	var conn *tls.Conn
	conn, clientErr = tls.Dial("tcp", l.Addr().String(), client)
	if clientErr == nil {
		atClient = conn.ConnectionState()
		_, clientErr = conn.Read(make([]byte, 1))
		conn.Close()
	}
	<-done
	return atServer, atClient, serverErr, clientErr
}

func TestEachSideKnowsTheOthersRole(t *testing.T) {
	clock, ca := day, authority(t)
	worker := newMember(t, &clock).pair(ca, "filter-worker").trust(ca).open("filter-worker")
	queue := newMember(t, &clock).pair(ca, "queue").trust(ca).open("queue")
	atServer, atClient, serverErr, clientErr := connect(t, worker.Server(false), queue.Client())
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server %v, client %v", serverErr, clientErr)
	}
	if at, from := PeerRole(atServer), PeerRole(atClient); at != "queue" || from != "filter-worker" {
		t.Errorf("the server sees a %q, the client a %q", at, from)
	}
	if atServer.Version != tls.VersionTLS13 {
		t.Errorf("version %x, want TLS 1.3", atServer.Version)
	}
}

func TestPeersThatCannotProveWhoTheyAreAreRefused(t *testing.T) {
	clock, ours, theirs := day, authority(t), authority(t)
	good := func(role string) *Source { return newMember(t, &clock).pair(ours, role).trust(ours).open(role) }
	old := good("queue") // it expires before the connections below
	clock = clock.Add(36 * time.Hour)
	foreign := newMember(t, &clock).pair(theirs, "queue").trust(ours).open("queue")
	nameless := newMember(t, &clock).pair(ours, "").trust(ours).open("")
	anonymous := newMember(t, &clock).trust(ours)
	anonymous.files.Cert, anonymous.files.Key = "", ""

	for _, tt := range []struct {
		what           string
		server, client *tls.Config
		atServer, at   string // in the error of the server, of the client
	}{
		{"client of another authority", good("binder").Server(false), foreign.Client(), "unknown authority", "unknown certificate authority"},
		{"client of another authority, where anyone may connect", good("gateway").Server(true), foreign.Client(), "unknown authority", "unknown certificate authority"},
		{"client that has expired", good("binder").Server(false), old.Client(), "expired", "expired"},
		{"client without a certificate", good("binder").Server(false), anonymous.open("").Client(), "didn't provide a certificate", "certificate required"},
		{"server of another authority", foreign.Server(false), good("queue").Client(), "bad certificate", "unknown authority"},
		{"server that has expired", old.Server(false), good("queue").Client(), "bad certificate", "expired"},
		{"server without a role", nameless.Server(false), good("queue").Client(), "bad certificate", "its URIs are [spiffe://berth/]"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, _, serverErr, clientErr := connect(t, tt.server, tt.client)
			if serverErr == nil || !strings.Contains(serverErr.Error(), tt.atServer) {
				t.Errorf("server: %v, want %q", serverErr, tt.atServer)
			}
			if clientErr == nil || !strings.Contains(clientErr.Error(), tt.at) {
				t.Errorf("client: %v, want %q", clientErr, tt.at)
			}
		})
	}
}

func TestWhereAnyoneMayConnectAClientWithoutACertificateHasNoRole(t *testing.T) {
	clock, ca := day, authority(t)
	gateway := newMember(t, &clock).pair(ca, "gateway", "berth.example").trust(ca).open("gateway")
	person := newMember(t, &clock).trust(ca)
	person.files.Cert, person.files.Key = "", ""
	atServer, _, serverErr, clientErr := connect(t, gateway.Server(true), person.open("").Client())
	if serverErr != nil || clientErr != nil || PeerRole(atServer) != "" {
		t.Errorf("server %v, client %v, role %q; want a connection without a role", serverErr, clientErr, PeerRole(atServer))
	}
}

func TestNewFilesAreUsedForNewConnectionsOnceASecondHasPassed(t *testing.T) {
	clock, ca := day, authority(t)
	m := newMember(t, &clock).pair(ca, "binder").trust(ca)
	server, client := m.open("binder"), newMember(t, &clock).pair(ca, "queue").trust(ca).open("queue")
	serial := func() string {
		t.Helper()
		_, atClient, serverErr, clientErr := connect(t, server.Server(false), client.Client())
		if serverErr != nil || clientErr != nil {
			t.Fatalf("server %v, client %v", serverErr, clientErr)
		}
		return atClient.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	m.pair(ca, "binder")
	if got := serial(); got != first {
		t.Error("the files were read again at once: a flood of handshakes would be one of reads")
	}
	clock = clock.Add(reread.Every)
	if got := serial(); got == first {
		t.Error("the new certificate is not used")
	}
}

func TestFilesThatMakeNoSenseAreIgnoredAndLoggedOnce(t *testing.T) {
	for what, spoil := range map[string]func(m *member, ca *Authority){
		"key of another certificate": func(m *member, ca *Authority) {
			key, err := os.ReadFile(m.files.Key)
			if err != nil {
				t.Fatal(err)
			}
			m.pair(ca, "binder").write(m.files.Key, key)
		},
		"half a certificate":          func(m *member, _ *Authority) { m.write(m.files.Cert, []byte("-----BEGIN CERT")) },
		"empty authorities":           func(m *member, _ *Authority) { m.write(m.files.CA, nil) },
		"certificate of another role": func(m *member, ca *Authority) { m.pair(ca, "queue") },
		"missing key":                 func(m *member, _ *Authority) { os.Remove(m.files.Key) },
		"expired certificate": func(m *member, ca *Authority) {
			now := *m.clock
			*m.clock = now.Add(-36 * time.Hour)
			m.pair(ca, "binder")
			*m.clock = now
		},
	} {
		t.Run(what, func(t *testing.T) {
			clock, ca := day.Add(48*time.Hour), authority(t)
			m := newMember(t, &clock).pair(ca, "binder").trust(ca)
			s, client := m.open("binder"), newMember(t, &clock).pair(ca, "queue").trust(ca).open("queue")
			before := s.latest()
			spoil(m, ca)
			for range 3 {
				clock = clock.Add(reread.Every)
				if _, _, serverErr, clientErr := connect(t, s.Server(false), client.Client()); serverErr != nil || clientErr != nil {
					t.Fatalf("server %v, client %v", serverErr, clientErr)
				}
			}
			if now := s.latest(); !slices.Equal(now.pairs[0].Certificate[0], before.pairs[0].Certificate[0]) || now.roots != before.roots {
				t.Error("what was read before is not kept")
			}
			if n := strings.Count(m.log.String(), "cannot be used"); n != 1 {
				t.Errorf("logged %d times, want once:\n%s", n, &m.log)
			}
			m.pair(ca, "binder").trust(ca)
			clock = clock.Add(reread.Every)
			if now := s.latest(); slices.Equal(now.pairs[0].Certificate[0], before.pairs[0].Certificate[0]) {
				t.Error("the mended files are not used")
			}
			if _, err := open(Files{Cert: m.files.Cert, Key: m.files.Key, CA: m.files.CA}, "queue", slog.New(slog.DiscardHandler), s.now); err == nil {
				t.Error("at the start, a certificate of another role is accepted")
			}
		})
	}
}

func TestAnAuthorityIsReplacedWithoutAMomentInWhichPeersRefuseEachOther(t *testing.T) {
	clock, old, next := day, authority(t), authority(t)
	a, b := newMember(t, &clock).pair(old, "queue").trust(old), newMember(t, &clock).pair(old, "binder").trust(old)
	queue, binder := a.open("queue"), b.open("binder")
	for _, step := range []func(){
		func() { a.trust(old, next) }, func() { b.trust(old, next) },
		func() { a.pair(next, "queue") }, func() { b.pair(next, "binder") },
		func() { a.trust(next) }, func() { b.trust(next) },
	} {
		step()
		clock = clock.Add(reread.Every)
		if _, _, serverErr, clientErr := connect(t, binder.Server(false), queue.Client()); serverErr != nil || clientErr != nil {
			t.Fatalf("server %v, client %v", serverErr, clientErr)
		}
	}
	last := authority(t) // of which both sides hear at the same moment: the first handshake goes by it
	a.trust(last).pair(last, "queue")
	b.trust(last).pair(last, "binder")
	clock = clock.Add(reread.Every)
	if _, _, serverErr, clientErr := connect(t, binder.Server(false), queue.Client()); serverErr != nil || clientErr != nil {
		t.Fatalf("server %v, client %v", serverErr, clientErr)
	}
	late := newMember(t, &clock).pair(old, "queue").trust(old, last).open("queue")
	if _, _, serverErr, _ := connect(t, binder.Server(false), late.Client()); serverErr == nil {
		t.Error("a certificate of the authority that is gone is still accepted")
	}
}

func TestServersThatAreKnownByHostNameMustHaveIt(t *testing.T) {
	clock, ca, other := day, authority(t), authority(t)
	server := newMember(t, &clock).pair(ca, "etcd", "localhost", "127.0.0.1").trust(ca).open("")
	m := newMember(t, &clock).trust(other)
	m.files.Cert, m.files.Key = "", ""
	creds := m.open("").Credentials().Clone() // as gRPC does
	dial := func(authority string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if raw, err := l.Accept(); err == nil {
				_, _, err = credentials.NewTLS(server.Server(true)).ServerHandshake(raw)
				_ = err // the client's is the one to look at
				raw.Close()
			}
		}()
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = creds.ClientHandshake(context.Background(), authority, raw)
		raw.Close()
		<-done
		return err
	}
	if err := dial("localhost:1"); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a server of another authority: %v", err)
	}
	m.trust(ca)
	clock = clock.Add(reread.Every)
	for authority, want := range map[string]string{"localhost:1": "", "127.0.0.1:1": "", "gateway:1": "localhost, not gateway", "10.0.0.1:1": "10.0.0.1"} {
		if err := dial(authority); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("dial %s: %v, want %q", authority, err, want)
		}
	}
}

func TestMakeKeepsAnAuthorityAndReplacesKeyPairs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	request := Request{
		Dir: dir, Roles: []string{"queue", "gateway"}, Hosts: []string{"berth.example", "10.0.0.1"}, Known: []string{"gateway"},
		CALife: 48 * time.Hour, Life: 24 * time.Hour, Now: day,
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	made, err := Make(request)
	if err != nil || len(made) != 3 {
		t.Fatalf("Make: %v, %q", err, made)
	}
	for _, name := range []string{"ca.key", "queue.key", "gateway.key"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, info.Mode(), err)
		}
	}
	ca, key, queue := read("ca.crt"), read("ca.key"), read("queue.crt")
	request.Now, request.Roles = day.Add(36*time.Hour), []string{"queue"}
	if _, err := Make(request); err != nil {
		t.Fatal(err)
	}
	if read("ca.crt") != ca || read("ca.key") != key || read("queue.crt") == queue {
		t.Error("want the same authority, and a new key pair")
	}
	files := func(role string) Files {
		return Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"), CA: filepath.Join(dir, "ca.crt")}
	}
	at := func(now time.Time) func() time.Time { return func() time.Time { return now } }
	discard := slog.New(slog.DiscardHandler)
	s, err := open(files("queue"), "queue", discard, at(day.Add(36*time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	leaf := s.latest().pairs[0].Leaf
	if !leaf.NotAfter.Equal(day.Add(48 * time.Hour)) {
		t.Errorf("the certificate holds until %v, want the authority's end, %v", leaf.NotAfter, day.Add(48*time.Hour))
	}
	if !slices.Equal(leaf.DNSNames, []string{MemberName}) || len(leaf.IPAddresses) > 0 {
		t.Errorf("a queue has the host names %v %v, and could pass for the gateway", leaf.DNSNames, leaf.IPAddresses)
	}
	if s, err = open(files("gateway"), "gateway", discard, at(day)); err != nil {
		t.Fatal(err)
	}
	if leaf := s.latest().pairs[0].Leaf; leaf.VerifyHostname("berth.example") != nil || leaf.VerifyHostname("10.0.0.1") != nil {
		t.Errorf("the gateway's certificate has %v %v", leaf.DNSNames, leaf.IPAddresses)
	}

	request.Now = day.Add(72 * time.Hour)
	if _, err := Make(request); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with an authority that has expired: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(request); err == nil || !strings.Contains(err.Error(), "ca.key") || read("ca.crt") != ca {
		t.Errorf("without the authority's key: %v; want an error, and its certificate kept", err)
	}
}

func TestApartEachRoleHasItsOwnKeyAndNoOther(t *testing.T) {
	dir := t.TempDir()
	request := Request{Dir: dir, Roles: []string{"queue", "etcd"}, Apart: true, CALife: time.Hour, Life: time.Hour, Now: day}
	for range 2 { // the second time the authority is there
		if _, err := Make(request); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string][]string{
		"": {"ca.crt", "ca.key", "etcd", "queue"}, "queue": {"ca.crt", "queue.crt", "queue.key"}, "etcd": {"ca.crt", "etcd.crt", "etcd.key"},
	} {
		entries, err := os.ReadDir(filepath.Join(dir, at))
		var have []string
		for _, entry := range entries {
			have = append(have, entry.Name())
		}
		if err != nil || !slices.Equal(have, want) {
			t.Errorf("in %q there are %q, %v; want %q", at, have, err, want)
		}
	}
	files := Files{Cert: filepath.Join(dir, "queue", "queue.crt"), Key: filepath.Join(dir, "queue", "queue.key"), CA: filepath.Join(dir, "queue", "ca.crt")}
	if _, err := open(files, "queue", slog.New(slog.DiscardHandler), func() time.Time { return day }); err != nil {
		t.Error(err)
	}
}
