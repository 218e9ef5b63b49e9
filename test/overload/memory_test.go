package overload

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What a process may take at most: so much whatever the cluster, and so much for each pod, in bytes.
const (
	baseBytes   = 256 << 20
	bytesPerPod = 8 << 10
	// What a heap may grow by for other reasons than pods: what workers keep of each class on each node.
	slackBytes   = 16 << 20
	bytesPerCell = 128
)

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func (r *run) ids() []string { return slices.Sorted(maps.Keys(r.ByID)) }

var heapAlloc = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// memory returns what each process's heap holds after a collection, in bytes.
func (r *run) memory() map[string]int64 {
	r.t.Helper()
	held := map[string]int64{}
	var line strings.Builder
	for _, id := range r.ids() {
		r.heap(id) // a pool lets go of what it has at the second collection
		text, err := r.heap(id)
		found := heapAlloc.FindSubmatch(text)
		if err != nil || found == nil {
			r.t.Fatalf("heap of %s: %v: %.200s", id, err, text)
		}
		held[id], _ = strconv.ParseInt(string(found[1]), 10, 64)
		fmt.Fprintf(&line, "  %s %.1f MiB (%d B per pod)", id, mib(held[id]), held[id]/int64(max(r.pods, 1)))
	}
	r.say("heap after a collection:%s", line.String())
	return held
}

// heap returns a process's heap profile as text, after a collection.
func (r *run) heap(id string) ([]byte, error) {
	response, err := http.Get("http://" + r.Ops(id) + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// checkPeak fails the test if a process has ever had more memory than it may.
func (r *run) checkPeak() {
	r.t.Helper()
	limit := int64(baseBytes + bytesPerPod*r.pods)
	var line strings.Builder
	for _, id := range r.ids() {
		u, err := r.ByID[id].Usage()
		if err != nil {
			r.t.Fatal(err)
		}
		if u.PeakRSS > limit {
			r.t.Errorf("%s has had %.0f MiB, %.0f MiB are its bound", id, mib(u.PeakRSS), mib(limit))
		}
		fmt.Fprintf(&line, "  %s %.0f MiB (CPU %.1f s)", id, mib(u.PeakRSS), u.CPU.Seconds())
	}
	r.say("peak resident memory, bound %.0f MiB:%s", mib(limit), line.String())
}
