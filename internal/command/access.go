package command

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/roles"
)

// addAccess adds the flags that say who may call the public API.
func addAccess(fs *pflag.FlagSet, a *roles.Access) {
	addCallers(fs, a)
	fs.StringVar(&a.Kubeconfig, "authentication-kubeconfig", "", "the kubeconfig of the API server that reviews tokens and permissions; for --authenticate=kubernetes (default: the service account of the pod)")
}

// addCallers adds those that are Berth's own: kube-scheduler has the flag of the kubeconfig too.
func addCallers(fs *pflag.FlagSet, a *roles.Access) {
	fs.StringVar(&a.By, "authenticate", "", "how callers of the public API are known: tokens, those of --token-file; kubernetes, those that its API server reviews; or none (default: none on loopback addresses, to be said for others)")
	fs.StringVar(&a.TokenFile, "token-file", "", "a file with a line TOKEN,USER,read or TOKEN,USER,write for each caller, read again when it changes; for --authenticate=tokens")
	fs.StringSliceVar(&a.Audiences, "authentication-audiences", nil, "the audiences of which tokens must be for one; for --authenticate=kubernetes (default: what the API server takes for itself)")
	fs.Float64Var(&a.Rate, "caller-qps", 50, "calls per second of one caller, where callers are known")
	fs.IntVar(&a.Burst, "caller-burst", 100, "calls of one caller at once, where callers are known")
}

// checkAccess checks the flags for the addresses where the public API is served, and fills in the default.
func checkAccess(a *roles.Access, addresses ...string) error {
	if a.By == "" {
		for _, address := range addresses {
			if address != "" && !isLoopback(address) {
				return fmt.Errorf("--authenticate: %s is not a loopback address: say how callers are known, tokens or kubernetes, or none to let everyone in", address)
			}
		}
		a.By = roles.AccessNone
	}
	switch {
	case a.By != roles.AccessNone && a.By != roles.AccessTokens && a.By != roles.AccessKubernetes:
		return fmt.Errorf("--authenticate: %q: want tokens, kubernetes or none", a.By)
	case (a.By == roles.AccessTokens) != (a.TokenFile != ""):
		return errors.New("--token-file: it and --authenticate=tokens need each other")
	case a.By != roles.AccessKubernetes && a.Kubeconfig != "":
		return errors.New("--authentication-kubeconfig: it needs --authenticate=kubernetes")
	case a.By != roles.AccessKubernetes && len(a.Audiences) > 0:
		return errors.New("--authentication-audiences: it needs --authenticate=kubernetes")
	}
	return cmp.Or(positive("--caller-qps", a.Rate), positive("--caller-burst", float64(a.Burst)))
}

func positive(flag string, value float64) error {
	if value <= 0 {
		return fmt.Errorf("%s: %v: want more than 0", flag, value)
	}
	return nil
}
