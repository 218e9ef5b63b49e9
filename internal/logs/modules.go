package logs

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
)

// Modules are files of which more is logged: klog's --vmodule. Nil: none.
type Modules []*module

// module is one pattern, and the verbosity of the files that it is of.
type module struct {
	pattern string
	level   int
	known   sync.Map // bool by uintptr: whether the pattern is of a line's file. There are as many as the program has lines that log
}

// ParseModules reads pattern=N pairs as klog does: a pattern is of a file's name, without its folder and ".go", as [path.Match] has it. The first that a file matches
// counts.
func ParseModules(texts []string) (Modules, error) {
	var all Modules
	for _, text := range texts {
		if text == "" {
			continue
		}
		pattern, number, ok := strings.Cut(text, "=")
		level, err := strconv.ParseUint(number, 10, 31)
		if !ok || pattern == "" || err != nil {
			return nil, fmt.Errorf("%q: want pattern=N, as bind*=4", text)
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("%q: %w, as bind*=4 is one", text, err)
		}
		all = append(all, &module{pattern: pattern, level: int(level)})
	}
	return all, nil
}

// String returns what ParseModules has read.
func (m Modules) String() string {
	texts := make([]string, len(m))
	for i, one := range m {
		texts[i] = one.pattern + "=" + strconv.Itoa(one.level)
	}
	return strings.Join(texts, ",")
}

// most returns the most that is logged of any file, -1 if there are none.
func (m Modules) most() int {
	most := -1
	for _, one := range m {
		most = max(most, one.level)
	}
	return most
}

// enabled reports whether a line of a verbosity is logged for what is said of its file.
func (m Modules) enabled(pc uintptr, verbosity int) bool {
	for _, one := range m {
		if one.is(pc) {
			return verbosity <= one.level
		}
	}
	return false
}

// is reports whether a line is of the files of a module.
func (m *module) is(pc uintptr) bool {
	if known, ok := m.known.Load(pc); ok {
		return known.(bool)
	}
	file, _ := caller(pc)
	is, _ := path.Match(m.pattern, strings.TrimSuffix(path.Base(file), ".go")) // an error has been found before
	m.known.Store(pc, is)
	return is
}
