package queue

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// FuzzPage: a request for a page gives bounds and a key that tokens are made of, or says which field is wrong.
func FuzzPage(f *testing.F) {
	f.Add(int32(10), token([3]string{"ns", "name", "uid"}))
	f.Add(int32(-1), "garbage")
	f.Add(int32(0), "AA")
	f.Fuzz(func(t *testing.T, size int32, text string) {
		n, after, err := page(&queuev1.ListPendingRequest{PageSize: size, PageToken: text})
		switch {
		case err != nil:
			if status.Code(err) != codes.InvalidArgument || len(rpc.Violations(err)) == 0 {
				t.Errorf("%v, want INVALID_ARGUMENT with a field", err)
			}
		case n <= 0 || n > maxPage || (after == nil) != (text == ""):
			t.Errorf("page of %d behind %v", n, after)
		case after != nil:
			if _, back, err := page(&queuev1.ListPendingRequest{PageToken: token(*after)}); err != nil || *back != *after {
				t.Errorf("%q comes back as %v, %v", *after, back, err)
			}
		}
	})
}
