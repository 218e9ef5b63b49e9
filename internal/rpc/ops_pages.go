package rpc

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// pageHead begins the pages for people, with kube-scheduler's words.
const pageHead = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

// configz answers with the configuration in effect.
func configz(config map[string]any) http.Handler {
	if config == nil {
		config = map[string]any{}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.Marshal(config)
		if err != nil {
			answerText(w, http.StatusInternalServerError, fmt.Sprintf("encode the configuration: %v\n", err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(text) // a client that is gone does not need it
	})
}

// flagz answers with the value of each flag.
func flagz(name string, flags map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var page strings.Builder
		fmt.Fprintf(&page, pageHead, name, "flagz")
		for _, flag := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(&page, "%s=%s\n", flag, flags[flag])
		}
		answerText(w, http.StatusOK, page.String())
	})
}

// statusz answers with what the process says of itself, and which paths there are.
func statusz(name string, status func() [][2]string, paths []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var page strings.Builder
		fmt.Fprintf(&page, pageHead+"\n", name, "statusz")
		if status != nil {
			for _, line := range status() {
				fmt.Fprintf(&page, "%s: %s\n", line[0], line[1])
			}
		}
		fmt.Fprintf(&page, "Paths: %s\n", strings.Join(paths, " "))
		answerText(w, http.StatusOK, page.String())
	})
}

// orStructured answers with text who accepts it first, or accepts anything, and lets structured answer the others.
func orStructured(text, structured http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); accept == "" || accept == "*/*" || strings.HasPrefix(accept, "text/") {
			text.ServeHTTP(w, r)
			return
		}
		structured.ServeHTTP(w, r)
	})
}
