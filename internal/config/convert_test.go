package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// Each file of testdata has its conversion beside it: what is reported, as comments, and the result.
func TestConversions(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	converted := 0
	for _, file := range files {
		if filepath.Ext(file) == ".golden" {
			continue
		}
		converted++
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out, report, err := config.Convert(data)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, line := range report {
				b.WriteString("# " + line + "\n")
			}
			b.Write(out)
			again, _, err := config.Convert(out)
			if err != nil {
				t.Fatalf("convert the result: %v", err)
			}
			if diff := cmp.Diff(string(out), string(again)); diff != "" {
				t.Errorf("v1 does not come back as it is (-want +got):\n%s", diff)
			}
			golden := strings.TrimSuffix(file, filepath.Ext(file)) + ".golden"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s (-want +got), -rewrite to accept:\n%s", golden, diff)
			}
		})
	}
	if converted < 8 {
		t.Errorf("%d files were converted, want at least 8", converted)
	}
}

func TestAConvertedPolicyFiltersAndScoresWhatItNamed(t *testing.T) {
	out, _, err := config.Convert([]byte(`{"kind": "Policy", "apiVersion": "v1",
		"predicates": [{"name": "PodFitsResources"}, {"name": "PodFitsHostPorts"}],
		"priorities": [{"name": "LeastRequestedPriority", "weight": 2}, {"name": "NodeAffinityPriority", "weight": 3}]}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Decode(out)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Complete(cfg, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := engine.DefaultProfile("default-scheduler")
	want.PreFilters = []string{"NodePorts", "NodeResourcesFit", "NodeDeclaredFeatures"} // the last is younger than policies
	want.Filters = []string{"NodeUnschedulable", "TaintToleration", "NodePorts", "NodeResourcesFit", "NodeDeclaredFeatures"}
	want.Weights = []cluster.PluginWeight{{Name: "NodeAffinity", Weight: 3}, {Name: "NodeResourcesFit", Weight: 2}}
	if diff := cmp.Diff([]cluster.Profile{want}, c.Profiles); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
}

func TestAConvertedPolicyLooksAtOtherPodsIfItNamedThat(t *testing.T) {
	const named = `"predicates": [{"name": "PodFitsResources"}, {"name": "EvenPodsSpread"}, {"name": "MatchInterPodAffinity"}], `
	for _, tt := range []struct{ name, policy, filters, weights string }{
		{"filters", named + `"priorities": []`, "PodTopologySpread InterPodAffinity", ""},
		{"scores", `"predicates": [], "priorities": [{"name": "EvenPodsSpreadPriority", "weight": 4}, {"name": "InterPodAffinityPriority", "weight": 3}]`,
			"", "PodTopologySpread:4 InterPodAffinity:3"},
		{"services", `"predicates": [], "priorities": [{"name": "SelectorSpreadPriority", "weight": 3}]`, "", "PodTopologySpread:3"},
		{"services by the older name", `"predicates": [], "priorities": [{"name": "ServiceSpreadingPriority", "weight": 2}]`, "", "PodTopologySpread:2"},
		{"services, and pods before", `"predicates": [], "priorities": [{"name": "EvenPodsSpreadPriority", "weight": 4}, {"name": "SelectorSpreadPriority", "weight": 3}]`,
			"", "PodTopologySpread:4"},
		{"services, and pods behind", `"predicates": [], "priorities": [{"name": "SelectorSpreadPriority", "weight": 3}, {"name": "EvenPodsSpreadPriority", "weight": 4}]`,
			"", "PodTopologySpread:4"},
		{"neither", `"predicates": [], "priorities": []`, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := config.Convert([]byte(`{"kind": "Policy", "hardPodAffinitySymmetricWeight": 7, ` + tt.policy + "}"))
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Decode(out)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Complete(cfg, config.Options{})
			if err != nil {
				t.Fatal(err)
			}
			p := c.Profiles[0]
			others := func(name string) bool { return name != "PodTopologySpread" && name != "InterPodAffinity" }
			if got := strings.Join(slices.DeleteFunc(p.Filters, others), " "); got != tt.filters {
				t.Errorf("filters %q, want %q", got, tt.filters)
			}
			if got := weights(p); got != tt.weights {
				t.Errorf("weights %q, want %q", got, tt.weights)
			}
			wantHard := int32(1) // does not run
			if strings.Contains(tt.filters+tt.weights, "InterPodAffinity") {
				wantHard = 7
			}
			if p.HardPodAffinityWeight != wantHard {
				t.Errorf("hard weight %d, want %d", p.HardPodAffinityWeight, wantHard)
			}
		})
	}
}

func TestConvertRefusesWhatItDoesNotKnow(t *testing.T) {
	const beta = "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n"
	const alpha = "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\n"
	for _, tt := range []struct{ file, want string }{
		{"", "want KubeSchedulerConfiguration or Policy"},
		{"[1]", "want an object"},
		{"a: 1\na: 2", `key "a" already set in map`},
		{"kind: Deployment", `kind "Deployment": want KubeSchedulerConfiguration or Policy`},
		{"apiVersion: kubescheduler.config.k8s.io/v9\nkind: KubeSchedulerConfiguration", `apiVersion "kubescheduler.config.k8s.io/v9": want`},
		{beta + "nonsense: 1", `neither version has this: decode configuration: strict decoding error: unknown field "nonsense"`},
		{beta + "profiles: 3", "profiles: want a list of objects"},
		{beta + "profiles: [1]", "profiles: want a list of objects"},
		{beta + "profiles: [{plugins: {score: {enabled: 1}}}]", "profiles.plugins.score.enabled: want a list of objects"},
		{beta + "profiles: [{plugins: {score: 1}}]", "neither version has this"},
		{alpha + "hardPodAffinitySymmetricWeight: '10'", "hardPodAffinitySymmetricWeight: want number"},
		{alpha + "algorithmProvider: 7", "algorithmProvider: want text"},
		{alpha + "useLegacyPolicyConfig: yes please", "useLegacyPolicyConfig: want boolean"},
		{alpha + "kubeAPIQPS: 1\nclientConnection: 3", "clientConnection: want object"},
		{alpha + "kubeAPIQPS: many", "neither version has this"},
		{alpha + "algorithmSource: {provider: Mine}", `algorithmSource.provider: "Mine": want`},
		{alpha + "algorithmSource: {configMap: {}}", "algorithmSource.configMap: unknown field"},
		{`{"kind": "Policy", "predicates": [{"name": "Mine"}]}`, `unknown predicate "Mine"`},
		{`{"kind": "Policy", "priorities": [{"name": "Mine", "weight": 1}]}`, `unknown priority "Mine"`},
		{`{"kind": "Policy", "nonsense": 1}`, `policy: unknown field "nonsense"`},
		{`{"kind": "Policy", "extenders": [{"httpTimeout": "5s"}]}`, "extenders[0].httpTimeout: 5s: want nanoseconds"},
	} {
		if out, _, err := config.Convert([]byte(tt.file)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Convert(%q): %s, %v\nwant %s", tt.file, out, err, tt.want)
		}
	}
}

func TestAWeightOfZeroWasUnsetBeforePointers(t *testing.T) {
	const alpha = "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\n"
	for body, want := range map[string]int32{
		`{"kind": "Policy", "hardPodAffinitySymmetricWeight": 0}`: 1, `{"kind": "Policy"}`: 1, `{"kind": "Policy", "hardPodAffinitySymmetricWeight": 7}`: 7,
		alpha + "hardPodAffinitySymmetricWeight: 0": 1, alpha: 1, alpha + "hardPodAffinitySymmetricWeight: 7": 7,
	} {
		out, report, err := config.Convert([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Decode(out)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Complete(cfg, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Profiles[0].HardPodAffinityWeight; got != want {
			t.Errorf("%s: the weight is %d, want %d", body, got, want)
		}
		said := strings.Contains(strings.Join(report, "\n"), "hardPodAffinitySymmetricWeight: 0 was the same as unset")
		if want := body == alpha+"hardPodAffinitySymmetricWeight: 0"; said != want {
			t.Errorf("%s: reported %q", body, report)
		}
	}
}
