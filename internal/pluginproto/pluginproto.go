// Package pluginproto has what all who serve berth.plugin.v1 go by, besides its messages.
package pluginproto

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The bounds of berth.plugin.v1.
const (
	MaxRequestBytes = 16 << 20
	MaxRefusals     = 1000 // of an answer
	MaxTextBytes    = 1024 // of a reason, and of an error
	MaxActivates    = 1000 // of a response
	MaxChanges      = 1000 // of a response
	MaxUIDBytes     = 253
	MaxNodeBytes    = 253 // of a node's name
	// OtherReason stands for further reasons where an answer has as many as it may.
	OtherReason = "another reason"
)

// Invalid says what is wrong with a field of a request. The stream ends with it.
func Invalid(text, field string, at ...any) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", fmt.Sprintf(field, at...), text)
}

// Cut returns a text as a message can have it: valid, and not too long.
func Cut(text string) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) > MaxTextBytes {
		text = strings.ToValidUTF8(text[:MaxTextBytes], "")
	}
	return text
}

// failure is an error of a plugin's, as it was.
type failure struct {
	text     string
	canceled bool
}

func (f failure) Error() string        { return f.text }
func (f failure) Is(target error) bool { return f.canceled && target == context.Canceled }

// FailureOf returns an error of a plugin's without its methods, which are the plugin's code and may panic: they are called here, where the caller recovers. Whether it is context.Canceled it still says. nil is none.
func FailureOf(err error) error {
	if err == nil {
		return nil
	}
	return failure{err.Error(), errors.Is(err, context.Canceled)}
}
