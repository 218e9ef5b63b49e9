package secureport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/berth-scheduler/berth/internal/rpc"
)

const (
	defaultPort = 10259            // kube-scheduler's
	pairName    = "kube-scheduler" // of the files in --cert-dir
)

// The reasons of refusals.
const (
	ReasonUnknownCaller rpc.Reason = "UNKNOWN_CALLER" // UNAUTHENTICATED
	ReasonForbidden     rpc.Reason = "FORBIDDEN"      // PERMISSION_DENIED
	ReasonNoAnswer      rpc.Reason = "NO_ANSWER"      // INTERNAL: the API server does not say whether the caller may
)

// Options are what kube-scheduler's flags say of its --secure-port. Their defaults are kube-scheduler's.
type Options struct {
	Serving        *options.SecureServingOptions
	Authentication *options.DelegatingAuthenticationOptions
	Authorization  *options.DelegatingAuthorizationOptions
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{options.NewSecureServingOptions(), options.NewDelegatingAuthenticationOptions(), options.NewDelegatingAuthorizationOptions()}
	o.Serving.BindPort, o.Serving.ServerCert.PairName, o.Serving.ServerCert.CertDirectory = defaultPort, pairName, ""
	o.Authentication.TolerateInClusterLookupFailure, o.Authentication.RemoteKubeConfigFileOptional = true, true
	o.Authorization.RemoteKubeConfigFileOptional = true
	return o
}

// SetGates sets feature gates of k8s.io/apiserver's, for all of the process.
func SetGates(gates map[string]bool) error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(gates)
}

// Kubeconfig returns the kubeconfig of --authentication-kubeconfig, "" if there is none.
func (o *Options) Kubeconfig() string { return o.Authentication.RemoteKubeConfigFile }

// Validate says what is wrong with the flags, in kube-scheduler's words.
func (o *Options) Validate() error {
	var errs []error
	errs = append(errs, o.Serving.Validate()...)
	errs = append(errs, o.Authentication.Validate()...)
	errs = append(errs, o.Authorization.Validate()...)
	_, err := path.NewAuthorizer(o.Authorization.AlwaysAllowPaths)
	return errors.Join(append(errs, err)...)
}

// Port is an open port with what it takes to serve it.
type Port struct {
	options       *Options
	info          *server.SecureServingInfo
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	open          authorizer.Authorizer // of paths that everybody may get
	tls           *tls.Config
	controllers   []func(context.Context)
	Log           *slog.Logger // of what comes of callers; set before Admit is called
}

// Listen binds the port, and makes a certificate if none is given, or reads the one that is. It returns nil if --secure-port is 0. Open it then, or close its listener.
func (o *Options) Listen() (*Port, error) {
	if o.Serving.BindPort == 0 {
		return nil, nil
	}
	if err := o.Serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	p := &Port{options: o}
	if err := o.Serving.ApplyTo(&p.info); err != nil {
		if o.Serving.Listener != nil {
			_ = o.Serving.Listener.Close() // the error before is the one to tell
		}
		return nil, err
	}
	return p, nil
}

// Open reads what says who callers are, of which a part is in the cluster. If the API server does not answer it goes on without, as kube-scheduler does, unless the flags forbid
// that. It may take as long as the API server does not answer, whatever ctx says: k8s.io/apiserver asks it so.
func (p *Port) Open(ctx context.Context) (err error) {
	o := p.options
	var who server.AuthenticationInfo
	if err := o.Authentication.ApplyTo(&who, p.info, nil); err != nil {
		return err
	}
	var may server.AuthorizationInfo
	if err := o.Authorization.ApplyTo(&may); err != nil {
		return err
	}
	p.authenticator, p.authorizer = who.Authenticator, may.Authorizer
	if p.open, err = path.NewAuthorizer(o.Authorization.AlwaysAllowPaths); err != nil {
		return err
	}
	return p.secure(ctx)
}

// secure makes the configuration of TLS, and collects what keeps certificates and authorities up to date.
func (p *Port) secure(ctx context.Context) error {
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, CipherSuites: p.info.CipherSuites, CurvePreferences: p.info.CurvePreferences}
	if p.info.DisableHTTP2 {
		base.NextProtos = []string{"http/1.1"}
	}
	if p.info.MinTLSVersion > 0 {
		base.MinVersion = p.info.MinTLSVersion
	}
	if p.info.ClientCA != nil {
		base.ClientAuth = tls.RequestClientCert // whether one is good, the authenticator says: there are other ways to be known
	}
	all := dynamiccertificates.NewDynamicServingCertificateController(base, p.info.ClientCA, p.info.Cert, p.info.SNICerts, nil)
	var sources []any
	if p.info.ClientCA != nil {
		p.info.ClientCA.AddListener(all)
		sources = append(sources, p.info.ClientCA)
	}
	if p.info.Cert != nil {
		p.info.Cert.AddListener(all)
		sources = append(sources, p.info.Cert)
	}
	for _, sni := range p.info.SNICerts {
		sni.AddListener(all)
		sources = append(sources, sni)
	}
	for _, source := range sources {
		if c, ok := source.(dynamiccertificates.ControllerRunner); ok {
			_ = c.RunOnce(ctx) // without authorities, nobody is known by a certificate; it is tried again
			p.controllers = append(p.controllers, func(ctx context.Context) { c.Run(ctx, 1) })
		}
	}
	if err := all.RunOnce(); err != nil {
		return fmt.Errorf("read certificates: %w", err)
	}
	p.controllers = append(p.controllers, func(ctx context.Context) { all.Run(1, ctx.Done()) })
	p.tls = base.Clone()
	p.tls.GetConfigForClient = all.GetConfigForClient
	return nil
}

// Listener returns what listens, without TLS. Whoever serves it closes it.
func (p *Port) Listener() net.Listener { return p.info.Listener }

// TLS returns how it is served.
func (p *Port) TLS() *tls.Config { return p.tls }

// Streams returns how many requests one connection of HTTP/2 may have at once; 0: as many as the server chooses; below 0: HTTP/2 is not served.
func (p *Port) Streams() int {
	if p.info.DisableHTTP2 {
		return -1
	}
	return p.info.HTTP2MaxStreamsPerConnection
}

// Run keeps certificates and authorities up to date until ctx ends.
func (p *Port) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range p.controllers {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// IsOpen reports whether everybody may do what a request asks for, whoever it is: --authorization-always-allow-paths.
func (p *Port) IsOpen(r *http.Request) bool {
	decision, _, err := p.open.Authorize(r.Context(), authorizer.AttributesRecord{Path: r.URL.Path, Verb: strings.ToLower(r.Method)})
	return err == nil && decision == authorizer.DecisionAllow
}

// Admit finds out who asks, and whether that one may; known is that somebody does: a caller whom nothing names is system:anonymous. An error is one of [rpc.Error].
func (p *Port) Admit(r *http.Request) (known bool, err error) {
	ctx := r.Context()
	if p.authenticator != nil {
		who, ok, err := p.authenticator.AuthenticateRequest(r)
		if err != nil || !ok {
			p.Log.Info("a caller is not known", "err", err)
			return false, rpc.Error(codes.Unauthenticated, ReasonUnknownCaller, "Unauthorized")
		}
		known = who.User.GetName() != user.Anonymous && !slices.Contains(who.User.GetGroups(), user.AllUnauthenticated)
		ctx = apirequest.WithUser(ctx, who.User)
	}
	resolver := apirequest.RequestInfoFactory{}
	info, err := resolver.NewRequestInfo(r)
	if err != nil {
		return known, rpc.Error(codes.Internal, ReasonNoAnswer, "read the request: %v", err)
	}
	attributes, err := filters.GetAuthorizerAttributes(apirequest.WithRequestInfo(ctx, info))
	if err != nil {
		return known, rpc.Error(codes.Internal, ReasonNoAnswer, "read the request: %v", err)
	}
	decision, reason, err := p.authorizer.Authorize(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return known, nil
	case err != nil:
		p.Log.Warn("the API server does not say whether a caller may", "err", err)
		return known, rpc.Error(codes.Internal, ReasonNoAnswer, "ask whether the caller may: %v", err)
	}
	name := user.Anonymous
	if u := attributes.GetUser(); u != nil {
		name = u.GetName()
	}
	if reason != "" {
		reason = ": " + reason
	}
	return known, rpc.Error(codes.PermissionDenied, ReasonForbidden, "forbidden: User %q cannot %s path %q%s", name, attributes.GetVerb(), attributes.GetPath(), reason)
}
