package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-helpers/storage/volume"
)

// APIFault is what the proxy in front of the API server does to requests that write, and to reads but watches.
type APIFault struct {
	Status int           // answered instead of asking the API server: 409, 429, 500; 0: none
	Late   bool          // the API server is asked, and its answer kept back until the client has given up
	Keep   time.Duration // breaks the connection of a late answer, if the client waits for so long; 0: lateAnswer
	Lost   bool          // nobody is asked, and nothing answered until the client has given up
	Slow   time.Duration // added before each request
	Mute   bool          // what watches tell is kept back for seconds, again and again
	Expire bool          // watches end soon, and are answered 410 when they are to go on
	Fates  bool          // the binds of each pod have a fate of their own, always the same
	Hooked string        // a namespace: only binds of its pods are met
	Writes bool          // what is written to volumes and claims is refused, lost or not answered, five times of six
	Part   float64       // of the requests
}

// step is a request of Berth's on the way from a record to a bind.
type step struct {
	bind                  bool   // of a pod; else it is what was chosen for a claim that is written
	volume                bool   // to a volume, and not to the claim
	namespace, name       string // of the pod, the volume or the claim
	claimNamespace, claim string // that is written to a volume
	claims                bool   // of a bind: the pod has claims that a fault has made
}

// verdict is what becomes of a request that a trap has met.
type verdict int

const (
	passes verdict = iota
	lost           // it does not reach the server, and is not answered
	silent         // it is done, and not answered
)

// trap meets requests. Its functions may be called concurrently.
type trap struct {
	want func(step) bool
	meet func(context.Context, step) verdict // before it reaches the server
	done func(step)                          // when the server says that it is done, and before anybody is told; nil: nothing
}

// fate is what becomes of all binds of a pod while there is such a fault.
type fate int

const (
	fateGood    fate = iota
	fateRefused      // answered 403, as an admission webhook does, and the server is not asked
	fateLost         // not answered, and the server is not asked
	fateSilent       // not answered, and the server does it
)

// fateOf returns the fate of a pod's binds: of half of them it is good. It is a hash, so that it stays the same.
func fateOf(seed uint64, uid string) fate {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", seed, uid)
	switch h.Sum64() >> 13 & 7 { // the low bits of this hash are weak
	case 0, 1:
		return fateRefused
	case 2:
		return fateLost
	case 3:
		return fateSilent
	}
	return fateGood
}

// apiProxy stands in front of the API server. It speaks TLS with the server's own certificate, records the outcome of
// each bind, and can answer badly.
type apiProxy struct {
	address   string
	record    *Recorder
	seed      uint64
	server    *http.Server
	upstream  *httputil.ReverseProxy
	transport *http.Transport
	done      chan struct{}

	binds sync.WaitGroup // those that are under way

	mu    sync.Mutex
	fault APIFault
	trap  *trap         // nil: none
	muted chan struct{} // closed when watches are no longer muted; nil if they are not
	since time.Time     // when that began
	rng   *rand.Rand
	ends  map[*http.Request]context.CancelFunc // of watches
}

// lateAnswer bounds how long an answer is kept back.
const lateAnswer = 10 * time.Second

// startAPIProxy starts a proxy in front of an API server whose certificate and key are in certs.
func startAPIProxy(server, certs string, seed uint64, record *Recorder) (*apiProxy, error) {
	to, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "apiserver.crt"), filepath.Join(certs, "apiserver.key"))
	if err != nil {
		return nil, fmt.Errorf("load the API server's certificate: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	silent := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // connections break: they are meant to
	p := &apiProxy{
		address: l.Addr().String(), record: record, seed: seed, done: make(chan struct{}),
		rng: rand.New(rand.NewPCG(seed, 3)), ends: map[*http.Request]context.CancelFunc{},
		transport: &http.Transport{
			// The server is this machine's own: what is tested is not whom the proxy trusts.
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
		},
	}
	p.upstream = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     p.transport,
		FlushInterval: -1, // watches
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			panic(http.ErrAbortHandler) // the connection ends, as the server's did
		},
		ErrorLog: silent,
	}
	p.server = &http.Server{
		Handler:   http.HandlerFunc(p.serve),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}},
		ErrorLog:  silent,
	}
	go func() {
		defer close(p.done)
		_ = p.server.ServeTLS(l, "", "") // it ends when it is closed
	}()
	return p, nil
}

// set changes what the proxy does from now on.
func (p *apiProxy) set(f APIFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	if p.muted != nil {
		close(p.muted)
		p.muted = nil
	}
	if f.Mute {
		p.muted, p.since = make(chan struct{}), time.Now()
	}
	if f.Expire {
		for _, end := range p.ends {
			end()
		}
	}
}

// lay lays a trap, instead of the one that was there; nil: none.
func (p *apiProxy) lay(t *trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
}

// trapped returns the trap that meets a request; nil: none.
func (p *apiProxy) trapped(s *step) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil || p.trap == nil || !p.trap.want(*s) {
		return nil
	}
	return p.trap
}

// watchLife is how long a watch lives while watches expire: long enough to tell all that there is.
const watchLife = 300 * time.Millisecond

// watch prepares a watch, and says whether it has expired. It ends with the context of the request that is returned, and done
// must be called when it has.
func (p *apiProxy) watch(r *http.Request) (_ *http.Request, expired bool, done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// One that begins with all that there is is a list.
	if p.fault.Expire && r.URL.Query().Get("sendInitialEvents") == "" {
		return r, true, func() {}
	}
	ctx, cancel := context.WithCancel(r.Context())
	if p.fault.Expire {
		ctx, cancel = context.WithTimeout(r.Context(), watchLife)
	}
	next := r.WithContext(ctx)
	p.ends[next] = cancel
	return next, false, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.ends, next)
		cancel()
	}
}

// While they are muted, watches are silent for a while, tell what there is for a moment, and so on.
const (
	muteFor = 2500 * time.Millisecond
	tellFor = 200 * time.Millisecond
)

// hear waits until watches may tell, or ctx ends.
func (p *apiProxy) hear(ctx context.Context) {
	p.mu.Lock()
	muted, since := p.muted, time.Since(p.since)
	p.mu.Unlock()
	silent := muteFor - since%(muteFor+tellFor)
	if muted == nil || silent <= 0 {
		return
	}
	select {
	case <-muted:
	case <-ctx.Done():
	case <-time.After(silent):
	}
}

// strikes returns the fault that meets a request, which may be a bind, or a step to one, if one does.
func (p *apiProxy) strikes(r *http.Request, bind *Call, at *step) APIFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	switch {
	case isWatch(r):
		return APIFault{}
	case f.Writes && (at == nil || at.bind):
		return APIFault{}
	case f.Writes:
		return []APIFault{
			{}, {Status: http.StatusConflict}, {Status: http.StatusForbidden}, {Status: http.StatusInternalServerError}, {Lost: true}, {Late: true, Keep: forever},
		}[p.rng.IntN(6)]
	case f.Fates && bind != nil:
		switch fateOf(p.seed, bind.UID) {
		case fateRefused:
			return APIFault{Status: http.StatusForbidden}
		case fateLost:
			return APIFault{Lost: true}
		case fateSilent:
			return APIFault{Late: true, Keep: forever}
		}
		return APIFault{}
	case f.Hooked != "" && (bind == nil || !strings.HasPrefix(bind.Name, f.Hooked+"/")):
		return APIFault{}
	case f.Part == 0 || p.rng.Float64() >= f.Part:
		return APIFault{}
	}
	return f
}

// forever is longer than any client waits.
const forever = time.Hour

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func (p *apiProxy) serve(w http.ResponseWriter, r *http.Request) {
	bind, err := readBind(r)
	if err != nil {
		panic(http.ErrAbortHandler) // the client went while it sent
	}
	at, err := readStep(r, bind)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fault := p.strikes(r, bind, at)
	trap := p.trapped(at)
	if trap != nil {
		switch trap.meet(r.Context(), *at) {
		case lost:
			fault = APIFault{Lost: true}
		case silent:
			fault = APIFault{Late: true, Keep: forever}
		}
	}
	if fault.Slow > 0 {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(fault.Slow):
		}
	}
	if fault.Status != 0 {
		refuse(w, fault.Status)
		return
	}
	waiting := r.Context()
	if fault.Lost {
		<-waiting.Done()
		panic(http.ErrAbortHandler)
	}
	if fault.Late {
		// The request goes to the server, whatever becomes of the client.
		r = r.WithContext(context.WithoutCancel(r.Context()))
	}
	answer := &recorded{ResponseWriter: w, drop: fault.Late}
	if isWatch(r) {
		next, expired, done := p.watch(r)
		defer done()
		if expired {
			refuse(w, http.StatusGone)
			return
		}
		r = next
		answer.before = func() { p.hear(waiting) }
	}
	if bind != nil {
		p.binds.Add(1)
		defer p.binds.Done()
		bind.Began = p.record.Now()
		defer func() {
			bind.Returned, bind.Outcome = p.record.Now(), bindOutcome(answer.status)
			p.record.Add(Entry{Call: bind})
		}()
	}
	if trap != nil && trap.done != nil {
		answer.answered = func(status int) {
			if bindOutcome(status) == Done {
				trap.done(*at)
			}
		}
	}
	p.upstream.ServeHTTP(answer, r)
	if fault.Late {
		select {
		case <-waiting.Done():
		case <-time.After(cmp.Or(fault.Keep, lateAnswer)):
		}
		panic(http.ErrAbortHandler)
	}
}

// refuse answers as an API server that is overloaded, broken or in conflict, refuses, or has forgotten what a watch wants.
func refuse(w http.ResponseWriter, status int) {
	reason := map[int]string{
		http.StatusConflict: "Conflict", http.StatusTooManyRequests: "TooManyRequests", http.StatusForbidden: "Forbidden", http.StatusGone: "Expired",
	}[status]
	if reason == "" {
		reason = "InternalError"
	}
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"injected","reason":%q,"code":%d}`, reason, status)
}

// readBind returns the binding that a request asks for, nil if it asks for something else. The body can be read again.
func readBind(r *http.Request) (*Call, error) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/binding") {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	binding, ok := decoded.(*corev1.Binding)
	if !ok {
		return nil, errors.New("not a binding")
	}
	return &Call{Verb: verbBind, UID: string(binding.UID), Name: binding.Namespace + "/" + binding.Name, Node: binding.Target.Name}, nil
}

// readStep returns the step that a request is, nil if it is none. The body can be read again.
func readStep(r *http.Request, bind *Call) (*step, error) {
	if bind != nil {
		namespace, name, _ := strings.Cut(bind.Name, "/")
		return &step{bind: true, namespace: namespace, name: name, claims: strings.HasPrefix(name, "kill-")}, nil
	}
	if r.Method != http.MethodPatch {
		return nil, nil
	}
	s := &step{}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api, v1, and then
	switch {
	case len(path) == 4 && path[2] == "persistentvolumes":
		s.volume, s.name = true, path[3]
	case len(path) == 6 && path[4] == "persistentvolumeclaims":
		s.namespace, s.name = path[3], path[5]
	default:
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var patch struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct{ ClaimRef *corev1.ObjectReference }
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	switch to := patch.Spec.ClaimRef; {
	case to != nil:
		s.claimNamespace, s.claim = to.Namespace, to.Name
	case patch.Metadata.Annotations[volume.AnnSelectedNode] == "": // it makes others void
		return nil, nil
	}
	return s, nil
}

// bindOutcome says what an answer to a bind means; 0 stands for none.
func bindOutcome(status int) Outcome {
	switch {
	case status >= 200 && status < 300:
		return Done
	case status >= 400 && status < 500:
		return Refused
	}
	return Unknown
}

// recorded remembers the status of an answer, and may keep the answer from the client.
type recorded struct {
	http.ResponseWriter
	status int
	drop   bool
	before func() // called before each write, if there is one
	header http.Header

	answered func(status int) // called when the server has answered, if there is one
}

// Header implements http.ResponseWriter.
func (w *recorded) Header() http.Header {
	if !w.drop {
		return w.ResponseWriter.Header()
	}
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *recorded) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		if w.status = status; w.answered != nil {
			w.answered(status)
		}
	}
	if !w.drop {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *recorded) Write(b []byte) (int, error) {
	if w.drop {
		return len(b), nil
	}
	if w.before != nil {
		w.before()
	}
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, for watches.
func (w *recorded) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok && !w.drop {
		f.Flush()
	}
}

// stop ends the proxy and its connections. The outcomes of all binds are recorded then.
func (p *apiProxy) stop() {
	p.server.Close()
	<-p.done
	p.binds.Wait()
	p.transport.CloseIdleConnections()
}
