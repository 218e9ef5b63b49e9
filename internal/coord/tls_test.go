package coord

import (
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/berth-scheduler/berth/internal/certs"
)

// makeCerts makes an authority and key pairs of etcd and a binder, and returns their files.
func makeCerts(t *testing.T) (etcd, binder certs.Files) {
	t.Helper()
	of := makeCertsOf(t, "etcd", "binder")
	return of("etcd"), of("binder")
}

// makeCertsOf makes an authority and key pairs, and returns what tells the files of each.
func makeCertsOf(t *testing.T, names ...string) func(name string) certs.Files {
	t.Helper()
	dir := t.TempDir()
	if _, err := certs.Make(certs.Request{
		Dir: dir, Roles: names, Hosts: []string{"127.0.0.1"}, Known: []string{"etcd"},
		CALife: time.Hour, Life: time.Hour, Now: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	return func(name string) certs.Files {
		return certs.Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.crt")}
	}
}

// connectAs connects with the certificate of a role.
func connectAs(t *testing.T, endpoint string, files certs.Files) *Client {
	t.Helper()
	source, err := certs.Open(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Endpoints: []string{endpoint}, Credentials: source.Credentials(), Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

// startTLS starts an etcd that serves only clients with a certificate, and returns its endpoint.
func startTLS(t *testing.T, files certs.Files) string {
	t.Helper()
	listen, err := url.Parse("https://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	peer, err := url.Parse(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = "tls", t.TempDir()
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*listen}, []url.URL{*listen}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	c.EnableGRPCGateway = false
	c.ClientTLSInfo = transport.TLSInfo{CertFile: files.Cert, KeyFile: files.Key, TrustedCAFile: files.CA, ClientCertAuth: true}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(slog.New(slog.DiscardHandler), make(chan struct{})))
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(patient):
		t.Fatal("etcd is not ready")
	}
	return "https://" + etcd.Clients[0].Addr().String()
}

func TestEtcdIsReachedOverTLSByThoseItKnows(t *testing.T) {
	server, binder := makeCerts(t)
	endpoint := startTLS(t, server)
	_, stranger := makeCerts(t)
	for _, tt := range []struct {
		what  string
		files certs.Files
		works bool
	}{
		{"a binder", binder, true},
		{"a binder of another authority", certs.Files{Cert: stranger.Cert, Key: stranger.Key, CA: binder.CA}, false},
		{"nobody", certs.Files{CA: binder.CA}, false},
		{"one that trusts another authority", certs.Files{Cert: binder.Cert, Key: binder.Key, CA: stranger.CA}, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			source, err := certs.Open(tt.files, "", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			c, err := Connect(Config{Endpoints: []string{endpoint}, Credentials: source.Credentials()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Ready(within(t)); (err == nil) != tt.works {
				t.Errorf("Ready: %v; it should work: %v", err, tt.works)
			}
		})
	}
}

func TestCredentialsAreForHTTPSOnly(t *testing.T) {
	_, binder := makeCerts(t)
	source, err := certs.Open(binder, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Endpoints: []string{"http://127.0.0.1:2379"}, Credentials: source.Credentials()})
	if err == nil {
		c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "want https") {
		t.Errorf("Connect: %v, want an error that names https", err)
	}
}
