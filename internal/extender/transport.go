package extender

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// defaultTimeout is what a call may take where the configuration does not say.
const defaultTimeout = 5 * time.Second

// maxConnections is how many connections there are to an extender to bind, and as many for all else. Who asks for one more waits, in the time that its call may take.
const maxConnections = 64

// Check returns what makes no sense of how an extender is to be reached, and the field and its value that say so. It reads no files.
func Check(cfg *configv1.Extender) (name, value string, err error) {
	const want = "want an absolute URL such as https://extender.example:8888/scheduler"
	prefix, err := url.Parse(cfg.URLPrefix)
	_, behind, has := strings.Cut(cfg.URLPrefix, "@")
	switch {
	case has && (err != nil || prefix.User == nil || strings.Contains(behind, "@")): // what stands before it may be a password, and a part of it in the error
		return "urlPrefix", WithoutUser(cfg.URLPrefix), errors.New("an @ stands where there is no user before it: write it, and what user and password have of /, ? and #, as %40, %2F, %3F and %23")
	case err != nil:
		return "urlPrefix", cfg.URLPrefix, fmt.Errorf("%w: %s", err, want)
	case prefix.Scheme != "http" && prefix.Scheme != "https" || prefix.Host == "":
		return "urlPrefix", WithoutUser(cfg.URLPrefix), errors.New(want)
	}
	for _, verb := range []struct{ field, is string }{
		{"filterVerb", cfg.FilterVerb}, {"prioritizeVerb", cfg.PrioritizeVerb}, {"bindVerb", cfg.BindVerb}, {"preemptVerb", cfg.PreemptVerb},
	} {
		if _, err := url.Parse(at(cfg, verb.is)); err != nil {
			return verb.field, verb.is, fmt.Errorf("%w: want the rest of a URL's path, such as filter", errors.Unwrap(err)) // without the URL
		}
	}
	if timeout := cfg.HTTPTimeout.Duration; timeout < 0 {
		return "httpTimeout", timeout.String(), fmt.Errorf("want a positive duration, or none for %v", defaultTimeout)
	}
	return "", "", nil
}

// newClient returns how the server of an extender is reached: as the environment's proxies and TLS settings say, over HTTP/2 where the server has it
// by TLS, following redirects. With enableHTTPS and no authorities, any certificate will do.
func newClient(cfg *configv1.Extender) (*http.Client, error) {
	if name, value, err := Check(cfg); err != nil {
		if name != "httpTimeout" {
			value = strconv.Quote(value)
		}
		return nil, fmt.Errorf("%s: %v: %w", name, value, err)
	}
	timeout := cmp.Or(cfg.HTTPTimeout.Duration, defaultTimeout)
	var tls transport.TLSConfig
	if c := cfg.TLSConfig; c != nil {
		tls = transport.TLSConfig{
			Insecure: c.Insecure, ServerName: c.ServerName,
			CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile, CertData: c.CertData, KeyData: c.KeyData, CAData: c.CAData,
		}
	}
	if cfg.EnableHTTPS && tls.CAFile == "" && len(tls.CAData) == 0 {
		tls.Insecure = true
	}
	config, err := transport.TLSConfigFor(&transport.Config{TLS: tls})
	if err != nil {
		return nil, fmt.Errorf("tlsConfig: %w", err)
	}
	return &http.Client{Timeout: timeout, Transport: utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: config, MaxConnsPerHost: maxConnections, MaxIdleConnsPerHost: maxConnections,
	})}, nil
}

// at returns where a verb of the configuration is asked.
func at(cfg *configv1.Extender, verb string) string {
	return strings.TrimRight(cfg.URLPrefix, "/") + "/" + verb
}

// WithoutUser returns a URL without the user and the password that it may have, which are nobody's but the server's to know.
func WithoutUser(of string) string {
	at, err := url.Parse(of)
	if err != nil || at.User == nil {
		return of[strings.LastIndexByte(of, '@')+1:] // of one that Check refuses: maybe somewhere before that
	}
	at.User = nil
	return at.String()
}
