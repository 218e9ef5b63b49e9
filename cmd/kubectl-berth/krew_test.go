package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const krewDir = "../../deploy/krew/"

// krewManifest is what krew requires of a plugin's manifest.
type krewManifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

func TestTheKrewManifestNamesTheBinaryOfEachPlatform(t *testing.T) {
	text, err := os.ReadFile(krewDir + "berth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	filled := os.Expand(string(text), func(name string) string {
		switch {
		case name == "VERSION":
			return "v0.1.0"
		case regexp.MustCompile(`^SHA256_[a-z]+_[a-z0-9]+$`).MatchString(name):
			return strings.Repeat("0", 64)
		}
		t.Errorf("${%s} is nothing that a release fills in", name)
		return ""
	})
	var m krewManifest
	if err := yaml.UnmarshalStrict([]byte(filled), &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" || m.Metadata.Name != "berth" || m.Spec.Version != "v0.1.0" {
		t.Errorf("%+v is no manifest of the plugin berth", m)
	}
	if n := len(m.Spec.ShortDescription); n == 0 || n > 50 {
		t.Errorf("the short description has %d characters, want 1 to 50, as krew's index does", n)
	}
	if len(m.Spec.Platforms) != 6 {
		t.Errorf("%d platforms, want 6", len(m.Spec.Platforms))
	}
	for _, p := range m.Spec.Platforms {
		system := p.Selector.MatchLabels["os"] + "_" + p.Selector.MatchLabels["arch"]
		program, archive := "kubectl-berth", ".tar.gz"
		if p.Selector.MatchLabels["os"] == "windows" {
			program, archive = "kubectl-berth.exe", ".zip"
		}
		if p.Bin != program || !strings.HasSuffix(p.URI, "/v0.1.0/kubectl-berth_"+system+archive) || len(p.SHA256) != 64 {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(string(text), "${SHA256_"+system+"}") {
			t.Errorf("no checksum for %s", system)
		}
	}
}

func TestTheManifestSaysWhereTheGatewayIsLookedFor(t *testing.T) {
	text, err := os.ReadFile(krewDir + "berth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root := command(func(string) string { return "" }, nil, nil, nil)
	namespace := root.PersistentFlags().Lookup("berth-namespace").DefValue
	if !strings.Contains(string(text), "in the namespace "+namespace+" ") {
		t.Errorf("the caveats do not name the namespace %s", namespace)
	}
}

// The labels and the command line that the plugin reads are those of deploy/.
func TestTheDeployedGatewayIsFound(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kustomize/base/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	var deployment struct {
		Metadata struct {
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			Template struct {
				Metadata struct {
					Labels map[string]string `json:"labels"`
				} `json:"metadata"`
				Spec v1.PodSpec `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(first), &deployment); err != nil {
		t.Fatal(err)
	}
	root := command(func(string) string { return "" }, nil, nil, nil)
	if got := root.PersistentFlags().Lookup("berth-namespace").DefValue; got != deployment.Metadata.Namespace {
		t.Errorf("looks in namespace %s, the gateway is in %s", got, deployment.Metadata.Namespace)
	}
	for _, label := range strings.Split(gatewayLabels, ",") {
		key, value, _ := strings.Cut(label, "=")
		if deployment.Spec.Template.Metadata.Labels[key] != value {
			t.Errorf("the pods do not have the label %s", label)
		}
	}
	if g, err := describe(&v1.Pod{Spec: deployment.Spec.Template.Spec}); err != nil || g.port != 7070 || !g.tls || !g.authenticates {
		t.Errorf("%+v, %v; want port 7070, TLS and callers known by Kubernetes", g, err)
	}
}
