package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

func watchCommand(opt Options) *cobra.Command {
	var c connection
	var from string
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show placements as they are made",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &schedulingv1.WatchPlacementsRequest{}
			if cmd.Flags().Changed("from") {
				var err error
				if request.From, err = parseVersion(from); err != nil {
					return err
				}
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.watch(cmd.Context(), opt, request) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().StringVar(&from, "from", "", "version to start after, as EPOCH/SEQ; without it: from now on")
	return cmd
}

// watch prints placements until the stream or ctx ends. The end of ctx is no error: it is how a person stops it.
func (s *session) watch(ctx context.Context, opt Options, request *schedulingv1.WatchPlacementsRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.WatchPlacements(ctx, request)
	for err == nil {
		var m *schedulingv1.WatchPlacementsResponse
		if m, err = stream.Recv(); err != nil || m.GetUid() == "" {
			continue // the end, or a heartbeat
		}
		verb := "placed on"
		if !m.GetPlaced() {
			verb = "taken back from"
		}
		line := fmt.Sprintf("%s %s %s %s", versionText(m.GetVersion()), m.GetPod(), verb, m.GetNode())
		if _, err := fmt.Fprintln(opt.Out, printable(line)); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the gateway has ended the watch")
	}
	return s.plain(err)
}

func parseVersion(text string) (*schedulingv1.Version, error) {
	epochText, seqText, found := strings.Cut(text, "/")
	epoch, epochErr := strconv.ParseInt(epochText, 10, 64)
	seq, seqErr := strconv.ParseInt(seqText, 10, 64)
	if !found || epochErr != nil || seqErr != nil || epoch < 0 || seq < 0 {
		return nil, fmt.Errorf("--from %q is not EPOCH/SEQ, such as 12/345", text)
	}
	return &schedulingv1.Version{Epoch: epoch, Seq: seq}, nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
