package page

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// answered is what an answer says at its head, without the commas of numbers.
const answered = `document.querySelector("#outcome .cause")?.innerText.replaceAll(/(\d),(?=\d)/g, "$1")`

// figures returns the rows of a table of the outcome, by their heads, without the commas of numbers.
func (p *tab) figures(caption string) map[string][]string {
	p.t.Helper()
	return get[map[string][]string](p, fmt.Sprintf(`Object.fromEntries([...document.querySelectorAll("#outcome table[aria-label='%s'] tbody tr")].map((row) =>
		[row.cells[0].innerText, [...row.cells].slice(1).map((cell) => cell.innerText.replaceAll(",", ""))]))`, caption))
}

// openQuestion opens a question when nothing above the form moves any more.
func openQuestion(t *testing.T, route string, expected ...string) *tab {
	t.Helper()
	p := open(t, shared.http, "#/"+route, expected...)
	p.await("the head", text("facts")+`.includes("source")`)
	return p
}

// choose selects an option, as people do: by the keyboard or by the pointer, which both end in this event.
func (p *tab) choose(selector, value string) {
	p.t.Helper()
	p.do("choose "+value, chromedp.SetValue(chromedp.CSS(selector), value))
	get[bool](p, fmt.Sprintf(`document.querySelector(%q).dispatchEvent(new Event("change"))`, selector))
}

// utilization is what is used of Utilization.
type utilization struct{ Nodes, Pods int }

type whatIf struct {
	Placed, Unplaced int
	Before, After    utilization
	Outcomes         []struct{ Namespace, Name, Node, From, Message string }
}

func TestWhatIfAnswersAsTheGatewayDoes(t *testing.T) {
	newNode := node("node-new", "zone-z", 0, false)
	for _, test := range []struct {
		kind   string
		write  map[string]string
		change map[string]any
		says   string // in the outcome, beside the figures
	}{
		{"add", map[string]string{"node": "node-a-003", "count": "4"}, map[string]any{"addNodes": map[string]any{"like": "node-a-003", "count": 4}}, ""},
		{"addNew", map[string]string{"manifests": newNode}, map[string]any{"addNodes": map[string]any{"manifests": newNode}}, "shop/picky-0\tnode-new"},
		{"remove", map[string]string{"node": "node-a-003"}, map[string]any{"removeNode": "node-a-003"}, ""},
		{"drain", map[string]string{"node": "node-a-003"}, map[string]any{"drain": "node-a-003"}, "It was on node-a-003."},
		{"cordon", map[string]string{"node": "node-a-003"}, map[string]any{"cordon": "node-a-003"}, ""},
		{"uncordon", map[string]string{"node": "node-a-000"}, map[string]any{"uncordon": "node-a-000"}, ""},
		{"label", map[string]string{"node": "node-c-089", "key": "topology.kubernetes.io/zone", "value": "zone-z"},
			map[string]any{"labelNode": map[string]any{"node": "node-c-089", "key": "topology.kubernetes.io/zone", "value": "zone-z"}}, "shop/picky-0\tnode-c-089"},
		{"unlabel", map[string]string{"node": "node-a-003", "key": "topology.kubernetes.io/zone"},
			map[string]any{"labelNode": map[string]any{"node": "node-a-003", "key": "topology.kubernetes.io/zone", "remove": true}}, "no zone"},
		{"configure", map[string]string{"configuration": somebodyElses}, map[string]any{"configuration": somebodyElses}, "no profile has its spec.schedulerName"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			var want whatIf
			request := map[string]any{"changes": []any{test.change}, "pending": true, "manifests": example, "times": 2}
			if err := shared.post("/v1/whatif", request, &want); err != nil {
				t.Fatal(err)
			}
			p := openQuestion(t, "whatif")
			p.click("#example")
			p.write("#times", "2")
			p.click("#pending-too")
			p.click("#add-change")
			p.choose("#changes select", test.kind)
			for name, value := range test.write {
				p.write("#changes [name="+name+"]", value)
			}
			p.click("#whatif .primary")
			p.await("the answer", fmt.Sprintf(`%s?.startsWith("%d pods would be placed, %d not.")`, answered, want.Placed, want.Unplaced))
			figures := p.figures("The cluster")
			for name, figure := range map[string][2]int{
				"nodes": {want.Before.Nodes, want.After.Nodes}, "pods placed": {want.Before.Pods, want.After.Pods},
			} {
				if got := fmt.Sprint(figures[name]); got != fmt.Sprint(figure) {
					t.Errorf("%s: %s, the gateway says %v", name, got, figure)
				}
			}
			if got := get[int](p, `document.querySelectorAll("#outcome table[aria-label^='What would become'] tbody tr").length`); got != len(want.Outcomes) {
				t.Errorf("%d pods are listed, the gateway answers for %d", got, len(want.Outcomes))
			}
			if said := get[string](p, text("outcome")); !strings.Contains(said, test.says) {
				t.Errorf("the outcome does not say %q:\n%s", test.says, said)
			}

			p.click("#summary-only")
			p.click("#whatif .primary")
			p.await("the same counts without the pods", fmt.Sprintf(`%s?.startsWith("%d pods would be placed, %d not.") && document.querySelectorAll("#outcome table").length === 1`,
				answered, want.Placed, want.Unplaced))
		})
	}
}

// somebodyElses is a configuration by which nothing of the fleet is scheduled.
const somebodyElses = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: somebody-else\n"

// example is the pod of the page's example, as far as it is asked about.
var example = pod("default", "example", 0, "cpu: 2, memory: 4Gi")

func TestCapacityIsTheGateways(t *testing.T) {
	type room struct {
		Fit      int
		AtLeast  bool
		Message  string
		Verdicts []struct{ Nodes int }
	}
	p := openQuestion(t, "capacity/shop/web-000")
	check := func(request map[string]any) (got room) {
		t.Helper()
		if err := shared.post("/v1/capacity", request, &got); err != nil {
			t.Fatal(err)
		}
		says := fmt.Sprintf("%d more fit.", got.Fit)
		if got.AtLeast {
			says = "At least " + says
		}
		p.await(says, fmt.Sprintf(`%s === %q`, answered, says))
		if said := get[string](p, text("outcome")); !strings.Contains(said, got.Message) {
			t.Errorf("the outcome does not say %q:\n%s", got.Message, said)
		}
		sum := 0
		for _, v := range got.Verdicts {
			sum += v.Nodes
		}
		shown := get[int](p, `[...document.querySelectorAll("#outcome tbody .number")].reduce((sum, cell) => sum + Number(cell.innerText), 0)`)
		if shown != sum {
			t.Errorf("the verdicts are of %d nodes, the gateway's of %d", shown, sum)
		}
		return got
	}
	if got := check(map[string]any{"namespace": "shop", "name": "web-000"}); got.Fit < 10 || got.Message == "" {
		t.Errorf("the gateway says %+v: nothing to compare with", got)
	}
	p.write("#limit", "3"+kb.Enter)
	check(map[string]any{"namespace": "shop", "name": "web-000", "limit": 3})

	p.write("#limit", "10000")
	p.click("#add-change")
	p.write("#changes [name=node]", "node-c-089"+kb.Enter)
	check(map[string]any{"namespace": "shop", "name": "web-000", "changes": []any{map[string]any{"addNodes": map[string]any{"like": "node-c-089"}}}})

	p.click(`#changes button[aria-label="Remove this change"]`)
	p.write("#like", " ")
	p.click("#example")
	p.click("#whatif .primary")
	check(map[string]any{"manifest": example})

	p.visit("pods/ml/huge-0", `document.querySelector("#explanation .cause")?.innerText`)
	p.click(`#explanation a[href="#/capacity/ml/huge-0"]`)
	if got := check(map[string]any{"namespace": "ml", "name": "huge-0"}); got.Fit != 0 {
		t.Errorf("%d more of a pod fit that is larger than every node", got.Fit)
	}
}

func TestConfigurationsAreComparedAsByTheGateway(t *testing.T) {
	p := openQuestion(t, "compare")
	p.click("#example-configuration")
	other := get[string](p, `document.getElementById("two").value`)
	type comparison struct {
		Moved, Same, OnlyOne, OnlyTwo int
		One, Two                      utilization
		Moves                         []struct{ Namespace, Name, One, Two string }
	}
	compare := func(request map[string]any) (want comparison) {
		t.Helper()
		if err := shared.post("/v1/compare", request, &want); err != nil {
			t.Fatal(err)
		}
		p.click("#whatif .primary")
		p.await("the answer", fmt.Sprintf(`%s === "%d pods on the same node, %d on another."`, answered, want.Same, want.Moved))
		said := get[string](p, text("outcome"))
		if says := fmt.Sprintf("Placed by the one only: %d. By the other only: %d.", want.OnlyOne, want.OnlyTwo); !strings.Contains(said, says) {
			t.Errorf("the outcome does not say %q:\n%s", says, said)
		}
		if got := fmt.Sprint(p.figures("The cluster")["pods placed"]); got != fmt.Sprint([]int{want.One.Pods, want.Two.Pods}) {
			t.Errorf("pods placed: %s, the gateway says %d and %d", got, want.One.Pods, want.Two.Pods)
		}
		moves := p.figures("Pods whose place differs, in queue order")
		if len(moves) != min(len(want.Moves), 200) {
			t.Errorf("%d moves are listed of %d", len(moves), len(want.Moves))
		}
		for _, m := range want.Moves[:len(moves)] {
			if got := fmt.Sprint(moves[m.Namespace+"/"+m.Name]); got != fmt.Sprint([]string{cmp.Or(m.One, "none"), cmp.Or(m.Two, "none")}) {
				t.Errorf("%s/%s: %s, the gateway says %s and %s", m.Namespace, m.Name, got, m.One, m.Two)
			}
		}
		return want
	}
	p.click("#everything")
	if c := compare(map[string]any{"other": other, "everything": true}); c.Moved == 0 {
		t.Error("packing nodes moves no pod: nothing to compare with")
	}
	p.write("#two", somebodyElses)
	if c := compare(map[string]any{"other": somebodyElses, "everything": true}); c.OnlyOne == 0 || c.OnlyTwo != 0 {
		t.Errorf("under a configuration that schedules none of the pods %d and %d are placed by one only: nothing to compare with", c.OnlyOne, c.OnlyTwo)
	}
	p.write("#two", other)
	p.click("#everything")
	p.write("#manifests", example)
	p.write("#times", "20")
	compare(map[string]any{"other": other, "manifests": example, "times": 20})
}

func TestWhatIsWrongIsSaidAtItsFieldInTheGatewaysWords(t *testing.T) {
	p := openQuestion(t, "whatif", "400", "404")
	// wrong is what is said within an element, and that the input that has the focus is the one that is described by it.
	wrong := func(field, words, input string) {
		t.Helper()
		p.await(field, fmt.Sprintf(`document.querySelector("[data-field='%s'] > .violation")?.innerText.includes(%q)`, field, words))
		if input == "" {
			return
		}
		if got := get[string](p, `((e) => e.getAttribute("aria-invalid") + " " + document.getElementById(e.getAttribute("aria-describedby")).innerText)(document.activeElement)`); !strings.HasPrefix(got, "true") || !strings.Contains(got, words) {
			t.Errorf("%s: the input with the focus is invalid: %s", field, got)
		}
		if got := get[bool](p, fmt.Sprintf("document.activeElement === document.querySelector(%q)", input)); !got {
			t.Errorf("%s: the focus is not on %s", field, input)
		}
	}

	p.click("#whatif .primary")
	wrong("changes", "nothing is asked", "")
	p.write("#manifests", `{"kind": "<img src=x>"}`)
	p.click("#whatif .primary")
	wrong("manifests", `"<img src=x>" makes no pods`, "#manifests")
	if get[bool](p, `document.querySelector("img") !== null`) {
		t.Error("what somebody has written has become an element")
	}
	if n := get[int](p, `document.querySelectorAll(".violation").length`); n != 1 {
		t.Errorf("%d violations are shown, want the one of the last answer", n)
	}

	p.write("#manifests", example)
	p.click("#add-change")
	p.write("#changes [name=node]", "node-a-003")
	p.click("#add-change")
	p.choose("#changes li:last-child select", "label")
	p.write("#changes li:last-child [name=node]", "nobody")
	p.write("#changes li:last-child [name=key]", "disk")
	p.click("#whatif .primary")
	wrong("changes[1]", `there is no node "nobody"`, "#changes li:last-child [name=node]")
	p.click("#changes li:last-child button")
	p.click("#whatif .primary")
	p.await("the answer", answered)
	if get[bool](p, `document.querySelector(".violation, [aria-invalid]") !== null`) {
		t.Error("what was wrong is still shown beside the answer")
	}

	p.visit("capacity", `document.getElementById("like").checkVisibility()`)
	p.write("#like", "shop/web-000")
	p.click("#whatif .primary") // and the manifest
	wrong("manifest", "give either a manifest, or the name of a pod, or that of a PodGroup", "#manifests")
	p.visit("capacity/shop/nobody", text("whatif-problem")+`.includes("shop/nobody not found")`)

	p.visit("compare", `document.getElementById("two").checkVisibility()`)
	p.write("#two", "kind: Nonsense")
	p.click("#whatif .primary")
	wrong("other", "decode configuration", "#two")
	p.write("#two", " ")
	p.write("#manifests", example)
	p.click("#everything")
	p.click("#whatif .primary")
	wrong("everything", "goes with no manifests", "#everything")
}

// tabTo presses Tab until an element has the focus.
func (p *tab) tabTo(selector string) {
	p.t.Helper()
	for range 60 {
		if get[bool](p, fmt.Sprintf("document.activeElement === document.querySelector(%q)", selector)) {
			return
		}
		p.key(kb.Tab)
	}
	p.t.Fatalf("Tab does not lead to %s", selector)
}

func TestQuestionsAreAskedByKeyboardAlone(t *testing.T) {
	p := openQuestion(t, "whatif")
	p.tabTo("#add-change")
	p.key(kb.Enter)
	p.await("the new change has the focus", `document.activeElement === document.querySelector("#changes [name=node]")`)
	p.key("node-a-003")
	p.key(kb.Enter)
	p.await("the answer", answered+`?.startsWith("0 pods would be placed")`)
	p.await("it has the focus", `document.activeElement.id === "outcome-title"`)

	p.do("begin anew", chromedp.Navigate(p.base+"/#/pods"), chromedp.Reload())
	p.await("the pods", text("pending")+`.includes("ml/huge-0")`)
	p.tabTo(`nav [data-view=whatif]`)
	p.key(kb.Enter)
	p.tabTo(`nav [data-question=capacity]`)
	p.key(kb.Enter)
	p.tabTo("#like")
	p.key("shop/web-000")
	p.key(kb.Enter)
	p.await("the answer", answered+`?.includes("more fit")`)

	p.do("to the top", chromedp.Focus(chromedp.CSS("#skip")))
	p.tabTo(`nav [data-question=compare]`)
	p.key(kb.Enter)
	p.tabTo("#example-configuration")
	p.key(kb.Enter)
	p.tabTo("#everything")
	p.key(" ")
	p.tabTo("#whatif .primary")
	p.key(kb.Enter)
	p.await("the answer", answered+`?.includes("pods on the same node")`)
}

func TestQuestionsAndAnswersAreReadableOnADeskAndOnAPhone(t *testing.T) {
	p := openQuestion(t, "whatif", "400")
	for _, width := range []int64{1280, 375} {
		p.size(width, 800)
		shown := func(what string) { t.Helper(); p.readable(fmt.Sprintf("%s, %d px", what, width)) }

		p.visit("whatif", `document.getElementById("add-change").checkVisibility()`)
		for _, kind := range []string{"label", "addNew", "configure", "drain"} {
			p.click("#add-change")
			p.choose("#changes li:last-child select", kind)
		}
		shown("changes of all kinds")
		for range 3 {
			p.click("#changes li:first-child button")
		}
		p.write("#changes [name=node]", "nobody-of-a-very-long-name-that-has-no-place-at-which-it-could-be-broken")
		p.click("#whatif .primary")
		p.await("what is wrong", `document.querySelector("#changes .violation")`)
		shown("what is wrong")
		p.write("#changes [name=node]", "node-a-003")
		p.click("#pending-too")
		p.click("#whatif .primary")
		p.await("the answer", answered)
		shown("what would happen")
		p.click("#changes button")
		p.click("#pending-too")

		p.visit("capacity/shop/web-000", answered)
		shown("how many more fit")

		p.visit("compare", `document.getElementById("two").checkVisibility()`)
		p.click("#example-configuration")
		p.click("#everything")
		p.click("#whatif .primary")
		p.await("the answer", answered+`?.includes("pods on the same node")`)
		shown("two configurations")
		p.click("#everything")
	}
}
