package offline_test

import (
	"os"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cli/offline"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// FuzzAFileAndAQuestion: whatever cluster a file describes, questions about it are answered, or refused with what is wrong.
func FuzzAFileAndAQuestion(f *testing.F) {
	for _, file := range []string{"testdata/cluster.json", "testdata/broken.json", "testdata/storage.yaml"} {
		objects, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, asked := range []string{"testdata/web.yaml", "testdata/binpack.yaml", "testdata/database.yaml"} {
			question, err := os.ReadFile(asked)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(objects, string(question))
		}
	}
	f.Fuzz(func(t *testing.T, objects []byte, question string) {
		if !utf8.ValidString(question) {
			return // no message has such a string
		}
		there, err := offline.Open(t.Context(), objects)
		if err != nil {
			return
		}
		defer func() {
			if err := there.Close(); err != nil {
				t.Error(err)
			}
		}()
		client := schedulingv1.NewSchedulingServiceClient(there.Conn)
		_, whatif := client.WhatIf(t.Context(), &schedulingv1.WhatIfRequest{Pending: true, Manifests: question})
		_, capacity := client.GetCapacity(t.Context(), &schedulingv1.GetCapacityRequest{Manifest: question, Limit: 100})
		_, compare := client.Compare(t.Context(), &schedulingv1.CompareRequest{Everything: true, Other: question})
		_, explained := client.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Name: "train-0"})
		for what, err := range map[string]error{"what if": whatif, "capacity": capacity, "compare": compare, "explain": explained} {
			switch status.Code(err) {
			case codes.OK, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.ResourceExhausted:
			default:
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
