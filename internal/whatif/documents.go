package whatif

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode"

	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/aliases"
	"github.com/berth-scheduler/berth/internal/manifest"
)

// eachDocument visits the documents of an input in YAML or JSON, but those that are empty; an error names the document. What is one is
// as with kubectl: JSON values one after the other, or YAML between lines of "---", of which the aliases are bounded. No document may have
// more than so many values, which are counted before it is decoded.
func eachDocument(data []byte, values int, visit func(raw []byte) error) error {
	number := 0
	take := func(raw json.RawMessage, err error) error {
		number++
		if n := manifest.Values(raw); n > values {
			err = fmt.Errorf("%w: %d values, at most %d are possible in a document", ErrTooMuch, n, values)
		}
		if err == nil && len(raw) > 0 && !bytes.Equal(raw, []byte("null")) {
			err = visit(raw)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
		return nil
	}
	// 1. JSON, as far as it is. What follows a first value may still be YAML.
	rest, notJSON := data, error(nil)
	if start := bytes.TrimLeftFunc(data, unicode.IsSpace); len(start) > 0 && start[0] == '{' {
		decoder := json.NewDecoder(bytes.NewReader(data))
		for notJSON == nil {
			read := decoder.InputOffset()
			var raw json.RawMessage
			switch err := decoder.Decode(&raw); {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil && number > 1:
				return take(nil, err)
			case err != nil:
				rest, notJSON = bytes.TrimLeftFunc(data[read:], unicode.IsSpace), err
			default:
				if err := take(raw, nil); err != nil {
					return err
				}
			}
		}
	}
	// 2. YAML.
	for reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(rest))); ; notJSON = nil {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var raw json.RawMessage
		if err == nil && len(document) > 0 {
			if err = aliases.Few(document, values); err == nil {
				err = aliases.Check(document)
			}
			if err == nil {
				err = yaml.Unmarshal(document, &raw)
			}
		}
		if err != nil && notJSON != nil {
			err = notJSON
		}
		if err := take(raw, err); err != nil {
			return err
		}
	}
}
