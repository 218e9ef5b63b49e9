package command

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestFlagsOfTheOperatorsEndpointsThatDoNotGoTogetherAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"--metrics-listen 0.0.0.0:9090":                                     "--metrics-listen: 0.0.0.0:9090 is not a loopback address",
		"--metrics-authenticate people":                                     `--metrics-authenticate: "people"`,
		"--metrics-authenticate certificates":                               "it needs --tls-cert",
		"--metrics-authenticate tokens":                                     "--metrics-token-file",
		"--metrics-token-file f":                                            "--metrics-token-file",
		"--metrics-authentication-kubeconfig f":                             "it needs --metrics-authenticate=kubernetes",
		"--metrics-authenticate none --metrics-authentication-kubeconfig f": "it needs --metrics-authenticate=kubernetes",
	} {
		if _, err := line("queue --etcd-endpoints 127.0.0.1:1 " + args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("berth queue %s: %v, want %q", args, err, want)
		}
	}
}

func TestFlagzShowsNoPasswords(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringSlice("etcd-endpoints", []string{"https://ann:s3cret@a:2379", "b:2379"}, "")
	fs.String("id", "q", "")
	got := flagValues(fs)
	if got["etcd-endpoints"] != "https://ann:xxxxx@a:2379,b:2379" || got["id"] != "q" {
		t.Errorf("%v", got)
	}
}
