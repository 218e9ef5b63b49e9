package reread_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/reread"
)

func TestAFileThatIsBackIsAsGoodAsItWas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	now := time.Unix(1, 0)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	v, err := reread.Open(reread.Config[string]{
		Files: []string{file}, What: "words", Now: func() time.Time { return now },
		Parse: func(contents [][]byte) (string, error) {
			if string(contents[0]) == "bad" {
				return "", errors.New("a bad word")
			}
			return string(contents[0]), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		text  string // "" takes the file away
		want  string
		stale bool
	}{
		{"one", "one", false}, {"", "one", true}, {"one", "one", false},
		{"bad", "one", true}, {"", "one", true}, {"bad", "one", true}, {"two", "two", false},
	} {
		if step.text != "" {
			write(step.text)
		} else if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		now = now.Add(reread.Every)
		if got, stale := v.Latest(), v.Stale(); got != step.want || stale != step.stale {
			t.Errorf("the file holds %q: %q, stale %v; want %q, %v", step.text, got, stale, step.want, step.stale)
		}
	}
}
