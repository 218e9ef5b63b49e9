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

const (
	// podResourcesTimeout bounds an answer there: the list of all pods, and its way to who asks.
	podResourcesTimeout = time.Minute
	// podResourcesPatience is for how long an answer waits for who asks to take more of it: others wait for their turn meanwhile.
	podResourcesPatience = 5 * time.Second
)

// podResources answers requests for that, one at a time. While nobody asks it holds nothing: all pods are listed for each answer.
type podResources struct {
	ctx    context.Context // of the member: no answer outlives it
	list   func(context.Context) (*kube.PodResources, error)
	active func() bool // as with kube-scheduler, who stands by tells nothing: others would count pods twice
	log    *slog.Logger
	turn   chan struct{} // holds one value while one is answered
	// Of whose turn it is: whether one has failed, and one has been given up by who asked, since there was an answer.
	failed, givenUp bool

	timeout, patience time.Duration
}

// newPodResources returns a handler that answers until ctx ends.
func newPodResources(ctx context.Context, list func(context.Context) (*kube.PodResources, error), active func() bool, log *slog.Logger) *podResources {
	return &podResources{ctx: ctx, list: list, active: active, log: log, turn: make(chan struct{}, 1), timeout: podResourcesTimeout, patience: podResourcesPatience}
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
	end := time.Now().Add(p.timeout)
	ctx, cancel := context.WithDeadline(r.Context(), end)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	if p.ctx.Err() != nil {
		cancel()
	}
	_ = http.NewResponseController(w).SetWriteDeadline(end) // not all writers can
	all, err := p.list(ctx)
	if err != nil {
		told := &p.failed
		if r.Context().Err() != nil {
			err = fmt.Errorf("whoever asked has not waited for it: a scrape_timeout of %v would do: %w", podResourcesTimeout, err)
			told = &p.givenUp
		}
		if !*told && p.ctx.Err() == nil { // it may be asked for as often as somebody likes
			*told = true
			p.log.Warn("pods not listed for a scrape of all pods", "err", err)
		}
		http.Error(w, "the pods cannot be listed", http.StatusServiceUnavailable)
		return
	}
	p.failed, p.givenUp = false, false
	to := io.Writer(&impatient{w, ctx, http.NewResponseController(w), p.patience, end})
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		zipped, _ := gzip.NewWriterLevel(to, gzip.BestSpeed) // a level that there is
		defer zipped.Close()
		to = zipped
	}
	_, _ = all.WriteTo(to) // who does not read it does not need it
}

// impatient writes an answer as long as who gets it takes more of it, and ctx has not ended.
type impatient struct {
	http.ResponseWriter
	ctx      context.Context
	control  *http.ResponseController
	patience time.Duration // from write to write
	end      time.Time     // of all
}

// Write implements io.Writer.
func (i *impatient) Write(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	until := time.Now().Add(i.patience)
	if until.After(i.end) {
		until = i.end
	}
	_ = i.control.SetWriteDeadline(until)
	return i.ResponseWriter.Write(b)
}
