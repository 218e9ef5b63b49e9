package page

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildBerth builds the binary into a folder.
func buildBerth(dir string) (string, error) {
	binary := filepath.Join(dir, "berth")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/berth")
	cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	return binary, nil
}

// berth is a running `berth all` on its local source.
type berth struct {
	http    string // where it serves the page
	process *exec.Cmd
	ended   chan struct{} // closed when nothing more comes from it
}

// start runs Berth until the test ends.
func start(t *testing.T, dataDir, httpListen string, flags ...string) *berth {
	t.Helper()
	b, err := run(dataDir, httpListen, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

func run(dataDir, httpListen string, flags ...string) (*berth, error) {
	b := &berth{ended: make(chan struct{})}
	args := append([]string{"all", "--listen", "127.0.0.1:0", "--http-listen", httpListen, "--data-dir", dataDir,
		"--shards", "2", "--filter-workers", "2", "--score-workers", "2", "--queues", "2", "--log-format", "json"}, flags...)
	b.process = exec.Command(binary, args...)
	stderr, err := b.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := b.process.Start(); err != nil {
		return nil, fmt.Errorf("start berth: %w", err)
	}
	serving := make(chan string, 1)
	var said bytes.Buffer // up to then
	go func() {
		defer close(b.ended)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for found := false; lines.Scan(); {
			if found {
				continue
			}
			said.Write(append(lines.Bytes(), '\n'))
			var line struct{ Msg, HTTP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "public API" {
				serving <- line.HTTP
				found = true
			}
		}
	}()
	select {
	case b.http = <-serving:
		return b, nil
	case <-b.ended:
	case <-time.After(patience):
	}
	b.stop()
	return nil, fmt.Errorf("berth does not serve; it says:\n%s", said.String())
}

// stop ends Berth. It may be called again.
func (b *berth) stop() {
	if b.process.ProcessState != nil {
		return
	}
	_ = b.process.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-b.ended:
	case <-time.After(patience):
		_ = b.process.Process.Kill()
		<-b.ended
	}
	_ = b.process.Wait() // how it ended is not what is tested here
}

// post calls an RPC of the gateway, again while it is not ready, and decodes its answer.
func (b *berth) post(path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(patience); ; <-tick.C {
		response, err := http.Post("http://"+b.http+path, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case err != nil:
			return err
		case response.StatusCode == http.StatusOK:
			return json.Unmarshal(text, answer)
		case response.StatusCode != http.StatusServiceUnavailable || time.Now().After(until):
			return fmt.Errorf("%s: %s: %s", path, response.Status, text)
		}
	}
}

// get gets what the gateway serves at a path.
func (b *berth) get(path string, answer any) error {
	response, err := http.Get("http://" + b.http + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// apply applies manifests, a thousand at a time.
func (b *berth) apply(manifests ...string) error {
	for len(manifests) > 0 {
		n := min(len(manifests), 1000)
		if err := b.post("/v1/apply", map[string]any{"manifests": strings.Join(manifests[:n], "---\n")}, &struct{}{}); err != nil {
			return err
		}
		manifests = manifests[n:]
	}
	return nil
}

// settle waits until all pods are placed but so many, which cannot be.
func (b *berth) settle(pending int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(patience); ; <-tick.C {
		var status struct {
			Pods   struct{ Pending, Assumed int }
			Shards []struct{ Depth struct{ Unschedulable int } }
		}
		if err := b.get("/v1/status", &status); err != nil {
			return err
		}
		unschedulable := 0
		for _, shard := range status.Shards {
			unschedulable += shard.Depth.Unschedulable
		}
		if status.Pods.Pending == pending && status.Pods.Assumed == 0 && unschedulable == pending {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("the cluster does not come to rest with %d pending pods: %+v", pending, status)
		}
	}
}

// node is the manifest of a node with 16 CPU and 64 GiB.
func node(name, zone string, devices int, cordoned bool) string {
	text := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  labels:\n    topology.kubernetes.io/zone: %s\nspec:\n  unschedulable: %t\n"+
		"status:\n  allocatable:\n    cpu: \"16\"\n    memory: 64Gi\n    pods: \"110\"\n", name, zone, cordoned)
	if devices > 0 {
		text += fmt.Sprintf("    example.com/gpu: \"%d\"\n", devices)
	}
	return text
}

// pod is the manifest of a pod with requests, and lines of its spec beside.
func pod(namespace, name string, priority int, requests string, spec ...string) string {
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  namespace: %s\n  name: %s\nspec:\n  priority: %d\n", namespace, name, priority)
	for _, line := range spec {
		text += "  " + line + "\n"
	}
	return text + "  containers:\n  - name: main\n    image: example\n    resources:\n      requests: {" + requests + "}\n"
}

// unplaceable is how many pods of the fleet fit nowhere.
const unplaceable = 12

// fleet is 300 nodes in three zones, one of them with devices and some cordoned, and pods of different sizes, of which some fit nowhere.
func fleet() []string {
	var all []string
	for i := range 300 {
		zone := "abc"[i%3 : i%3+1]
		all = append(all, node(fmt.Sprintf("node-%s-%03d", zone, i), "zone-"+zone, i%3*4, i%29 == 0))
	}
	for i := range 700 {
		all = append(all, pod("shop", fmt.Sprintf("web-%03d", i), 0, fmt.Sprintf("cpu: %d, memory: %dGi", 1+i%6, 2+i%11)))
	}
	for i := range 60 {
		all = append(all, pod("ml", fmt.Sprintf("train-%02d", i), 100, fmt.Sprintf("cpu: 2, memory: 8Gi, example.com/gpu: %d", 1+i%8)))
	}
	for i := range 6 {
		all = append(all, pod("ml", fmt.Sprintf("huge-%d", i), 1000, "cpu: 20, memory: 80Gi"))
		all = append(all, pod("shop", fmt.Sprintf("picky-%d", i), 0, "cpu: 1", "nodeSelector: {topology.kubernetes.io/zone: zone-z}"))
	}
	return all
}

// writeTokens writes a file for --token-file.
func writeTokens(t *testing.T, dir, lines string) string {
	t.Helper()
	file := filepath.Join(dir, "tokens")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
