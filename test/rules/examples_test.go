package rules

import "testing"

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
