package scenarios

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories print into their files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStoriesOnManifests(t *testing.T) {
	for _, file := range stories(t) {
		t.Run(storyName(file), func(t *testing.T) {
			t.Parallel()
			tell(t, file, func(o berthtest.Options) *story {
				b, users := startOnManifests(t, o)
				return &story{t: t, berth: b, users: users, metricsAt: o.OpsListen}
			})
		})
	}
}

func TestStoriesOnAnAPIServer(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	for _, file := range stories(t) {
		t.Run(storyName(file), func(t *testing.T) {
			tell(t, file, func(o berthtest.Options) *story {
				b, users := startOnAPIServer(t, cp, o)
				return &story{t: t, berth: b, users: users, metricsAt: o.OpsListen, kube: true}
			})
		})
	}
}

func storyName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".txt") }

func stories(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("stories: %v, %v", files, err)
	}
	return files
}

// tell plays the story of a file and compares what it prints.
func tell(t *testing.T, file string, start func(berthtest.Options) *story) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := play(t, filepath.Base(file), string(want), start)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s\nrun with -rewrite and read the difference", file, diff)
	}
}

const (
	indent   = "    "
	kubeOnly = "kube: "
)

// play runs a script and returns it with what it prints now.
func play(t *testing.T, file, script string, start func(berthtest.Options) *story) string {
	t.Helper()
	var s *story
	var out strings.Builder
	keep := false // what is printed below the command that was left out
	number := 0
	for line := range strings.Lines(strings.TrimRight(script, "\n") + "\n") {
		number++
		if strings.HasPrefix(line, indent) {
			if keep {
				out.WriteString(line)
			}
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			keep = false
			continue
		}
		words := strings.Fields(line)
		if s == nil {
			o, err := options(words)
			if err != nil {
				t.Fatalf("%s:%d: %v", file, number, err)
			}
			ports, err := kubetest.FreePorts(1)
			if err != nil {
				t.Fatal(err)
			}
			o.OpsListen = "127.0.0.1:" + ports[0]
			s = start(o)
			if words[0] == "berth" {
				continue
			}
		}
		line, forKube := strings.CutPrefix(line, kubeOnly)
		keep = forKube && !s.kube
		if keep {
			continue
		}
		s.at = fmt.Sprintf("%s:%d: %s", file, number, line)
		printed, err := s.command(strings.Fields(line))
		if err != nil {
			t.Fatalf("%s: %v", s.at, err)
		}
		for _, p := range printed {
			out.WriteString(indent + p + "\n")
		}
	}
	return out.String()
}

// options reads the berth command; any other says nothing.
func options(words []string) (berthtest.Options, error) {
	o := berthtest.Options{Seed: 1, Shards: 1, Queues: 1}
	if words[0] != "berth" {
		return o, nil
	}
	for key, value := range parseAttributes(words[1:]) {
		n, err := strconv.Atoi(value)
		if err != nil {
			return o, fmt.Errorf("%s: %w", key, err)
		}
		switch key {
		case "shards":
			o.Shards = int32(n)
		case "queues":
			o.Queues = n
		case "filters":
			o.FilterWorkers = n
		case "batch":
			o.BatchSize = n
		default:
			return o, fmt.Errorf("Berth has no %q", key)
		}
	}
	return o, nil
}
