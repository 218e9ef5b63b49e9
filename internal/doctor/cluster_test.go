package doctor

import (
	"fmt"
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestTheChartWantsTheOldestReleaseThatBerthIsFor, since Helm asks before anything is installed, and the doctor only where somebody asks it.
func TestTheChartWantsTheOldestReleaseThatBerthIsFor(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/berth/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ KubeVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(">=1.%d.0-0", oldest); chart.KubeVersion != want {
		t.Errorf("the chart wants Kubernetes %q, and the doctor %q", chart.KubeVersion, want)
	}
}
