package roles

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/member"
)

// An image's build sees no repository: what it was built from is what the linker was told, as members and `berth version` say.
func TestTheStatusPageSaysTheBuildThatMembersSay(t *testing.T) {
	want := member.Build()
	if want == "" {
		want = "unknown"
	}
	o := newOperations(Common{})
	if line := [2]string{"Binary version", want}; !slices.Contains(o.status(time.Now()), line) {
		t.Errorf("the page says %q, want %q among it", o.status(time.Now()), line)
	}
}
