package gateway

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/coord"
)

// peers is what coordination last told. The slices are never changed, only replaced.
type peers struct {
	mu      sync.Mutex
	members []coord.Member
	leader  coord.Leader
	shards  []coord.ShardOwner
	told    int // bits of what has been told at all
}

const (
	toldMembers = 1 << iota
	toldLeader
	toldShards
	toldAll = 1<<iota - 1
)

func (p *peers) setMembers(members []coord.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members = members
	p.told |= toldMembers
}

func (p *peers) setLeader(leader coord.Leader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader = leader
	p.told |= toldLeader
}

func (p *peers) setShards(shards []coord.ShardOwner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shards = shards
	p.told |= toldShards
}

// known reports whether everything has been told once.
func (p *peers) known() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told == toldAll
}

func (p *peers) all() ([]coord.Member, coord.Leader, []coord.ShardOwner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members, p.leader, p.shards
}

// queues returns the queue members, and the owner of each shard that has one.
func (p *peers) queues() (queues []coord.Member, owners map[int]string) {
	members, _, shards := p.all()
	for _, m := range members {
		if m.Role == coord.RoleQueue {
			queues = append(queues, m)
		}
	}
	owners = make(map[int]string, len(shards))
	for _, s := range shards {
		owners[s.Shard] = s.Owner
	}
	return queues, owners
}

const (
	// askAtOnce bounds the calls that one request makes at the same time.
	askAtOnce = 32
	// askRounds bounds, in units of Config.PeerTimeout, how long one request waits for all of them.
	askRounds = 3
)

// ask calls every member in parallel, each with a deadline, and waits for all. It returns one error per member, in order.
func (s *Service) ask(ctx context.Context, members []coord.Member, call func(ctx context.Context, i int, conn *grpc.ClientConn) error) []error {
	ctx, cancel := context.WithTimeout(ctx, askRounds*s.cfg.PeerTimeout)
	defer cancel()
	errs := make([]error, len(members))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askAtOnce)
	for i, m := range members {
		g.Go(func() error {
			errs[i] = askOne(ctx, s.cfg.PeerTimeout, s.cfg.Conns, m.Address, func(ctx context.Context, conn *grpc.ClientConn) error {
				return call(ctx, i, conn)
			})
			return nil // one that does not answer must not cancel the others
		})
	}
	_ = g.Wait() // always nil
	return errs
}

func askOne(ctx context.Context, timeout time.Duration, conns Conns, address string, call func(context.Context, *grpc.ClientConn) error) error {
	conn, err := conns.Conn(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx, conn)
}
