package answer_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/answer"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

const (
	silver = "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: silver}\nprovisioner: csi\n"
	lone   = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: lone}\nspec: {schedulerName: berth, containers: [{name: c, image: i}]}\n"
	// choosy has claims, so that its question takes others' turns.
	choosy = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: choosy}\nspec: {schedulerName: berth, containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: v}}, {name: w, persistentVolumeClaim: {claimName: w}}]}\n"
)

// questions are all that bring manifests.
var questions = map[string]func(ctx context.Context, box *whatif.Sandbox, manifests string) error{
	"what-if": func(ctx context.Context, box *whatif.Sandbox, manifests string) error {
		_, err := answer.WhatIf(ctx, box, &schedulingv1.WhatIfRequest{Manifests: manifests}, true)
		return err
	},
	"capacity": func(ctx context.Context, box *whatif.Sandbox, manifests string) error {
		_, err := answer.Capacity(ctx, box, &schedulingv1.GetCapacityRequest{Manifest: manifests})
		return err
	},
	"compare": func(ctx context.Context, box *whatif.Sandbox, manifests string) error {
		_, err := answer.Compare(ctx, box, &schedulingv1.CompareRequest{Manifests: manifests}, true)
		return err
	},
}

// What is wrong with manifests is said of their field, whichever question they come with.
func TestWhatIsWrongWithManifestsIsSaidOfThem(t *testing.T) {
	box := boxOf(t, nodeWith("a", 0)+"---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: silver}\nprovisioner: other\n")
	for what, manifests := range map[string]string{"another class silver": silver + lone, "no pod": strings.Replace(silver, "silver", "bronze", 1)} {
		for question, ask := range questions {
			err := ask(t.Context(), box, manifests)
			field := "manifests"
			if question == "capacity" {
				field = "manifest"
			}
			if question == "what-if" && what == "no pod" {
				field = "changes" // nothing is asked
			}
			if found := rpc.Violations(err); status.Code(err) != codes.InvalidArgument || len(found) != 1 || found[0].Field != field {
				t.Errorf("%s with %s: %v, want a violation of %s", question, what, err, field)
			}
		}
	}
}

// That whoever asks has no turn any more is no fault of their manifests.
func TestNoManifestIsAtFaultForATurnThatIsRefused(t *testing.T) {
	busy := rpc.Error(codes.ResourceExhausted, rpc.ReasonQueueFull, "busy")
	for question, ask := range questions {
		refused := 0
		for n := 0; n == refused; n++ { // the n-th turn that the question takes
			turns := 0
			ctx := whatif.WithPause(t.Context(), func() error {
				if turns++; turns > n {
					return busy
				}
				return nil
			})
			err := ask(ctx, boxOf(t, nodeWith("a", 0)), choosy)
			if status.Code(err) == codes.ResourceExhausted {
				refused++
			} else if err != nil {
				t.Errorf("%s: %v after %d turns, want %v", question, err, n, busy)
			}
		}
		if refused < 2 {
			t.Errorf("%s took %d turns, want one to be read and some to be answered", question, refused)
		}
	}
}
