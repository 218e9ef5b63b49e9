package cli_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/test/bubble"
)

const (
	opens  = "\x1b[?1049h\x1b[?25l"
	closes = "\x1b[?25h\x1b[?1049l"
	home   = "\x1b[H"
)

// screen is a terminal that says when something is drawn.
type screen struct {
	bytes.Buffer
	drawn func(frames int)
}

func (s *screen) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p)
	if bytes.HasPrefix(p, []byte(home)) {
		s.drawn(strings.Count(s.String(), home))
	}
	return n, err
}

// watchTop runs top on a terminal of 60 by 12 characters until drawn cancels it.
func watchTop(t *testing.T, g *gateway, drawn func(frames int, cancel func())) (frames []string, err error) {
	t.Helper()
	h := start(t, g)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &screen{drawn: func(n int) { drawn(n, cancel) }}
	root := &cobra.Command{Use: "berth", SilenceErrors: true}
	root.AddCommand(cli.Commands(cli.Options{
		DefaultServer: "berth", Out: out, Screen: func() (int, int, bool) { return 60, 12, true },
		Dial: func(address string) (grpc.ClientConnInterface, func() error, error) {
			conn, err := h.clients.Conn(address)
			return conn, func() error { return nil }, err
		},
	})...)
	root.SetArgs([]string{"top"})
	err = root.ExecuteContext(ctx)
	text := out.String()
	if !strings.HasPrefix(text, opens) || !strings.HasSuffix(text, closes) || strings.Count(text, opens) != 1 || strings.Count(text, closes) != 1 {
		t.Errorf("the terminal is not left as it was: %q", text)
	}
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, opens), closes), home)[1:], err
}

func TestTopDrawsAgainUntilItIsInterruptedAndLeavesTheTerminalAsItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		frames, err := watchTop(t, &gateway{}, func(n int, cancel func()) {
			if n == 3 {
				cancel()
			}
		})
		if err != nil || len(frames) != 3 {
			t.Fatalf("%d frames and %v, want 3 and no error: to interrupt is how it ends", len(frames), err)
		}
		for _, frame := range frames {
			lines := strings.Split(frame, "\r\n")
			if len(lines) > 12 {
				t.Errorf("%d lines on a screen of 12", len(lines))
			}
			for _, line := range lines {
				if line = strings.TrimSuffix(line, "\x1b[K"); len(line) > 60 {
					t.Errorf("%d characters on a screen of 60: %q", len(line), line)
				}
			}
		}
		if !strings.Contains(frames[0], "2 nodes; pods: 4 pending") {
			t.Errorf("the first frame is %q", frames[0])
		}
	})
}

func TestTopSaysThatItIsNotCurrentWhileTheGatewayIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := &gateway{}
		frames, err := watchTop(t, g, func(n int, cancel func()) {
			g.away.Store(n == 1)
			if n == 3 {
				cancel()
			}
		})
		if err != nil || len(frames) != 3 {
			t.Fatalf("%d frames and %v, want 3", len(frames), err)
		}
		for i, want := range []bool{false, true, false} {
			if got := strings.Contains(frames[i], "NOT CURRENT: the gateway at berth cannot answer now"); got != want {
				t.Errorf("frame %d says so: %v, want %v: %q", i, got, want, frames[i])
			}
			if !strings.Contains(frames[i], "2 nodes; pods: 4 pending") {
				t.Errorf("frame %d does not show what was known last: %q", i, frames[i])
			}
		}
	})
}

func TestTopOfAnIdleQueueSaysSo(t *testing.T) {
	h := start(t, &gateway{idle: true})
	out, _, err := h.run("", "top")
	if err != nil || !strings.Contains(out, "No pod is pending.") || strings.Contains(out, "\x1b") {
		t.Errorf("%v and %q, want that no pod is pending, in plain text", err, out)
	}
}
