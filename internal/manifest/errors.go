package manifest

import (
	"fmt"
	"strings"
)

// maxListed is how many violations the text of an Error lists, and maxDescription how many bytes of each.
const (
	maxListed      = 20
	maxDescription = 400
)

// Violation is one thing that is wrong with a manifest.
type Violation struct {
	Document    int    // number of the document, from 1; 0 if it concerns none in particular
	Object      string // kind and name, as far as they are known; else ""
	Field       string // path of the field, such as spec.containers[0].name; "" if it concerns none in particular
	Description string // what is wrong, for a person
}

// String returns everything that is known, on one line.
func (v Violation) String() string {
	var parts []string
	if v.Document > 0 {
		parts = append(parts, fmt.Sprintf("document %d", v.Document))
	}
	if v.Object != "" {
		parts = append(parts, v.Object)
	}
	if v.Field != "" {
		parts = append(parts, v.Field)
	}
	where := strings.Join(parts, ", ")
	if where == "" {
		return v.Description
	}
	return where + ": " + v.Description
}

// Error says all that is wrong with manifests. Nothing of them was used.
type Error struct {
	Violations []Violation // at least one, in the order of the input
}

// Error lists the first violations, one per line if there are several.
func (e *Error) Error() string {
	if len(e.Violations) == 1 {
		return "invalid manifest: " + e.Violations[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "invalid manifests, %d errors:", len(e.Violations))
	for i, v := range e.Violations {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(e.Violations)-maxListed)
			break
		}
		b.WriteString("\n  " + v.String())
	}
	return b.String()
}

// short cuts a description that repeats much of its input.
func short(s string) string {
	if len(s) <= maxDescription {
		return s
	}
	return strings.ToValidUTF8(s[:maxDescription], "") + "…"
}
