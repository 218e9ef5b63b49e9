package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The programs that Build knows.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	KubeScheduler     = "kube-scheduler"
	Kubeadm           = "kubeadm"
	Etcdctl           = "etcdctl"
	Kubectl           = "kubectl"
	Helm              = "helm"
	TopoLVM           = "topolvm-scheduler"           // TopoLVM's extender
	GPUShare          = "gpushare-scheduler-extender" // Alibaba's extender
	APIServer134      = "kube-apiserver-1.34"         // the newest one of an older release that is pinned here
	APIServer135      = "kube-apiserver-1.35"
)

// Programs returns what Build knows and many tests need: all but ControllerManager, which takes some minutes more and is for "make volumes" alone,
// the extenders, which are for "make extenders" alone, Helm, which is for test/deploy alone, and API servers of older releases, which are for "make skew" alone.
func Programs() []string { return []string{Etcd, APIServer, KubeScheduler, Kubeadm, Etcdctl, Kubectl} }

// mainModule is the module whose go.mod names the version of etcd; test/kube inside it names those of Kubernetes, and has those of
// older releases, test/etcdctl that of etcd's client, test/helm that of Helm, and those below test/extenders their extender's.
const mainModule = "github.com/berth-scheduler/berth"

// lockPoll is how often a build that waits for another process' build looks again.
const lockPoll = 100 * time.Millisecond

// program says where a binary comes from.
type program struct {
	dir     string // the module to build in
	module  string // the module whose version it has
	version string
	path    string // the package that is its main
	flags   string // of the linker, besides those of all
	apart   bool   // its version has nothing to do with that of Kubernetes or etcd, and is a part of its file's name
}

// Versions returns the version of each program that Build knows, by name, as the go.mod files pin them.
func Versions(ctx context.Context) (map[string]string, error) {
	programs, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for name, p := range programs {
		versions[name] = p.version
	}
	return versions, nil
}

// Build returns the path of each of the named programs, building those that are not in the user's cache directory
// (os.UserCacheDir, berth/kube-…) yet: minutes for the first kube-apiserver on a small machine, milliseconds from then on. Processes that build the
// same program at the same time build it once: the others wait for the first, or for ctx to end.
func Build(ctx context.Context, what ...string) (map[string]string, error) {
	programs, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache directory: %w", err)
	}
	// The Go version is a part of the name: another toolchain makes another program.
	dir := filepath.Join(cache, "berth", fmt.Sprintf("kube-%s-etcd-%s-%s-%s",
		programs[APIServer].version, programs[Etcd].version, runtime.Version(), runtime.GOARCH))
	paths := map[string]string{}
	for _, name := range what {
		p, ok := programs[name]
		if !ok {
			return nil, fmt.Errorf("build %q: no such program", name)
		}
		file := name
		if p.apart {
			file += "-" + p.version
		}
		paths[name] = filepath.Join(dir, file)
		if err := p.buildTo(ctx, paths[name]); err != nil {
			return nil, fmt.Errorf("build %s %s: %w", name, p.version, err)
		}
	}
	return paths, nil
}

// programs returns the programs by name, with the versions that the go.mod files pin.
func programs(ctx context.Context) (map[string]program, error) {
	root, err := goTool(ctx, "", "list", "-m", "-f", "{{.Dir}}", mainModule)
	if err != nil {
		return nil, fmt.Errorf("find module %s: %w", mainModule, err)
	}
	kube, client, extenders := filepath.Join(root, "test", "kube"), filepath.Join(root, "test", "etcdctl"), filepath.Join(root, "test", "extenders")
	programs := map[string]program{
		Etcd:              {dir: root, module: "go.etcd.io/etcd/server/v3", path: "go.etcd.io/etcd/server/v3"},
		APIServer:         {dir: kube, module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kube-apiserver"},
		ControllerManager: {dir: kube, module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kube-controller-manager"},
		KubeScheduler:     {dir: kube, module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kube-scheduler"},
		Etcdctl:           {dir: client, module: "go.etcd.io/etcd/etcdctl/v3", path: "go.etcd.io/etcd/etcdctl/v3"},
		APIServer134:      {dir: filepath.Join(kube, "1.34"), module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kube-apiserver", apart: true},
		APIServer135:      {dir: filepath.Join(kube, "1.35"), module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kube-apiserver", apart: true},
		Kubeadm:           {dir: kube, module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kubeadm"},
		Kubectl:           {dir: kube, module: "k8s.io/kubernetes", path: "k8s.io/kubernetes/cmd/kubectl"},
		// Its own build says likewise for which release of Kubernetes it renders charts where it asks no API server.
		Helm: {dir: filepath.Join(root, "test", "helm"), module: "helm.sh/helm/v3", path: "helm.sh/helm/v3/cmd/helm", apart: true,
			flags: "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36"},
		TopoLVM: {dir: filepath.Join(extenders, "topolvm"), module: "github.com/topolvm/topolvm",
			path: "github.com/topolvm/topolvm/cmd/topolvm-scheduler", apart: true},
		GPUShare: {dir: filepath.Join(extenders, "gpushare"), module: "github.com/AliyunContainerService/gpushare-scheduler-extender",
			path: "github.com/AliyunContainerService/gpushare-scheduler-extender/cmd", apart: true},
	}
	for name, p := range programs {
		if p.version, err = goTool(ctx, p.dir, "list", "-m", "-f", "{{.Version}}", p.module); err != nil {
			return nil, fmt.Errorf("find version of %s: %w", p.module, err)
		}
		programs[name] = p
	}
	return programs, nil
}

// buildTo builds p unless file exists. The file appears whole or not at all.
func (p program) buildTo(ctx context.Context, file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make cache directory: %w", err)
	}
	unlock, err := lockFile(ctx, file+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return nil // built by whoever held the lock
	}
	partial := file + ".partial"
	if _, err := goTool(ctx, p.dir, "build", "-ldflags=-s -w "+p.flags, "-o", partial, p.path); err != nil {
		return err
	}
	return os.Rename(partial, file)
}

// lockFile takes the exclusive lock of the file at path, which it creates. The lock ends with unlock or with this process.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

// goTool runs the go command in dir and returns its output, trimmed.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// Static binaries, whatever the caller is built with (go test -race sets CGO_ENABLED), and no workspace, which
	// would merge the two modules.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, errs.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}
