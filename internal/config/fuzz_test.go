package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/config"
)

// addConfigurations makes seeds of the files of testdata: one of each version and of each kind of policy.
func addConfigurations(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

// FuzzDecode: a configuration that is accepted is completed to one that is accepted too, and means the same.
func FuzzDecode(f *testing.F) {
	addConfigurations(f)
	f.Add([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"))
	f.Add([]byte(`{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","profiles":[{"pluginConfig":[{"name":"NodeResourcesFit","args":{}}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Decode(data)
		if err != nil {
			return
		}
		first, err := config.Complete(cfg, config.Options{})
		if err != nil {
			return
		}
		written, err := config.Encode(first.Config)
		if err != nil {
			t.Fatalf("a completed configuration does not encode: %v", err)
		}
		again, err := config.Decode(written)
		if err != nil {
			t.Fatalf("a completed configuration does not decode: %v\n%s", err, written)
		}
		second, err := config.Complete(again, config.Options{})
		if err != nil {
			t.Fatalf("a completed configuration is refused: %v\n%s", err, written)
		}
		if diff := cmp.Diff(first.Profiles, second.Profiles); diff != "" {
			t.Errorf("profiles (-first +completed again):\n%s", diff)
		}
	})
}

// FuzzConvert: what is converted is a configuration of today's version, and converting that changes nothing.
func FuzzConvert(f *testing.F) {
	addConfigurations(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		out, _, err := config.Convert(data)
		if err != nil {
			return
		}
		if _, err := config.Decode(out); err != nil {
			t.Fatalf("the result does not decode: %v\n%s", err, out)
		}
		again, _, err := config.Convert(out)
		if err != nil {
			t.Fatalf("the result does not convert: %v\n%s", err, out)
		}
		if diff := cmp.Diff(string(out), string(again)); diff != "" {
			t.Errorf("(-converted +converted again):\n%s", diff)
		}
	})
}
