package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
	"github.com/berth-scheduler/berth/test/bubble"
)

// gating is a plugin that does nothing but say which pods may be tried.
func gating(name string, h *history, says func(*Placement) (*Rejection, error)) Plugin {
	return Plugin{Name: name, PreEnqueue: func(_ context.Context, p *Placement) (*Rejection, error) {
		h.add("%s preEnqueue %s on %q", name, p.UID, p.Node)
		return says(p)
	}}
}

func passing(*Placement) (*Rejection, error) { return nil, nil }

// Plugins say in their order whether a pod may be tried, and the first that does not let it in is the last.
func TestAPodIsTriedIfNoPluginGatesIt(t *testing.T) {
	for want, says := range map[string]func(*Placement) (*Rejection, error){
		"":                     passing,
		" B: no quota is left": func(*Placement) (*Rejection, error) { return &Rejection{Reason: "no quota is left"}, nil },
		` error: running PreEnqueue plugin "B": it is ill`:                       func(*Placement) (*Rejection, error) { return &Rejection{Reason: "no"}, errors.New("it is ill") },
		` error: running PreEnqueue plugin "B": panic: oh`:                       func(*Placement) (*Rejection, error) { panic("oh") },
		` error: running PreEnqueue plugin "B": it is rejected without a reason`: func(*Placement) (*Rejection, error) { return new(Rejection), nil },
		" B: " + strings.Repeat("é", 512):                                        func(*Placement) (*Rejection, error) { return &Rejection{Reason: strings.Repeat("é", 600)}, nil },
	} {
		t.Run(want[:min(40, len(want))], func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := new(history)
				client, s := inMemory(t, gating("A", h, passing), gating("B", h, says), gating("C", h, passing))
				p := begin(t, client)
				p.step(preEnqueue, "u", "C", "B", "A")
				p.expect("2" + want)
				asked := []string{`C preEnqueue u on ""`, `B preEnqueue u on ""`}
				if want == "" {
					asked = append(asked, `A preEnqueue u on ""`)
				}
				h.expect(t, asked...)
				if strings.Contains(want, "panic") && !strings.Contains(s.log.String(), "plugin=B pod=ns/pod-u") {
					t.Errorf("the log does not tell of the panic:\n%s", s.log)
				}
				p.step(preEnqueue, "u", "A") // it comes back
				p.step(preEnqueue, "v")
				got := p.answers()
				slices.Sort(got)
				if want := []string{"3", "4"}; !slices.Equal(got, want) {
					t.Errorf("answers: %q, want %q", got, want)
				}
				h.expect(t, `A preEnqueue u on ""`)
			})
		})
	}
}

// A plugin sees the pod, if somebody depends on objects, and has another placement each time, which nobody hears of.
func TestAPluginSeesThePodThatComes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		var got []*Placement
		client, _ := inMemory(t, gating("A", h, func(p *Placement) (*Rejection, error) {
			got = append(got, p)
			p.Reject("is heard by nobody")
			pod, err := p.Pod()
			if err != nil {
				return nil, err
			}
			return &Rejection{Reason: "its label is " + pod.Labels["a"]}, nil
		}))
		p := begin(t, client)
		for _, object := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"labels":{"a":"c"}}}`, ""} {
			p.request(&pluginv1.PlaceRequest{Step: preEnqueue, Plugins: []string{"A"}, Placement: &pluginv1.Placement{
				Uid: "u", Namespace: "shop", Name: "web", SchedulerName: "berth", Object: []byte(object),
			}})
			synctest.Wait()
		}
		p.expect("2 A: its label is b", "3 A: its label is c", `4 error: running PreEnqueue plugin "A": `+errPodNotTold.Error())
		if len(got) != 3 || got[0] == got[1] {
			t.Fatalf("it got %p", got)
		}
		if p := got[0]; p.UID != "u" || p.Namespace != "shop" || p.Name != "web" || p.SchedulerName != "berth" || p.Node != "" {
			t.Errorf("the placement is %+v", p)
		}
		got[0].Allow()
		got[0].Reject("late")
		if said := got[0].of.said; len(said) > 0 {
			t.Errorf("what is said of it is kept: %v", said)
		}
	})
}

// What is under way of a placement of the pod goes on, and is not waited for.
func TestAPodIsAskedAboutBesideItsPlacement(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a, of := waiting("A", time.Minute, h)
		a.PreBind = func(ctx context.Context, p *Placement) (*Rejection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		a.PreEnqueue = gating("A", h, passing).PreEnqueue
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(reserve, "u", "A")
		p.step(permit, "u", "A")
		p.step(reserve, "v", "A")
		synctest.Wait()
		p.step(preBind, "v", "A")
		if got := len(p.answers()); got != 3 {
			t.Fatalf("%d answers, want 3", got)
		}
		h.take()
		p.step(preEnqueue, "u", "A")
		p.expect("6")
		p.step(preEnqueue, "v", "A")
		p.expect("7")
		h.expect(t, `A preEnqueue u on ""`, `A preEnqueue v on ""`)
		of().Allow()
		p.expect("3")
		p.step(unreserve, "v", "A")
		p.expect(`5 error: running PreBind plugin "A": the placement is given back`, "8")
		h.expect(t, "A unreserve v")
	})
}

// Nothing is taken back of a pod that was asked about, and what is asked ends with the stream.
func TestTheEndOfAStreamEndsWhatIsAskedOfPodsThatCome(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := stepping("A", h)
		a.PreEnqueue = func(ctx context.Context, p *Placement) (*Rejection, error) {
			<-ctx.Done()
			h.add("%s ends", p.UID)
			return nil, ctx.Err()
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		for i := range placeserver.AtOnce + 1 {
			p.step(preEnqueue, fmt.Sprint(i), "A")
		}
		h.expect(t)
		p.cut()
		synctest.Wait()
		calls := h.take()
		if len(calls) != placeserver.AtOnce || slices.ContainsFunc(calls, func(call string) bool { return !strings.HasSuffix(call, " ends") }) {
			t.Errorf("calls: %q", calls)
		}
	})
}

// Who is asked is the plugin as it is for the pod's profile.
func TestPodsThatComeAreAskedAboutByTheirProfile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := gating("A", h, passing)
		a.Configure = func(arguments json.RawMessage) (Plugin, error) {
			if string(arguments) == `"less"` {
				return Plugin{Name: "A", Filter: refusing("no")}, nil
			}
			return gating("with "+string(arguments), h, passing), nil
		}
		client, _ := inMemory(t, a)
		profile := func(name, arguments string) *pluginv1.Profile {
			return &pluginv1.Profile{SchedulerName: name, Arguments: []*pluginv1.PluginArguments{{Plugin: "A", Json: []byte(arguments)}}}
		}
		p := begin(t, client, profile("one", `1`), profile("less", `"less"`))
		for _, name := range []string{"one", "none", "less"} {
			p.request(&pluginv1.PlaceRequest{Step: preEnqueue, Plugins: []string{"A"}, Placement: &pluginv1.Placement{Uid: name, Namespace: "ns", Name: "p", SchedulerName: name}})
			synctest.Wait()
		}
		p.expect("2", "3", `4 error: running PreEnqueue plugin "A": its arguments in profile less: with them it has other functions than without`)
		h.expect(t, `with 1 preEnqueue one on ""`, `A preEnqueue none on ""`)
	})
}
