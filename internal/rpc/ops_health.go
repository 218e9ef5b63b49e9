package rpc

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Check is one condition; a nil Err means that it holds.
type Check struct {
	Name string
	Err  error
}

// healthEndpoint answers /livez, /readyz or /healthz, and what is below, in the words of k8s.io/apiserver/pkg/server/healthz.
type healthEndpoint struct {
	name   string         // of the endpoint
	checks func() []Check // besides ping; nil: none
	// withhold keeps the reasons from those who may ask for the whole: they are strangers. One check alone says its reason.
	withhold bool
	observe  func(r *http.Request, endpoint string, check Check) // nil: nobody hears of what is checked
}

func (h *healthEndpoint) seen(r *http.Request, check Check) {
	if h.observe != nil {
		h.observe(r, h.name, check)
	}
}

func (h *healthEndpoint) read() []Check {
	all := []Check{{Name: "ping"}}
	if h.checks != nil {
		all = append(all, h.checks()...)
	}
	return all
}

func (h *healthEndpoint) all(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	excluded := query["exclude"]
	var lines strings.Builder
	failed := false
	for _, check := range h.read() {
		if !slices.Contains(excluded, check.Name) {
			h.seen(r, check)
		}
		switch {
		case slices.Contains(excluded, check.Name):
			excluded = slices.DeleteFunc(excluded, func(name string) bool { return name == check.Name })
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", check.Name)
		case check.Err == nil:
			fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
		case h.withhold:
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", check.Name)
		default:
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: %v\n", check.Name, check.Err)
		}
	}
	if len(excluded) > 0 {
		for i, name := range excluded {
			excluded[i] = strconv.Quote(name)
		}
		fmt.Fprintf(&lines, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(excluded, ", "))
	}
	switch {
	case failed:
		answerText(w, http.StatusInternalServerError, fmt.Sprintf("%s%s check failed\n", &lines, h.name))
	case query.Has("verbose"):
		answerText(w, http.StatusOK, fmt.Sprintf("%s%s check passed\n", &lines, h.name))
	default:
		answerText(w, http.StatusOK, "ok")
	}
}

func (h *healthEndpoint) one(w http.ResponseWriter, r *http.Request) {
	for _, check := range h.read() {
		if check.Name == r.PathValue("name") {
			h.seen(r, check)
		}
		switch {
		case check.Name != r.PathValue("name"):
		case check.Err != nil:
			answerText(w, http.StatusInternalServerError, fmt.Sprintf("internal server error: %v\n", check.Err))
			return
		default:
			answerText(w, http.StatusOK, "ok")
			return
		}
	}
	http.NotFound(w, r)
}
