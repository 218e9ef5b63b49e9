package roles

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// A process is told where to serve and how to reach the API server, and nothing of Berth's own; what one before it has left is tidied up.
func TestAServiceThatIsRunIsToldWhereToServeAndNothingOfBerths(t *testing.T) {
	cl := &Cluster{Kubeconfig: "kube/config", PluginEnvironment: []string{"OTHERS=theirs"}}
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, e := filepath.Join(t.TempDir(), "sockets"), env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
	clients := rpc.NewClients(rpc.Config{Net: rpc.Outside(""), Outside: true})
	defer clients.Close()
	s := &config.PluginService{Name: "s", Run: &config.PluginRun{Command: []string{"/bin/p", "a", "b"}, Memory: 1000}}
	p, _, err := e.serviceProcess(clients, s, cl, dir)
	if err != nil {
		t.Fatal(err)
	}
	if p.Path != "/bin/p" || !slices.Equal(p.Args, []string{"a", "b"}) || p.Memory != 1000 {
		t.Errorf("the process is %s %q, of %d bytes", p.Path, p.Args, p.Memory)
	}
	socket := filepath.Join(dir, "0.sock")
	for _, want := range []string{"BERTH_PLUGIN_SOCKET=" + socket, "BERTH_PLUGIN_METRICS_SOCKET=" + filepath.Join(dir, "0.m"), "BERTH_PLUGIN_KUBECONFIG=" + filepath.Join(here, "kube/config"), "GOMEMLIMIT=900", "OTHERS=theirs"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("its environment has no %s: %q", want, p.Env)
		}
	}
	if len(p.Env) != 5 {
		t.Errorf("its environment has more than is wanted: %q", p.Env)
	}
	for range 2 {
		if err := p.Prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(socket); !os.IsNotExist(err) {
			t.Errorf("a socket is left: %v", err)
		}
		if err := os.WriteFile(socket, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p, _, err = e.serviceProcess(clients, s, &Cluster{}, dir); err != nil || slices.ContainsFunc(p.Env, func(set string) bool { return strings.HasPrefix(set, "BERTH_PLUGIN_KUBECONFIG") }) {
		t.Errorf("without a kubeconfig: %v, %q", err, p.Env)
	}
	if _, known, _ := e.pluginMetrics(t.Context(), "service/s"); !known {
		t.Error("nobody can ask what it measures")
	}
	if _, known, _ := e.pluginMetrics(t.Context(), "s"); known {
		t.Error("what it measures is that of a profile of its name")
	}
}

func TestSocketsAreMadeInADirectoryOfBerthsOwnOnly(t *testing.T) {
	in := t.TempDir()
	for name, tt := range map[string]struct {
		make func(dir string) error
		good bool
	}{
		"gone":            {func(string) error { return nil }, true},
		"as it was":       {func(dir string) error { return os.Mkdir(dir, 0o700) }, true},
		"a link":          {func(dir string) error { return os.Symlink(t.TempDir(), dir) }, false},
		"a file":          {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, false},
		"one to read":     {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o704)) }, false},
		"one of a group":  {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o710)) }, false},
		"somebody else's": {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, os.Geteuid()+1, -1)) }, false},
	} {
		dir := filepath.Join(in, name)
		err := tt.make(dir)
		if errors.Is(err, os.ErrPermission) {
			t.Logf("%s: only root can make one: %v", name, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := makeSocketDir(dir); (err == nil) != tt.good {
			t.Errorf("%s: %v, want that it will do: %v", name, err, tt.good)
		}
	}
}

func TestAServiceIsRunIfAProfileUsesAPluginOfIt(t *testing.T) {
	run := &config.PluginRun{Command: []string{"/bin/p"}}
	of := func(run *config.PluginRun) *config.PluginService {
		return &config.PluginService{Name: "s", Run: run, Plugins: []config.ServicePlugin{{Name: "A"}, {Name: "B"}}}
	}
	for name, tt := range map[string]struct {
		cluster Cluster
		service *config.PluginService
		idle    bool
	}{
		"nobody's":              {Cluster{Settings: cluster.Settings{Profiles: []cluster.Profile{{Filters: []string{"C"}}}}}, of(run), true},
		"nobody's, and not run": {Cluster{}, of(nil), false},
		"a filter":              {Cluster{Settings: cluster.Settings{Profiles: []cluster.Profile{{}, {Filters: []string{"B"}}}}}, of(run), false},
		"a step":                {Cluster{Settings: cluster.Settings{Profiles: []cluster.Profile{{SchedulerName: "p"}}}, PluginSteps: map[string]config.Steps{"p": {PostBind: []string{"A"}}}}, of(run), false},
	} {
		if got := tt.cluster.idle(tt.service); got != tt.idle {
			t.Errorf("%s: idle is %v, want %v", name, got, tt.idle)
		}
	}
}

// conn answers each call with an error.
type conn struct {
	grpc.ClientConnInterface
	err error
}

func (c conn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return c.err }

func TestAServiceLivesThatAnswersWhateverThatIs(t *testing.T) {
	for code, lives := range map[codes.Code]bool{
		codes.OK: true, codes.Unimplemented: true, codes.Internal: true, codes.PermissionDenied: true, codes.Unavailable: false, codes.DeadlineExceeded: false,
	} {
		if err := alive(conn{err: status.Error(code, "")})(t.Context()); (err == nil) != lives {
			t.Errorf("one that answers with %v: %v, want that it lives: %v", code, err, lives)
		}
	}
}

func TestAServiceWithoutAProgramIsNotRun(t *testing.T) {
	e := env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
	_, err := e.runService(t.Context(), nil, nil, &config.PluginService{Name: "s", Run: &config.PluginRun{Command: []string{filepath.Join(t.TempDir(), "none")}}}, &Cluster{})
	if err == nil || !strings.Contains(err.Error(), "run.command: ") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is not there: %v", err)
	}
}
