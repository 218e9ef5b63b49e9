package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// drainPoll is how often a command that waits for a member's end looks.
const drainPoll = 250 * time.Millisecond

func drainCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	request := &schedulingv1.DrainMemberRequest{}
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drain-worker NAME",
		Short: "Have a process of Berth finish what it does, and end",
		Long: "Drain-worker asks a member of Berth to end as it does when its process gets SIGTERM: it takes no new work, finishes\n" +
			"what is in flight, gives up its lease, and exits with code 0. Others take its work over at once. It is meant for\n" +
			"filter- and score-workers, and takes queue members, binders and gateways too, since all of them end alike. NAME is\n" +
			"an id, or ROLE/ID, as \"workers -o name\" prints it.\n\n" +
			"What runs the process may start it again: a Deployment does, in the same pod. To have one worker less for good,\n" +
			"scale the Deployment, which drains too. Nodes are drained with kubectl drain.",
		Example: "  " + opt.Program + " drain-worker filter-worker-0\n" +
			"  " + opt.Program + " drain-worker queue/q-1 --wait 5m\n" +
			"  " + opt.Program + " drain-worker score-worker-0 --force --wait 0",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("drain-worker takes the name of one member")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if wait < 0 {
				return fmt.Errorf("--wait %v is negative", wait)
			}
			request.Id = args[0]
			if role, id, found := strings.Cut(args[0], "/"); found {
				request.Role, request.Id = role, id
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.drain(cmd.Context(), opt, o, request, wait) })
		},
		ValidArgsFunction: completeMembers(&c, opt),
	}
	c.add(cmd, opt)
	o.add(cmd)
	cmd.Flags().BoolVar(&request.Force, "force", false, "also the last one of its role that is ready, without which nothing is scheduled")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until it has left; 0 for not at all")
	return cmd
}

// drain has a member drain, and waits until it has left.
func (s *session) drain(ctx context.Context, opt Options, o output, request *schedulingv1.DrainMemberRequest, wait time.Duration) error {
	response, err := ask(ctx, s, s.DrainMember, request)
	if err != nil {
		return err
	}
	name, state := memberName(response.GetMember()), "drains"
	if wait > 0 {
		if err := notice(opt.Err, "%s drains: waiting until it has left", name); err != nil {
			return err
		}
		if state, err = s.left(ctx, opt, response.GetMember(), wait); err != nil {
			return err
		}
	}
	return o.show(opt, answer{response, func() []string { return []string{name} }, func(t *table) { t.line("%s %s", name, state) }})
}

// left waits until a member has left, and says what became of it.
func (s *session) left(ctx context.Context, opt Options, m *schedulingv1.Member, wait time.Duration) (state string, err error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		// An answer that does not come now may come later.
		request, cancel := s.request(waiting)
		response, err := s.GetStatus(request, &schedulingv1.GetStatusRequest{})
		cancel()
		switch {
		case ctx.Err() != nil:
			return "", fmt.Errorf("interrupted: %s drains all the same", memberName(m))
		case status.Code(err) == codes.Unavailable && rpc.ReasonOf(err) == "" && m.GetRole() == "gateway":
			return "drains, and the gateway at " + s.server + " is gone", nil // most likely that one
		case err != nil && status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded:
			return "", fmt.Errorf("%s drains, but whether it has left cannot be seen: %w", memberName(m), s.plain(err))
		case err == nil:
			if now := sameMember(response, m); now == nil {
				return "drained", nil
			} else if now.GetStarted() != nil && !now.GetStarted().AsTime().Equal(m.GetStarted().AsTime()) {
				return "drained, and started again", nil
			}
		}
		select {
		case <-tick.C:
		case <-waiting.Done():
			if ctx.Err() == nil {
				return "", fmt.Errorf("%s drains, and has not left within %v: %s workers says how it is; --wait waits longer", memberName(m), wait, opt.Program)
			}
		}
	}
}

// sameMember returns the member of the role and the id of another, nil if there is none.
func sameMember(s *schedulingv1.GetStatusResponse, m *schedulingv1.Member) *schedulingv1.Member {
	for _, now := range s.GetMembers() {
		if now.GetRole() == m.GetRole() && now.GetId() == m.GetId() {
			return now
		}
	}
	return nil
}
