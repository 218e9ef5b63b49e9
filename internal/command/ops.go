package command

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/roles"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// addOps adds the flags of the operators' endpoints.
func addOps(fs *pflag.FlagSet, c *roles.Common) {
	fs.StringVar(&c.OpsListen, "metrics-listen", "", "where to serve /metrics, /livez, /readyz, /configz, /flagz and /statusz over HTTP, with TLS if --tls-cert is given, as host:port (default: nowhere)")
	addConnections(fs, c)
	fs.BoolVar(&c.Profiling, "profiling", false, "serve Go's profiles at /debug/pprof/ of --metrics-listen too, and take PUT /debug/flags/v")
	fs.BoolVar(&c.ContentionProfiling, "contention-profiling", false, "with --profiling, tell where goroutines wait for each other; it costs time")
	fs.StringVar(&c.OpsAccess.By, "metrics-authenticate", "", "who may get more than /livez, /readyz and /healthz of --metrics-listen: certificates, whoever has one of metrics or operator; tokens, or kubernetes, as with --authenticate of a gateway, too; none, everyone (default: certificates with TLS, else none)")
	fs.StringVar(&c.OpsAccess.TokenFile, "metrics-token-file", "", "a file with a line TOKEN,USER,read for each caller; for --metrics-authenticate=tokens")
	fs.StringSliceVar(&c.OpsAccess.Audiences, "metrics-authentication-audiences", nil, "as --authentication-audiences of a gateway; for --metrics-authenticate=kubernetes")
	fs.StringVar(&c.OpsAccess.Kubeconfig, "metrics-authentication-kubeconfig", "", "the kubeconfig of the API server that reviews tokens; for --metrics-authenticate=kubernetes (default: the service account of the pod)")
}

// addConnections adds the flags of how many callers there may be.
func addConnections(fs *pflag.FlagSet, c *roles.Common) {
	fs.IntVar(&c.Connections, "max-connections", rpc.DefaultConnections, "connections at a time to each listener for people or operators, at least 4,096 to those for other roles; more are closed at once, or in their stead the oldest whose callers nobody knows")
	fs.IntVar(&c.OfOneAddress, "max-connections-per-address", rpc.DefaultConnectionsOfOne, "of these, of one remote address, or network of 64 bits with IPv6; never more than as many again have room")
}

// checkOps checks them, and fills in the default.
func checkOps(c *roles.Common) error {
	a := &c.OpsAccess
	secure := c.TLS.Cert != ""
	if a.By == "" {
		a.By = roles.AccessNone
		if secure {
			a.By = roles.AccessCertificates
		}
	}
	switch a.By {
	case roles.AccessNone, roles.AccessTokens, roles.AccessKubernetes, roles.AccessCertificates:
	default:
		return fmt.Errorf("--metrics-authenticate: %q: want certificates, tokens, kubernetes or none", a.By)
	}
	switch {
	case a.By == roles.AccessCertificates && !secure:
		return errors.New("--metrics-authenticate=certificates: it needs --tls-cert, --tls-key and --tls-ca")
	case (a.By == roles.AccessTokens) != (a.TokenFile != ""):
		return errors.New("--metrics-token-file: it and --metrics-authenticate=tokens need each other")
	case a.By != roles.AccessKubernetes && a.Kubeconfig != "":
		return errors.New("--metrics-authentication-kubeconfig: it needs --metrics-authenticate=kubernetes")
	case a.By != roles.AccessKubernetes && len(a.Audiences) > 0:
		return errors.New("--metrics-authentication-audiences: it needs --metrics-authenticate=kubernetes")
	case c.Connections < 1 || c.OfOneAddress < 1:
		return errors.New("--max-connections and --max-connections-per-address: want at least 1 each")
	}
	return nil
}

// flagValues returns what flags are set to, as /flagz shows it. Berth is told secrets in files only, but for passwords in
// URLs, which are left out.
func flagValues(fs *pflag.FlagSet) map[string]string {
	values := make(map[string]string)
	fs.VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			items := slices.Clone(list.GetSlice()) // it is the flag's own
			for i, item := range items {
				items[i] = withoutPassword(item)
			}
			value = strings.Join(items, ",")
		}
		values[f.Name] = withoutPassword(value)
	})
	return values
}

// withoutPassword returns a text; if it is a URL with a password, without that.
func withoutPassword(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}
