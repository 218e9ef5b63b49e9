package oracle

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"

	"github.com/berth-scheduler/berth/internal/logs"
)

// fields returns the keys of a line in order, and what they are.
func fields(t *testing.T, line []byte) (keys []string, values map[string]any) {
	t.Helper()
	if err := json.Unmarshal(line, &values); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	depth := 0
	for key := false; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return keys, values
		}
		if err != nil {
			t.Fatal(err)
		}
		if is, ok := token.(json.Delim); ok {
			if is == '{' || is == '[' {
				depth++
			} else {
				depth--
			}
			key = depth == 1
			continue
		}
		if depth == 1 {
			if key {
				keys = append(keys, token.(string))
			}
			key = !key
		}
	}
}

// kube-scheduler's --logging-format=json is k8s.io/component-base's: the same lines have the same fields, in the same order, with the same values, but for the time,
// and that Berth says what is a warning, or an error.
func TestLinesAsJSONHaveTheFieldsOfKubeSchedulers(t *testing.T) {
	var got, want bytes.Buffer
	theirs, _ := logsjson.NewJSONLogger(5, zapcore.AddSync(&want), nil, nil)
	loggers := []*slog.Logger{slog.New(logr.ToSlogHandler(theirs)), slog.New(logs.JSON(&got, logs.Options{Level: slog.Level(-5)}))}
	level := "level" // what Berth says besides
	for name, write := range map[string]func(*slog.Logger){
		"nothing":  func(l *slog.Logger) { l.Info("a message") },
		"verbose":  func(l *slog.Logger) { l.Log(t.Context(), -2, "Successfully bound pod to node", "node", "n", "n", 3) },
		"too much": func(l *slog.Logger) { l.Log(t.Context(), -6, "too much") },
		"warns":    func(l *slog.Logger) { l.Warn("it waits", "err", io.EOF, "for", 1500*time.Millisecond) },
		"errors":   func(l *slog.Logger) { l.With("epoch", 7).Error("it fails", "node", "n", "err", io.EOF) },
		"texts": func(l *slog.Logger) {
			l.Info("a \"b\"\n\x01 <c> \xff", "key", "a \"b\"\n\x01 <c> \xff é", "list", []string{"<a>"})
		},
		"an object": func(l *slog.Logger) {
			l.With("epoch", 7).Info("m", "kind", klog.KRef("default", "web"), "group", slog.GroupValue(slog.Int("a", 1), slog.Bool("b", true)))
		},
	} {
		got.Reset()
		want.Reset()
		for _, l := range loggers {
			write(l)
		}
		if want.Len() == 0 || got.Len() == 0 {
			if want.Len()+got.Len() > 0 {
				t.Errorf("%s: %q, component-base: %q", name, got.String(), want.String())
			}
			continue
		}
		gotKeys, gotValues := fields(t, got.Bytes())
		wantKeys, wantValues := fields(t, want.Bytes())
		if is := slices.Contains(gotKeys, level); is != (name == "warns" || name == "errors") {
			t.Errorf("%s: says how severe it is: %t", name, is)
		}
		gotKeys = slices.DeleteFunc(gotKeys, func(key string) bool { return key == level })
		delete(gotValues, level)
		for _, values := range []map[string]any{gotValues, wantValues} {
			if is := reflect.TypeOf(values["ts"]); is.Kind() != reflect.Float64 {
				t.Errorf("%s: ts is a %v", name, is)
			}
			delete(values, "ts")
		}
		if diff := cmp.Diff(wantKeys, gotKeys); diff != "" {
			t.Errorf("%s: keys (-component-base +Berth):\n%s", name, diff)
		}
		if diff := cmp.Diff(wantValues, gotValues); diff != "" {
			t.Errorf("%s: values (-component-base +Berth):\n%s", name, diff)
		}
	}
}
