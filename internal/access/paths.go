package access

import (
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// What certificates of Berth's authorities may name besides roles: those who read what processes say of themselves over HTTP.
const (
	IdentityMetrics  = "metrics"  // may get /metrics, and what is below it
	IdentityOperator = "operator" // may get every path
)

// Paths lets in those who may get a path over HTTP: by a certificate, which every role can check, or by a token, if there is a
// Guard. What a token's owner needs is the verb get on the path, or put or post where the method is that, as with kube-scheduler.
type Paths struct {
	Guard *Guard // nil: tokens are nobody's
}

// Admit returns nil if a request may pass, else why not. The certificate must have been verified by the listener.
func (p Paths) Admit(r *http.Request) error {
	identity := ""
	if r.TLS != nil {
		identity = certs.PeerRole(*r.TLS)
	}
	if identity == IdentityOperator || identity == IdentityMetrics && (r.URL.Path == "/metrics" || r.URL.Path == "/metrics/resources" || strings.HasPrefix(r.URL.Path, "/metrics/plugins/")) {
		return nil
	}
	token := bearer(r.Header.Values("Authorization"))
	switch {
	case token != "" && p.Guard != nil:
		ctx := rpc.WithCaller(r.Context(), rpc.AddressOfRequest(r))
		return p.Guard.review(ctx, token, Permission{Verb: verbOf(r.Method), Path: r.URL.Path})
	case token != "":
		return rpc.Error(codes.Unauthenticated, ReasonUnknownToken, "tokens are not known here: show a certificate of %s or %s", IdentityMetrics, IdentityOperator)
	case identity != "":
		return rpc.Error(codes.PermissionDenied, ReasonNotAllowed, "a certificate of %s may not get %s", identity, r.URL.Path)
	}
	return rpc.Error(codes.Unauthenticated, ReasonNoToken, "show a certificate of %s or %s, or a token", IdentityMetrics, IdentityOperator)
}

func verbOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	}
	return strings.ToLower(method)
}
