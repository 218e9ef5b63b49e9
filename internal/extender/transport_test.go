package extender

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/certs"
)

// serveTLS starts a server on loopback with a certificate for example.com and 127.0.0.1, and returns the certificate.
func serveTLS(t *testing.T, handler http.HandlerFunc, config *tls.Config, http2 bool) (*httptest.Server, []byte) {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS, server.EnableHTTP2 = config, http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// authority returns one that nobody knows yet, in PEM.
func authority(t *testing.T) (*certs.Authority, []byte) {
	t.Helper()
	a, err := certs.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return a, text
}

func TestServersAreKnownByTheirCertificates(t *testing.T) {
	server, own := serveTLS(t, answers(`{"NodeNames":["a"]}`), nil, false)
	_, other := authority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, own, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		https bool
		tls   *configv1.ExtenderTLSConfig
		want  string // a part of the error
	}{
		{"with its authority", true, &configv1.ExtenderTLSConfig{CAData: own}, ""},
		{"with its authority in a file", true, &configv1.ExtenderTLSConfig{CAFile: file}, ""},
		{"with its authority, by another name of its", true, &configv1.ExtenderTLSConfig{CAData: own, ServerName: "example.com"}, ""},
		{"by a name that it has not", true, &configv1.ExtenderTLSConfig{CAData: own, ServerName: "elsewhere"}, "certificate is valid for example.com, *.example.com, not elsewhere"},
		{"with another authority", true, &configv1.ExtenderTLSConfig{CAData: other}, "certificate signed by unknown authority"},
		{"with no authority", true, nil, ""},
		{"with no authority, but a name", true, &configv1.ExtenderTLSConfig{ServerName: "elsewhere"}, ""},
		{"insecurely", false, &configv1.ExtenderTLSConfig{Insecure: true}, ""},
		{"by what the system trusts, as enableHTTPS is not set", false, nil, "certificate signed by unknown authority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := byName(server.URL)
			cfg.EnableHTTPS, cfg.TLSConfig = c.https, c.tls
			_, err := newSet(t, cfg).Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestServersMayAskForACertificate(t *testing.T) {
	clients, clientsPEM := authority(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(clientsPEM)
	server, own := serveTLS(t, answers(`{"NodeNames":["a"]}`), &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, false)
	strangers, _ := authority(t)
	pair := func(by *certs.Authority) (cert, key []byte) {
		cert, key, err := by.Issue("client", []string{"client"}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := pair(clients)
	strangersCert, strangersKey := pair(strangers)
	dir := t.TempDir()
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		tls  configv1.ExtenderTLSConfig
		ok   bool
	}{
		{"one is given", configv1.ExtenderTLSConfig{CertData: cert, KeyData: key}, true},
		{"one is in files", configv1.ExtenderTLSConfig{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}, true},
		{"there is none", configv1.ExtenderTLSConfig{}, false},
		{"it is another's", configv1.ExtenderTLSConfig{CertData: strangersCert, KeyData: strangersKey}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.tls.CAData = own
			cfg := byName(server.URL)
			cfg.EnableHTTPS, cfg.TLSConfig = true, &c.tls
			if _, err := newSet(t, cfg).Filter(hangs(t), NewPod(testPod("p")), testNodes("a")); (err == nil) != c.ok {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestMoreCallsThanConnectionsOverHTTP2(t *testing.T) {
	server, own := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		answers(`{}`)(w, r)
	}, nil, true)
	bindAll(t, newSet(t, configv1.Extender{
		URLPrefix: server.URL, BindVerb: "bind", EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: own}, HTTPTimeout: patient,
	}), 10*maxConnections)
}

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	_, ca := authority(t)
	for _, c := range []struct {
		extender configv1.Extender
		want     string
	}{
		{configv1.Extender{URLPrefix: ""}, `extenders[1].urlPrefix: "": want an absolute URL such as https://extender.example:8888/scheduler`},
		{configv1.Extender{URLPrefix: "extender:80/x"}, `extenders[1].urlPrefix: "extender:80/x": want an absolute URL such as`},
		{configv1.Extender{URLPrefix: "http://a b"}, `extenders[1].urlPrefix: "http://a b": parse "http://a b": invalid character " " in host name: want an absolute URL`},
		{configv1.Extender{URLPrefix: "http://a", HTTPTimeout: metav1.Duration{Duration: -1}}, "extenders[1].httpTimeout: -1ns: want a positive duration, or none for 5s"},
		{configv1.Extender{URLPrefix: "http://a", TLSConfig: &configv1.ExtenderTLSConfig{CAFile: "/nowhere/ca.crt"}}, "extenders[1].tlsConfig: open /nowhere/ca.crt: no such file or directory"},
		{configv1.Extender{URLPrefix: "http://a", TLSConfig: &configv1.ExtenderTLSConfig{CAData: []byte("x")}}, "extenders[1].tlsConfig: unable to load root certificates: unable to parse bytes as PEM block"},
		{configv1.Extender{URLPrefix: "http://a", TLSConfig: &configv1.ExtenderTLSConfig{CertData: []byte("x"), KeyData: []byte("y")}}, "extenders[1].tlsConfig: tls: failed to find any PEM data in certificate input"},
		{configv1.Extender{URLPrefix: "http://a", TLSConfig: &configv1.ExtenderTLSConfig{CAData: ca, Insecure: true}},
			"extenders[1].tlsConfig: specifying a root certificates file with the insecure flag is not allowed"},
	} {
		_, err := New(Config{Extenders: []configv1.Extender{{URLPrefix: "http://a"}, c.extender}})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.extender, err, c.want)
		}
	}
}

func TestVerbsAreBelowThePrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"http://a": "http://a/filter", "http://a/": "http://a/filter", "http://a/b//": "http://a/b/filter", "http://a?x=": "http://a?x=/filter",
	} {
		if got := newSet(t, byName(prefix)).extenders[0].places[Filter].url; got != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}
