package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/aliases"
)

const (
	// MaxObjectBytes is how large the manifest of one object may be. etcd takes no more than about 1.5 MiB.
	MaxObjectBytes = 1 << 20
	// MaxInputBytes is how large the input of Parse may be.
	MaxInputBytes = 64 << 20
	// maxViolations is how many violations are collected before the rest of the input is left unread.
	maxViolations = 100
)

// Parse reads all objects of the input, in order, with their defaults. The error is an *Error; there are no objects
// then. Objects of the same kind and name, and no object at all, are errors too.
func Parse(data []byte) ([]Object, error) {
	return ParseBetween(data, func() error { return nil })
}

// ParseBetween is Parse for who has others wait meanwhile: it calls between before each document and each item of a list, and returns its
// error.
func ParseBetween(data []byte, between func() error) ([]Object, error) {
	p := parser{where: map[string]string{}, between: between}
	if len(data) > MaxInputBytes {
		p.fail(place{}, "", fmt.Sprintf("the input has %d bytes, at most %d are possible", len(data), MaxInputBytes))
		return nil, &Error{p.violations}
	}
	for _, doc := range split(data) {
		if len(p.violations) >= maxViolations {
			break
		}
		if err := p.document(doc); err != nil {
			return nil, err
		}
	}
	if len(p.violations) == 0 && len(p.objects) == 0 {
		p.fail(place{}, "", "the input contains no object")
	}
	if len(p.violations) > 0 {
		return nil, &Error{p.violations}
	}
	return p.objects, nil
}

// parser collects the objects of one input, and what is wrong with it.
type parser struct {
	objects    []Object
	violations []Violation
	where      map[string]string // by object: where it was defined first
	between    func() error      // an error of it ends everything
}

// place is where in the input something is.
type place struct {
	document int
	item     *field.Path // of an item of a list: items[3]
	object   string
}

func (w place) String() string {
	s := fmt.Sprintf("document %d", w.document)
	if w.item != nil {
		s += ", " + w.item.String()
	}
	return s
}

// fail adds a violation.
func (p *parser) fail(w place, path, description string) {
	if w.item != nil {
		path = strings.TrimSuffix(w.item.String()+"."+path, ".")
	}
	p.violations = append(p.violations, Violation{Document: w.document, Object: w.object, Field: path, Description: short(description)})
}

// head is what every manifest has.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// list is a v1 List.
type list struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta   `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

// document reads a document: an object or a list of them. An error is one of between.
func (p *parser) document(doc document) error {
	if err := p.between(); err != nil {
		return err
	}
	w := place{document: doc.number}
	raw := doc.raw
	if doc.json {
		if n := Values(raw); n > MaxListValues {
			p.fail(w, "", fmt.Sprintf("it has %d values, at most %d are possible", n, MaxListValues))
			return nil
		}
	} else {
		most := MaxListValues
		if len(raw) <= MaxObjectBytes {
			most = maxYAMLValues
		} else if !looksLikeList(raw) {
			p.fail(w, "", fmt.Sprintf("it has %d bytes, at most %d are possible", len(raw), MaxObjectBytes))
			return nil
		}
		err := aliases.Few(raw, most)
		if err == nil {
			err = aliases.Check(raw)
		}
		if err != nil {
			p.fail(w, "", yamlError(err))
			return nil
		}
		if raw, err = yaml.YAMLToJSONStrict(raw); err != nil {
			p.fail(w, "", yamlError(err))
			return nil
		}
	}
	h, ok := p.head(w, raw)
	if !ok {
		return nil
	}
	if h.APIVersion != "v1" || h.Kind != "List" {
		p.object(w, h, raw)
		return nil
	}
	w.object = "List"
	var l list
	if !p.decode(w, raw, &l) {
		return nil
	}
	for i, item := range l.Items {
		if len(p.violations) >= maxViolations {
			return nil
		}
		if err := p.between(); err != nil {
			return err
		}
		w := place{document: doc.number, item: field.NewPath("items").Index(i)}
		if h, ok := p.head(w, item); ok {
			p.object(w, h, item)
		}
	}
	return nil
}

// head reads what kind of object raw is.
func (p *parser) head(w place, raw []byte) (head, bool) {
	var h head
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '{' {
		p.fail(w, "", "want a mapping with apiVersion, kind and metadata")
		return h, false
	}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		p.typeErrors(w, raw, &h, err)
		return h, false
	}
	return h, true
}

// object reads, completes and checks one object.
func (p *parser) object(w place, h head, raw []byte) {
	w.object = title(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
	if len(raw) > MaxObjectBytes {
		p.fail(w, "", fmt.Sprintf("it has %d bytes, at most %d are possible", len(raw), MaxObjectBytes))
		return
	}
	kind := kindNamed(h.Kind)
	if kind == nil || kind.complete == nil {
		p.fail(w, "kind", fmt.Sprintf("%q is not supported, want %s or List", h.Kind, strings.Join(Kinds(), ", ")))
		return
	}
	if h.APIVersion != kind.apiVersion {
		p.fail(w, "apiVersion", fmt.Sprintf("%q is not supported, want %q", h.APIVersion, kind.apiVersion))
		return
	}
	o := kind.zero()
	o.Document = w.document
	if wrong := toParse.exceeded(raw, o.Value()); len(wrong) > 0 {
		p.failAll(w, wrong)
		return
	}
	if !p.decode(w, raw, o.Value()) {
		return
	}
	if kind.namespaced {
		o.Meta().Namespace = cmp.Or(o.Meta().Namespace, metav1.NamespaceDefault)
	}
	errs := kind.complete(o)
	w.object = o.String()
	for _, err := range errs {
		p.fail(w, err.Field, err.ErrorBody())
	}
	if o.Name() != "" {
		if first, ok := p.where[w.object]; ok {
			p.fail(w, "metadata.name", fmt.Sprintf("it is defined twice: in %s and in %s", first, w))
		} else {
			p.where[w.object] = w.String()
		}
	}
	p.objects = append(p.objects, o)
}

// decode reads raw strictly into a pointer to a struct.
func (p *parser) decode(w place, raw []byte, into any) bool {
	strict, err := strictjson.UnmarshalStrict(raw, into)
	if err != nil {
		p.typeErrors(w, raw, into, err)
		return false
	}
	for _, err := range strict {
		path := ""
		if at, ok := errors.AsType[strictjson.FieldError](err); ok {
			path = at.FieldPath()
		}
		what, _, _ := strings.Cut(err.Error(), ` "`)
		p.fail(w, path, what)
	}
	return len(strict) == 0
}

// typeErrors explains why raw cannot be decoded into a value of the type that into points to.
func (p *parser) typeErrors(w place, raw []byte, into any, err error) {
	if wrong := mismatches(raw, into); len(wrong) > 0 {
		p.failAll(w, wrong)
		return
	}
	p.fail(w, "", err.Error())
}

func (p *parser) failAll(w place, wrong []mismatch) {
	for _, m := range wrong {
		p.fail(w, m.path, m.description)
	}
}

// mismatches compares raw with the type that into points to.
func mismatches(raw []byte, into any) []mismatch {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var tree any
	if decoder.Decode(&tree) != nil {
		return nil
	}
	var out []mismatch
	compare(tree, reflect.TypeOf(into).Elem(), nil, &out)
	return out
}

// yamlError puts the error of the YAML parser on one line, without the names of Go's types.
func yamlError(err error) string {
	s := strings.ReplaceAll(err.Error(), "\n", " ")
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		s = strings.TrimPrefix(strings.TrimSpace(s), prefix)
	}
	return "not valid YAML: " + strings.Join(strings.Fields(s), " ")
}
