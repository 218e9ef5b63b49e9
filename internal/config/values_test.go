package config

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

func TestAConfigurationOfManyValuesIsNotDecoded(t *testing.T) {
	const head = `{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","extenders":[`
	for name, text := range map[string]string{
		"JSON": head + strings.Repeat("0,", 1<<20) + "0]}",
		"YAML": "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders: [" + strings.Repeat("a,", 1<<20) + "a]\n",
	} {
		for what, read := range map[string]func() error{
			"decode":  func() error { _, err := Decode([]byte(text)); return err },
			"convert": func() error { _, _, err := Convert([]byte(text)); return err },
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read()
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; err == nil || got > 16<<20 {
				t.Errorf("%s %s: %d MiB for 2: %.200v", what, name, got>>20, err)
			}
		}
	}
}

// listOf is a list of so many entries, each of its number.
func listOf(entry string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, entry+",", i)
	}
	return "[" + strings.TrimSuffix(b.String(), ",") + "]"
}

func TestTheFirstErrorsOfManyAreTold(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for name, c := range map[string]struct{ body, want string }{
		"unknown plugins":        {"profiles: [{plugins: {multiPoint: {enabled: " + listOf("{name: p%d}", 1000) + "}}}]", "does not exist"},
		"at a point":             {"profiles: [{plugins: {score: {enabled: " + listOf("{name: p%d}", 1000) + "}}}]", "does not exist"},
		"arguments of these":     {"profiles: [{pluginConfig: " + listOf("{name: p%d}", 1000) + "}]", "does not exist"},
		"profiles of one name":   {"profiles: " + listOf("{percentageOfNodesToScore: %d}", 1000), "schedulerName"},
		"in arguments":           {"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: " + listOf("a b%d", 20_000) + "}}]}]", "name part"},
		"resources of extenders": {"extenders: [{urlPrefix: a, managedResources: " + listOf("{name: r%d}", 20_000) + "}]", "extended resource"},
	} {
		cfg, err := Decode([]byte(head + c.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var text string
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Complete(cfg, Options{}); err != nil {
			text = err.Error()
		}
		runtime.ReadMemStats(&after)
		if n := strings.Count(text, c.want); n < maxErrors || n > 3*maxErrors || !strings.Contains(text, "and ") || !strings.HasSuffix(text, " more]") {
			t.Errorf("%s: %d times %q in %.300s … %s", name, n, c.want, text, text[max(len(text)-50, 0):])
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<30 { // the race detector makes some of 100 MiB several; each with all before it would be ten times as much
			t.Errorf("%s: %d MiB", name, got>>20)
		}
	}
}

func TestAListOfManyEntriesIsNotLookedAt(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for place, body := range map[string]string{
		"profiles: Too many":                               "profiles: " + listOf("{schedulerName: s%d}", 1001),
		"profiles[0].pluginConfig: Too many":               "profiles: [{pluginConfig: " + listOf("{name: p%d}", 1001) + "}]",
		"profiles[1].plugins.score.enabled: Too many":      "profiles: [{}, {plugins: {score: {enabled: " + listOf("{name: p%d}", 1001) + "}}}]",
		"profiles[0].plugins.filter.disabled: Too many":    "profiles: [{plugins: {filter: {disabled: " + listOf("{name: p%d}", 1001) + "}}}]",
		"profiles[0].plugins.multiPoint.enabled: Too many": "profiles: [{plugins: {multiPoint: {enabled: " + listOf("{name: p%d}", 1001) + "}}}]",
	} {
		cfg, err := Decode([]byte(head + body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Complete(cfg, Options{}); err == nil || !strings.Contains(err.Error(), place+": 1001: must have at most 1000 items") || strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%s: %.300v", place, err)
		}
	}
	cfg, err := Decode([]byte(head + "profiles: [{plugins: {filter: {disabled: " + listOf("{name: p%d}", 1000) + "}}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Complete(cfg, Options{}); err != nil {
		t.Errorf("as many as there may be: %.300v", err)
	}
}
