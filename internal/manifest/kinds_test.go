package manifest

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAKindThatIsOnlyReadFromElsewhereHasNoManifests(t *testing.T) {
	before := kinds
	t.Cleanup(func() { kinds = before })
	kinds = append(slices.Clip(kinds), other("ConfigMap", v1.SchemeGroupVersion, "configmaps", nil, func(from, to *v1.ConfigMap) { to.Data = from.Data }))

	o, ok := New("ConfigMap")
	if !ok || o.Kind() != "ConfigMap" || !Namespaced("ConfigMap") {
		t.Errorf("a new one is %+v, %v", o, ok)
	}
	if _, ok := Resource("ConfigMap"); ok || slices.Contains(Kinds(), "ConfigMap") {
		t.Error("there are manifests of it")
	}
	_, err := Parse([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}"))
	if err == nil || !strings.Contains(err.Error(), `"ConfigMap" is not supported, want Node,`) || !strings.Contains(err.Error(), "CSIStorageCapacity, VolumeAttachment, PodGroup or List") {
		t.Errorf("read as a manifest: %v", err)
	}
}
