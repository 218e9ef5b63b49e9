package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fence    = regexp.MustCompile("(?ms)^ *```[a-z ]*\n(.*?)^ *```")
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	link     = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	makeCall = regexp.MustCompile(`(?m)(?:^|[\s;&|])make ([a-z][a-z-]*)`)
	makeRule = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// pages returns the Markdown files.
func pages(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, name := range must(t, files) {
		if strings.HasSuffix(name, ".md") {
			pages = append(pages, name)
		}
	}
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		if !slices.Contains(pages, name) {
			t.Errorf("there is no %s", name)
		}
	}
	return pages
}

// code returns what a page shows as code: blocks, and spans outside of them.
func code(page string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	for _, m := range codeSpan.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		out = append(out, m[1])
	}
	return out
}

func TestPagesNameOnlyMakeTargetsThatExist(t *testing.T) {
	targets := make(map[string]bool)
	for _, m := range makeRule.FindAllStringSubmatch(readFile(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	found := 0
	for _, name := range pages(t) {
		for _, text := range code(readFile(t, name)) {
			for _, m := range makeCall.FindAllStringSubmatch(text, -1) {
				found++
				if !targets[m[1]] {
					t.Errorf("%s says make %s: there is no such target", name, m[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page names a make target")
	}
}

func TestPagesNameOnlyTestsThatExist(t *testing.T) {
	function, name := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`), regexp.MustCompile(`\bTest[A-Z]\w*`)
	pattern := regexp.MustCompile("go test [^`]*?-run[ =]'?([\\w|^$/]+)")
	var tests []string
	for _, file := range must(t, files) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(readFile(t, file), -1) {
				tests = append(tests, m[1])
			}
		}
	}
	found := 0
	for _, page := range pages(t) {
		text := readFile(t, page)
		for _, m := range name.FindAllString(text, -1) {
			if found++; !slices.Contains(tests, m) {
				t.Errorf("%s names %s: there is no such test", page, m)
			}
		}
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			for wanted := range strings.SplitSeq(m[1], "|") {
				wanted, _, _ = strings.Cut(wanted, "/")
				if wanted == "^$" {
					continue // benchmarks alone are run
				}
				if re, err := regexp.Compile(wanted); err != nil || !slices.ContainsFunc(tests, re.MatchString) {
					t.Errorf("%s runs tests by -run %s: none is matched by %q (%v)", page, m[1], wanted, err)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page names a test")
	}
}

func TestPagesLinkOnlyToWhatExists(t *testing.T) {
	found := 0
	for _, name := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(readFile(t, name), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			found++
			target, anchor, _ := strings.Cut(m[1], "#")
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), filepath.FromSlash(target))
			}
			if filepath.IsAbs(target) || strings.HasPrefix(path, "..") {
				t.Errorf("%s links to %s, outside of the repository", name, m[1])
			} else if _, err := os.Stat(filepath.Join(rootDir(t), path)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(readFile(t, path)), anchor) {
				t.Errorf("%s links to %s: the page has no such heading", name, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page links to anything")
	}
}

// anchors returns the names by which the headings of a page are linked to.
func anchors(page string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return out
}

func TestEveryDecisionIsListed(t *testing.T) {
	const dir = "docs/decisions"
	list := readFile(t, dir+"/README.md")
	seen := make(map[string]string)
	for _, name := range must(t, files) {
		base := filepath.Base(name)
		if filepath.Dir(name) != filepath.FromSlash(dir) || base == "README.md" {
			continue
		}
		number, _, _ := strings.Cut(base, "-")
		if !regexp.MustCompile(`^\d{4}$`).MatchString(number) || seen[number] != "" {
			t.Errorf("%s: want a name like 0001-what.md, with a number of its own", name)
		}
		seen[number] = name
		if !strings.Contains(list, "("+base+")") {
			t.Errorf("%s/README.md does not list %s", dir, base)
		}
		for _, part := range []string{"# " + number + ": ", "**Context.**", "**Decision.**", "**Consequences.**"} {
			if !strings.Contains(readFile(t, name), part) {
				t.Errorf("%s has no %q", name, part)
			}
		}
	}
	if len(seen) == 0 {
		t.Error("there are no decisions")
	}
}

// notText are the endings of files that are no text of ours.
var notText = []string{".png", ".jpg", ".gz", ".sum", "LICENSE"}

func TestNoFileHoldsWhatBelongsToOnePerson(t *testing.T) {
	laws := []struct {
		pattern string // in pieces, so that this file does not match itself
		reason  string
	}{
		{`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`, "what is not done is an issue; what is known is a sentence"},
		{`/ho` + `me/[a-z]`, "no path of one machine"},
		{`/Us` + `ers/[A-Za-z]`, "no path of one machine"},
		{`(^|[\s"'(=])/ro` + `ot/`, "no path of one machine"},
		{`(^|[\s"'(=])/wo` + `rk/`, "no path of one machine"},
		{`[A-Z]:\\Us` + `ers`, "no path of one machine"},
		{`(?m)^(<{7}|>{7}) `, "an unresolved merge"},
		{`-----BEGIN [A-Z ]*PRIVATE K` + `EY-----`, "keys for tests are generated by tests"},
	}
	for _, law := range laws {
		pattern := regexp.MustCompile(law.pattern)
		for _, name := range must(t, files) {
			if slices.ContainsFunc(notText, func(end string) bool { return strings.HasSuffix(name, end) }) {
				continue
			}
			text := readFile(t, name)
			if at := pattern.FindStringIndex(text); at != nil {
				t.Errorf("%s:%d: %q: %s", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], law.reason)
			}
		}
	}
}
