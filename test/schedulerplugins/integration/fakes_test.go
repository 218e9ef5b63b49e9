package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-scheduler/berth/test/schedulerplugins/scheduler"
)

// fakesNotAsked are tests of fake plugins that are not run beside Berth, and why. Where a plugin runs that Berth refuses, package scheduler knows too.
var fakesNotAsked = map[string]string{
	"TestQueueSortPlugin": "it takes pods out of kube-scheduler's queue itself, which runs no cycle",
}

// fakesKnown are cases that do not pass beside Berth, and why.
var fakesKnown = map[string]string{
	"TestPreEnqueuePluginEventsToRegister": "one of its cases does not pass",
	"TestPreEnqueuePluginEventsToRegister/preEnqueue_plugin_without_event_registered_queueHint(false)": "it turns kube-scheduler's feature gate SchedulerQueueingHints off, which is locked since 1.34: then all that happens has pods asked about again",
}

// fakes are the packages that are copied, what of them, and which imports become which: where a scheduler starts, package scheduler of this module comes in.
var fakes = []struct {
	pkg     string // below test/integration
	files   []string
	imports map[string]string
}{
	{"util", []string{"util.go"}, map[string]string{"k8s.io/kubernetes/pkg/scheduler": here + "scheduler"}},
	{"scheduler", []string{"util.go"}, map[string]string{"k8s.io/kubernetes/test/integration/util": here + copies + "util"}},
	{"scheduler/plugins", []string{"main_test.go", "plugins_test.go"}, map[string]string{
		"k8s.io/kubernetes/test/integration/util": here + copies + "util", "k8s.io/kubernetes/test/integration/scheduler": here + copies + "scheduler",
	}},
}

const (
	here   = "github.com/berth-scheduler/berth/test/schedulerplugins/"
	copies = "copies/" // of packages: there is no such directory but for the compiler
)

// buildFakes builds the tests of kube-scheduler's fake plugins. The compiler sees copies of the packages in which a scheduler starts, and of the tests; other packages are taken as they are.
func buildFakes(t *testing.T) *upstream {
	t.Helper()
	dir := t.TempDir()
	from, module := goTool(t, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"), filepath.Dir(goTool(t, "env", "GOMOD"))
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for _, c := range fakes {
		into := filepath.Join(dir, c.pkg)
		if err := os.MkdirAll(into, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range c.files {
			text, found := read(t, filepath.Join(from, "test/integration", c.pkg, file)), 0
			for was, is := range c.imports {
				was, is := []byte(`"`+was+`"`), []byte(`"`+is+`"`)
				found += bytes.Count(text, was)
				text = bytes.ReplaceAll(text, was, is)
			}
			if want := len(c.imports); found != want && file != "main_test.go" {
				t.Fatalf("%s/%s has %d imports of %v", c.pkg, file, found, c.imports)
			}
			write(t, filepath.Join(into, file), text)
			overlay.Replace[filepath.Join(module, copies, c.pkg, file)] = filepath.Join(into, file)
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), text)
	u := &upstream{dir: dir, program: filepath.Join(dir, "plugins.test"), assets: buildAssets(t), sure: true}
	goTool(t, "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", u.program, here+copies+"scheduler/plugins")
	berth := filepath.Join(dir, "berth")
	goTool(t, "build", "-o", berth, here+"relay/berth")
	u.berth = []string{scheduler.Program + "=" + berth, scheduler.InProcess + "=1"}
	return u
}

// The tests that kube-scheduler has of fake plugins at each extension point pass with Berth, which hosts the same plugins in the process of the test.
func TestKubeSchedulersOwnTestsOfPlugins(t *testing.T) {
	buildFakes(t).compare(t, fakesNotAsked, fakesKnown)
}
