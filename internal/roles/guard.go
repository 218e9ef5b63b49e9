package roles

import (
	"fmt"
	"os"

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
	By         string // one of the above; "" means AccessNone, for operators' endpoints with TLS AccessCertificates
	TokenFile  string // see access.ReadTokens; for AccessTokens
	Kubeconfig string // of the API server that is asked; "" means the pod's service account; for AccessKubernetes
	Rate       float64
	Burst      int // as in access.GuardConfig
}

// guard returns the options of a server that lets in who may call. It is made once per process, so that a caller's rate is one.
func (e *env) guard(a Access) ([]rpc.Option, error) {
	g, err := e.newGuard(a)
	if g == nil {
		return nil, err
	}
	return []rpc.Option{rpc.WithGuard(g.Unary, g.Stream)}, nil
}

// newGuard returns nil if callers are not known by tokens.
func (e *env) newGuard(a Access) (*access.Guard, error) {
	var reviewer access.Reviewer
	var err error
	switch a.By {
	case "", AccessNone, AccessCertificates:
		return nil, nil
	case AccessTokens:
		reviewer, err = tokens(a.TokenFile)
	case AccessKubernetes:
		reviewer, err = kube.NewReviewer(a.Kubeconfig)
	default:
		err = fmt.Errorf("callers are known by %q: want %s, %s or %s", a.By, AccessTokens, AccessKubernetes, AccessNone)
	}
	if err != nil {
		return nil, err
	}
	return access.NewGuard(access.GuardConfig{Reviewer: reviewer, Rate: a.Rate, Burst: a.Burst, Log: e.Log})
}

func tokens(file string) (*access.Tokens, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	defer f.Close()
	t, err := access.ReadTokens(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}
