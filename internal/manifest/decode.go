package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxListValues is how many values a document of several objects may have, and maxYAMLValues that of one object, by the count of
	// [aliases.Values], which counts some twice. What is read of YAML takes a hundred bytes a value. 4 MiB of Nodes or Pods have some 400,000.
	MaxListValues = 500_000
	maxYAMLValues = 100_000
)

// bounds are those of one object.
type bounds struct {
	// values: of a list, each takes two bytes here and up to 472 once it is decoded (a v1.PersistentVolumeClaim), though it is not of its
	// type. Nodes have most of all: a thousand images are some 5,000.
	values int
	// digits and exponent are those of a quantity. It takes long to compute with many, and to parse: hours with 1e-999999999, seconds with a
	// million digits. No sensible quantity comes near them.
	digits, exponent int
}

var (
	toParse = bounds{values: 20_000, digits: 100, exponent: 999}
	// toUnmarshal are wider: what has been parsed, and is encoded again, has more values by its defaults, and its quantities in other forms.
	toUnmarshal = bounds{values: 60_000, digits: 200, exponent: 1999}
	// stored has as many values as an object of [MaxObjectBytes] can have: a pod that runs counts, however it has come into the store.
	stored = bounds{values: MaxObjectBytes, digits: 200, exponent: 1999}
	// answered is what may have been an object of ours, and is encoded again.
	answered = bounds{values: math.MaxInt, digits: 200, exponent: 1999}
)

// Unmarshal decodes an object of somebody else's, in JSON, into a pointer to its struct as [json.Unmarshal] does, leniently. What takes
// far more time or memory to decode than to send is an error. What Parse has accepted is not, once it is encoded.
func Unmarshal(raw []byte, into any) error { return toUnmarshal.unmarshal(raw, into) }

// UnmarshalStored does the same with what a source has stored, maybe when Parse bounded less than it does now.
func UnmarshalStored(raw []byte, into any) error { return stored.unmarshal(raw, into) }

// UnmarshalAnswer does the same with what somebody else's server has answered. Of how many values that is, it has no bound.
func UnmarshalAnswer(raw []byte, into any) error { return answered.unmarshal(raw, into) }

func (b bounds) unmarshal(raw []byte, into any) error {
	if wrong := b.exceeded(raw, into); len(wrong) > 0 {
		return fmt.Errorf("%s: %s", wrong[0].path, wrong[0].description)
	}
	return json.Unmarshal(raw, into)
}

// exceeded finds what must not be decoded from raw, which is JSON, into a value of the type that into points to. It looks at what stands
// there and not at what is decoded, since a decoder decodes each value of a field that is there twice.
func (b bounds) exceeded(raw []byte, into any) []mismatch {
	if len(raw) > b.values { // less has no more values than that
		if n := Values(raw); n > b.values {
			return []mismatch{{"metadata", fmt.Sprintf("the object has %d values, at most %d are possible", n, b.values)}}
		}
	}
	if !suspect(raw, b) || !json.Valid(raw) {
		return nil
	}
	q := newQuantities(raw, b)
	q.value(reflect.TypeOf(into), nil)
	return q.costly
}

// Values returns how many values a text in JSON has, but for the first of each list and object, and one for each of these.
func Values(raw []byte) int {
	n := 0
	for i, text := 0, false; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case !text && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}

// suspect reports whether there may be a costly quantity in raw, which is JSON. It looks at every fourth byte, since to find out for certain takes
// several times as long as to decode: a costly number has four digits in a row, or an escape stands for one of its characters. What is found that
// way is nearly always of a name, a time or a uid.
func suspect(raw []byte, b bounds) bool {
	if hides(raw) {
		return true
	}
	for i := 3; i < len(raw); i += 4 {
		if !digit(raw[i]) {
			continue
		}
		start, end := i, i+1
		for start > 0 && digit(raw[start-1]) {
			start--
		}
		for end < len(raw) && digit(raw[end]) {
			end++
		}
		if end-start >= b.digits/2 || end-start >= 4 && suspectExponent(raw, start, end, b) { // a number may have a dot
			return true
		}
		i = end // what comes behind has its four digits around end+4
	}
	return false
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// hides reports whether an escape may stand for a digit, a sign or an e. One for a dot hides nothing.
func hides(raw []byte) bool {
	for {
		i := bytes.Index(raw, escape)
		if i < 0 || len(raw) < i+6 {
			return false
		}
		c, err := strconv.ParseUint(string(raw[i+4:i+6]), 16, 8)
		if err != nil || digit(byte(c)) || strings.IndexByte("+-eE", byte(c)) >= 0 {
			return true
		}
		raw = raw[i+6:]
	}
}

// escape is what all escapes of digits and letters begin with.
var escape = []byte(`\u00`)

// suspectExponent reports whether the digits from start to end may be those of an exponent that is out of bounds, in a number that a text
// consists of, but for white space.
func suspectExponent(raw []byte, start, end int, b bounds) bool {
	i := start - 1
	if i > 0 && (raw[i] == '+' || raw[i] == '-') {
		i--
	}
	if i < 0 || raw[i] != 'e' && raw[i] != 'E' || !vast(raw[i+1:], b) {
		return false
	}
	for i--; i >= 0 && (digit(raw[i]) || strings.IndexByte("+-.", raw[i]) >= 0); {
		i--
	}
	if i >= 0 && wordly(raw[i]) && !bytes.Contains(raw[max(0, i-5):i], escape[:1]) { // of an escape it may be white space
		return false
	}
	return end == len(raw) || !wordly(raw[end]) && strings.IndexByte("+-.:", raw[end]) < 0
}

// wordly reports whether no number begins behind c, or ends before it.
func wordly(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == '/'
}

// quantities finds those of a JSON value that are costly.
type quantities struct {
	bounds
	decoder *json.Decoder
	fields  map[reflect.Type]map[string]reflect.Type
	costly  []mismatch
}

func newQuantities(raw []byte, b bounds) *quantities {
	q := &quantities{bounds: b, decoder: json.NewDecoder(bytes.NewReader(raw)), fields: make(map[reflect.Type]map[string]reflect.Type)}
	q.decoder.UseNumber()
	return q
}

// value reads a value, whose place is of a type; nil where no type is known.
func (q *quantities) value(t reflect.Type, path *field.Path) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := q.decoder.Token()
	if err != nil { // not of valid JSON
		return
	}
	switch token := token.(type) {
	case json.Delim:
		for k := 0; q.decoder.More(); k++ {
			var name json.Token
			if token == '{' {
				name, _ = q.decoder.Token()
			}
			key, _ := name.(string)
			q.value(q.within(t, path, token, key, k))
		}
		_, _ = q.decoder.Token() // its end
	case string:
		q.scalar(t, path, token)
	case json.Number:
		q.scalar(t, path, token.String())
	}
}

func (q *quantities) scalar(t reflect.Type, path *field.Path, text string) {
	if t == quantityType && costly(text, q.bounds) && len(q.costly) < maxListed {
		q.costly = append(q.costly, mismatch{path.String(), outOfRange(text)})
	}
}

func outOfRange(text string) string {
	return short(text) + ": the exponent is out of range, or there are too many digits"
}

// within returns type and path of what is in a list or an object; nil if no type is known.
func (q *quantities) within(t reflect.Type, path *field.Path, in json.Delim, key string, k int) (reflect.Type, *field.Path) {
	switch {
	case t == nil:
	case in == '[' && t.Kind() == reflect.Slice:
		return t.Elem(), path.Index(k)
	case in == '{' && t.Kind() == reflect.Map:
		return t.Elem(), path.Key(key)
	case in == '{' && t.Kind() == reflect.Struct:
		if q.fields[t] == nil {
			q.fields[t] = fieldTypes(t)
		}
		if ft, ok := q.fields[t][key]; ok {
			return ft, path.Child(key)
		}
		for name, ft := range q.fields[t] {
			if strings.EqualFold(name, key) { // as a lenient decoder finds fields
				return ft, path.Child(key)
			}
		}
	}
	return nil, nil
}

// costly reports whether a text has, or is, a number that takes long to parse or to compute with: so many digits, or such an exponent. It
// need not have digits before the exponent.
func costly(text string, b bounds) bool {
	digits := 0
	for i := range len(text) {
		switch c := text[i]; {
		case digit(c) || c == '.':
			if digits++; digits > b.digits {
				return true
			}
			continue
		case (c == 'e' || c == 'E') && vast(text[i+1:], b):
			return true
		}
		digits = 0
	}
	return false
}

// vast reports whether a text begins with an exponent that is out of bounds.
func vast[T string | []byte](text T, b bounds) bool {
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		text = text[1:]
	}
	end := 0
	for end < len(text) && digit(text[end]) {
		if end++; end > b.digits {
			return true
		}
	}
	n, err := strconv.Atoi(string(text[:end]))
	return end > 0 && (err != nil || n > b.exponent)
}
