package command

import (
	"slices"
	"testing"
)

func TestPluginsHaveTheEnvironmentWithoutWhatIsBerths(t *testing.T) {
	for _, own := range []string{"BERTH_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"} {
		t.Setenv(own, "secret")
		if slices.Contains(pluginEnvironment(), own+"=secret") {
			t.Errorf("%s is passed on", own)
		}
	}
	for _, others := range []string{"OTEL_RESOURCE_ATTRIBUTES", "MY_BERTH_TOKEN", "MY_OTEL_EXPORTER_X", "BERTH", "HTTPS_PROXY"} {
		t.Setenv(others, "theirs")
		if !slices.Contains(pluginEnvironment(), others+"=theirs") {
			t.Errorf("%s is not passed on", others)
		}
	}
}
