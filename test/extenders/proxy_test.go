//go:build extenders

package extenders

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// question is a request to an extender as it came, but for the address, which is another each time.
type question struct {
	Method, Path, Proto string
	Header              http.Header
	Length              int64
	Body                string
}

// exchange is a question with its answer.
type exchange struct {
	question
	pod    string
	nodes  int // that it is about
	left   int // of these by a filter
	status int
	answer string
}

// verb is what the extender calls what it was asked to do.
func (q *question) verb() string { return q.Path[strings.LastIndexByte(q.Path, '/')+1:] }

// proxy passes questions on to an extender, and notes them. It is safe for concurrent use.
type proxy struct {
	extender string // its URL, without a path
	// binds says that the extender binds pods, and counts only what it has bound. Then a pod's filter is held back until the pod before is bound: when that
	// is, is a race with the next pod's filter in either scheduler, and what the extender says would depend on it.
	binds bool

	mu        sync.Mutex
	exchanges []exchange
	placing   string        // the pod that has been left nodes, and is not bound
	placed    chan struct{} // closed when it is
	errs      []error
}

// serve serves a proxy until the test ends, and returns its URL.
func (p *proxy) serve(t *testing.T) string {
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return server.URL
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := p.pass(w, r); err != nil {
		p.mu.Lock()
		p.errs = append(p.errs, err)
		p.mu.Unlock()
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

func (p *proxy) pass(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	e := exchange{question: question{r.Method, r.URL.Path, r.Proto, r.Header.Clone(), r.ContentLength, string(body)}}
	isBind := e.verb() == "bind"
	if isBind {
		var args extenderv1.ExtenderBindingArgs
		if err := json.Unmarshal(body, &args); err != nil {
			return err
		}
		e.pod = args.PodName
	} else {
		var args extenderv1.ExtenderArgs
		if err := json.Unmarshal(body, &args); err != nil {
			return err
		}
		e.pod = args.Pod.Name
		if args.Nodes != nil {
			e.nodes = len(args.Nodes.Items)
		} else if args.NodeNames != nil {
			e.nodes = len(*args.NodeNames)
		}
		if err := p.await(r, e.pod); err != nil {
			return err
		}
	}
	onward, err := http.NewRequestWithContext(r.Context(), r.Method, p.extender+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	onward.Header = r.Header.Clone()
	onward.Header.Del("Accept-Encoding") // so that the transport unpacks what it asks for itself
	response, err := http.DefaultClient.Do(onward)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	e.status, e.answer = response.StatusCode, string(answer)
	if !isBind && e.status == http.StatusOK && strings.HasPrefix(e.answer, "{") { // of a filter
		var result extenderv1.ExtenderFilterResult
		if err := json.Unmarshal(answer, &result); err != nil {
			return err
		}
		if result.Nodes != nil {
			e.left = len(result.Nodes.Items)
		} else if result.NodeNames != nil {
			e.left = len(*result.NodeNames)
		}
	}
	p.note(e, isBind)
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(e.status)
	_, err = w.Write(answer)
	return err
}

// await waits, if the extender binds, until no other pod is on its way to a node.
func (p *proxy) await(r *http.Request, pod string) error {
	for {
		p.mu.Lock()
		free, placed := p.placing == "" || p.placing == pod, p.placed
		p.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-placed:
		case <-r.Context().Done():
			return errors.New("the pod before was never bound")
		}
	}
}

func (p *proxy) note(e exchange, isBind bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exchanges = append(p.exchanges, e)
	switch {
	case !p.binds:
	case isBind && e.status == http.StatusOK && p.placing == e.pod:
		p.placing = ""
		close(p.placed)
	case !isBind && e.left > 0 && p.placing == "":
		p.placing, p.placed = e.pod, make(chan struct{})
	}
}

// take returns what was asked so far, and fails the test if something could not be passed on.
func (p *proxy) take(t *testing.T) []exchange {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, err := range p.errs {
		t.Errorf("proxy: %v", err)
	}
	return append([]exchange(nil), p.exchanges...)
}
