package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func TestThePageShowsTheCluster(t *testing.T) {
	p := open(t, shared.http, "")
	p.await("the head", text("facts")+`.replaceAll("\n", " ").includes("nodes 300 bound 7")`)
	p.await("the head", text("facts")+`.includes("binder")`)
	p.await("the members", `document.querySelectorAll("#members tbody tr").length === 8`)
	p.await("the members", `[...document.querySelectorAll("#members tbody tr")].every((row) => row.children[2].innerText === "yes")`)
	p.await("the shards", `document.querySelectorAll("#shards tbody tr").length === 2`)
	p.await("the counts by priority", `document.querySelector("#priorities tbody tr").innerText.startsWith("1,000\t6")`)
	p.await("the legend", text("legend")+`.includes("cordoned")`)
	p.await("the map", `performance.getEntriesByName("map-draw").length > 0`)

	// Every third of the nodes is of a zone, and each third has other devices: the map in their colour has more colours than one.
	colours := `new Set(new Uint32Array(map.getContext("2d").getImageData(0, 0, map.width, map.height).data.buffer)).size`
	p.await("colours", fmt.Sprintf("((map) => %s)(document.getElementById('map')) > 6", colours))
	p.do("choose devices", chromedp.SetValue(chromedp.CSS("#measure-of"), "devices"))
	get[bool](p, `document.getElementById("measure-of").dispatchEvent(new Event("change"))`)
	p.await("devices", text("legend")+`.includes("no devices")`)
}

// member is what is used of Member.
type member struct {
	Role, ID, Lag, NotReadyBecause string
	Range                          *struct{ First, End int }
}

func TestMembersAreShownAsTheStatusTellsThemAndGoWithIt(t *testing.T) {
	var status struct{ Members []member }
	if err := shared.get("/v1/status", &status); err != nil {
		t.Fatal(err)
	}
	// Between the page and the gateway: from some time on, the status tells one member no more, and another as one that is behind.
	gone, behind := status.Members[1].ID, status.Members[2].ID
	var later atomic.Bool
	front := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: shared.http}) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path != "/v1/status" || !later.Load() {
				return nil
			}
			var answer map[string]any
			if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
				return err
			}
			members := slices.DeleteFunc(answer["members"].([]any), func(m any) bool { return m.(map[string]any)["id"] == gone })
			for _, m := range members {
				if m := m.(map[string]any); m["id"] == behind {
					m["ready"], m["notReadyBecause"], m["lag"] = false, "it loads a snapshot", "1234"
				}
			}
			answer["members"] = members
			body, err := json.Marshal(answer)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Del("Content-Length")
			return err
		},
	}
	server := httptest.NewServer(front)
	t.Cleanup(server.Close)
	p := open(t, server.Listener.Addr().String(), "")
	p.await("the members", `document.querySelectorAll("#members tbody tr").length === 8`)
	row := func(id string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#members tbody tr")].find((row) => row.cells[1].innerText === %q)`, id)
	}
	workers := 0
	for _, m := range status.Members {
		cells := []string{m.Role, "yes", m.Lag}
		if m.Range != nil {
			workers++
			cells = append(cells, fmt.Sprintf("%d–%d", m.Range.First, m.Range.End-1))
		}
		for _, cell := range cells {
			p.await(m.ID+": "+cell, fmt.Sprintf(`[...%s.cells].some((cell) => cell.innerText === %q)`, row(m.ID), cell))
		}
	}
	if workers < 2 {
		t.Errorf("%d workers have a range of nodes, want at least one of each kind", workers)
	}

	later.Store(true)
	p.await("it is gone", fmt.Sprintf(`document.querySelectorAll("#members tbody tr").length === 7 && !%s`, row(gone)))
	p.await("the other is behind", fmt.Sprintf(`%s.innerText.includes("no: it loads a snapshot\t1,234")`, row(behind)))
}

func TestAPlacementIsShownWithoutLoadingThePageAgain(t *testing.T) {
	p := open(t, shared.http, "")
	p.await("the stream", text("placements-state")+` === "live"`)
	p.await("the head", text("facts")+`.includes("bound")`)
	bound := `Number(/bound\s+(\d+)/.exec(` + text("facts") + `)[1])`
	before := get[int](p, bound)
	get[int](p, "window.untouched = 1")
	if err := shared.apply(pod("live", "newcomer", 0, "cpu: 1")); err != nil {
		t.Fatal(err)
	}
	p.await("the placement", text("placements")+`.includes("live/newcomer on node-")`)
	p.await("the count", fmt.Sprintf("%s >= %d", bound, before+1))
	p.await("the same page", "window.untouched === 1")

	p.click("#placements-pause")
	if err := shared.apply(pod("live", "unseen", 0, "cpu: 1")); err != nil {
		t.Fatal(err)
	}
	p.await("the count", fmt.Sprintf("%s >= %d", bound, before+2))
	if got := get[string](p, text("placements")); strings.Contains(got, "live/unseen") {
		t.Errorf("paused, the placements go on: %s", got)
	}
}

func TestAPendingPodIsExplained(t *testing.T) {
	p := open(t, shared.http, "#/pods")
	p.await("the pending pods", text("pending")+`.includes("ml/huge-0")`)
	p.click(`#pending a[href="#/pods/ml/huge-0"]`)
	p.await("the cause", `document.querySelector("#explanation .cause")?.innerText`)
	said := get[string](p, text("explanation"))
	for _, want := range []string{"unschedulable for", "cpu 20, memory 80 GiB", "Insufficient"} {
		if !strings.Contains(said, want) {
			t.Errorf("the explanation does not say %q:\n%s", want, said)
		}
	}

	// Each node is rejected once: the rows add up to the line below them, and that to the nodes less those that could run it.
	table := `document.querySelector("#explanation table")`
	counts := get[[]int](p, `[...`+table+`.querySelectorAll("tbody .number")].map((cell) => Number(cell.innerText))`)
	all := get[int](p, `Number(`+table+`.querySelector("tfoot .number").innerText)`)
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if sum != 300 || all != 300 {
		t.Errorf("rejected by reason: %v, in all %d; want both to be the 300 nodes", counts, all)
	}
	for _, want := range []string{"What would help", "Nearest misses"} {
		if !strings.Contains(said, want) {
			t.Errorf("the explanation does not have %q:\n%s", want, said)
		}
	}
}

func TestAPodThatIsNotThereIsSaidSo(t *testing.T) {
	p := open(t, shared.http, "#/pods", "404")
	p.write("#find-pod-name", "shop/nobody"+kb.Enter)
	p.await("the problem", text("explain-problem")+` === "Not found: pod shop/nobody not found."`)
	if got := get[string](p, "location.hash"); got != "#/pods/shop/nobody" {
		t.Errorf("the address is %s: the search cannot be linked to", got)
	}
}

func TestTheMapShowsWhereAPodFits(t *testing.T) {
	p := open(t, shared.http, "#/fits/shop/picky-0")
	p.await("the legend", text("legend")+`.includes("It fits on 0 of 300 nodes.")`)
	p.write("#measure-pod-name", "ml/train-07"+kb.Enter) // wants 8 devices, of which zone c has that many
	p.await("the legend", `/It fits on [1-9]\d* of 300 nodes/.test(`+text("legend")+")")
}

func TestATokenIsAskedForAndKept(t *testing.T) {
	dir := t.TempDir()
	file := writeTokens(t, dir, "right-token,ann,read\n")
	b := start(t, dir, "127.0.0.1:0", "--authenticate", "tokens", "--token-file", file)
	p := open(t, b.http, "", "401")
	p.await("the dialog", `document.getElementById("sign-in").open`)
	p.write("#token", "wrong-token"+kb.Enter)
	p.await("the dialog again", `document.getElementById("sign-in").open && `+text("sign-in-why")+`.includes("not known")`)
	p.write("#token", "right-token"+kb.Enter)
	p.await("the page", `!document.getElementById("sign-in").open && document.querySelectorAll("#members tbody tr").length === 8`)
	p.await("the stream", text("placements-state")+` === "live"`)
	p.do("load again", chromedp.Navigate(p.base+"/#/pods"), chromedp.Reload())
	p.await("the page", text("pending")+`.includes("every pod is placed")`)
	if get[bool](p, `document.getElementById("sign-in").open`) {
		t.Error("loaded again, the page asks for the token again")
	}
	if got := get[string](p, `JSON.stringify(localStorage) + document.cookie`); got != "{}" {
		t.Errorf("the page keeps %s beyond its tab", got)
	}
}

func TestAnAnswerAboutATokenThatIsGoneAsksForNone(t *testing.T) {
	t.Run("late", func(t *testing.T) { answerAboutATokenThatIsGone(t, false) })
	t.Run("its end is late", func(t *testing.T) { answerAboutATokenThatIsGone(t, true) })
}

// heldBody is of an answer whose end does not come before arrives is closed, or its call has ended.
type heldBody struct {
	io.ReadCloser
	arrives, ended <-chan struct{}
}

func (b heldBody) Read(p []byte) (int, error) {
	select {
	case <-b.arrives:
	case <-b.ended:
	}
	return b.ReadCloser.Read(p)
}

// answerAboutATokenThatIsGone holds an answer back, or its body only, until another token is in use.
func answerAboutATokenThatIsGone(t *testing.T, begins bool) {
	dir := t.TempDir()
	b := start(t, dir, "127.0.0.1:0", "--authenticate", "tokens", "--token-file", writeTokens(t, dir, "right-token,ann,read\n"))
	// Between the page and the gateway: what the status says of the wrong token is on its way until the right one is in use.
	onItsWay, arrives := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: b.http}) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path == "/v1/status" && r.Request.Header.Get("Authorization") == "Bearer wrong-token" {
				once.Do(func() { close(onItsWay) })
				if begins {
					r.Body = heldBody{r.Body, arrives, r.Request.Context().Done()}
					return nil
				}
				select {
				case <-arrives:
				case <-r.Request.Context().Done():
				}
			}
			return nil
		},
	}
	server := httptest.NewServer(front)
	t.Cleanup(server.Close)
	p := open(t, server.Listener.Addr().String(), "", "401")
	p.await("the dialog", `document.getElementById("sign-in").open`)
	get[bool](p, `((fetch) => {
		window.fetch = async (path, options) => {
			const response = await fetch(path, options);
			window.begun ||= path === "v1/status" && options.headers.Authorization === "Bearer wrong-token";
			return response;
		};
		return true;
	})(window.fetch)`)
	p.write("#token", "wrong-token"+kb.Enter)
	select {
	case <-onItsWay:
	case <-time.After(patience):
		t.Fatal("nobody asks with the wrong token")
	}
	if begins {
		p.await("the answer begins", `window.begun === true`)
	}
	p.await("the dialog again", `document.getElementById("sign-in").open && `+text("sign-in-why")+`.includes("not known")`)
	p.write("#token", "right-token"+kb.Enter)
	p.await("the stream", text("placements-state")+` === "live"`)
	if n := get[int](p, `document.querySelectorAll("#members tbody tr").length`); n != 0 {
		t.Fatalf("%d members are shown, before there is an answer", n)
	}
	close(arrives)
	p.await("the members", `document.querySelectorAll("#members tbody tr").length === 8`)
	if get[bool](p, `document.getElementById("sign-in").open`) {
		t.Error("the page asks for a token, though it has one that is good")
	}
	if got := get[string](p, text("banner")); got != "" {
		t.Errorf("the banner says %q", got)
	}
}

func TestTooManyCallsAreToldWithTheTimeToWait(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "127.0.0.1:0", "--authenticate", "tokens", "--token-file", writeTokens(t, dir, "token,ann,read\n"),
		"--caller-qps", "0.5", "--caller-burst", "1")
	p := open(t, b.http, "", "401", "429")
	p.write("#token", "token"+kb.Enter)
	p.await("the problem", `[...document.querySelectorAll(".problem")].some((e) =>
		/^Too much at once: ann calls more than 0.5 times a second\. The gateway asks to wait 2 s\. Trying again in/.test(e.innerText))`)
}

func TestALostConnectionIsToldAndFoundAgain(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "127.0.0.1:0")
	if err := b.apply(node("only", "zone-a", 0, false)); err != nil {
		t.Fatal(err)
	}
	p := open(t, b.http, "", "ERR_", "503", "placements:watch") // the old epoch cannot be resumed
	p.await("the head", text("facts")+`.replaceAll("\n", " ").includes("nodes 1 ")`)
	p.await("the stream", text("placements-state")+` === "live"`)
	b.stop()
	p.await("the banner", `/The gateway does not answer: .*What is shown is .* old\. Trying again/.test(`+text("banner")+")")
	p.await("what was shown", text("facts")+`.replaceAll("\n", " ").includes("nodes 1 ")`)
	start(t, dir, b.http)
	p.await("the end of the banner", `document.getElementById("banner").hidden`)
	p.await("the stream", text("placements-state")+` === "live"`)
	if err := b.apply(pod("default", "late", 0, "cpu: 1")); err != nil {
		t.Fatal(err)
	}
	p.await("a placement of the new epoch", text("placements")+`.includes("default/late on only")`)
}

// reachable is what a person can use.
const reachable = `[...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")].filter((e) => e.checkVisibility())`

// routes are the views of the page, and how to know that there is all that they show.
var routes = []struct{ route, ready string }{
	{"", `document.querySelectorAll("#members tbody tr").length === 8 && document.querySelector("#shards table")`},
	{"nodes/node-a-003", text("node-body") + `.includes("Labels")`},
	{"fits/shop/picky-0", text("legend") + `.includes("It fits on 0")`},
	{"pods/ml/huge-0", `document.querySelector("#explanation .cause") && ` + text("pending") + `.includes("ml/huge-1")`},
	{"whatif", `document.getElementById("manifests").checkVisibility()`},
	{"capacity/shop/web-000", `document.querySelector("#outcome .cause")`},
	{"compare", `document.getElementById("one").checkVisibility()`},
}

func TestEverythingIsReachedByKeyboard(t *testing.T) {
	p := open(t, shared.http, "")
	for _, r := range routes {
		p.visit(r.route, r.ready)
		get[bool](p, `!(window.reached = new Set())`)
		// What is focused must be seen to be, and be in sight.
		look := `((e) => {
			window.reached.add(e);
			if (e === document.body) return "";
			const style = getComputedStyle(e), box = e.getBoundingClientRect();
			const seen = parseFloat(style.outlineWidth) >= 2 && style.outlineStyle !== "none";
			const inSight = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
			return seen && inSight ? "" : e.outerHTML.slice(0, 100) + ": focus seen " + seen + ", in sight " + inSight;
		})(document.activeElement)`
		for range get[int](p, reachable+".length") + 5 {
			p.key(kb.Tab)
			if problem := get[string](p, look); problem != "" {
				t.Errorf("#/%s: %s", r.route, problem)
			}
		}
		missed := get[[]string](p, reachable+`.filter((e) => !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 100))`)
		for _, element := range missed {
			t.Errorf("#/%s: not reached by Tab: %s", r.route, element)
		}
	}
}

func TestTheMapIsReadAndOpenedByKeyboard(t *testing.T) {
	p := open(t, shared.http, "")
	p.await("the map", text("legend")+`.includes("cordoned")`)
	p.key(kb.Tab)
	p.key(kb.Enter) // the link that skips to the content
	if got := get[string](p, "document.activeElement.id"); got != "main" {
		t.Errorf("the skip link leads to %q, not to main", got)
	}
	for range 10 {
		if p.key(kb.Tab); get[string](p, "document.activeElement.id") == "map" {
			break
		}
	}
	p.await("the first node", text("map-tip")+`.startsWith("node-a-000 · zone-a · CPU")`)
	p.await("it is cordoned", text("map-tip")+`.endsWith("cordoned")`)
	p.key(kb.ArrowRight)
	p.await("the second", text("map-tip")+`.startsWith("node-a-003 ")`)
	p.key(kb.PageDown)
	p.await("the next zone", text("map-tip")+`.startsWith("node-b-001 · zone-b")`)
	p.key(kb.ArrowUp)
	p.await("the end of the zone before", text("map-tip")+`.startsWith("node-a-297 ")`)
	p.key(kb.ArrowDown)
	p.key(kb.ArrowDown)
	p.await("down by a row", text("map-tip")+`.startsWith("node-b-0")`)
	p.key(kb.End)
	p.await("the last", text("map-tip")+`.startsWith("node-c-299 ")`)
	p.key(kb.Enter)
	p.await("the node", text("node-title")+` === "Node node-c-299"`)
	p.await("its resources", text("node-body")+`.includes("example.com/gpu")`)
	if got := get[string](p, "document.activeElement.id"); got != "node-title" {
		t.Errorf("the node is opened, and the focus is on %q", got)
	}
}

func TestAClickOnTheMapOpensTheNode(t *testing.T) {
	p := open(t, shared.http, "")
	p.await("the map", text("legend")+`.includes("cordoned")`)
	at := get[[]float64](p, `((box) => [box.x + 3, box.y + 23])(document.getElementById("map").getBoundingClientRect())`)
	p.do("point", chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
	p.await("the tip", text("map-tip")+`.startsWith("node-a-000 ")`)
	p.do("click", chromedp.MouseClickXY(at[0], at[1]))
	p.await("the node", text("node-title")+` === "Node node-a-000"`)
	p.await("its state", text("node-body")+`.includes("Cordoned.")`)
}

func TestThePageIsReadableOnADeskAndOnAPhone(t *testing.T) {
	p := open(t, shared.http, "")
	for _, width := range []int64{1280, 375} {
		p.size(width, 800)
		for _, r := range routes {
			p.visit(r.route, r.ready)
			for _, scheme := range []string{"light", "dark"} {
				p.scheme(scheme)
				p.readable(fmt.Sprintf("#/%s, %d px, %s", r.route, width, scheme))
			}
		}
	}
}

// readable fails the test for what is hard to read or to use in what is shown.
func (p *tab) readable(shown string) {
	p.t.Helper()
	for _, problem := range slices.Concat(get[[]string](p, tooWide), get[[]string](p, tooSmall), get[[]string](p, tooPale)) {
		p.t.Errorf("%s: %s", shown, problem)
	}
}

// tooWide is why the page must be moved sideways to be read.
const tooWide = `(() => {
	const root = document.documentElement;
	return root.scrollWidth > root.clientWidth ? ["the page is " + root.scrollWidth + " px wide, the window " + root.clientWidth] : [];
})()`

// tooSmall is what is hard to read, below 12 px, or to hit, below 24 px (WCAG 2.2, 2.5.8).
const tooSmall = `[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()).flatMap((e) => {
	const named = e.outerHTML.slice(0, 80), box = e.getBoundingClientRect(), problems = [];
	const hasText = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
	if (hasText && parseFloat(getComputedStyle(e).fontSize) < 12) problems.push("text below 12 px: " + named);
	if (e.matches("a, button, input, select, textarea") && !(e.closest("label") && e.type === "checkbox") && Math.min(box.width, box.height) < 24) {
		problems.push("a target of " + box.width + " by " + box.height + " px: " + named);
	}
	return problems;
})`

// tooPale is text with a contrast below 4.5 to what is behind it (WCAG 2.2, 1.4.3).
const tooPale = `(() => {
	const rgb = (text) => text.match(/[\d.]+/g).map(Number);
	const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const colour = rgb(getComputedStyle(e).backgroundColor);
			if (colour.length === 3 || colour[3] === 1) return colour;
		}
		return [255, 255, 255];
	};
	const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
	return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && hasText(e)).flatMap((e) => {
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		return contrast < 4.5 ? ["contrast " + contrast.toFixed(1) + ": " + e.outerHTML.slice(0, 80)] : [];
	});
})()`
