package system

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/demo"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// readmeAddress is where README's commands expect the gateway.
const readmeAddress = "127.0.0.1:7070"

func TestEveryGrpcurlLineOfTheReadmeWorks(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(readme)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "grpcurl ") {
			lines = append(lines, line)
		}
	}
	if len(lines) < 8 {
		t.Fatalf("README has %d grpcurl lines; want one for each thing there is to ask", len(lines))
	}
	b := berthtest.Start(t, berthtest.Options{})
	b.Apply(demo.NodeManifests()[:400]...)
	pods := demo.PodManifests(0)
	picked := pods[:0]
	for _, p := range pods {
		if strings.Contains(p, "name: gpu-000") || strings.Contains(p, "name: cpu-000") {
			picked = append(picked, p)
		}
	}
	b.Apply(picked...)
	b.AwaitDecided(len(picked))

	bin, err := filepath.Abs(filepath.Join(root, ".bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			if !strings.Contains(line, readmeAddress) {
				t.Fatalf("it does not name %s", readmeAddress)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", strings.ReplaceAll(line, readmeAddress, b.GRPCAddress))
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			cmd.Dir = root
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil {
				t.Errorf("%v\n%s", err, &out)
			}
			if out.Len() == 0 {
				t.Error("it printed nothing")
			}
		})
	}
}
