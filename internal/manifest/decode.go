package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
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
)

// Unmarshal decodes an object of somebody else's, in JSON, into a pointer to its struct as [json.Unmarshal] does, leniently. What takes
// far more time or memory to decode than to send is an error. What Parse has accepted is not, once it is encoded.
func Unmarshal(raw []byte, into any) error { return toUnmarshal.unmarshal(raw, into) }

// UnmarshalStored does the same with what a source has stored, maybe when Parse bounded less than it does now.
func UnmarshalStored(raw []byte, into any) error { return stored.unmarshal(raw, into) }

func (b bounds) unmarshal(raw []byte, into any) error {
	if wrong := b.exceeded(raw, into); len(wrong) > 0 {
		return fmt.Errorf("%s: %s", wrong[0].path, wrong[0].description)
	}
	return json.Unmarshal(raw, into)
}

// exceeded finds what must not be decoded from raw, which is JSON, into a value of the type that into points to. It looks at what stands
// there and not at what is decoded, since a decoder decodes each value of a field that is there twice.
func (b bounds) exceeded(raw []byte, into any) []mismatch {
	if n := Values(raw); n > b.values {
		return []mismatch{{"metadata", fmt.Sprintf("the object has %d values, at most %d are possible", n, b.values)}}
	}
	// What looks like such a quantity is nearly always none, and most objects have nothing that does, and no escapes that could hide one.
	if !costly(raw, b) && !bytes.Contains(raw, escape) || !json.Valid(raw) {
		return nil
	}
	q := quantities{bounds: b, decoder: json.NewDecoder(bytes.NewReader(raw)), fields: make(map[reflect.Type]map[string]reflect.Type)}
	q.decoder.UseNumber()
	q.value(reflect.TypeOf(into), nil)
	return q.costly
}

// escape is what all escapes of digits and letters begin with.
var escape = []byte(`\u00`)

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

// quantities finds those of a JSON value that are costly.
type quantities struct {
	bounds
	decoder *json.Decoder
	fields  map[reflect.Type]map[string]reflect.Type
	costly  []mismatch
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
func costly[T string | []byte](text T, b bounds) bool {
	digits := 0
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9' || c == '.':
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
	for end < len(text) && '0' <= text[end] && text[end] <= '9' {
		if end++; end > b.digits {
			return true
		}
	}
	n, err := strconv.Atoi(string(text[:end]))
	return end > 0 && (err != nil || n > b.exponent)
}
