package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// This file has the faults that are done to what followers of the log are told. Only the processes themselves know
// whether they have found them out, and say it in their metrics.

// sign is what an undone fault shows of itself: the processes have said what they should, or have not. It travels as an error.
type sign struct {
	saw, missed string
	idle        string // why nothing was done
}

// Error implements error.
func (s sign) Error() string { return s.saw + s.missed + s.idle }

// signLimit is how long after its beginning a fault must have been found out.
const signLimit = 40 * time.Second

// watched is a metric that is to grow.
type watched struct {
	name string
	of   []string // members
	was  float64
}

// watch notes what a metric is now.
func (n *nemesis) watch(ctx context.Context, name string, of ...string) watched {
	w := watched{name: name, of: of}
	w.was = n.sum(ctx, w)
	return w
}

// sum returns what a metric is now. A member that does not answer counts as 0.
func (n *nemesis) sum(ctx context.Context, w watched) float64 {
	var sum float64
	for _, id := range w.of {
		if v, err := n.crew.metric(ctx, id, w.name); err == nil {
			sum += v
		}
	}
	return sum
}

// await waits for some time until a metric has grown, and says whether it has.
func (n *nemesis) await(ctx context.Context, limit time.Duration, w watched) sign {
	now := w.was
	for until := time.Now().Add(limit); ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		now = max(now, n.sum(ctx, w))
		if now > w.was {
			return sign{saw: fmt.Sprintf("%s of %s: %.0f, then %.0f", w.name, strings.Join(w.of, " and "), w.was, now)}
		}
		if time.Now().After(until) {
			break
		}
	}
	if ctx.Err() != nil {
		return sign{}
	}
	return sign{missed: fmt.Sprintf("%s of %s stayed %.0f", w.name, strings.Join(w.of, " and "), w.was)}
}

// The metrics that show it.
const (
	metricDigests  = `berth_replica_resyncs_total{reason="digest"}`
	metricCutOff   = "berth_log_followers_cut_off_total"
	metricReloaded = "berth_replica_snapshots_total"
	metricHedges   = "berth_queue_hedges_total"
)

// diverge tells a follower, of each node that changes, of other room than it has: its replica differs from the ledger, and
// nothing but the digest of the next heartbeat can tell it so.
func (n *nemesis) diverge(ctx context.Context, follower string) (func() error, error) {
	before := n.watch(ctx, metricDigests, follower)
	var altered atomic.Int64
	var routes []Route
	for _, binder := range n.crew.having(roleBinder) {
		routes = append(routes, Route{binder, follower})
	}
	n.network.Tamper(func(f []byte) {
		if alterNode(f) {
			altered.Add(1)
		}
	}, routes...)
	n.network.Reset("", follower) // the frames of a connection are known from its beginning only
	n.network.Reset(follower, "")
	return func() error {
		told := n.await(ctx, signLimit, before)
		n.network.Tamper(nil, routes...)
		n.network.Reset(follower, "")
		if altered.Load() == 0 {
			return sign{idle: "no node has changed meanwhile"}
		}
		return told
	}, nil
}

// slowDown delays what one worker is asked and answers, so that others are asked too.
func (n *nemesis) slowDown(ctx context.Context, worker string) func() error {
	queues := n.crew.runningOf(roleQueue)
	before := n.watch(ctx, metricHedges, queues...)
	var between []Route
	for _, id := range queues {
		between = append(between, routes(id, "both", worker)...)
	}
	heal := n.spoil(Condition{Delay: slowWork}, between...)
	return func() error {
		told := n.await(ctx, 0, before)
		told.missed = "" // it may not have been asked
		return errors.Join(heal(), told)
	}
}

// slowWork is the delay of a slow worker, each way: more than the queue waits for an answer.
const slowWork = 200 * time.Millisecond

// What outruns a follower: a node with an image of so long a name that each change of it is almost a MiB of log, changed
// until the log, of which 64 MiB are kept, has been written anew.
const (
	ballastNode  = "ballast"
	ballastBytes = 1000 << 10 // of an object larger than a MiB less is told
	keptLog      = 64 << 20
	leastChanges = keptLog/ballastBytes + 5 // what is under way to the follower is not what it is behind by
	mostChanges  = 2 * leastChanges
	changesLimit = 35 * time.Second // silence for longer ends the connection, and that is another fault
)

// outrun lets nothing through between the binder and a follower while the log grows, until the binder cuts the follower off.
func (n *nemesis) outrun(ctx context.Context, follower string) (func() error, error) {
	remove := func() error { return n.removeNode(ctx, ballastNode) }
	cut, loaded := n.watch(ctx, metricCutOff, n.crew.runningOf(roleBinder)...), n.watch(ctx, metricReloaded, follower)
	err := ask(ctx, func(ctx context.Context) error {
		return n.store.createNode(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: ballastNode}, Spec: corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{strings.Repeat("a", ballastBytes)}, SizeBytes: 1}}},
		})
	})
	if err != nil {
		return nil, err
	}
	var between []Route
	for _, binder := range n.crew.having(roleBinder) {
		between = append(between, routes(binder, "both", follower)...)
	}
	heal := n.spoil(Condition{Hold: true}, between...)
	var told sign
	began, i := time.Now(), 0
	leader, _ := n.binder(ctx, false) // an error is a name that no binder has
	for ; i < mostChanges && ctx.Err() == nil && told.saw == "" && time.Since(began) < changesLimit; i++ {
		err := ask(ctx, func(ctx context.Context) error { return n.store.labelNode(ctx, ballastNode, "beat", fmt.Sprint(i)) })
		if err != nil {
			return nil, errors.Join(err, heal(), remove())
		}
		if i%5 == 4 {
			told = n.await(ctx, 0, cut)
		}
	}
	return func() error {
		failed := errors.Join(heal(), remove())
		if failed != nil {
			return failed
		}
		if told.saw == "" {
			told = n.await(ctx, 2*time.Second, cut)
		}
		if now, err := n.binder(ctx, false); told.saw == "" && (i < mostChanges || err != nil || now != leader) {
			return sign{idle: fmt.Sprintf("the log has grown by %d changes of the %d that are sure to do, or its binder is another", i, mostChanges)}
		}
		switch {
		case told.missed != "":
		case i < leastChanges: // it was cut off for reading nothing for so long, and may go on where it was
			told.idle = fmt.Sprintf("the log has grown by %d changes of the %d that it takes to outrun a follower", i, leastChanges)
		default:
			back := n.await(ctx, signLimit, loaded)
			told.saw, told.missed = told.saw+"; "+back.saw, back.missed
		}
		return told
	}, nil
}

// tamper changes a frame in place, or leaves it.
type tamper func(frame []byte)

// frames passes on one direction of an HTTP/2 connection, from its beginning, frame by frame.
type frames struct {
	to     io.Writer
	tamper tamper
	kept   []byte // of a frame that has not arrived whole
}

// frameHeader is the length of what every frame begins with: its length, type, flags and stream.
const frameHeader = 9

// Write implements io.Writer.
func (f *frames) Write(b []byte) (int, error) {
	f.kept = append(f.kept, b...)
	for len(f.kept) >= frameHeader {
		size := frameHeader + (int(f.kept[0])<<16 | int(f.kept[1])<<8 | int(f.kept[2]))
		if len(f.kept) < size {
			break
		}
		f.tamper(f.kept[:size])
		if _, err := f.to.Write(f.kept[:size]); err != nil {
			return 0, err
		}
		f.kept = f.kept[size:]
	}
	return len(b), nil
}

// alterNode changes how much CPU a node has, in a frame that tells a follower of the log of such a node, and reports
// whether it was one.
func alterNode(frame []byte) bool {
	const data, prefix = 0, 5 // type of a frame; length of what a gRPC message begins with
	body := frame[frameHeader:]
	if frame[3] != data || frame[4]&0x8 != 0 || len(body) <= prefix || body[0] != 0 ||
		int(binary.BigEndian.Uint32(body[1:])) != len(body)-prefix { // padded, compressed, or not one whole message
		return false
	}
	m := &logv1.FollowResponse{}
	if proto.Unmarshal(body[prefix:], m) != nil || m.GetKind() != logv1.FollowResponse_KIND_DELTAS {
		return false
	}
	altered := false
	for i, encoded := range m.GetDeltas() {
		d := &logv1.Delta{}
		if proto.Unmarshal(encoded, d) != nil {
			return false
		}
		for _, q := range d.GetNodeSet().GetAllocatable() {
			if q.GetName() != string(corev1.ResourceCPU) {
				continue
			}
			q.Value ^= 1 << 12 // 4,000 and 6,000 are encoded in as many bytes with it as without
			if again, err := proto.Marshal(d); err == nil && len(again) == len(encoded) {
				m.Deltas[i], altered = again, true
			}
		}
	}
	again, err := proto.Marshal(m)
	if !altered || err != nil || len(again) != len(body)-prefix {
		return false
	}
	copy(body[prefix:], again)
	return true
}
