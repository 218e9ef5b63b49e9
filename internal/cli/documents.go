package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// maxDocument is the largest document that the API takes, in bytes.
	maxDocument = 1 << 20
	// maxRequest keeps a request well below the 4 MiB that the gateway takes.
	maxRequest = 3 << 20
	// maxInput bounds what is read at all.
	maxInput = 1 << 30
)

// document is one document of an input.
type document struct {
	text   string
	inline bool // it begins on the line of its "---"
	file   string
	line   int // where it begins, from 1; 0 if it is an item of a List
	item   int // the number of the item in its List, from 1; 0 if it is none
}

// String says where the document is.
func (d document) String() string {
	if d.item > 0 {
		return fmt.Sprintf("%s, item %d", d.file, d.item)
	}
	return fmt.Sprintf("%s, line %d", d.file, d.line)
}

// head is as much of an object as its name takes.
type head struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// readDocuments reads files, "-" being in, and splits them. A List that is too large for one document is taken apart.
func readDocuments(files []string, in io.Reader) ([]document, error) {
	var documents []document
	for _, file := range files {
		text, err := readFile(file, in)
		if err != nil {
			return nil, err
		}
		name := file
		if file == "-" {
			name = "standard input"
		}
		for _, d := range splitDocuments(name, text) {
			if len(d.text) <= maxDocument {
				documents = append(documents, d)
				continue
			}
			items, err := splitList(d)
			if err != nil {
				return nil, err
			}
			documents = append(documents, items...)
		}
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("%s: there is no document in it", strings.Join(files, ", "))
	}
	return documents, nil
}

func readFile(file string, in io.Reader) (string, error) {
	source := in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err // says what and which
		}
		defer f.Close()
		source = f
	}
	text, err := io.ReadAll(io.LimitReader(source, maxInput+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	if len(text) > maxInput {
		return "", fmt.Errorf("read %s: it is larger than %d MiB", file, maxInput>>20)
	}
	return string(text), nil
}

// splitDocuments cuts a text at its lines that begin with "---", as YAML does. Documents of nothing but space and comments
// are left out.
func splitDocuments(file, text string) []document {
	var documents []document
	current := document{file: file, line: 1}
	start := 0
	end := func(at int) {
		if current.text = text[start:at]; hasContent(current.text) {
			documents = append(documents, current)
		}
	}
	for at, line := 0, 1; at < len(text); line++ {
		next := len(text)
		if n := strings.IndexByte(text[at:], '\n'); n >= 0 {
			next = at + n + 1
		}
		if rest, found := strings.CutPrefix(text[at:next], "---"); found && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			end(at)
			if current.inline = hasContent(rest); current.inline {
				start, current.line = at+len("---"), line
			} else {
				start, current.line = next, line+1
			}
		}
		at = next
	}
	end(len(text))
	return documents
}

func hasContent(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

// splitList takes a List apart that is too large to be sent whole. It fails for every other document that is too large.
func splitList(d document) ([]document, error) {
	var list head
	if err := yaml.Unmarshal([]byte(d.text), &list); err != nil {
		return nil, fmt.Errorf("%v: the document is larger than %d bytes, and not a List that could be sent in parts: %w", d, maxDocument, err)
	}
	if !strings.HasSuffix(list.Kind, "List") {
		what := strings.TrimSpace(list.Kind + " " + list.Metadata.Name)
		return nil, fmt.Errorf("%v: %s: a document of %d bytes is too large: at most %d bytes are taken", d, what, len(d.text), maxDocument)
	}
	items := make([]document, 0, len(list.Items))
	for i, item := range list.Items {
		part := document{text: string(item), file: d.file, item: i + 1}
		if len(part.text) > maxDocument {
			return nil, fmt.Errorf("%v: %d bytes are too large: at most %d bytes are taken", part, len(part.text), maxDocument)
		}
		items = append(items, part)
	}
	return items, nil
}

// request is documents that are sent together.
type request struct{ documents []document }

// text joins the documents.
func (r request) text() string {
	var b strings.Builder
	for i, d := range r.documents {
		switch {
		case d.inline:
			b.WriteString("\n---")
		case i > 0:
			b.WriteString("\n---\n")
		}
		b.WriteString(d.text)
	}
	return b.String()
}

// requests groups documents, in order, into requests of at most maxRequest bytes.
func requests(documents []document) []request {
	const separator = len("\n---\n")
	var all []request
	size := maxRequest
	for _, d := range documents {
		if size+separator+len(d.text) > maxRequest {
			all, size = append(all, request{}), 0
		}
		last := &all[len(all)-1]
		last.documents = append(last.documents, d)
		size += separator + len(d.text)
	}
	return all
}
