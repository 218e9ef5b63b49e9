package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
)

// kindOfChange is what changes about nodes while pods are placed.
type kindOfChange int

// The kinds of changes.
const (
	imagesChange kindOfChange = iota // a node gets the pods' image, or loses it
	nodesChange                      // in turns a cordoned node joins, a node has another label, and a node that joined leaves
	othersChange                     // what imagesChange writes is written to keys that Berth does not read: what the writes alone cost
)

const (
	// changeEvery is how often changes are made, those that are due by then.
	changeEvery = 5 * time.Millisecond
	// changesAtOnce bounds how many are on their way to etcd, each of which waits for its disk. More are made later.
	changesAtOnce = 16
	// joined is how many nodes have joined before the first leaves.
	joined = 100
)

// churner changes nodes at a steady rate, every other turn. Each change is a write of its own, as kubelets make them.
type churner struct {
	etcd     *coord.Client
	workload workload
	nodes    []manifest.Object
	order    []int // of the nodes, in which they change
	made     int   // of the kinds' sequence
	written  int
	busy     time.Duration // while changes came
	turns    []turn
}

// next returns the next change: a node's key and its new value, nil if it leaves.
func (c *churner) next() (key string, value []byte, err error) {
	n := c.made
	c.made++
	node := c.nodes[c.order[n%len(c.order)]].Node
	keys := nodeKeys
	switch {
	case c.workload.change != nodesChange:
		if c.workload.change == othersChange {
			keys = otherKeys
		}
		has := len(node.Status.Images) == len(imagesOf(true))
		node.Status.Images = imagesOf(!has)
	case n%3 == 1:
		node.Labels["changed"] = fmt.Sprint(n % 100)
	default:
		join := n / 3
		if n%3 == 2 {
			if join -= joined; join < 0 {
				return "", nil, nil // so many have not joined yet
			}
		}
		cordoned := *node
		cordoned.Name = fmt.Sprintf("joined-%07d", join)
		if n%3 == 2 {
			return nodeKeys + cordoned.Name, nil, nil
		}
		cordoned.UID, cordoned.Spec.Unschedulable = "", true
		node = &cordoned
	}
	if value, err = json.Marshal(node); err != nil {
		return "", nil, fmt.Errorf("encode node %s: %w", node.Name, err)
	}
	return keys + node.Name, value, nil
}

// change changes nodes until ctx ends, and waits for the writes that are under way. Turns are since a time.
func (c *churner) change(ctx context.Context, since time.Time) error {
	g, writing := errgroup.WithContext(context.WithoutCancel(ctx))
	g.SetLimit(changesAtOnce)
	turns := takeTurns(since)
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	var err error
	last, due := time.Now(), 0.0
	for err == nil && writing.Err() == nil {
		select {
		case <-ctx.Done():
			c.turns = turns.over
			return g.Wait()
		case <-tick.C:
		}
		took := time.Since(last)
		last = last.Add(took)
		if !turns.on() {
			due = 0
			continue
		}
		c.busy += took
		for due += took.Seconds() * float64(c.workload.changes); due >= 1 && err == nil; due-- {
			var key string
			var value []byte
			if key, value, err = c.next(); err == nil && key != "" {
				c.written++
				g.Go(func() error { return c.write(writing, key, value) })
			}
		}
	}
	if failed := g.Wait(); failed != nil {
		return failed
	}
	return err
}

func (c *churner) write(ctx context.Context, key string, value []byte) error {
	op := coord.Delete(key)
	if value != nil {
		op = coord.Put(key, value)
	}
	_, _, err := c.etcd.Txn(ctx, nil, []coord.Op{op})
	return err
}

// changing changes nodes while follow runs, from the first bind on, which it is told of by follow and tells binding of.
func (r *result) changing(ctx context.Context, c *crew, binding func(), follow func(binding func()) error) error {
	nodes, err := r.workload.nodeObjects()
	if err != nil {
		return err
	}
	return c.store(ctx, func(ctx context.Context, etcd *coord.Client) error {
		order := rand.New(rand.NewPCG(1, 2)).Perm(len(nodes))
		changer := churner{etcd: etcd, workload: r.workload, nodes: nodes, order: order}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		g, ctx := errgroup.WithContext(ctx)
		err := follow(func() {
			g.Go(func() error { return changer.change(ctx, c.began) })
			binding()
		})
		cancel()
		if failed := g.Wait(); err == nil && failed != nil {
			err = fmt.Errorf("change nodes: %w", failed)
		}
		r.turns = changer.turns
		if changer.busy > 0 {
			r.figures[changed] = float64(changer.written) / changer.busy.Seconds()
		}
		return err
	})
}
