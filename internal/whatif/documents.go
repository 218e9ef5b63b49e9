package whatif

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode"

	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/aliases"
	"github.com/berth-scheduler/berth/internal/manifest"
)

// extent is how much an input may have.
type extent struct {
	values    int // of a document, which are counted before it is decoded
	documents int // empty ones too: to read one takes some 6 KiB, whatever is in it
}

var (
	asked = extent{values: manifest.MaxListValues, documents: 10_000} // of what somebody asks about
	own   = extent{values: math.MaxInt, documents: math.MaxInt}       // of one's own file
)

// eachDocument visits the documents of an input in YAML or JSON, but those that are empty; an error names the document. What is one is
// as with kubectl: JSON values one after the other, or YAML between lines of "---", of which the aliases are bounded.
func eachDocument(ctx context.Context, data []byte, most extent, visit func(raw []byte) error) error {
	number := 0
	take := func(raw json.RawMessage, err error) error {
		number++
		n := manifest.Values(raw)
		switch ended := between(ctx); {
		case ended != nil:
			return ended
		case number > most.documents:
			err = fmt.Errorf("%w: at most %d documents are possible", ErrTooMuch, most.documents)
		case n > most.values:
			err = fmt.Errorf("%w: %d values, at most %d are possible in a document", ErrTooMuch, n, most.values)
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
			if err = aliases.Few(document, most.values); err == nil {
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
