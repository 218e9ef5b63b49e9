package oracle

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kubeconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
)

// TestAConfigurationMeansTheSame writes drawn profiles as kube-scheduler's configuration file and has Berth read it.
func TestAConfigurationMeansTheSame(t *testing.T) {
	fewer(t, 4)
	check(t, func(t *rapid.T) {
		cfg, err := latest.Default()
		if err != nil {
			t.Fatalf("read kube-scheduler's default configuration: %v", err)
		}
		var want []cluster.Profile
		cfg.Profiles = drawProfiles(t)
		for i := range cfg.Profiles {
			// A file must not name what Berth does not have. That it is among the defaults is no error.
			enabled := &cfg.Profiles[i].Plugins.MultiPoint.Enabled
			*enabled = slices.DeleteFunc(*enabled, func(p kubeconfig.Plugin) bool { return !built(p.Name) })
			want = append(want, berthProfile(&cfg.Profiles[i]))
			// What is written comes in addition to the defaults, but for those that are disabled.
			cfg.Profiles[i].Plugins.MultiPoint.Disabled = []kubeconfig.Plugin{{Name: "*"}}
		}
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
		var text bytes.Buffer
		if err := scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion).Encode(cfg, &text); err != nil {
			t.Fatalf("write the configuration: %v", err)
		}
		read, err := config.Decode(text.Bytes())
		if err != nil {
			t.Fatalf("%s\n%v", &text, err)
		}
		completed, err := config.Complete(read, config.Options{})
		if err != nil {
			t.Fatalf("%s\n%v", &text, err)
		}
		if diff := cmp.Diff(want, completed.Profiles, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s\nthe profiles differ (-kube-scheduler +Berth):\n%s", &text, diff)
		}
	})
}
