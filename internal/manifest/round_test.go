package manifest_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/manifest"
)

func TestQuantitiesAreRoundedUpToAThousandthAsByTheAPIServer(t *testing.T) {
	objects, err := manifest.Parse([]byte(`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [
		{name: a, image: i, resources: {requests: {cpu: 100u}}}, {name: b, image: i, resources: {requests: {cpu: 100u}}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range objects[0].Pod.Spec.Containers {
		if got := c.Resources.Requests.Cpu().String(); got != "1m" {
			t.Errorf("container %s requests %s, want 1m", c.Name, got)
		}
	}
}
