package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBubblesAreThoseOfThePackage: with the race detector, others can kill the process; see package bubble.
func TestBubblesAreThoseOfThePackage(t *testing.T) {
	found := 0
	for _, name := range must(t, files) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(rootDir(t), name))
		if err != nil {
			t.Fatal(err)
		}
		switch calls := strings.Contains(string(text), "synctest"+".Test("); {
		case name == "test/bubble/bubble.go" && calls:
			found++
		case calls:
			t.Errorf("%s makes a bubble by itself: let bubble.Test do it", name)
		}
	}
	if found != 1 {
		t.Error("package bubble makes none")
	}
}
