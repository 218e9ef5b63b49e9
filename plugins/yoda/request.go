package yoda

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Labels by which a pod asks for cards. Each thing has one name since the second Yoda, in lower case, and level and two others one of the first Yoda, with capitals. Both may be there if they say the same. Any other label that begins with
// "scv/" is an error, for it is most likely one of these with a slip in it.
const (
	LabelNumber   = "scv/number"   // how many cards, 1 to 64; 1 if another label or the annotation asks for cards
	LabelMemory   = "scv/memory"   // MiB that are free on each of the cards
	LabelClock    = "scv/clock"    // MHz that the clock of each card's memory reaches at least
	LabelLevel    = "scv/level"    // High, Medium or Low
	LabelPriority = "scv/priority" // where the pod is in the queue, an int32; it asks for no card

	LabelNumberV1 = "scv/Number"
	LabelMemoryV1 = "scv/FreeMemory"
	LabelLevelV1  = "scv/Level"
)

// AnnotationRequest asks for cards too, with more to say: a JSON object with any of
//
//	number    how many cards: 1 to 64
//	memory    what is free on each of them: a quantity of Kubernetes, such as "16Gi", which is rounded up to MiB
//	clockMHz  what the clock of each card's memory reaches at least
//	coreMHz   what the clock of each card's processors reaches at least
//	level     "High", "Medium" or "Low"
//	model     what each card is called, exactly
//	share     true: part of each card, namely memory, will do
//
// It may say the same as labels, or what they do not say. One of the labels has to be there too: by it, others see that the pod has cards.
const AnnotationRequest = "yoda.berth.dev/request"

const labelPrefix = "scv/"

// Bounds of requests.
const (
	MaxCards      = 64            // that a pod can ask for
	maxAmount     = math.MaxInt32 // of MiB, MHz and what else is told of a card
	maxAnnotation = 4096          // bytes of AnnotationRequest
	maxQuantity   = 32            // bytes of a quantity
	maxExponent   = 24            // of a quantity, either way: computing with one takes as many digits
	maxQuoted     = 64            // bytes of a value that an error repeats
)

const (
	wantAmount = "a whole number from 0 to 2147483647, in digits only"
	wantNumber = "a whole number from 1 to 64, in digits only"
	wantLevel  = "High, Medium or Low"
	wantMemory = `a quantity such as "16Gi", from 0 to 2147483647Mi`
)

// Request is what a pod asks for. The same cards have to meet all of it.
type Request struct {
	Number    int32  // of different cards, 1 to MaxCards
	MemoryMiB int64  // free on each of them; of shared cards, what the pod gets of each
	ClockMHz  int64  // that the clock of its memory reaches at least
	CoreMHz   int64  // that the clock of its processors reaches at least
	Level     Level  // NoLevel: any, and none
	Model     string // exactly; "": any
	Share     bool   // part of each card will do. MemoryMiB is more than 0 then. Else nobody else has any part of them.
}

// ParseRequest returns what a pod asks for by its labels and annotations, and nil if it asks for no card: it has no such label or annotation, or only a priority.
//
// An error says which label or annotation is wrong, what it says and what it should say. It has less than 1 KiB. Of several that are wrong it is always the same one.
func ParseRequest(labels, annotations map[string]string) (*Request, error) {
	unknown := ""
	for key := range labels {
		if strings.HasPrefix(key, labelPrefix) && !known(key) && (unknown == "" || key < unknown) {
			unknown = key
		}
	}
	if unknown != "" {
		return nil, fmt.Errorf("label %s is none that asks for cards: want %s, %s, %s, %s or %s", quote(unknown), LabelNumber, LabelMemory, LabelClock, LabelLevel, LabelPriority)
	}
	var p parser
	p.label(labels, LabelNumber, p.setNumber)
	p.label(labels, LabelNumberV1, p.setNumber)
	p.label(labels, LabelMemory, p.setMemory)
	p.label(labels, LabelMemoryV1, p.setMemory)
	p.label(labels, LabelClock, p.setClock)
	p.label(labels, LabelLevel, p.setLevel)
	p.label(labels, LabelLevelV1, p.setLevel)
	if text, ok := annotations[AnnotationRequest]; ok {
		p.annotation(text)
	}
	if _, err := Priority(labels); err != nil {
		p.fail(err)
	}
	switch {
	case p.err != nil:
		return nil, p.err
	case !p.asks:
		return nil, nil
	case p.number.by == "":
		p.number.value = 1
	}
	if p.share && p.memory.value == 0 {
		return nil, fmt.Errorf("annotation %q: share is true, and no memory is asked for: want how much of each card, in memory", AnnotationRequest)
	}
	if !Asks(labels) {
		return nil, fmt.Errorf("annotation %q asks for cards, and no label does: want label %q too, by which others see that the pod has cards", AnnotationRequest, LabelNumber)
	}
	return &Request{
		Number: int32(p.number.value), MemoryMiB: p.memory.value, ClockMHz: p.clock.value, CoreMHz: p.core,
		Level: p.level.value, Model: p.model, Share: p.share,
	}, nil
}

// Asks reports whether labels say that a pod asks for cards, rightly or wrongly: of a pod that is on a node already, they may be all that is known.
func Asks(labels map[string]string) bool {
	for key := range labels {
		if strings.HasPrefix(key, labelPrefix) && key != LabelPriority {
			return true
		}
	}
	return false
}

// Priority returns where a pod is in the queue, higher first: what LabelPriority says, else 3, 2 or 1 for a label that asks for level High, Medium or Low, as in the first Yoda, and else 0. Its errors are among those of [ParseRequest].
func Priority(labels map[string]string) (int32, error) {
	if text, ok := labels[LabelPriority]; ok {
		digits := strings.TrimPrefix(text, "-")
		n, ok := parseWhole(digits, -math.MinInt32)
		if digits != text {
			n = -n
			ok = ok && n != 0
		}
		if !ok || n > math.MaxInt32 {
			return 0, fmt.Errorf("label %q is %s: want a whole number from -2147483648 to 2147483647, in digits only", LabelPriority, quote(text))
		}
		return int32(n), nil
	}
	var p parser
	p.label(labels, LabelLevel, p.setLevel)
	p.label(labels, LabelLevelV1, p.setLevel)
	if p.err != nil {
		return 0, p.err
	}
	switch p.level.value {
	case High:
		return 3, nil
	case Medium:
		return 2, nil
	case Low:
		return 1, nil
	}
	return 0, nil
}

// Annotation returns a request as [AnnotationRequest] has it, always in the same way: [ParseRequest] makes an equal request of it, and a label that asks for as many cards.
func (r *Request) Annotation() string {
	out := struct {
		Number   int32  `json:"number"`
		Memory   string `json:"memory,omitempty"`
		ClockMHz int64  `json:"clockMHz,omitempty"`
		CoreMHz  int64  `json:"coreMHz,omitempty"`
		Level    Level  `json:"level,omitempty"`
		Model    string `json:"model,omitempty"`
		Share    bool   `json:"share,omitempty"`
	}{r.Number, "", r.ClockMHz, r.CoreMHz, r.Level, r.Model, r.Share}
	if r.MemoryMiB > 0 {
		out.Memory = strconv.FormatInt(r.MemoryMiB, 10) + "Mi"
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and numbers: there is nothing that JSON cannot say
	}
	return string(text)
}

func known(label string) bool {
	switch label {
	case LabelNumber, LabelMemory, LabelClock, LabelLevel, LabelPriority, LabelNumberV1, LabelMemoryV1, LabelLevelV1:
		return true
	}
	return false
}

// asked is a thing that several places may ask for.
type asked[T comparable] struct {
	value T
	by    string // who has asked for it, in words; "": nobody
}

// parser reads a request. It keeps the first error.
type parser struct {
	number, memory, clock asked[int64]
	level                 asked[Level]
	core                  int64
	model                 string
	share                 bool

	asks bool // something asks for cards
	err  error
}

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// set notes that by asks for a value.
func set[T comparable](p *parser, a *asked[T], value T, by string) {
	if a.by != "" && a.value != value {
		p.fail(fmt.Errorf("%s asks for %v, and %s for %v: want one of them, or both the same", a.by, a.value, by, value))
		return
	}
	a.value, a.by = value, by
}

// label reads a label, if it is there.
func (p *parser) label(labels map[string]string, name string, read func(text, by string)) {
	if text, ok := labels[name]; ok {
		p.asks = true
		read(text, `label "`+name+`"`)
	}
}

func (p *parser) setNumber(text, by string) {
	if n, ok := parseWhole(text, MaxCards); !ok || n == 0 {
		p.wrong(by, text, wantNumber)
	} else {
		set(p, &p.number, n, by)
	}
}

func (p *parser) setMemory(text, by string) { p.setAmount(&p.memory, "MiB, ", text, by) }
func (p *parser) setClock(text, by string)  { p.setAmount(&p.clock, "MHz, ", text, by) }

func (p *parser) setAmount(a *asked[int64], unit, text, by string) {
	if n, ok := parseWhole(text, maxAmount); !ok {
		p.wrong(by, text, unit+wantAmount)
	} else {
		set(p, a, n, by)
	}
}

func (p *parser) setLevel(text, by string) {
	if level, ok := ParseLevel(text); !ok {
		p.wrong(by, text, wantLevel)
	} else {
		set(p, &p.level, level, by)
	}
}

func (p *parser) wrong(by, text, want string) {
	p.fail(fmt.Errorf("%s is %s: want %s", by, quote(text), want))
}

// annotation reads AnnotationRequest. Package json takes fields in any case, and the last of several, so the object is walked here.
func (p *parser) annotation(text string) {
	p.asks = true
	name := fmt.Sprintf("annotation %q", AnnotationRequest)
	if len(text) > maxAnnotation || !utf8.ValidString(text) || !json.Valid([]byte(text)) {
		p.wrong(name, text, "a JSON object of at most 4096 bytes")
		return
	}
	d := json.NewDecoder(strings.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		p.wrong(name, text, "a JSON object")
		return
	}
	seen := make(map[string]bool)
	for d.More() && p.err == nil {
		key, value, err := field(d)
		switch {
		case err != nil:
			p.wrong(name, text, "a JSON object")
		case seen[key]:
			p.fail(fmt.Errorf("%s has %s twice: want it once", name, quote(key)))
		default:
			seen[key] = true
			p.field(name, key, value)
		}
	}
}

// field reads a field of an object of JSON that is valid.
func field(d *json.Decoder) (key string, value json.RawMessage, err error) {
	t, err := d.Token()
	if err != nil {
		return "", nil, err
	}
	key, ok := t.(string)
	if !ok {
		return "", nil, errors.New("no name of a field")
	}
	return key, value, d.Decode(&value)
}

// field reads one field of AnnotationRequest.
func (p *parser) field(name, key string, value json.RawMessage) {
	by := key + " of " + name
	switch key {
	case "number":
		p.setNumber(string(value), by)
	case "memory":
		text, ok := stringOf(value)
		if !ok {
			p.wrong(by, string(value), wantMemory)
			return
		}
		mib, ok := parseMemory(text)
		if !ok {
			p.wrong(by, text, wantMemory)
			return
		}
		set(p, &p.memory, mib, by)
	case "clockMHz":
		p.setClock(string(value), by)
	case "coreMHz":
		var core asked[int64]
		p.setAmount(&core, "MHz, ", string(value), by)
		p.core = core.value
	case "level":
		text, ok := stringOf(value)
		if !ok {
			p.wrong(by, string(value), wantLevel+", in quotes")
			return
		}
		p.setLevel(text, by)
	case "model":
		text, ok := stringOf(value)
		if !ok || text == "" || len(text) > maxModel {
			p.wrong(by, string(value), "a string of 1 to 256 bytes")
			return
		}
		p.model = text
	case "share":
		if p.share = string(value) == "true"; !p.share && string(value) != "false" {
			p.wrong(by, string(value), "true or false")
		}
	default:
		p.fail(fmt.Errorf("%s has %s: want number, memory, clockMHz, coreMHz, level, model or share", name, quote(key)))
	}
}

// stringOf returns a string of JSON that is valid.
func stringOf(value json.RawMessage) (text string, ok bool) {
	ok = len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil
	return text, ok
}

// parseWhole returns the whole number, from 0 to most, that a text is the only way to write: it has digits only, and no 0 before others.
func parseWhole(text string, most int64) (int64, bool) {
	if text == "" || len(text) > 10 || (text[0] == '0' && text != "0") {
		return 0, false
	}
	n := int64(0)
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(text[i]-'0')
	}
	return n, n <= most
}

// parseMemory returns a quantity of bytes in MiB, rounded up.
//
// Whoever may create a pod writes it, and package resource writes out all digits of what it parses, of which 1e-999999999 has very many: so text and exponent are bounded first.
func parseMemory(text string) (int64, bool) {
	if text == "" || len(text) > maxQuantity || text[0] < '0' || text[0] > '9' { // Kubernetes takes "Gi" for 0
		return 0, false
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 && i+1 < len(text) && text[i+1] != 'i' { // not Exa, nor Exbi
		if n, err := strconv.Atoi(text[i+1:]); err != nil || n < -maxExponent || n > maxExponent {
			return 0, false
		}
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 || q.Cmp(mostMemory) > 0 {
		return 0, false
	}
	return (q.Value() + 1<<20 - 1) >> 20, true // Value rounds up
}

var mostMemory = *resource.NewQuantity(maxAmount<<20, resource.BinarySI)

// quote quotes a text for an error, cut to maxQuoted bytes.
func quote(text string) string {
	if len(text) > maxQuoted {
		return strconv.QuoteToASCII(text[:maxQuoted]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
