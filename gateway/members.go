package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/coord"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Reasons why a member is not drained.
const (
	// ReasonLastOfRole: FAILED_PRECONDITION: start another first, or force it.
	ReasonLastOfRole rpc.Reason = "LAST_OF_ROLE"
	// ReasonAmbiguous: FAILED_PRECONDITION: members of several roles have the id; name the role.
	ReasonAmbiguous rpc.Reason = "AMBIGUOUS"
	// ReasonNoDrain: FAILED_PRECONDITION: the member is of a version that cannot be asked.
	ReasonNoDrain rpc.Reason = "NO_DRAIN"
	// ReasonSilent: UNAVAILABLE: the member does not answer.
	ReasonSilent rpc.Reason = "SILENT"
)

const (
	// drainsWaiting is how many DrainMember may wait: they take turns, so that two do not each count on the member that the
	// other drains. Two gateways do not know of each other's.
	drainsWaiting = 16
	// listedMembers is how many members an error names.
	listedMembers = 20
	// maxRole is the length of a role's name at most.
	maxRole = 63
)

// without says what does not work without any member of a role.
var without = map[coord.Role]string{
	coord.RoleBinder:       "no pod is placed",
	coord.RoleQueue:        "no pod is scheduled",
	coord.RoleFilterWorker: "no pod is scheduled",
	coord.RoleScoreWorker:  "no pod is scheduled",
	coord.RoleGateway:      "nobody can ask Berth anything",
}

// DrainMember implements SchedulingService.
func (s *Service) DrainMember(ctx context.Context, req *schedulingv1.DrainMemberRequest) (*schedulingv1.DrainMemberResponse, error) {
	violations := append(checkName("role", req.GetRole(), false, maxRole), checkName("id", req.GetId(), true, maxObject)...)
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	leave, err := s.drains.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()

	// 1. Who is it?
	all, _, _, err := s.told()
	if err != nil {
		return nil, err
	}
	target, err := memberNamed(all, coord.Role(req.GetRole()), req.GetId())
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s %s", target.Role, target.ID)

	// 2. How are it and the others of its role?
	peers := slices.DeleteFunc(slices.Clone(all), func(m coord.Member) bool { return m.Role != target.Role })
	answers := make([]*memberv1.GetMemberResponse, len(peers))
	errs := s.ask(ctx, peers, func(ctx context.Context, i int, conn *grpc.ClientConn) (err error) {
		answers[i], err = memberv1.NewMemberServiceClient(conn).GetMember(ctx, &memberv1.GetMemberRequest{})
		return err
	})
	at := slices.Index(peers, target)
	answer, err := answers[at], errs[at]
	switch {
	case err != nil:
		return nil, errSilent(name, err)
	case !is(target, answer):
		return nil, rpc.Error(codes.Unavailable, ReasonSilent, "%s is gone: %s %s answers at its address", name, answer.GetRole(), answer.GetId())
	}

	// 3. May it go?
	others := 0
	for i, m := range peers {
		if i != at && errs[i] == nil && is(m, answers[i]) && (answers[i].GetReady() || answers[i].GetAvailable()) {
			others++
		}
	}
	switch {
	case answer.GetSharesProcess():
		return nil, rpc.Error(codes.FailedPrecondition, member.ReasonSharesProcess,
			"%s shares its process with other roles, and cannot be drained alone: to drain all of them, end the process with SIGTERM", name)
	case others == 0 && !req.GetForce() && !answer.GetDraining():
		return nil, rpc.Error(codes.FailedPrecondition, ReasonLastOfRole,
			"there is no other %s that is ready, and without one %s: start another first, or drain it with --force", target.Role, without[target.Role])
	}

	// 4. Ask it to.
	err = askOne(ctx, s.cfg.PeerTimeout, s.cfg.Conns, target.Address, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := memberv1.NewMemberServiceClient(conn).Drain(ctx, &memberv1.DrainRequest{Role: string(target.Role), Id: target.ID})
		return err
	})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, rpc.Error(codes.FailedPrecondition, ReasonNoDrain,
			"%s is of a version that cannot be drained this way: end its process with SIGTERM, which does the same", name)
	case err != nil:
		return nil, errSilent(name, err)
	}
	s.cfg.Log.Info("member drains", "member", target.ID, "role", target.Role)
	head := later(s.cfg.Replica.Head(), fromLog(answer.GetVersion()))
	return &schedulingv1.DrainMemberResponse{Member: memberOf(target, answer, nil, head)}, nil
}

// is reports whether an answer is of a member, and not of another one that has got its address.
func is(m coord.Member, answer *memberv1.GetMemberResponse) bool {
	return answer.GetId() == m.ID && answer.GetRole() == string(m.Role)
}

// memberNamed returns the member with an id, of a role if one is given.
func memberNamed(all []coord.Member, role coord.Role, id string) (coord.Member, error) {
	var found []coord.Member
	var names, there []string
	for _, m := range all {
		if role != "" && m.Role != role {
			continue
		}
		name := fmt.Sprintf("%s/%s", m.Role, m.ID)
		there = append(there, name)
		if m.ID == id {
			found, names = append(found, m), append(names, name)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return coord.Member{}, rpc.Error(codes.FailedPrecondition, ReasonAmbiguous, "%d members have the id %s: say which of %s", len(found), id, strings.Join(names, ", "))
	}
	what := "member"
	if role != "" {
		what = string(role)
	}
	if len(there) == 0 {
		return coord.Member{}, errNotFound("there is no %s %s, nor any other", what, id)
	}
	slices.Sort(there)
	more := ""
	if n := len(there) - listedMembers; n > 0 {
		there, more = there[:listedMembers], fmt.Sprintf(" and %d more", n)
	}
	return coord.Member{}, errNotFound("there is no %s %s: there are %s%s", what, id, strings.Join(there, ", "), more)
}

func errSilent(name string, err error) error {
	return rpc.Error(codes.Unavailable, ReasonSilent, "%s does not answer: %s: if its process is gone, it leaves when its lease ends", name, status.Convert(err).Message())
}
