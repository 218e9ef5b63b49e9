package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/cluster"
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
	f.Add([]byte(header + "profiles: [{plugins: {multiPoint: {enabled: [{name: GPUModel, weight: 3}]}, score: {enabled: [{name: Price}]}}, pluginConfig: [{name: GPUModel, args: {a: [1]}}]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Decode(data)
		if err != nil {
			return
		}
		options := config.Options{Plugins: map[string][]string{"GPUModel": {"filter", "score"}, "Price": {"score"}}}
		first, err := config.Complete(cfg, options)
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
		second, err := config.Complete(again, options)
		if err != nil {
			t.Fatalf("a completed configuration is refused: %v\n%s", err, written)
		}
		if diff := cmp.Diff(first.Profiles, second.Profiles); diff != "" {
			t.Errorf("profiles (-first +completed again):\n%s", diff)
		}
		if one, two := inJSON(t, first.Arguments), inJSON(t, second.Arguments); one != two {
			t.Errorf("arguments of plugins of services: %s, and %s when they are completed again", one, two)
		}
	})
}

// inJSON returns a value in JSON, with the keys of its objects in order.
func inJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// FuzzDecodePluginServices: what is accepted is within bounds, means the same when it is written out, and a profile may enable all of it.
func FuzzDecodePluginServices(f *testing.F) {
	f.Add([]byte(fullServices))
	f.Add([]byte(`{"apiVersion":"berth.dev/v1","kind":"PluginServices","services":[{"name":"a","address":"[::1]:1","timeout":"1ms","plugins":[{"name":"A","points":["score"]}]}]}`))
	f.Add([]byte(`{"apiVersion":"berth.dev/v1","kind":"PluginServices","services":[{"name":"a","discovered":true,"tls":{"ca":"a","cert":"b","key":"c","serverName":"d"},"plugins":[{"name":"A","points":["score"]}]}]}`))
	f.Add([]byte(service("run: {command: [/bin/gpu, --all], memory: 1.5Gi}")))
	f.Fuzz(func(t *testing.T, data []byte) {
		services, err := config.DecodePluginServices(data)
		if err != nil {
			return
		}
		for _, s := range services {
			if s.Name == "" || s.Timeout.Duration <= 0 || s.Timeout.Duration > time.Minute || len(s.Plugins) == 0 || len(s.Plugins) > 64 || len(services) > 32 {
				t.Fatalf("accepted: %+v", s)
			}
			if r := s.Run; r != nil {
				if s.Discovered || s.Address != "" || s.TLS != nil || s.Insecure || len(r.Command) == 0 || r.Memory < 1<<20 {
					t.Fatalf("accepted: %+v", s)
				}
				continue
			}
			if s.Discovered == (s.Address != "") || s.Discovered && (s.TLS == nil || s.TLS.ServerName == "") && !s.Insecure {
				t.Fatalf("accepted: %+v", s)
			}
		}
		again, err := config.DecodePluginServices([]byte(inJSON(t, map[string]any{"apiVersion": "berth.dev/v1", "kind": "PluginServices", "services": services})))
		if diff := cmp.Diff(services, again); err != nil || diff != "" {
			t.Fatalf("written out: %v (-first +again)\n%s", err, diff)
		}
		plugins := config.PluginsOf(services)
		if len(plugins) > 1000 {
			return // no list of a profile has so many entries
		}
		var enabled []configv1.Plugin
		for name := range plugins {
			enabled = append(enabled, configv1.Plugin{Name: name})
		}
		c, err := config.Complete(&configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{
			{Plugins: &configv1.Plugins{MultiPoint: configv1.PluginSet{Enabled: enabled}}},
		}}, config.Options{Plugins: plugins})
		if err != nil {
			t.Fatal(err)
		}
		for name, points := range plugins {
			p := &c.Profiles[0]
			scores := slices.ContainsFunc(p.Weights, func(w cluster.PluginWeight) bool { return w.Name == name && w.Weight == 1 })
			if slices.Contains(p.Filters, name) != slices.Contains(points, "filter") || scores != slices.Contains(points, "score") {
				t.Errorf("%s, of %v, is not where it runs", name, points)
			}
		}
		if unused := config.Unused(services, c.Profiles, c.Steps); len(unused) > 0 {
			t.Errorf("unused: %q", unused)
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
