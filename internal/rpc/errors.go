package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every [Reason].
const Domain = "berth-scheduler.github.io"

// Reason says why a call failed, for programs: a stable UPPER_SNAKE word. The code next to it says what to do next.
type Reason string

// The reasons that more than one role uses. A role may add its own.
const (
	ReasonReplicaBehind Reason = "REPLICA_BEHIND" // UNAVAILABLE: the replica is older than asked for; ask another
	ReasonNotReady      Reason = "NOT_READY"      // UNAVAILABLE: still loading
	ReasonDraining      Reason = "DRAINING"       // UNAVAILABLE: the server is stopping
	ReasonCallCut       Reason = "CALL_CUT"       // UNAVAILABLE: somebody other than the caller ended the call; its outcome is unknown
	ReasonEpochLost     Reason = "EPOCH_LOST"     // FAILED_PRECONDITION: the binder is no longer the active one
	ReasonShardLost     Reason = "SHARD_LOST"     // FAILED_PRECONDITION: the caller no longer owns the shard
	ReasonStale         Reason = "STALE"          // ABORTED: run it again at a newer version
	ReasonQueueFull     Reason = "QUEUE_FULL"     // RESOURCE_EXHAUSTED: back off
	ReasonLogCompacted  Reason = "LOG_COMPACTED"  // OUT_OF_RANGE: load a snapshot, then follow
	ReasonInvalid       Reason = "INVALID"        // INVALID_ARGUMENT: fix the request
	ReasonTooLarge      Reason = "TOO_LARGE"      // INVALID_ARGUMENT: the request or its answer is larger than a message may be; ask for less
	ReasonNotFound      Reason = "NOT_FOUND"      // NOT_FOUND
	ReasonNoIdentity    Reason = "NO_IDENTITY"    // UNAUTHENTICATED: the caller has shown no certificate of a role
	ReasonWrongRole     Reason = "WRONG_ROLE"     // PERMISSION_DENIED: the caller's role may not; UNAVAILABLE: the server's does not
	ReasonInternal      Reason = "INTERNAL"       // INTERNAL: the detail is in the server's log
)

// Violation is one thing that is wrong with a request.
type Violation struct {
	Field       string // path of the field, for example "spec.containers[0].resources.requests[cpu]"
	Description string // what is wrong with it, for people
}

// Bounds on what an error carries, so that a hostile request cannot make an answer too large for HTTP/2 headers.
const (
	maxViolations   = 32
	maxFieldBytes   = 256
	maxTextBytes    = 512  // of one violation's description
	maxMessageBytes = 4096 // of the whole message
)

// Error returns an error that crosses the wire with a code, a reason and a message. The message is for people: it
// must not hold secrets, and is cut at 4 KiB. %w is not supported, since identity does not cross the wire.
// A code of OK, which would turn the error into success, becomes INTERNAL.
func Error(code codes.Code, reason Reason, format string, args ...any) error {
	if code == codes.OK {
		code = codes.Internal
	}
	message := clean(fmt.Sprintf(format, args...), maxMessageBytes)
	return withDetails(status.New(code, message), &errdetails.ErrorInfo{Domain: Domain, Reason: string(reason)}).Err()
}

// Exhausted returns RESOURCE_EXHAUSTED, which tells the caller that nothing was done and that it may come back no sooner
// than after. Nothing else makes that code, so that nobody is refused without being told when to come back.
func Exhausted(reason Reason, after time.Duration, format string, args ...any) error {
	return WithRetry(Error(codes.ResourceExhausted, reason, format, args...), after)
}

// WithRetry returns err with the advice to try again no sooner than after; a negative duration means at once.
// It replaces earlier advice. An err without a status, such as nil, is returned as it is.
func WithRetry(err error, after time.Duration) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	p := st.Proto()
	kept := p.Details[:0]
	for _, detail := range p.Details {
		if !detail.MessageIs((*errdetails.RetryInfo)(nil)) {
			kept = append(kept, detail)
		}
	}
	p.Details = kept
	return withDetails(status.FromProto(p), &errdetails.RetryInfo{RetryDelay: durationpb.New(max(after, 0))}).Err()
}

// Invalid returns INVALID_ARGUMENT with reason [ReasonInvalid] and the violations, which the message lists too.
// Without violations it returns nil. Only the first 32 are carried; the message says how many were left out.
func Invalid(violations ...Violation) error {
	if len(violations) == 0 {
		return nil
	}
	request := &errdetails.BadRequest{}
	var listed []string
	for _, v := range violations[:min(len(violations), maxViolations)] {
		field, description := clean(v.Field, maxFieldBytes), clean(v.Description, maxTextBytes)
		request.FieldViolations = append(request.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: field, Description: description})
		if field != "" {
			description = field + ": " + description
		}
		listed = append(listed, description)
	}
	message := strings.Join(listed, "; ")
	if more := len(violations) - len(listed); more > 0 {
		message = clean(message, maxMessageBytes-64) + fmt.Sprintf("; and %d more", more)
	}
	st := status.New(codes.InvalidArgument, clean(message, maxMessageBytes))
	return withDetails(st, &errdetails.ErrorInfo{Domain: Domain, Reason: string(ReasonInvalid)}, request).Err()
}

// ReasonOf returns the reason that err, or an error it wraps, carries, and "" if none.
func ReasonOf(err error) Reason {
	if info := detail[*errdetails.ErrorInfo](err); info != nil && info.GetDomain() == Domain {
		return Reason(info.GetReason())
	}
	return ""
}

// TooLarge reports whether a call failed, or one of several whose errors were joined, because the request or its answer is larger
// than a message may be. To make the same call again does not help; to ask for less does.
func TooLarge(err error) bool {
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		return slices.ContainsFunc(joined.Unwrap(), TooLarge)
	}
	return ReasonOf(err) == ReasonTooLarge
}

// sized tells messages that are too large apart from servers that are too busy, for which gRPC has the same code: a caller that
// takes the one for the other makes the same call for ever. gRPC says it by its text only, on whichever side it found out.
func sized(err error) error {
	if status.Code(err) != codes.ResourceExhausted || ReasonOf(err) != "" {
		return err
	}
	if message := status.Convert(err).Message(); strings.Contains(message, "larger than max") {
		return Error(codes.InvalidArgument, ReasonTooLarge, "%s", message)
	}
	return err
}

// RetryAfter returns how long the server asked to wait before trying again, and whether it asked. Of several errors that
// were joined, the longest time counts.
func RetryAfter(err error) (after time.Duration, asked bool) {
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		for _, one := range joined.Unwrap() {
			if d, ok := RetryAfter(one); ok {
				after, asked = max(after, d), true
			}
		}
		return after, asked
	}
	if info := detail[*errdetails.RetryInfo](err); info != nil {
		return info.GetRetryDelay().AsDuration(), true
	}
	return 0, false
}

// Violations returns what [Invalid] was given, in its order.
func Violations(err error) []Violation {
	var violations []Violation
	for _, v := range detail[*errdetails.BadRequest](err).GetFieldViolations() {
		violations = append(violations, Violation{Field: v.GetField(), Description: v.GetDescription()})
	}
	return violations
}

// detail returns the first detail of type M that err carries, or a nil M.
func detail[M proto.Message](err error) (found M) {
	if err == nil {
		return found
	}
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(M); ok {
			return m
		}
	}
	return found
}

// withDetails adds details to st. They are plain messages with valid text, which always marshal; should one not,
// the code and message are worth more than the detail.
func withDetails(st *status.Status, details ...protoadapt.MessageV1) *status.Status {
	if detailed, err := st.WithDetails(details...); err == nil {
		return detailed
	}
	return st
}

// clean makes s valid UTF-8, which protobuf insists on, and cuts it to at most limit bytes.
func clean(s string, limit int) string {
	if len(s) > limit {
		const mark = "…"
		end := limit - len(mark)
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + mark
	}
	return strings.ToValidUTF8(s, "?")
}

// statusOf turns what a handler returned into what the client gets. hidden is true if the client is not told the
// detail, because err is a plain error, which may hold anything; the server's log must have it then.
func statusOf(err error) (answer error, hidden bool) {
	if _, ok := status.FromError(err); ok {
		return err, false
	}
	switch {
	case errors.Is(err, errDraining):
		return Error(codes.Unavailable, ReasonDraining, "%v", errDraining), false
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the call was cancelled"), false
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the deadline passed"), false
	}
	return errInternal(), true
}

func errInternal() error {
	return Error(codes.Internal, ReasonInternal, "internal error; the detail is in the server's log")
}
