package roles

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/kube"
)

// How callers of the public API, and of the operators' endpoints, are known.
const (
	AccessNone         = "none" // they are not: everyone may do everything, as often as they like
	AccessTokens       = "tokens"
	AccessKubernetes   = "kubernetes"
	AccessCertificates = "certificates" // of the operators' endpoints; with the two before, certificates do too
)

// Access says who may call the public API, or the operators' endpoints.
type Access struct {
	By         string   // one of the above; "" means AccessNone, for operators' endpoints with TLS AccessCertificates
	TokenFile  string   // see access.ReadTokens; for AccessTokens
	Kubeconfig string   // of the API server that is asked; "" means the pod's service account; for AccessKubernetes
	Audiences  []string // one of which tokens must be for; none means the API server's own; for AccessKubernetes
	Rate       float64
	Burst      int // as in access.GuardConfig
}

// guarded returns the option of a server that is open to people, and lets in who may call; a guard of nil lets in everyone. There is one
// guard per process, so that a caller's rate is one.
func guarded(g *access.Guard) rpc.Option {
	if g == nil {
		return rpc.WithPublic(nil)
	}
	return rpc.WithPublic(g)
}

// newGuard returns nil if callers are not known by tokens. The listener is whose callers they are, in metrics.
func (e *env) newGuard(a Access, listener string) (*access.Guard, error) {
	var reviewer access.Reviewer
	var err error
	switch a.By {
	case "", AccessNone, AccessCertificates:
		return nil, nil
	case AccessTokens:
		var file *access.TokenFile
		if file, err = access.OpenTokens(a.TokenFile, e.Log); err == nil {
			reviewer, err = file, registerStale(e.measured.common, listener, file.Stale)
		}
	case AccessKubernetes:
		var asks *kube.Reviewer
		e.measured.asksAPIServer()
		asks, err = kube.NewReviewer(a.Kubeconfig, a.Audiences)
		reviewer = access.NewReviews(asks)
	default:
		err = fmt.Errorf("callers are known by %q: want %s, %s or %s", a.By, AccessTokens, AccessKubernetes, AccessNone)
	}
	if err != nil {
		return nil, err
	}
	return access.NewGuard(access.GuardConfig{Reviewer: reviewer, Rate: a.Rate, Burst: a.Burst, Log: e.Log, Alone: e.certs == nil})
}
