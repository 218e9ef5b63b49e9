package manifest

import (
	"bytes"
	"encoding/json"
	"io"
)

// document is one document of the input.
type document struct {
	number int // from 1; documents without content do not count
	raw    []byte
	json   bool // raw is a JSON value; otherwise it is YAML
}

// split cuts the input into documents.
func split(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if values, ok := jsonValues(data); ok {
		return values
	}
	var out []document
	var current []byte
	flush := func() {
		if !blank(current) {
			out = append(out, document{number: len(out) + 1, raw: current})
		}
		current = nil
	}
	for line := range bytes.Lines(data) {
		if rest, ok := separator(line); ok {
			flush()
			current = append(current, rest...)
			continue
		}
		if bytes.Equal(bytes.TrimRight(line, " \t\r\n"), []byte("...")) {
			flush()
			continue
		}
		current = append(current, line...)
	}
	flush()
	return out
}

// jsonValues reads the input as JSON values, one after the other.
func jsonValues(data []byte) ([]document, bool) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, false
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	var out []document
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if err == io.EOF {
			return out, true
		}
		if err != nil {
			return nil, false
		}
		out = append(out, document{number: len(out) + 1, raw: value, json: true})
	}
}

// separator reports whether the line begins a new document, and returns what of the line belongs to that.
func separator(line []byte) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte("---"))
	if !ok || len(rest) > 0 && !bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])) {
		return nil, false
	}
	return rest, true
}

// blank reports whether a document has nothing but white space and comments.
func blank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// looksLikeList finds out, without parsing it, whether a YAML document is a v1 List in block style.
func looksLikeList(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if kind, ok := bytes.CutPrefix(line, []byte("kind:")); ok {
			return string(bytes.Trim(kind, " \t\r\n\"'")) == "List"
		}
	}
	return false
}
