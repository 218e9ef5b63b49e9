package rules

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestTheImageIsBuiltOfWhatBerthImports(t *testing.T) {
	needed := map[string]bool{"cmd": true}
	for _, p := range must(t, packages) {
		if p.Path != "cmd/berth" {
			continue
		}
		for _, path := range p.Deps {
			if inside, ok := strings.CutPrefix(path, module+"/"); ok {
				dir, _, _ := strings.Cut(inside, "/")
				needed[dir] = true
			}
		}
	}
	copied, sent := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^COPY (\w+) (\w+)$`).FindAllStringSubmatch(readFile(t, "deploy/Dockerfile"), -1) {
		copied[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^!(\w+)$`).FindAllStringSubmatch(readFile(t, ".dockerignore"), -1) {
		sent[m[1]] = true
	}
	if !maps.Equal(copied, needed) || !maps.Equal(sent, needed) {
		t.Errorf("berth is built of %v; deploy/Dockerfile copies %v, .dockerignore lets %v through",
			slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(copied)), slices.Sorted(maps.Keys(sent)))
	}
}
