package roles

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/source/kube"
)

// podResourcesPath is where kube-scheduler tells what pods request, and are limited to.
const podResourcesPath = "/metrics/resources"

// podResourcesTimeout bounds an answer there: the list of all pods, and its way to who asks.
const podResourcesTimeout = time.Minute

// podResources answers requests for that, one at a time. While nobody asks it holds nothing: all pods are listed for each answer.
type podResources struct {
	list   func(context.Context) (*kube.PodResources, error)
	active func() bool // as with kube-scheduler, who stands by tells nothing: others would count pods twice
	log    *slog.Logger
	turn   chan struct{} // holds one value while one is answered
	failed bool          // the last one; of whose turn it is
}

func newPodResources(list func(context.Context) (*kube.PodResources, error), active func() bool, log *slog.Logger) *podResources {
	return &podResources{list: list, active: active, log: log, turn: make(chan struct{}, 1)}
}

// ServeHTTP implements http.Handler.
func (p *podResources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "want GET", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if !p.active() || r.Method == http.MethodHead {
		return
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another scrape of all pods is being answered", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), podResourcesTimeout)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(podResourcesTimeout)) // not all writers can
	all, err := p.list(ctx)
	if err != nil {
		if !p.failed { // it may be asked for as often as somebody likes
			p.failed = true
			if r.Context().Err() != nil {
				err = fmt.Errorf("whoever asked has not waited for it: a scrape_timeout of %v would do: %w", podResourcesTimeout, err)
			}
			p.log.Warn("pods not listed for a scrape of all pods", "err", err)
		}
		http.Error(w, "the pods cannot be listed", http.StatusServiceUnavailable)
		return
	}
	p.failed = false
	to := io.Writer(w)
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		zipped, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // a level that there is
		defer zipped.Close()
		to = zipped
	}
	_, _ = all.WriteTo(to) // who does not read it does not need it
}
