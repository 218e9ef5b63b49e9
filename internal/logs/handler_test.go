package logs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/berth-scheduler/berth/internal/logs"
)

// hostile is a text that would end a line, or a value, if it were written as it is.
const hostile = "a \"b\" \\ \n\t\r\x00\x1b é \xff <&> \u2028 end"

// stringer and panicker are what is logged that says itself how.
type stringer struct{ a, b int }

func (s stringer) String() string { return fmt.Sprintf("%d and %d", s.a, s.b) }

type panicker struct{}

func (panicker) String() string { panic("no") }

// here is a record of this file, at a time.
func here(level slog.Level, message string, args ...any) slog.Record {
	var pcs [1]uintptr
	runtime.Callers(2, pcs[:])
	r := slog.NewRecord(time.Date(2026, 1, 26, 3, 4, 5, 678901234, time.Local), level, message, pcs[0])
	r.Add(args...)
	return r
}

// cases are what is logged, by whom.
func cases() map[string]struct {
	with []slog.Attr
	slog.Record
} {
	type c = struct {
		with []slog.Attr
		slog.Record
	}
	return map[string]c{
		"nothing": {nil, here(slog.LevelInfo, "a message")},
		"hostile": {nil, here(slog.LevelInfo, hostile, "key", hostile)},
		"kinds": {nil, here(-2, "m", "i", -3, "u", uint64(math.MaxUint64), "f", 1.5, "large", 1e100, "t", true, "d", 1500*time.Millisecond,
			"nil", nil, "s", stringer{1, 2}, "list", []string{"a", "<b>"}, "struct", struct{ A, B int }{1, 2}, "map", map[string]int{"x": 1})},
		"warns":  {nil, here(slog.LevelWarn, "m", "err", errors.New("an error"))},
		"errors": {nil, here(slog.LevelError, "m", "err", fmt.Errorf("it: %w", io.EOF), "then", 1)},
		"with":   {[]slog.Attr{slog.Int("epoch", 3), slog.String("role", "binder")}, here(-4, "m", "node", "n")},
	}
}

func TestTextIsKlogs(t *testing.T) {
	for name, c := range cases() {
		if name == "hostile" { // klog writes what is no UTF-8 as Go does, and so does Berth
			c.Record = here(slog.LevelInfo, hostile, "key", hostile)
		}
		var got, want bytes.Buffer
		klogs := logr.ToSlogHandler(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&want), textlogger.Verbosity(10))))
		for _, h := range []slog.Handler{logs.Text(&got, logs.Options{Level: slog.Level(-10)}), klogs} {
			if err := h.WithAttrs(c.with).Handle(context.Background(), c.Record); err != nil {
				t.Fatal(err)
			}
		}
		if got.String() != want.String() {
			t.Errorf("%s:\n%s, klog:\n%s", name, got.String(), want.String())
		}
		if strings.Count(got.String(), "\n") != 1 {
			t.Errorf("%s: not one line: %q", name, got.String())
		}
	}
}

// klog.ErrorS has the error first, and a pod as namespace/name.
func TestErrorsAndPodsAreAsComponentsOfKubernetesWriteThem(t *testing.T) {
	var got, want bytes.Buffer
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&want)))
	log.WithValues("epoch", 3).Error(io.EOF, "Not bound", "pod", klog.KRef("default", "web"), "node", "n")
	slog.New(logs.Text(&got, logs.Options{})).With("epoch", 3).Error("Not bound", "pod", "default/web", "node", "n", "err", io.EOF)
	_, after, _ := strings.Cut(got.String(), "] ")
	if _, wanted, _ := strings.Cut(want.String(), "] "); after != wanted {
		t.Errorf("%q, klog: %q", after, wanted)
	}

	got.Reset()
	slog.New(logs.JSON(&got, logs.Options{})).Warn("Not bound", "pod", "default/web", "err", io.EOF)
	var is struct {
		TS               float64
		Caller, Msg, Err string
		V                *int
		Level            string
		Pod              klog.ObjectRef
	}
	if err := json.Unmarshal(got.Bytes(), &is); err != nil {
		t.Fatalf("%v: %s", err, got.String())
	}
	if is.Pod != klog.KRef("default", "web") || is.Err != "EOF" || is.V == nil || *is.V != 0 || is.Level != "WARN" || is.Msg != "Not bound" || !strings.HasPrefix(is.Caller, "logs/handler_test.go:") ||
		math.Abs(is.TS-float64(time.Now().UnixMilli())) > float64(time.Hour.Milliseconds()) {
		t.Errorf("%+v of %s", is, got.String())
	}
}

func TestPodsAreObjectsAsJSONAndOnesWithoutANameAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		args       []any
		text, json string
	}{
		{[]any{"pod", "default/web", "preemptor", "default/a", "victim", "other/b"}, ` pod="default/web" preemptor="default/a" victim="other/b"`,
			`,"pod":{"name":"web","namespace":"default"},"preemptor":{"name":"a","namespace":"default"},"victim":{"name":"b","namespace":"other"}`},
		{[]any{"pod", "alone", "node", "n"}, ` pod="alone" node="n"`, `,"pod":{"name":"alone"},"node":"n"`},
		{[]any{"pod", "", "node", ""}, ` node=""`, `,"node":""`},
		{[]any{"pod", "/", "victim", "default/"}, "", ""},
		{[]any{"pod", 3}, " pod=3", `,"pod":3`}, // of a library
	} {
		var text, asJSON bytes.Buffer
		slog.New(logs.Text(&text, logs.Options{})).Info("m", c.args...)
		slog.New(logs.JSON(&asJSON, logs.Options{})).Info("m", c.args...)
		if _, after, _ := strings.Cut(text.String(), `"m"`); after != c.text+"\n" {
			t.Errorf("%v: %s, want %s", c.args, text.String(), c.text)
		}
		if _, after, _ := strings.Cut(asJSON.String(), `"msg":"m","v":0`); after != c.json+"}\n" {
			t.Errorf("%v: %s, want %s", c.args, asJSON.String(), c.json)
		}
	}
	component, err := json.Marshal(klog.KRef("", "alone"))
	if err != nil || string(component) != `{"name":"alone"}` {
		t.Errorf("%s, %v", component, err)
	}
}

func TestEveryLineIsOneObject(t *testing.T) {
	for name, c := range cases() {
		var b bytes.Buffer
		h := logs.JSON(&b, logs.Options{Level: slog.Level(-10)})
		c.Add("group", slog.GroupValue(slog.String("a", hostile), slog.Group("empty")), "panics", panicker{}, "inf", math.Inf(1), "bytes", []byte{0, 1}, "channel", make(chan int))
		if err := h.WithAttrs(c.with).WithGroup("g").Handle(context.Background(), c.Record); err != nil {
			t.Fatal(err)
		}
		line, rest, _ := strings.Cut(b.String(), "\n")
		if rest != "" || !json.Valid([]byte(line)) {
			t.Errorf("%s: %q and %q", name, line, rest)
		}
		for _, want := range []string{`"g.panics":"<panic: no>"`, `"g.inf":"+Inf"`, `"g.bytes":"AAE="`, `"g.channel":"<internal error: json: unsupported type: chan int>"`, `"g.group":{"a":`} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: no %s in %s", name, want, line)
			}
		}
	}
}

func TestModulesAreOfFiles(t *testing.T) {
	modules, err := logs.ParseModules([]string{"handl*_test=3", "", "other=9"})
	if err != nil {
		t.Fatal(err)
	}
	if text := modules.String(); text != "handl*_test=3,other=9" {
		t.Errorf("%q", text)
	}
	var b bytes.Buffer
	log := slog.New(logs.Text(&b, logs.Options{Level: slog.LevelInfo, Modules: modules}))
	for range 2 { // what is known of a line is what was found of it
		for v := range 6 {
			log.Log(t.Context(), slog.Level(-v), fmt.Sprint("at ", v))
		}
	}
	if got := strings.Count(b.String(), "\n"); got != 2*4 || strings.Contains(b.String(), "at 4") {
		t.Errorf("%d lines:\n%s", got, b.String())
	}
	b.Reset()
	elsewhere, err := logs.ParseModules([]string{"handler=3"})
	if err != nil {
		t.Fatal(err)
	}
	slog.New(logs.Text(&b, logs.Options{Modules: elsewhere})).Log(t.Context(), -1, "of another file")
	if b.Len() > 0 {
		t.Errorf("logged: %s", b.String())
	}
	for _, bad := range []string{"a", "a=", "=1", "a=-1", "a=x", "[=1", "a=99999999999"} {
		if _, err := logs.ParseModules([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestWhatIsNotLoggedAllocatesNothing(t *testing.T) {
	log := slog.New(logs.JSON(io.Discard, logs.Options{}))
	if n := testing.AllocsPerRun(100, func() {
		if log := logs.V(log, logs.Outcomes); log != nil {
			log.Info("m", "pod", strings.Repeat("n", len(hostile))+"/"+t.Name())
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLinesOfFilesThatModulesDoNotNameAreNotMade(t *testing.T) {
	for pattern, logged := range map[string]bool{"handler_test=3": true, "verbose=3": false, "handler_test=2": false, "handler_test=1,*=9": false, "*=9": true} {
		modules, err := logs.ParseModules(strings.Split(pattern, ","))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		plain := slog.New(logs.JSON(&b, logs.Options{Modules: modules}))
		for name, log := range map[string]*slog.Logger{"plain": plain, "with": plain.With("epoch", 3), "bounded": logs.Bounded(plain).With("epoch", 3)} {
			for range 2 { // what is known of a line is what was found of it
				if v := logs.V(log, logs.Attempts); (v != nil) != logged {
					t.Errorf("%s with %s: is made %v", name, pattern, v != nil)
				} else if v != nil {
					v.Info("m")
				}
			}
		}
		if got := strings.Count(b.String(), `"v":3`); got != map[bool]int{true: 6}[logged] {
			t.Errorf("%s: %d lines: %s", pattern, got, b.String())
		}
		if n := testing.AllocsPerRun(100, func() {
			if log := logs.V(plain, logs.Attempts); log != nil && !logged {
				log.Info("m", "pod", strings.Repeat("n", len(hostile))+"/"+t.Name())
			}
		}); n > 0 && !logged {
			t.Errorf("%s: %v allocations", pattern, n)
		}
	}
}

func TestLinesOfAVerbosityAreOfItAndOfWhereTheyAreLogged(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(logs.JSON(&b, logs.Options{Level: slog.Level(-logs.Outcomes)})).With("epoch", 3)
	if logs.V(log, logs.Attempts) != nil {
		t.Error("3 is logged at 2")
	}
	logs.V(log, logs.Outcomes).Info("m")
	for _, want := range []string{`"v":2`, `"epoch":3`, `"caller":"logs/handler_test.go:`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

// What a line costs that is not logged: as nothing of its verbosity is, or as it is of a file that --vmodule does not name.
func BenchmarkLineThatIsNotLogged(b *testing.B) {
	elsewhere, err := logs.ParseModules([]string{"verbose=9", "bind*=4"})
	if err != nil {
		b.Fatal(err)
	}
	pod := strings.Split("default/web", "/")
	for name, modules := range map[string]logs.Modules{"level": nil, "vmodule": elsewhere} {
		log := slog.New(logs.Text(io.Discard, logs.Options{Modules: modules}))
		b.Run("V/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if log := logs.V(log, logs.Outcomes); log != nil {
					log.Info("Successfully bound pod to node", "pod", pod[0]+"/"+pod[1], "node", "node-7")
				}
			}
		})
		b.Run("slog/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				log.Debug("attempt ended", "pod", pod[0]+"/"+pod[1], "attempt", 1)
			}
		})
	}
}

func BenchmarkLine(b *testing.B) {
	for name, h := range map[string]slog.Handler{
		"text": logs.Text(io.Discard, logs.Options{}), "json": logs.JSON(io.Discard, logs.Options{}), "slog": slog.NewTextHandler(io.Discard, nil),
	} {
		log := slog.New(h)
		b.Run(filepath.Base(name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				log.Info("Successfully bound pod to node", "pod", "default/web", "node", "node-7")
			}
		})
	}
}
