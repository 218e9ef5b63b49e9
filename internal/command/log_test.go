package command

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/berth-scheduler/berth/internal/logtest"
)

// What makes JSON of gRPC says of each client that is gone before its answer that it is.
func TestWhatLibrariesLogOfStrangersDoesNotFillTheLog(t *testing.T) {
	logs := &logtest.Buffer{}
	logLibraries(slog.New(slog.NewTextHandler(logs, nil)))
	for range 100 {
		grpclog.Errorf("Failed to write response: %v", "it is gone")
	}
	// One at once, and others 10 s later, if this took that long.
	if n := strings.Count(logs.String(), "a library has logged"); n < 1 || n > 3 {
		t.Errorf("%d lines:\n%s", n, logs)
	}
}
