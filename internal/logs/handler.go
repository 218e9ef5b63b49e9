package logs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Keys of lines as JSON, besides those of what is logged. What is logged has none of these.
const (
	keyTime    = "ts"     // milliseconds since 1970, with fractions
	keyCaller  = "caller" // where the line is from: folder/file.go:line
	keyMessage = "msg"
	keyV       = "v"     // of what is no error: its verbosity
	keyLevel   = "level" // WARN or ERROR; other lines do not have it
)

const keyErr = "err" // with klog's text, an error comes first

// podKeys are the keys of pods, and of PodGroups, namespace/name each: as JSON, objects of the two, as of Kubernetes' own components. One that has no name is left out.
var podKeys = []string{"pod", "podGroup", "preemptor", "victim"}

// podOf returns the namespace and the name of a pod, and whether an attribute is one.
func podOf(key string, v slog.Value) (namespace, name string, is bool) {
	if v.Kind() != slog.KindString || !slices.Contains(podKeys, key) {
		return "", "", false
	}
	namespace, name, whole := strings.Cut(v.String(), "/")
	if !whole {
		namespace, name = "", namespace
	}
	return namespace, name, true
}

// Options say which lines are written.
type Options struct {
	Level   slog.Leveler // the least that is written; nil means Info
	Modules Modules      // files of which more is; nil: none
}

// Text returns a handler that writes klog's text: one line for each call, by one call of Write. It may be used concurrently if w may, as os.Stderr may.
func Text(w io.Writer, o Options) slog.Handler { return newHandler(w, o, text{}) }

// JSON returns a handler that writes what components of Kubernetes do with --logging-format=json, in the same way.
func JSON(w io.Writer, o Options) slog.Handler { return newHandler(w, o, asJSON{}) }

// format is how a line is written.
type format interface {
	begin(b *bytes.Buffer, r slog.Record)
	attr(b *bytes.Buffer, groups string, a slog.Attr)
	middle(b *bytes.Buffer, r slog.Record) // between what a logger was given and what the line was
	end(b *bytes.Buffer)
}

type handler struct {
	*output
	format format
	groups string // each with a dot behind it
	given  []byte // what With has been given, as it is written
}

// output is what loggers of one handler share.
type output struct {
	level   slog.Leveler
	modules Modules
	w       io.Writer
}

func newHandler(w io.Writer, o Options, f format) *handler {
	if o.Level == nil {
		o.Level = slog.LevelInfo
	}
	return &handler{output: &output{level: o.Level, modules: o.Modules, w: w}, format: f}
}

// Enabled implements slog.Handler. Of which file a line is nobody knows yet.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level() || verbosity(level) <= h.modules.most()
}

// enabledAt reports whether lines of a level are logged that are made at pc.
func (h *handler) enabledAt(pc uintptr, level slog.Level) bool {
	return level >= h.level.Level() || h.modules.enabled(pc, verbosity(level))
}

// Handle implements slog.Handler.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	if !h.enabledAt(r.PC, r.Level) {
		return nil
	}
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	b := buffers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= keptBuffer {
			b.Reset()
			buffers.Put(b)
		}
	}()
	h.format.begin(b, r)
	first := -1
	if _, is := h.format.(text); is && r.Level >= slog.LevelError && h.groups == "" { // as klog.ErrorS has it
		n := 0
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == keyErr {
				h.format.attr(b, "", a)
				first = n
			}
			n++
			return first < 0
		})
	}
	b.Write(h.given)
	h.format.middle(b, r)
	n := 0
	r.Attrs(func(a slog.Attr) bool {
		if n != first {
			h.format.attr(b, h.groups, a)
		}
		n++
		return true
	})
	h.format.end(b)
	_, err := h.w.Write(b.Bytes())
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	b := bytes.NewBuffer(bytes.Clone(h.given))
	for _, a := range attrs {
		h.format.attr(b, h.groups, a)
	}
	with := *h
	with.given = b.Bytes()
	return &with
}

// WithGroup implements slog.Handler: keys have the group's name before theirs, with a dot.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.groups += name + "."
	return &with
}

// keptBuffer bounds the buffers that are kept for other lines, in bytes.
const keptBuffer = 16 << 10

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// verbosity returns klog's verbosity of a level, 0 of what is as important as information, or more.
func verbosity(level slog.Level) int { return max(0, -int(level)) }

// caller returns where a line is from, as a path and a line.
func caller(pc uintptr) (file string, line int) {
	if pc == 0 {
		return "???", 1
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if f.File == "" {
		return "???", 1
	}
	return f.File, f.Line
}

// text writes klog's text: Lmmdd hh:mm:ss.uuuuuu threadid file:line] "msg" key="value".
type text struct{}

var pid = fmt.Sprintf("%7d", os.Getpid())

func (text) begin(b *bytes.Buffer, r slog.Record) {
	severity := byte('I')
	switch {
	case r.Level >= slog.LevelError:
		severity = 'E'
	case r.Level >= slog.LevelWarn:
		severity = 'W'
	}
	file, line := caller(r.PC)
	b.WriteByte(severity)
	line64 := r.Time.AppendFormat(b.AvailableBuffer(), "0102 15:04:05.000000 ")
	b.Write(line64)
	b.WriteString(pid)
	b.WriteByte(' ')
	b.WriteString(path.Base(file))
	b.WriteByte(':')
	b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(line), 10))
	b.WriteString("] ")
	b.Write(strconv.AppendQuote(b.AvailableBuffer(), r.Message))
}

func (text) middle(*bytes.Buffer, slog.Record) {}

func (text) end(b *bytes.Buffer) { b.WriteByte('\n') }

func (t text) attr(b *bytes.Buffer, groups string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup && a.Key == "" {
		for _, in := range v.Group() {
			t.attr(b, groups, in)
		}
		return
	}
	if a.Equal(slog.Attr{}) || v.Kind() == slog.KindGroup && len(v.Group()) == 0 {
		return
	}
	if _, name, is := podOf(a.Key, v); is && name == "" {
		return
	}
	b.WriteByte(' ')
	b.WriteString(groups)
	b.WriteString(a.Key)
	b.WriteByte('=')
	value(b, v, quoting{quoteGo, true})
}

// asJSON writes an object for each line.
type asJSON struct{}

func (asJSON) begin(b *bytes.Buffer, r slog.Record) {
	b.WriteString(`{"` + keyTime + `":`)
	b.Write(strconv.AppendFloat(b.AvailableBuffer(), float64(r.Time.UnixNano())/float64(time.Millisecond), 'f', -1, 64))
	file, line := caller(r.PC)
	if slash := strings.LastIndexByte(file, '/'); slash > 0 { // with its folder, as zap has it
		file = file[strings.LastIndexByte(file[:slash], '/')+1:]
	}
	b.WriteString(`,"` + keyCaller + `":`)
	quoteJSON(b, file+":"+strconv.Itoa(line))
	b.WriteString(`,"` + keyMessage + `":`)
	quoteJSON(b, r.Message)
}

func (asJSON) middle(b *bytes.Buffer, r slog.Record) {
	if r.Level < slog.LevelError {
		b.WriteString(`,"` + keyV + `":`)
		b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(verbosity(r.Level)), 10))
	}
	switch {
	case r.Level >= slog.LevelError:
		b.WriteString(`,"` + keyLevel + `":"ERROR"`)
	case r.Level >= slog.LevelWarn:
		b.WriteString(`,"` + keyLevel + `":"WARN"`)
	}
}

func (asJSON) end(b *bytes.Buffer) { b.WriteString("}\n") }

func (j asJSON) attr(b *bytes.Buffer, groups string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup && a.Key == "" {
		for _, in := range v.Group() {
			j.attr(b, groups, in)
		}
		return
	}
	if a.Equal(slog.Attr{}) || v.Kind() == slog.KindGroup && len(v.Group()) == 0 {
		return
	}
	namespace, name, pod := podOf(a.Key, v)
	if pod && name == "" {
		return
	}
	b.WriteByte(',')
	quoteJSON(b, groups+a.Key)
	b.WriteByte(':')
	if !pod {
		value(b, v, quoting{quoteJSON, false})
		return
	}
	b.WriteString(`{"name":`)
	quoteJSON(b, name)
	if namespace != "" {
		b.WriteString(`,"namespace":`)
		quoteJSON(b, namespace)
	}
	b.WriteByte('}')
}

// quoting is how a format writes texts, and whether what JSON is made of says "<" as "\u003c", as encoding/json does if nobody says otherwise.
type quoting struct {
	quote func(*bytes.Buffer, string)
	html  bool
}

// value writes a value that has been resolved: JSON, but that texts are quoted as the format does.
func value(b *bytes.Buffer, v slog.Value, q quoting) {
	switch v.Kind() {
	case slog.KindString:
		q.quote(b, v.String())
	case slog.KindInt64:
		b.Write(strconv.AppendInt(b.AvailableBuffer(), v.Int64(), 10))
	case slog.KindUint64:
		b.Write(strconv.AppendUint(b.AvailableBuffer(), v.Uint64(), 10))
	case slog.KindFloat64:
		f := v.Float64()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			q.quote(b, strconv.FormatFloat(f, 'g', -1, 64))
			return
		}
		b.Write(strconv.AppendFloat(b.AvailableBuffer(), f, 'g', -1, 64))
	case slog.KindBool:
		b.Write(strconv.AppendBool(b.AvailableBuffer(), v.Bool()))
	case slog.KindDuration:
		q.quote(b, v.Duration().String())
	case slog.KindTime:
		q.quote(b, v.Time().Format(time.RFC3339Nano))
	case slog.KindGroup:
		b.WriteByte('{')
		for i, a := range v.Group() {
			if i > 0 {
				b.WriteByte(',')
			}
			q.quote(b, a.Key)
			b.WriteByte(':')
			value(b, a.Value.Resolve(), q)
		}
		b.WriteByte('}')
	default:
		other(b, v.Any(), q)
	}
}

// other writes what slog knows no kind of. What it does when it is asked for a text, or for JSON, is its own: a panic is said instead.
func other(b *bytes.Buffer, v any, q quoting) {
	before := b.Len()
	defer func() {
		if is := recover(); is != nil {
			b.Truncate(before)
			q.quote(b, fmt.Sprintf("<panic: %v>", is))
		}
	}()
	switch v := v.(type) {
	case error:
		q.quote(b, v.Error())
	case fmt.Stringer:
		q.quote(b, v.String())
	case []byte:
		q.quote(b, base64.StdEncoding.EncodeToString(v))
	default:
		e := json.NewEncoder(b)
		e.SetEscapeHTML(q.html)
		if err := e.Encode(v); err != nil {
			b.Truncate(before)
			q.quote(b, fmt.Sprintf("<internal error: %v>", err))
			return
		}
		b.Truncate(b.Len() - 1) // the end of the line
	}
}

func quoteGo(b *bytes.Buffer, s string) { b.Write(strconv.AppendQuote(b.AvailableBuffer(), s)) }

const hex = "0123456789abcdef"

// quoteJSON writes a text as JSON, as zap does: what HTML would read otherwise stays as it is, and what is not UTF-8 is the character for that.
func quoteJSON(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b.WriteString(s[from:i])
				b.WriteString(`\ufffd`)
				from = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b.WriteString(s[from:i])
		switch c {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		default:
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
		i++
		from = i
	}
	b.WriteString(s[from:])
	b.WriteByte('"')
}
