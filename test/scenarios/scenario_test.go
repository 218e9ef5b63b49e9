package scenarios

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

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

// tell plays the story of a file and compares what it prints. Commands below "kube" are only for API servers: elsewhere what is
// written there stands as it is.
func tell(t *testing.T, file string, start func(berthtest.Options) *story) {
	t.Helper()
	var s *story
	datadriven.RunTest(t, file, func(_ *testing.T, d *datadriven.TestData) string {
		commands := clustertest.Commands(d.FullCmd(), d.Input)
		if s == nil {
			o, err := options(commands[0])
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			ports, err := kubetest.FreePorts(1)
			if err != nil {
				t.Fatal(err)
			}
			o.OpsListen = "127.0.0.1:" + ports[0]
			s = start(o)
		}
		switch commands[0][0] {
		case "berth":
			commands = commands[1:]
		case "kube":
			if !s.kube {
				return d.Expected
			}
			commands = commands[1:]
		}
		var printed []string
		for _, words := range commands {
			s.at = d.Pos + ": " + strings.Join(words, " ")
			lines, err := s.command(words)
			if err != nil {
				t.Fatalf("%s: %v", s.at, err)
			}
			printed = append(printed, lines...)
		}
		return strings.Join(printed, "\n")
	})
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
