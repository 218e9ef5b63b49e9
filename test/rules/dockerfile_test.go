package rules

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// images are the Dockerfiles, each with the directory of its program's package, and the folder that it is copied with.
var images = map[string]struct{ dir, folder string }{
	"deploy/Dockerfile":        {"cmd/berth", "cmd"},
	"cmd/berth-scv/Dockerfile": {"cmd/berth-scv", "cmd/berth-scv"},
	"plugins/yoda/Dockerfile":  {"plugins/yoda/cmd/berth-yoda", "plugins/yoda"},
}

func TestImagesAreBuiltOfWhatTheirProgramsImport(t *testing.T) {
	sent, any := map[string]bool{}, map[string]bool{"LICENSE": true}
	for _, m := range regexp.MustCompile(`(?m)^!(\w+)$`).FindAllStringSubmatch(readFile(t, ".dockerignore"), -1) {
		sent[m[1]] = true
	}
	for file, image := range images {
		deps, err := run(filepath.Join(rootDir(t), image.dir), "go", "list", "-deps", ".")
		if err != nil {
			t.Fatal(err)
		}
		needed := map[string]bool{image.folder: true}
		for path := range strings.FieldsSeq(string(deps)) {
			if inside, ok := strings.CutPrefix(path, module+"/"); ok && !strings.HasPrefix(inside, image.folder+"/") && inside != image.folder {
				dir, _, _ := strings.Cut(inside, "/")
				needed[dir] = true
			}
		}
		copied := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^COPY ([\w/-]+) ([\w/-]+)$`).FindAllStringSubmatch(readFile(t, file), -1) {
			copied[m[1]] = true
		}
		if !copied["LICENSE"] {
			t.Errorf("%s copies no LICENSE: images are passed on", file)
		}
		delete(copied, "LICENSE")
		if !maps.Equal(copied, needed) {
			t.Errorf("%s is built of %v; %s copies %v", image.dir, slices.Sorted(maps.Keys(needed)), file, slices.Sorted(maps.Keys(copied)))
		}
		for path := range needed {
			dir, _, _ := strings.Cut(path, "/")
			any[dir] = true
		}
	}
	if !maps.Equal(sent, any) {
		t.Errorf("images are built of %v; .dockerignore lets %v through", slices.Sorted(maps.Keys(any)), slices.Sorted(maps.Keys(sent)))
	}
}
