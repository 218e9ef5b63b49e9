package doctor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // it works, and somebody should know
	Fail Level = "fail" // it stands in the way
)

// Finding is what a check has found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	What  string `json:"what"`
	Fix   string `json:"fix,omitempty"`
}

// Config says whose way is looked at.
type Config struct {
	// Kubeconfig has the credentials that Berth would have, and Master the URL of the API server, if it is not in there. "": the service account of the pod.
	Kubeconfig, Master string
	// Names are the scheduler names that Berth would have.
	Names []string
	// Coscheduling says that profiles have the plugin Coscheduling.
	Coscheduling bool
	// Lease is the one that decides who has them; an empty name: nobody is asked.
	LeaseNamespace, LeaseName string
}

const (
	timeout  = 30 * time.Second // of a check; that of all pods has as long for each page
	pageSize = 500              // objects that are read at once
	examples = 5                // that are named
)

// examined is a cluster that is looked at.
type examined struct {
	cfg    Config
	client kubernetes.Interface
	http   *http.Client
	host   *url.URL
	now    func() time.Time
	skew   time.Duration // by how much the API server's clock is ahead, as far as that is known
}

// Run makes all checks, one after the other, and returns what they have found, in their order. An error says that there is no API server to ask, or that ctx has ended: not all has been
// looked at then.
func Run(ctx context.Context, cfg Config) ([]Finding, error) {
	var base *rest.Config
	var err error
	if cfg.Master == "" && cfg.Kubeconfig == "" {
		base, err = rest.InClusterConfig()
	} else {
		base, err = clientcmd.BuildConfigFromFlags(cfg.Master, cfg.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	base.QPS = -1
	base.Timeout = timeout
	client, err := kubernetes.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", base.Host, err)
	}
	plain, err := rest.HTTPClientFor(base)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", base.Host, err)
	}
	host, _, err := rest.DefaultServerUrlFor(base)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", base.Host, err)
	}
	x := &examined{cfg: cfg, client: client, http: plain, host: host, now: time.Now}
	var out []Finding
	for _, check := range []struct {
		name string
		find func(context.Context) ([]Finding, error)
		must bool // who cannot find it out may not go on
	}{
		{"versions", x.versions, true}, {"latency and clock", x.latency, false}, {"rights", x.rights, true}, {"pods", x.pods, true}, {"schedulers", x.schedulers, true},
		{"priority and fairness", x.fairness, false}, {"etcd", x.etcd, false},
	} {
		found, err := check.find(ctx)
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case err != nil && check.name == "versions":
			return nil, fmt.Errorf("ask %s: %w", base.Host, err)
		case err != nil && check.must:
			found = append(found, Finding{Level: Fail, What: "it could not be found out: " + err.Error(), Fix: "ask again, with a kubeconfig whose user may read that"})
		case err != nil:
			found = append(found, Finding{Level: Note, What: "it could not be found out: " + err.Error()})
		}
		for _, f := range found {
			f.Check = check.name
			out = append(out, f)
		}
	}
	return out, nil
}

// Failed returns how many of some findings stand in the way.
func Failed(all []Finding) (n int) {
	for _, f := range all {
		if f.Level == Fail {
			n++
		}
	}
	return n
}

// get asks for a path as a client of Go's, whose answer has its headers, and returns the answer with all of its body, or the first part of it.
func (x *examined) get(ctx context.Context, path, query string) (*http.Response, []byte, error) {
	at := x.host.JoinPath(path)
	at.RawQuery = query
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := x.http.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostRead))
	return response, body, err
}

// mostRead is how much of an answer is read.
const mostRead = 64 << 20

// named returns the first of some names, and how many more there are.
func named(names []string) string {
	slices.Sort(names)
	text := ""
	for i, name := range names {
		if i == examples {
			return fmt.Sprintf("%s and %d more", text, len(names)-examples)
		}
		if i > 0 {
			text += ", "
		}
		text += name
	}
	return text
}
