package aliases

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Limit is how many bytes all aliases of a document may stand for.
const Limit = 4 << 20

// nodeBytes is what a value counts for besides its text: what it takes in memory, at least.
const nodeBytes = 32

// Values returns how many values a document has at most: whatever begins one counts, in texts and comments too. Readers make a hundred
// bytes and more of each, of which "[a,a,…" has one in two bytes, and "[:,:,…" three.
func Values(document []byte) int {
	n := 0
	for i, c := range document {
		switch c {
		case ',', '[', '{', ':', '?', '\n', '\r', 0x85, 0xa8, 0xa9: // of the last three, the ends of line that are not ASCII
			n++
		case '-':
			if i+1 == len(document) || document[i+1] <= ' ' || document[i+1] >= 0x80 { // NUL in UTF-16
				n++
			}
		}
	}
	return n
}

// Few returns an error if a document has more than so many [Values].
func Few(document []byte, most int) error {
	if n := Values(document); n > most {
		return fmt.Errorf("the document has up to %d values, at most %d are possible: write several documents", n, most)
	}
	return nil
}

// Check returns an error if the aliases of a document stand for more than [Limit] bytes, or for themselves. A document that has none, as
// far as a glance tells, is not looked at; one that has and cannot be read is refused.
func Check(document []byte) error {
	if bytes.IndexByte(document, '&') < 0 || bytes.IndexByte(document, '*') < 0 {
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(document))
	for {
		var root yaml.Node
		switch err := decoder.Decode(&root); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		c := counter{anchors: make(map[*yaml.Node]int)}
		if _, err := c.size(&root); err != nil {
			return err
		}
	}
}

// counter adds up what aliases stand for.
type counter struct {
	anchors map[*yaml.Node]int // the sizes of what has an anchor; open for as long as it is not known
	added   int
}

// open is the size of what contains the place that is looked at.
const open = -1

// size returns how large a value is with its aliases replaced. An anchor comes before its aliases, so that its size is known then.
func (c *counter) size(n *yaml.Node) (int, error) {
	if n.Kind == yaml.AliasNode {
		size, known := c.anchors[n.Alias]
		if !known || size == open {
			return 0, fmt.Errorf("line %d: the alias *%.64s stands for itself", n.Line, n.Value)
		}
		if c.added += size; c.added > Limit {
			return 0, fmt.Errorf("line %d: aliases stand for more than %d bytes: write out what is meant, in several documents", n.Line, Limit)
		}
		return size, nil
	}
	if n.Anchor != "" {
		c.anchors[n] = open
	}
	size := nodeBytes + len(n.Value)
	for _, child := range n.Content {
		more, err := c.size(child)
		if err != nil {
			return 0, err
		}
		size += more
	}
	if n.Anchor != "" {
		c.anchors[n] = size
	}
	return size, nil
}
