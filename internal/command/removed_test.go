package command

import (
	"cmp"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/member"
)

func TestFlagsThatKubeSchedulerHadAreRefusedWithWhatToDoInstead(t *testing.T) {
	for name, want := range map[string]string{
		"policy-config-file": "unknown flag: --policy-config-file, which is an old one of kube-scheduler's: berth config convert makes a file",
		"port":               "unknown flag: --port, which is an old one of kube-scheduler's: --metrics-listen",
		"kube-api-qps":       "--kube-qps",
		"prot":               "unknown flag: --prot",
	} {
		for _, role := range []string{"all", "binder"} {
			_, _, err := berth("", role, "--"+name, "x")
			if err == nil || !strings.Contains(err.Error(), want) || name == "prot" && err.Error() != want {
				t.Errorf("%s --%s: %v, want %q", role, name, err, want)
			}
		}
	}
	for name := range removed { // none of them has come back
		for _, role := range []string{"all", "binder"} {
			c, _, err := New(nil).Find([]string{role})
			if err != nil {
				t.Fatal(err)
			}
			if c.Flags().Lookup(name) != nil {
				t.Errorf("%s has --%s, which is said to have been removed", role, name)
			}
		}
	}
}

func TestTheVersionIsAFlagToo(t *testing.T) {
	out, _, err := berth("", "--version")
	if want := "berth version " + cmp.Or(member.Build(), "unknown") + "\n"; err != nil || out != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}
