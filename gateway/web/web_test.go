package web_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/gateway/web"
)

// budget is how large the page may become, with all its assets, in bytes.
const budget = 100 << 10

// served is the page before an API that answers everything with 418.
func served(t *testing.T) http.Handler {
	t.Helper()
	h, err := web.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func ask(h http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// sources returns the assets as they are in the repository.
func sources(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("assets", "*"))
	if err != nil || len(names) < 5 {
		t.Fatalf("found %d assets: %v", len(names), err)
	}
	all := make(map[string]string)
	for _, name := range names {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = string(body)
	}
	return all
}

func TestEveryAssetIsServedUnderItsPolicy(t *testing.T) {
	h := served(t)
	types := map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}
	for name, body := range sources(t) {
		path := "/page/" + name
		if name == "index.html" {
			path = "/"
		}
		w := ask(h, http.MethodGet, path)
		if w.Code != http.StatusOK || w.Body.String() != body {
			t.Errorf("%s: answered %d with %d bytes, want the asset", path, w.Code, w.Body.Len())
		}
		if got, want := w.Header().Get("Content-Type"), types[filepath.Ext(name)]; got != want {
			t.Errorf("%s: content type %q, want %q", path, got, want)
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, directive := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "require-trusted-types-for 'script'"} {
			if !strings.Contains(policy, directive) {
				t.Errorf("%s: the policy %q does not have %s", path, policy, directive)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: the policy %q allows something unsafe", path, policy)
		}
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options is %q", path, got)
		}
		again := ask(h, http.MethodGet, path, "If-None-Match", w.Header().Get("ETag"))
		if again.Code != http.StatusNotModified || again.Body.Len() != 0 {
			t.Errorf("%s: asked again with its tag: answered %d with %d bytes", path, again.Code, again.Body.Len())
		}
		if head := ask(h, http.MethodHead, path); head.Code != http.StatusOK || head.Body.Len() != 0 {
			t.Errorf("HEAD %s: answered %d with %d bytes", path, head.Code, head.Body.Len())
		}
	}
}

func TestAllElseIsLeftToTheAPI(t *testing.T) {
	h := served(t)
	for _, request := range []struct{ method, path string }{
		{http.MethodGet, "/v1/status"}, {http.MethodPost, "/v1/whatif"}, {http.MethodPost, "/"}, {http.MethodDelete, "/page/main.js"},
		{http.MethodGet, "/page/"}, {http.MethodGet, "/page/index.html"}, {http.MethodGet, "/page/../main.js"},
		{http.MethodGet, "/page/assets/main.js"},
	} {
		if w := ask(h, request.method, request.path); w.Code != http.StatusTeapot {
			t.Errorf("%s %s: answered %d, want it left to the API", request.method, request.path, w.Code)
		}
	}
}

func TestThePageIsSmallAndNeedsNothingFromElsewhere(t *testing.T) {
	all := sources(t)
	size := 0
	named := regexp.MustCompile(`(?:from "\./|(?:src|href)="page/)([^"]+)"`)
	for name, body := range all {
		size += len(body)
		for _, m := range named.FindAllStringSubmatch(body, -1) {
			if all[m[1]] == "" {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
		body = strings.ReplaceAll(body, `xmlns="http://www.w3.org/2000/svg"`, "")
		if m := regexp.MustCompile(`(?i)https?://\S*|url\(\S*|@import\S*|["'(]//\w\S*`).FindString(body); m != "" {
			t.Errorf("%s names %s", name, m)
		}
	}
	if size > budget {
		t.Errorf("the page has %d bytes, more than %d", size, budget)
	}
}

func TestNoTextBecomesMarkupOrCode(t *testing.T) {
	laws := map[string]*regexp.Regexp{
		".js": regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|DOMParser|createContextualFragment|` +
			`document\.write|\beval\(|new Function`),
		".html": regexp.MustCompile(`(?i)<script[^>]*>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:`),
	}
	for name, body := range sources(t) {
		if law := laws[filepath.Ext(name)]; law != nil {
			if m := law.FindString(body); m != "" {
				t.Errorf("%s has %q", name, m)
			}
		}
	}
}

func TestEveryElementThatTheScriptsNameIsInThePage(t *testing.T) {
	all := sources(t)
	there := make(map[string]int)
	for _, m := range regexp.MustCompile(`\bid="([^"]+)"`).FindAllStringSubmatch(all["index.html"], -1) {
		if there[m[1]]++; there[m[1]] > 1 {
			t.Errorf("there are two elements with id %q", m[1])
		}
	}
	seen := 0
	for name, body := range all {
		for _, m := range regexp.MustCompile(`byId\("([^"]+)"\)`).FindAllStringSubmatch(body, -1) {
			if seen++; there[m[1]] == 0 {
				t.Errorf("%s: there is no element with id %q", name, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?:aria-labelledby|aria-describedby|for)="([^"]+)"`).FindAllStringSubmatch(all["index.html"], -1) {
		if there[m[1]] == 0 {
			t.Errorf("index.html: there is no element with id %q", m[1])
		}
	}
	if seen < 20 {
		t.Errorf("found %d names of elements only", seen)
	}
}
