package coord

import (
	"context"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// A client has a connection to every member of etcd that it was told of, and uses one of them, which it asks a small
// question all the while. When there is no answer it asks all, and uses the one that answers first. A member that is paused,
// or cut off from its peers, would otherwise keep what it was sent until the request times out, and watches for longer: its
// connections stay open. While no member answers the client stays where it is: nothing is gained by sending anything again.
const (
	askEvery = 500 * time.Millisecond
	silence  = 500 * time.Millisecond // a member that does not answer for so long is silent
)

// errGivenUp ends what was sent to a member that fell silent, or by way of a leader that is gone.
var errGivenUp = status.Error(codes.Unavailable, "the member of etcd is silent, or etcd has another leader")

// endpoint is a connection to one member.
type endpoint struct {
	name string // as configured
	conn *grpc.ClientConn
}

// inUse is the endpoint that requests go to, until ctx ends, which ends those that are under way.
type inUse struct {
	*endpoint
	ctx context.Context
	end context.CancelCauseFunc
}

// use makes requests go to an endpoint from now on, and ends those that are under way.
func (c *Client) use(e *endpoint) {
	next := &inUse{endpoint: e}
	next.ctx, next.end = context.WithCancelCause(c.ctx)
	if last := c.inUse.Swap(next); last != nil {
		last.end(errGivenUp)
	}
}

// names returns the endpoints, the one in use first, by commas.
func (c *Client) names() string {
	used := c.inUse.Load().endpoint
	names := []string{used.name}
	for _, e := range c.endpoints {
		if e != used {
			names = append(names, e.name)
		}
	}
	return strings.Join(names, ",")
}

// stayWithWhoAnswers keeps the client with an endpoint that answers, until ctx ends.
func (c *Client) stayWithWhoAnswers(ctx context.Context) {
	var raftTerm uint64 // of the last answer
	for {
		next, cancel := context.WithTimeout(ctx, askEvery)
		used := c.inUse.Load().endpoint
		answers := used
		term, err := c.ask(ctx, used)
		if err != nil {
			answers, term = c.askAll(ctx)
		}
		switch {
		case term == 0:
			<-next.Done()
		case answers != used:
			c.log.Warn("etcd's member is silent, another one is used", "silent", used.name, "used", answers.name, "err", err)
			c.use(answers)
		case raftTerm != 0 && raftTerm != term:
			c.log.Info("etcd has another leader, what was sent before is given up", "endpoint", used.name, "raft_term", term)
			c.use(used) // what it has forwarded to a leader that is gone is not answered either
		}
		if term != 0 {
			raftTerm = term
			answers.conn.WaitForStateChange(next, connectivity.Ready) // a connection that breaks is seen at once
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// ask makes a linearizable read, which a member can only answer together with a majority, and returns raft's term.
func (c *Client) ask(ctx context.Context, e *endpoint) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	r, err := pb.NewKVClient(e.conn).Range(ctx, &pb.RangeRequest{Key: []byte(c.leaderKey()), CountOnly: true}, grpc.WaitForReady(false))
	if err != nil {
		return 0, err
	}
	return r.Header.RaftTerm, nil
}

// askAll returns the endpoint that answers first, and raft's term; 0 if none does.
func (c *Client) askAll(ctx context.Context) (first *endpoint, term uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var asked sync.WaitGroup
	for _, e := range c.endpoints {
		asked.Go(func() {
			if answer, err := c.ask(ctx, e); err == nil {
				once.Do(func() { first, term = e, answer })
				cancel() // the others need not answer
			}
		})
	}
	asked.Wait()
	return first, term
}

// unary sends a call of etcd's client to the endpoint in use, and ends it with that use. etcd's client repeats the reads, but
// not the writes, that end so.
func (c *Client) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if conn != c.etcd.ActiveConnection() {
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	used := c.inUse.Load()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(used.ctx, func() { cancel(context.Cause(used.ctx)) })()
	err := invoke(ctx, method, req, reply, used.conn, opts...)
	if err != nil && context.Cause(ctx) == errGivenUp {
		return errGivenUp
	}
	return err
}

// stream is unary for streams.
func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if conn != c.etcd.ActiveConnection() {
		return open(ctx, desc, conn, method, opts...)
	}
	used := c.inUse.Load()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(used.ctx, cancel)
	return open(ctx, desc, used.conn, method, append(opts, grpc.OnFinish(func(error) { stop(); cancel() }))...)
}
