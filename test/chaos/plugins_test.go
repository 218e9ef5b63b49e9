package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// sent is a stream that keeps what is sent.
type sent struct {
	grpc.ServerStream
	last *pluginv1.JudgeResponse
}

func (s *sent) SendMsg(m any) error { s.last = m.(*pluginv1.JudgeResponse); return nil }

func (s *sent) Context() context.Context { return context.Background() }

func TestALiarTellsEachLieAndTheTruthBetween(t *testing.T) {
	honest := func() *pluginv1.JudgeResponse {
		return &pluginv1.JudgeResponse{Id: 3, Answers: []*pluginv1.Answer{{
			Verdicts: []uint32{0, 1}, Refusals: []*pluginv1.Refusal{{Plugin: "P", Reason: "r"}}, Scores: []*pluginv1.Scores{{Scores: []int32{50, 0}}},
		}}}
	}
	l := &liar{file: filepath.Join(t.TempDir(), "lies")}
	to := &sent{}
	send := func(m *pluginv1.JudgeResponse) (said *pluginv1.JudgeResponse, ended bool) {
		t.Helper()
		err := l.intercept(nil, to, nil, func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(m) })
		if err != nil && !errors.Is(err, errStreamBroken) {
			t.Fatal(err)
		}
		return to.last, err != nil
	}
	if said, _ := send(honest()); !proto.Equal(said, honest()) {
		t.Errorf("it says %v, and is not to lie", said)
	}
	if err := os.WriteFile(l.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	truths, ends, different := 0, 0, map[string]bool{}
	for range 2 * honestEvery * len(lies) {
		switch said, ended := send(honest()); {
		case ended:
			ends++
		case proto.Equal(said, honest()):
			truths++
		default:
			different[said.String()[:min(200, len(said.String()))]] = true
		}
	}
	if truths != 2*len(lies) || ends == 0 || len(different) != len(lies)-1 {
		t.Errorf("%d truths, %d ends of streams and %d different lies: want %d, some and %d", truths, ends, len(different), 2*len(lies), len(lies)-1)
	}
	// What says nothing of nodes is changed all the same, and an answer that there was an error is left as it is.
	for _, lie := range lies {
		if lie.change == nil {
			continue
		}
		empty := &pluginv1.JudgeResponse{Id: 3}
		if lie.change(empty); proto.Equal(empty, &pluginv1.JudgeResponse{Id: 3}) {
			t.Errorf("%s: nothing is changed of an empty response", lie.name)
		}
		lie.change(&pluginv1.JudgeResponse{Id: 3, Answers: []*pluginv1.Answer{{Error: "no"}}}) // must not panic
	}
}
