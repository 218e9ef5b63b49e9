// Package annotations says what plugins may choose for a pod as its annotations. Who chooses them checks that, and who writes them.
package annotations

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Max is how many may be chosen for a pod, and MaxBytes how long they may be, names and values together.
const (
	Max      = 64
	MaxBytes = 4096
)

// Check returns what is wrong with annotations that plugins have chosen for a pod. The API server looks at none of this when it writes them with a bind, and would refuse all later writes to a pod that has a wrong one.
func Check(chosen map[string]string) error {
	if n := len(chosen); n > Max {
		return fmt.Errorf("%d annotations: want at most %d", n, Max)
	}
	bytes := 0
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		if err := checkOne(name, chosen[name]); err != nil {
			return err
		}
		bytes += len(name) + len(chosen[name])
	}
	if bytes > MaxBytes {
		return fmt.Errorf("annotations of %d bytes in all: want at most %d", bytes, MaxBytes)
	}
	return nil
}

func checkOne(name, value string) error {
	if _, good := sound.Load(name); !good {
		if err := checkName(name); err != nil {
			return err
		}
		if countSound.Add(1) <= mostSound {
			sound.Store(name, nil)
		}
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("annotation %q: its value is not UTF-8", name)
	}
	return nil
}

// sound has names that have nothing wrong: a plugin chooses the same for each pod, and it takes a while to find that out. It is of mostSound at most.
var (
	sound      sync.Map
	countSound atomic.Int64
)

const mostSound = 1000

func checkName(name string) error {
	short := strings.ToValidUTF8(name[:min(len(name), 100)], "")
	if wrong := validation.IsQualifiedName(strings.ToLower(name)); len(wrong) > 0 { // as the API server has it for annotations
		return fmt.Errorf("annotation %q: its name %s", short, wrong[0])
	}
	prefix, _, ok := strings.Cut(strings.ToLower(name), "/")
	switch under := "." + prefix; {
	case !ok:
		return fmt.Errorf("annotation %q: its name has no prefix: want one, such as example.com/%s, for others may mean something else by it", short, short)
	case strings.HasSuffix(under, ".kubernetes.io"), strings.HasSuffix(under, ".k8s.io"):
		return fmt.Errorf("annotation %q: names of %s are Kubernetes' own", short, prefix)
	}
	return nil
}
