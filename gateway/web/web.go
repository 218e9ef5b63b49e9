// Package web is the page that the gateway serves to people: the cluster as a map, the queue, the members, placements as
// they are made, why a pod is where it is, and what would happen if.
//
// It is plain HTML, CSS and ES modules, as they are in assets; nothing is built, and nothing is loaded from elsewhere. It
// holds no data of the cluster: it calls the JSON API like any other client, with the token of whoever looks at it.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed assets
var assets embed.FS

// folder is the path of the assets; the page itself is at /.
const folder = "/page/"

// policy lets the page load and call only what its own host serves, and turn no text into markup or code.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// contentTypes are those of the assets. The types that the machine knows may be others.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// file is an asset.
type file struct {
	name, contentType, tag string
	body                   []byte
}

// Handler serves the page at / and its assets under /page/, to everyone, and leaves all other requests to api.
func Handler(api http.Handler) (http.Handler, error) {
	files, err := load()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, found := files[r.URL.Path]
		if !found || r.Method != http.MethodGet && r.Method != http.MethodHead {
			api.ServeHTTP(w, r)
			return
		}
		for name, value := range map[string]string{
			"Cache-Control":                "no-cache", // look whether it is another version; the tag tells
			"Content-Security-Policy":      policy,
			"Content-Type":                 f.contentType,
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"ETag":                         f.tag,
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
		} {
			w.Header().Set(name, value)
		}
		http.ServeContent(w, r, f.name, time.Time{}, bytes.NewReader(f.body))
	}), nil
}

// load returns the assets by the path under which they are served.
func load() (map[string]*file, error) {
	files := make(map[string]*file)
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		contentType, known := contentTypes[path.Ext(name)]
		if !known {
			return fmt.Errorf("%s: a file of this kind has no content type", name)
		}
		served := folder + path.Base(name)
		if served == folder+"index.html" {
			served = "/"
		}
		files[served] = &file{name: name, contentType: contentType, tag: fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(body))), body: body}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load the page: %w", err)
	}
	return files, nil
}
