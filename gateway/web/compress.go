package web

import (
	"compress/gzip"
	"net/http"
	"strings"
)

// mapPath is the route of GetMap: some 100 bytes for each tile, of which there are thousands, and the page asks every two
// seconds. Compressed it is a twentieth.
const mapPath = "/v1/map"

// compressMap has api answer, and compresses maps for those who read gzip. No client that is known refuses it by a weight of 0.
func compressMap(api http.Handler, w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != mapPath || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		api.ServeHTTP(w, r)
		return
	}
	body, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level exists
	compressed := &gzipWriter{ResponseWriter: w, body: body}
	api.ServeHTTP(compressed, r)
	if compressed.begun {
		_ = body.Close() // an error: whoever asked has gone
	}
}

// gzipWriter compresses what is written.
type gzipWriter struct {
	http.ResponseWriter
	body  *gzip.Writer
	begun bool // the header has been written
}

func (w *gzipWriter) WriteHeader(code int) {
	w.begun = true
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Encoding", "gzip")
	w.ResponseWriter.WriteHeader(code)
}

func (w *gzipWriter) Write(b []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return w.body.Write(b)
}

// Unwrap is what http.ResponseController looks for.
func (w *gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
