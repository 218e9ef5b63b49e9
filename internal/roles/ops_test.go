package roles

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/member"
)

func TestConfigzSaysWhichPluginServicesABinderHas(t *testing.T) {
	said := func(cl Cluster) string {
		o := newOperations(Common{})
		o.sayBinder(cl)
		text, err := json.Marshal(o.config)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	of := Cluster{PluginServices: []config.PluginService{{
		Name: "gpu", Address: "gpu.example:9000", Timeout: metav1.Duration{Duration: time.Minute},
		Plugins: []config.ServicePlugin{{Name: "GPUModel", Points: []string{"filter"}}}, TLS: &config.PluginTLS{CA: "ca", Cert: "cert", Key: "key"},
	}}}
	const want = `"pluginServices":[{"name":"gpu","address":"gpu.example:9000","plugins":[{"name":"GPUModel","points":["filter"]}],"timeout":"1m0s","preBindTimeout":"0s","ignorable":false,"tls":{"ca":"ca","cert":"cert","key":"key"}}]`
	if got := said(of); !strings.Contains(got, want) {
		t.Errorf("/configz says %s, want %s", got, want)
	}
	if got := said(Cluster{}); strings.Contains(got, "pluginServices") {
		t.Errorf("without any, /configz says %s", got)
	}
}

func TestConfigzSaysWhichProgramABinderRunsAndNotWithWhichArguments(t *testing.T) {
	cl := Cluster{PluginServices: []config.PluginService{{Name: "gpu", Run: &config.PluginRun{Command: []string{"/bin/p", "--token", "secret"}, Memory: 7}}}}
	o := newOperations(Common{})
	o.sayBinder(cl)
	text, err := json.Marshal(o.config)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"run":{"command":["/bin/p"],"memory":"7"}`; !strings.Contains(string(text), want) {
		t.Errorf("/configz says %s, want %s", text, want)
	}
	if got := cl.PluginServices[0].Run.Command; len(got) != 3 {
		t.Errorf("the command is %q by now", got)
	}
}

// An image's build sees no repository: what it was built from is what the linker was told, as members and `berth version` say.
func TestTheStatusPageSaysTheBuildThatMembersSay(t *testing.T) {
	want := member.Build()
	if want == "" {
		want = "unknown"
	}
	o := newOperations(Common{})
	if line := [2]string{"Binary version", want}; !slices.Contains(o.status(time.Now()), line) {
		t.Errorf("the page says %q, want %q among it", o.status(time.Now()), line)
	}
}
