package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mismatch is a value that is not of its field's type.
type mismatch struct{ path, description string }

var (
	unmarshaler  = reflect.TypeFor[json.Unmarshaler]()
	quantityType = reflect.TypeFor[resource.Quantity]()
)

// compare finds where a decoded JSON value does not fit a Go type. The decoder's own errors name neither the index of a
// list nor, for quantities, any field.
func compare(value any, t reflect.Type, path *field.Path, out *[]mismatch) {
	if value == nil || len(*out) >= maxListed {
		return
	}
	fail := func(description string) {
		m := mismatch{description: description}
		if path != nil {
			m.path = path.String()
		}
		*out = append(*out, m)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		if text, ok := value.(string); ok && t == quantityType && costly(text, toParse) {
			fail(outOfRange(text))
			return
		}
		if err := decodeInto(value, t); err != nil {
			fail(fmt.Sprintf("%s: %s", inJSON(value), strings.TrimPrefix(err.Error(), "json: ")))
		}
		return
	}
	wrong := func(want string) { fail(fmt.Sprintf("want %s, not %s", want, kindOf(value))) }
	switch t.Kind() {
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			wrong("a mapping")
			return
		}
		fields := fieldTypes(t)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			if ft, ok := fields[key]; ok {
				compare(object[key], ft, path.Child(key), out)
			}
		}
	case reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			wrong("a mapping")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			compare(object[key], t.Elem(), path.Key(key), out)
		}
	case reflect.Slice:
		list, ok := value.([]any)
		if t.Elem().Kind() == reflect.Uint8 {
			if decodeInto(value, t) != nil {
				wrong("base64 text")
			}
			return
		}
		if !ok {
			wrong("a list")
			return
		}
		for i, v := range list {
			compare(v, t.Elem(), path.Index(i), out)
		}
	default:
		if decodeInto(value, t) != nil {
			wrong(map[reflect.Kind]string{
				reflect.String: "text (put it in quotes)", reflect.Bool: "true or false",
				reflect.Int32: "a whole number of 32 bits", reflect.Int64: "a whole number of 64 bits",
			}[t.Kind()])
		}
	}
}

// fieldTypes returns the types of a struct's fields by their JSON names, those of inlined structs included.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct {
			maps.Copy(out, fieldTypes(f.Type))
			continue
		}
		out[cmp.Or(name, f.Name)] = f.Type
	}
	return out
}

func decodeInto(value any, t reflect.Type) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, reflect.New(t).Interface())
}

func inJSON(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return short(string(data))
}

// kindOf names what a value is, for a person.
func kindOf(value any) string {
	switch v := value.(type) {
	case string:
		return "the text " + strconv.Quote(short(v))
	case json.Number:
		return "the number " + v.String()
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	default:
		return "a mapping"
	}
}
