package config

import (
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
