package rules

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/manifest"
)

func TestTheExampleOfAnExplanationIsOneOfTheTests(t *testing.T) {
	const page, example = "docs/explain.md", "internal/explain/testdata/resources.txt"
	want := readFile(t, example)
	for _, block := range fence.FindAllStringSubmatch(readFile(t, page), -1) {
		if block[1] == want {
			return
		}
	}
	t.Errorf("%s has no block that is %s", page, example)
}

// listed is what is told to be fetched of a cluster for commands that are answered from a file.
var listed = regexp.MustCompile(`kubectl get (nodes,[a-z,]+)`)

// A pod with a claim would be told that its claim does not exist if nobody had fetched claims.
func TestAFileOfAClusterIsSaidToHaveAllThatIsRead(t *testing.T) {
	var all []string
	for _, kind := range manifest.Kinds() {
		if kind == manifest.KindPodGroup {
			continue // most API servers do not serve it, and kubectl then answers nothing at all
		}
		resource, _ := manifest.Resource(kind)
		all = append(all, resource)
	}
	want := strings.Join(all, ",")
	pages, err := filepath.Glob(filepath.Join(rootDir(t), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"README.md", "internal/cli/cli.go"}
	for _, page := range pages {
		files = append(files, filepath.Join("docs", filepath.Base(page)))
	}
	found := make(map[string]bool)
	for _, name := range files {
		for _, m := range listed.FindAllStringSubmatch(readFile(t, name), -1) {
			if found[name] = true; m[1] != want {
				t.Errorf("%s says to fetch %s, want %s", name, m[1], want)
			}
		}
	}
	for _, name := range []string{"README.md", "internal/cli/cli.go", "docs/explain.md"} {
		if !found[name] {
			t.Errorf("%s does not say what to fetch", name)
		}
	}
}
