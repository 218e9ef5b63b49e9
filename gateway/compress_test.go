package gateway_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/gateway/web"
	"github.com/berth-scheduler/berth/internal/access"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// charted is a connection whose answers are maps of as many tiles as are asked for, whose names do not repeat themselves.
type charted struct {
	silent
	like string // what all names end with
}

func (c *charted) Invoke(_ context.Context, _ string, request, answer any, _ ...grpc.CallOption) error {
	asked := request.(*schedulingv1.GetMapRequest)
	if asked.GetPod() == "nobody" {
		return rpc.Error(codes.NotFound, rpc.ReasonNotFound, "not found: %s", strings.Repeat("x", 8<<10))
	}
	zone := &schedulingv1.Zone{Name: "a"}
	for range asked.GetMaxTiles() {
		zone.Tiles = append(zone.Tiles, &schedulingv1.Tile{Node: fmt.Sprintf("node-%016x", rand.Uint64()) + c.like, Nodes: 1, DevicePermille: -1})
	}
	answer.(*schedulingv1.GetMapResponse).Zones = []*schedulingv1.Zone{zone}
	return nil
}

// paged is the JSON API behind the page, as people reach it.
func paged(t *testing.T, conn grpc.ClientConnInterface, cfg gateway.HTTPConfig) http.Handler {
	t.Helper()
	api, err := gateway.Handler(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := web.Handler(api)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

func askMap(ctx context.Context, handler http.Handler, w http.ResponseWriter, query string) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/map?"+query, nil)
	r.Header.Set("Authorization", "hog")
	r.Header.Set("Accept-Encoding", "gzip")
	handler.ServeHTTP(w, r)
}

// closed is the answer to a client that opens no window: 4 KiB go before anybody waits for it.
type closed struct {
	*httptest.ResponseRecorder
	gone  int
	stuck *atomic.Int64
	reads chan struct{} // closed when it does
}

func (c *closed) Write(b []byte) (int, error) {
	if c.gone += len(b); c.gone > 4<<10 {
		c.stuck.Add(1)
		<-c.reads
		c.stuck.Add(-1)
		return len(b), nil // and is not kept
	}
	return c.ResponseRecorder.Write(b)
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // of what pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// unreadMaps asks for maps that are not read, of 1,000 tiles each, and returns how many are held then, and how many bytes of each.
func unreadMaps(t *testing.T, conn *charted, asked int64) (held, each int64) {
	t.Helper()
	handler := paged(t, conn, gateway.HTTPConfig{Known: named, Turns: rpc.NewTurns(1)})
	var stuck, refused atomic.Int64
	reads := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(reads)
	before := inUse()
	for range asked {
		asking.Go(func() {
			w := &closed{ResponseRecorder: httptest.NewRecorder(), stuck: &stuck, reads: reads}
			if askMap(t.Context(), handler, w, "max_tiles=1000"); w.Code == http.StatusTooManyRequests {
				if w.Header().Get("Content-Encoding") != "" || !strings.Contains(w.Body.String(), "QUEUE_FULL") {
					t.Errorf("refused with %v, %s", w.Header(), w.Body)
				}
				refused.Add(1)
			}
		})
	}
	for tick := time.Tick(5 * time.Millisecond); stuck.Load()+refused.Load() < asked; {
		<-tick
	}
	return stuck.Load(), (inUse() - before) / stuck.Load()
}

func TestMapsThatNobodyReadsAreBounded(t *testing.T) {
	if held, bytes := unreadMaps(t, &charted{}, 100); held > 64 || bytes > 256<<10 {
		t.Errorf("%d are held of one caller, of %d bytes each; want half of 128 requests, and no compressor", held, bytes)
	}
	// What is sent is small here, but whoever has made it has it whole.
	if held, bytes := unreadMaps(t, &charted{like: strings.Repeat("x", 2<<10)}, 20); held > 16 {
		t.Errorf("%d large ones are held of one caller, of %d bytes each; want half of 64 MiB", held, bytes)
	}
}

// A compressor takes more than a MiB.
func TestARefusedMapTakesNoCompressor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		handler := paged(t, &charted{}, gateway.HTTPConfig{Known: func(context.Context, []string) (string, error) {
			return "", rpc.Error(codes.Unauthenticated, access.ReasonUnknownToken, "who?")
		}})
		const asked = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range asked {
			w := httptest.NewRecorder()
			if askMap(t.Context(), handler, w, ""); w.Code != http.StatusUnauthorized || w.Header().Get("Content-Encoding") != "" {
				t.Errorf("%d %v, want 401 as it is", w.Code, w.Header())
			}
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / asked; bytes > 64<<10 {
			t.Errorf("a refusal takes %d bytes, want 64 KiB at most", bytes)
		}
	})
}

func TestMapsAreCompressedForThoseWhoReadThat(t *testing.T) {
	server := httptest.NewServer(paged(t, &charted{}, gateway.HTTPConfig{}))
	defer server.Close()
	for _, test := range []struct {
		query, accepts string
		code, tiles    int
		compressed     bool
	}{
		{"max_tiles=1000", "gzip, deflate, br, zstd", http.StatusOK, 1000, true},
		{"max_tiles=1001", "gzip", http.StatusOK, 1001, true}, // with the same compressor
		{"max_tiles=1", "gzip", http.StatusOK, 1, false},
		{"max_tiles=1000", "identity", http.StatusOK, 1000, false},
		{"pod=nobody", "gzip", http.StatusNotFound, 0, false},
	} {
		request, err := http.NewRequest(http.MethodGet, server.URL+"/v1/map?"+test.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", test.accepts)
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body := io.Reader(response.Body)
		if got := response.Header.Get("Content-Encoding") == "gzip"; got != test.compressed {
			t.Errorf("%s for %q: compressed: %t, want %t", test.query, test.accepts, got, test.compressed)
		} else if got {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		var said struct {
			Zones []struct{ Tiles []struct{ Node string } }
		}
		text, err := io.ReadAll(body)
		if err == nil {
			err = json.Unmarshal(text, &said)
		}
		tiles := 0
		for _, zone := range said.Zones {
			tiles += len(zone.Tiles)
		}
		if err != nil || tiles != test.tiles || response.StatusCode != test.code {
			t.Errorf("%s for %q: answered %d with %d tiles, %v; want %d with %d", test.query, test.accepts, response.StatusCode, tiles, err, test.code, test.tiles)
		}
	}
}
