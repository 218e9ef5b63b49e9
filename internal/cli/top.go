package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// What makes a terminal show pictures one over the other, as ECMA-48 and xterm define it.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	screenClose = "\x1b[?25h\x1b[?1049l" // the cursor, and the screen as it was
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K\r\n" // nothing is left of a longer line
	screenEnd   = "\x1b[J"     // nor of more lines
)

// topPriorities is how many priorities top shows.
const topPriorities = 8

func topCommand(opt Options) *cobra.Command {
	var c connection
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch queue, rates and processes live",
		Long:  "Top shows the state of Berth and goes on showing it until it is interrupted. Where the output is no terminal, it shows it once.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return fmt.Errorf("--every %v is less than 100ms", every)
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.top(cmd.Context(), opt, every) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often to look, at least 100ms")
	return cmd
}

// top shows pictures until ctx ends, which is how a person stops it, and leaves the terminal as it was.
func (s *session) top(ctx context.Context, opt Options, every time.Duration) (err error) {
	write := func(text string) error {
		if _, err := opt.Out.Write([]byte(text)); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		return nil
	}
	if _, _, terminal := opt.Screen(); !terminal {
		picture, err := s.picture(ctx, opt)
		if err != nil {
			return err
		}
		return write(picture)
	}
	if err := write(screenOpen); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, write(screenClose)) }()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := ""
	for {
		picture, failed := s.picture(ctx, opt)
		if ctx.Err() != nil {
			return nil
		}
		if failed != nil { // it may be back soon
			picture = "NOT CURRENT: " + failed.Error() + "\n\n" + last
		} else {
			last = picture
		}
		width, height, _ := opt.Screen()
		if err := write(frame(picture, width, height)); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// frame is a text as it is drawn over the one before: cut to the screen.
func frame(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if height > 0 && len(lines) > height-1 {
		lines = lines[:max(height-1, 1)]
	}
	var b strings.Builder
	b.WriteString(screenHome)
	for _, line := range lines {
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + lineEnd)
	}
	b.WriteString(screenEnd)
	return b.String()
}

// picture is the state of Berth on one page.
func (s *session) picture(ctx context.Context, opt Options) (string, error) {
	status, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return "", err
	}
	queue, err := ask(ctx, s, s.GetQueue, &schedulingv1.GetQueueRequest{})
	if err != nil {
		return "", err
	}
	t := newTable(false, opt.Now())
	t.top(status, queue)
	return string(t.bytes()), nil
}

func (t *table) top(s *schedulingv1.GetStatusResponse, q *schedulingv1.GetQueueResponse) {
	leader := s.GetLeader()
	if leader == "" {
		leader = "none"
	}
	t.line("Berth at version %s, heard %v ago; leader %s; source %s; %s", versionText(s.GetVersion()),
		time.Duration(s.GetAgeMillis())*time.Millisecond, leader, s.GetSource(), t.now.Format(time.TimeOnly))
	t.line("%s; pods: %s pending, %s assumed, %s bound", counted(s.GetNodes(), "node", "nodes"),
		count(s.GetPods().GetPending()), count(s.GetPods().GetAssumed()), count(s.GetPods().GetBound()))
	ready := "all ready"
	if n := unready(s); n > 0 {
		ready = fmt.Sprintf("%d NOT READY", n)
	}
	t.line("processes: %s; %s", roles(s), ready)
	t.gap()
	t.rates(q)
	t.gap()
	t.priorities(q.GetPriorities(), topPriorities)
	t.gap()
	t.shards(q.GetShards())
	t.gap()
	t.members(s)
}
