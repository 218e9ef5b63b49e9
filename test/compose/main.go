// Compose runs docker-compose.yaml: it is the program behind make test-compose.
//
// It starts a Docker daemon of its own, in namespaces of its own, so that nothing of it is left on the machine and a Docker
// that is there is not touched. It builds the images without any registry (Berth's on scratch, and an etcd from its module),
// brings the stack up, schedules pods through the gateway, ends processes of every role and an etcd as a crash would, scales,
// takes it down, and says what it did. It fails when something is not as it should be.
//
// It needs root, and Debian's packages docker.io, docker-compose and iproute2, which it installs if they are missing.
// Where the kernel refuses namespaces, mounts or cgroups to root, as in a container, nothing can be run: it says so, in
// capitals, and succeeds, so that the other tests still count there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	compose := flag.String("compose", "1.29", "the `version` of Compose: 1.29, Debian's, or v2, built from its module")
	timeout := flag.Duration("timeout", 15*time.Minute, "after how long to give up")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	began := time.Now()
	err := run(ctx, *compose, func(format string, args ...any) {
		fmt.Printf("%7.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	})
	cancel()
	stop()
	if refused := new(refusedError); errors.As(err, &refused) {
		fmt.Println("NOT RUN: docker-compose.yaml HAS NOT BEEN TESTED.",
			"This machine's kernel refuses what a Docker daemon needs, even to root:", refused)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

// run does everything. say tells the reader what has been done.
func run(ctx context.Context, version string, say func(format string, args ...any)) (err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed, for a Docker daemon of its own: nothing has been tested")
	}
	if err := tryNamespaces(); err != nil {
		return err
	}
	if err := install(ctx, say); err != nil {
		return err
	}
	compose := "docker-compose"
	switch version {
	case "1.29":
	case "v2":
		if compose, err = buildComposeV2(ctx); err != nil {
			return err
		}
	default:
		return fmt.Errorf("--compose=%s: it is 1.29 or v2", version)
	}
	dir, err := os.MkdirTemp("", "berth-compose-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	etcd, err := buildPrograms(ctx, root, filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	say("built berth, static, and etcd")

	d, err := startDaemon(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	s := &stack{daemon: d, root: root, compose: compose, etcdContext: etcd, say: say}
	docker, err := s.docker(ctx, "version", "--format", "{{.Server.Version}}")
	if err != nil {
		return err
	}
	with, err := s.run(ctx, "version", "--short")
	if err != nil {
		return err
	}
	say("a Docker daemon of its own: %s; Compose %s", docker, with)
	if err := s.check(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, s.logs())
	}
	return nil
}

// moduleRoot returns the top of the repository.
func moduleRoot(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's root: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}

// install makes sure that the programs are there.
func install(ctx context.Context, say func(string, ...any)) error {
	var missing []string
	for _, program := range []string{"dockerd", "docker", "docker-compose", "ip", "iptables", "unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	say("installing docker.io, docker-compose, iproute2, iptables and util-linux: there is no %s", strings.Join(missing, ", "))
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-qq", "--yes", "--no-install-recommends", "docker.io", "docker-compose", "iproute2", "iptables", "util-linux"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		// In runlevel 1 no service is started: the daemon under test is another one.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// buildPrograms builds berth to where deploy/Dockerfile takes it from, and makes context the build context of an etcd image.
func buildPrograms(ctx context.Context, root, etcdContext string) (string, error) {
	image := filepath.Join(root, ".bin", "image")
	for _, role := range secretsOf {
		if err := os.MkdirAll(filepath.Join(image, "certs", role), 0o755); err != nil {
			return "", err
		}
	}
	name := filepath.Join(image, "bin", "kube-scheduler") // as the image has it
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink("/berth", name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	berth := filepath.Join(image, "berth")
	// Without -trimpath the packages are those that the tests have compiled already.
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", berth, "./cmd/berth")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	etcd, err := kubetest.Build(ctx, kubetest.Etcd)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(etcdContext, 0o755); err != nil {
		return "", err
	}
	for to, from := range map[string]string{
		"etcd": etcd[kubetest.Etcd], "berth": berth, "Dockerfile": filepath.Join(root, "test", "compose", "etcd.Dockerfile"),
	} {
		content, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(etcdContext, to), content, 0o755); err != nil {
			return "", err
		}
	}
	return etcdContext, nil
}
