package deploy

import (
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

// compose-go is how Compose v2 reads its files; test/compose runs them with each version of Compose.
func TestComposeV2ReadsTheComposeFile(t *testing.T) {
	for name, files := range map[string][]string{
		"alone": {"../../docker-compose.yaml"}, "as the test runs it": {"../../docker-compose.yaml", "../compose/override.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			options, err := cli.NewProjectOptions(files, cli.WithName("berth"), cli.WithEnv([]string{"ETCD_CONTEXT=."}))
			if err != nil {
				t.Fatal(err)
			}
			project, err := options.LoadProject(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			scales := map[string]int{"certs": 1, "etcd-init": 1, "etcd-1": 1, "etcd-2": 1, "etcd-3": 1, "binder": 2, "queue": 2, "filter-worker": 2, "score-worker": 2, "gateway": 1}
			for name, want := range scales {
				service, err := project.GetService(name)
				if err != nil {
					t.Error(err)
					continue
				}
				if got := service.GetScale(); got != want {
					t.Errorf("%s runs %d times, want %d", name, got, want)
				}
				if name != "certs" && name != "etcd-init" && service.HealthCheck == nil {
					t.Errorf("%s has no health check", name)
				}
			}
			if len(project.Services) != len(scales) {
				t.Errorf("there are %d services, want %d", len(project.Services), len(scales))
			}
		})
	}
}
