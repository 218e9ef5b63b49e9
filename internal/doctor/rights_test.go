package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestTheRightsAreThoseOfTheDeployedRole: who is asked for more has to be given more, and who is asked for less is not told what is missing.
func TestTheRightsAreThoseOfTheDeployedRole(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kustomize/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]bool)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" || role.Name != "berth-binder" {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						want[group+" "+resource+" "+verb] = true
					}
				}
			}
		}
	}
	got := make(map[string]bool)
	for _, r := range Rights {
		name := r.Resource
		if r.Subresource != "" {
			name += "/" + r.Subresource
		}
		for _, verb := range r.Verbs {
			if got[r.Group+" "+name+" "+verb] {
				t.Errorf("%s %s is asked for twice", verb, name)
			}
			got[r.Group+" "+name+" "+verb] = true
		}
		if r.For == "" {
			t.Errorf("%s is for nothing", name)
		}
	}
	for right := range want {
		if !got[right] {
			t.Errorf("nobody asks for %s", right)
		}
	}
	for right := range got {
		if !want[right] {
			t.Errorf("no role has %s", right)
		}
	}
	if len(want) < 30 {
		t.Errorf("the role has %d rights only", len(want))
	}
}

func TestNamesAreFew(t *testing.T) {
	if got := named([]string{"b", "a"}); got != "a, b" {
		t.Errorf("%q", got)
	}
	if got := named(slices.Repeat([]string{"x"}, 7)); got != "x, x, x, x, x and 2 more" {
		t.Errorf("%q", got)
	}
}
