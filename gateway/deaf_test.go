package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/gateway"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// wordy is a connection whose answers are of 4 MiB, if the request asks for them, and else small.
type wordy struct{ silent }

func (*wordy) Invoke(_ context.Context, _ string, request, answer any, _ ...grpc.CallOption) error {
	if request.(*schedulingv1.GetNodeRequest).GetName() == "large" {
		answer.(*schedulingv1.GetNodeResponse).Node = &schedulingv1.Node{Name: strings.Repeat("x", 4<<20)}
	}
	return nil
}

// unheard is the answer to a client that does not read what is large.
type unheard struct {
	*httptest.ResponseRecorder
	held  *atomic.Int64 // bytes of all of them
	reads chan struct{} // closed when it does
}

func (u unheard) Write(b []byte) (int, error) {
	if len(b) >= 16<<10 { // the first part of what is large: the rest waits behind it
		u.held.Add(4 << 20)
		defer u.held.Add(-4 << 20)
		<-u.reads
	}
	return u.ResponseRecorder.Write(b)
}

func TestJSONAnswersThatNobodyReadsAreBounded(t *testing.T) {
	handler, err := gateway.Handler(&wordy{}, gateway.HTTPConfig{Known: named})
	if err != nil {
		t.Fatal(err)
	}
	var held, refused atomic.Int64
	reads := make(chan struct{})
	ask := func(caller, node string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nodes/"+node, nil)
		r.Header.Set("Authorization", caller)
		w := unheard{httptest.NewRecorder(), &held, reads}
		handler.ServeHTTP(w, r)
		return w.ResponseRecorder
	}
	var asking sync.WaitGroup
	end := sync.OnceFunc(func() { close(reads); asking.Wait() })
	defer end()
	// deaf lets a caller ask for so many large answers, and returns how many bytes are held then.
	deaf := func(caller string, asked int64) int64 {
		refused.Store(0)
		before := held.Load()
		for range asked {
			asking.Go(func() {
				if w := ask(caller, "large"); w.Code == http.StatusTooManyRequests {
					if w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "QUEUE_FULL") {
						t.Errorf("refused with %v, %s", w.Header(), w.Body)
					}
					refused.Add(1)
				} else if w.Code != http.StatusOK || w.Body.Len() < 4<<20 {
					t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
				}
			})
		}
		for tick := time.Tick(5 * time.Millisecond); (held.Load()-before)>>22+refused.Load() < asked; {
			<-tick
		}
		return held.Load()
	}
	if n := deaf("hog", 30); n > 33<<20 {
		t.Errorf("%d bytes are held of one caller, want half of 64 MiB", n)
	}
	for k := range 6 {
		deaf(fmt.Sprint("other", k), 10)
	}
	if n := held.Load(); n > 64<<20 {
		t.Errorf("%d bytes are held of all, want 64 MiB at most", n)
	}
	if w := ask("ann", "small"); w.Code != http.StatusOK {
		t.Errorf("a small answer: %d %s", w.Code, w.Body)
	}
	end()
	if w := ask("hog", "large"); w.Code != http.StatusOK {
		t.Errorf("once all have been read: %d %s", w.Code, w.Body)
	}
}

// slow is the answer to a client that reads 4 KiB a second, of a bubble's fake time.
type slow struct {
	*httptest.ResponseRecorder
	deadline time.Time // of writes
}

func (s *slow) SetWriteDeadline(deadline time.Time) error {
	s.deadline = deadline
	return nil
}

func (s *slow) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second >> 12)
	if time.Now().After(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return s.ResponseRecorder.Write(b)
}

func TestAClientThatReadsALargeJSONAnswerSlowlyGetsAllOfIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		handler, err := gateway.Handler(&wordy{}, gateway.HTTPConfig{Known: named})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nodes/large", nil)
		r.Header.Set("Authorization", "ann")
		w := &slow{ResponseRecorder: httptest.NewRecorder()}
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Body.Len() < 4<<20 {
			t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
		}
	})
}
