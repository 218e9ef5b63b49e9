package page

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long a page may take for what it is asked.
const patience = 5 * time.Minute

// findChromium returns the path of the browser, which it installs if it can.
func findChromium() (string, error) {
	look := func() (string, bool) {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if path, err := exec.LookPath(name); err == nil {
				return path, true
			}
		}
		return "", false
	}
	if path, found := look(); found {
		return path, nil
	}
	aptGet, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return "", fmt.Errorf("there is no Chromium: install it (on Debian: apt-get install chromium), or run this as root on Debian")
	}
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-qq", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"},
	} {
		cmd := exec.Command(aptGet, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	if path, found := look(); found {
		return path, nil
	}
	return "", fmt.Errorf("apt-get has installed chromium, but there is none")
}

// startBrowser starts a browser that reaches nothing but this machine. Cancelling its context ends it.
func startBrowser(path string) (context.Context, context.CancelFunc, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("lang", "en"),
		chromedp.Flag("enable-precise-memory-info", true),
	)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	browser, closeBrowser := chromedp.NewContext(allocator)
	cancel := func() { closeBrowser(); end() }
	if err := chromedp.Do(browser); err != nil {
		cancel()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return browser, cancel, nil
}

// tab is a tab of the browser with the page in it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string // of the gateway

	mu        sync.Mutex
	complaint []string // what the console shows of errors and warnings
	requests  []string // URLs
	expected  []string // texts of complaints that belong to the test
}

// open opens a route of the page in a tab of its own. When the test ends, the console must be free of errors, but for those with
// one of the expected texts, and the page must have asked no host but the gateway.
func open(t *testing.T, gateway, route string, expected ...string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx, base: "http://" + gateway, expected: expected}
	t.Cleanup(func() {
		cancel()
		p.check()
	})
	if err := chromedp.Listen(ctx, p.hear); err != nil {
		t.Fatal(err)
	}
	p.size(1280, 900)
	p.do("open the page", chromedp.Navigate(p.base+"/"+route))
	return p
}

func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		text := string(e.Type)
		for _, arg := range e.Args {
			text += " " + arg.Description + string(arg.Value)
		}
		p.complaint = append(p.complaint, text) // the page says nothing there, and whatever it does is a mistake
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.complaint = append(p.complaint, text)
	case *log.EventEntryAdded:
		p.complaint = append(p.complaint, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// check is what every test ends with.
func (p *tab) check() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.complaint {
		if !slices.ContainsFunc(p.expected, func(text string) bool { return strings.Contains(c, text) }) {
			p.t.Errorf("the console says: %s", c)
		}
	}
	if len(p.requests) < 5 {
		p.t.Errorf("heard of %d requests only: the page cannot have been loaded", len(p.requests))
	}
	for _, request := range p.requests {
		if u, err := url.Parse(request); err != nil || "http://"+u.Host != p.base {
			p.t.Errorf("the page asks %s, not only its gateway", request)
		}
	}
}

// do runs a step in the tab.
func (p *tab) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// size makes the window so many CSS pixels wide and high; up to 600 it is a phone.
func (p *tab) size(width, height int64) {
	p.t.Helper()
	var options []chromedp.EmulateViewportOption
	if width <= 600 {
		options = append(options, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	p.do("resize", chromedp.EmulateViewport(width, height, options...))
}

// scheme makes the user prefer light or dark.
func (p *tab) scheme(name string) {
	p.t.Helper()
	p.do("set the colour scheme", chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
		})
		return err
	}))
}

// get returns the value of an expression.
func get[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("evaluate %s: %v", expression, err)
	}
	return value
}

// await waits until an expression is true.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		value, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && value {
			return
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("%s: it does not come to be that %s: %v\n%s", what, expression, err, get[string](p, "document.body.innerText"))
		case <-tick.C:
		}
	}
}

// text is an expression of the text of an element.
func text(id string) string { return fmt.Sprintf("document.getElementById(%q).innerText", id) }

// key presses a key.
func (p *tab) key(key string) {
	p.t.Helper()
	p.do("press a key", chromedp.KeyEvent(key))
}

// click clicks on what a CSS selector finds, as people do: with the pointer.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.do("click on "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// write writes into an input, in place of what is in it.
func (p *tab) write(selector, text string) {
	p.t.Helper()
	p.await(selector+" is there", fmt.Sprintf("document.querySelector(%q)?.checkVisibility()", selector))
	get[bool](p, fmt.Sprintf("!document.querySelector(%q).select()", selector))
	p.do("write into "+selector, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// visit opens another route in the same page.
func (p *tab) visit(route, ready string) {
	p.t.Helper()
	get[string](p, fmt.Sprintf("location.hash = %q", "#/"+route))
	p.await(route, ready)
}
