package cli

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// plain says in words what an error of a request means. Violations of fields get a line each.
func (s *session) plain(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	if violations := rpc.Violations(err); len(violations) > 0 {
		return errors.New(listed(violations))
	}
	switch st.Code() {
	case codes.Unavailable:
		if rpc.ReasonOf(err) == "" { // not the gateway's own answer
			return fmt.Errorf("no answer from the gateway at %s: %s", s.server, connectError(st.Message()))
		}
		return fmt.Errorf("the gateway at %s cannot answer now: %s", s.server, st.Message())
	case codes.DeadlineExceeded:
		return fmt.Errorf("no answer from the gateway at %s within %v", s.server, s.timeout)
	case codes.Canceled:
		return errors.New("interrupted")
	case codes.Unauthenticated:
		return fmt.Errorf("the gateway at %s wants to know who asks (%s): give --token-file, or set BERTH_TOKEN; where Kubernetes knows the callers, kubectl create token makes one", s.server, st.Message())
	case codes.PermissionDenied:
		return fmt.Errorf("not allowed: %s", st.Message())
	case codes.Internal:
		return fmt.Errorf("a fault of the gateway at %s: %s", s.server, st.Message())
	case codes.Unimplemented:
		return fmt.Errorf("what serves at %s is not a gateway of Berth, or of another version: %s", s.server, st.Message())
	case codes.ResourceExhausted:
		if rpc.ReasonOf(err) == "" {
			return fmt.Errorf("too large for the gateway at %s: %s", s.server, st.Message())
		}
		if after, asked := rpc.RetryAfter(err); asked && after > 0 {
			return fmt.Errorf("the gateway at %s is busy: %s: try again in %v", s.server, st.Message(), after)
		}
	}
	return errors.New(st.Message())
}

// connectError drops what gRPC wraps around the reason of a failed connection.
func connectError(message string) string {
	if _, after, found := strings.Cut(message, `desc = "transport: Error while dialing: `); found {
		return strings.TrimSuffix(after, `"`)
	}
	if _, after, found := strings.Cut(message, "error while dialing: "); found {
		return strings.Trim(after, `"`)
	}
	return message
}

// listed puts each violation on a line.
func listed(violations []rpc.Violation) string {
	lines := make([]string, 0, len(violations))
	for _, v := range violations {
		if v.Field == "" {
			lines = append(lines, v.Description)
			continue
		}
		lines = append(lines, v.Field+": "+v.Description)
	}
	if len(lines) == 1 {
		return "invalid: " + lines[0]
	}
	return fmt.Sprintf("%d things are invalid:\n  %s", len(lines), strings.Join(lines, "\n  "))
}
