package cluster

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// Decoder reads what an Encoder has written. After bytes that none writes it returns zeros, and the object is not taken.
type Decoder struct {
	b   []byte
	err error
}

var errTruncated = errors.New("it ends too early")

// More reports whether anything is left. A field that a later release has added is read only then.
func (d *Decoder) More() bool { return len(d.b) > 0 }

func (d *Decoder) fail(err error) {
	if d.err == nil {
		d.b, d.err = nil, err
	}
}

// Int reads a number.
func (d *Decoder) Int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail(errTruncated)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// Text reads a text.
func (d *Decoder) Text() string {
	n := d.Int()
	if n < 0 || n > int64(len(d.b)) {
		d.fail(errTruncated)
		return ""
	}
	s := string(d.b[:n])
	if !utf8.ValidString(s) {
		d.fail(errors.New("a text in it is not valid UTF-8"))
		return ""
	}
	d.b = d.b[n:]
	return s
}

// Texts reads a list of texts, nil for an empty one.
func (d *Decoder) Texts() []string { return decodeList(d, (*Decoder).Text) }

// Bool reads whether something is so.
func (d *Decoder) Bool() bool { return d.Int() != 0 }

// decodeList reads what list has written. Each element takes a byte at least, so that no more are made room for than can come.
func decodeList[T any](d *Decoder, one func(*Decoder) T) []T {
	n := d.Int()
	if n < 0 || n > int64(len(d.b)) {
		d.fail(errTruncated)
		return nil
	}
	var out []T
	for range n {
		if out = append(out, one(d)); d.err != nil {
			return nil
		}
	}
	return out
}

func decodeRequirement(d *Decoder) Requirement {
	return Requirement{Key: d.Text(), Operator: d.Text(), Values: d.Texts()}
}

func decodeLabel(d *Decoder) Label { return Label{Key: d.Text(), Value: d.Text()} }

func decodeTerm(d *Decoder) NodeSelectorTerm {
	return NodeSelectorTerm{Expressions: decodeList(d, decodeRequirement), Fields: decodeList(d, decodeRequirement)}
}

func decodeSelector(d *Decoder) LabelSelector {
	return LabelSelector{Nothing: d.Bool(), Requirements: decodeList(d, decodeRequirement)}
}
