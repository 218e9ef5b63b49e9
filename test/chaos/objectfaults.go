package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file has the faults that are done by way of objects: anybody who may create pods, or a kubelet, can do the same.

const (
	// Pods that come and go while watches expire: each is reported on, and soon another is.
	stormTick = 100 * time.Millisecond
	stormPods = 20

	churnTick = 20 * time.Millisecond // between two nodes whose images change
	podImage  = "i:latest"            // the image of the workload's pods, as nodes call it
	badText   = "a\xffb"              // is not UTF-8

	undoLimit = 2 * time.Minute // for an object to be removed again
	undoPause = time.Second     // between two tries
)

// ask makes a request to the store, with time enough.
func ask(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*requestMax)
	defer cancel()
	return request(ctx)
}

// crowd is the pods that a fault has made. Its methods are for one goroutine at a time.
type crowd struct{ there []crowded }

type crowded struct {
	namespace, name string
	uid             types.UID
	claims          []string // which go with it
}

// add makes a pod. One that cannot be made is missing.
func (c *crowd) add(ctx context.Context, s store, p *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	if uid, err := s.createPod(ctx, p); err == nil {
		c.there = append(c.there, crowded{p.Namespace, p.Name, uid, nil})
	}
}

// addWith makes claims, and a pod that uses them.
func (c *crowd) addWith(ctx context.Context, s store, p *corev1.Pod, claims ...*corev1.PersistentVolumeClaim) {
	for _, claim := range claims {
		// Without one of them the pod waits until it is told why, as it should.
		_ = ask(ctx, func(ctx context.Context) error { return s.createClaim(ctx, claim) })
	}
	n := len(c.there)
	if c.add(ctx, s, p); len(c.there) > n {
		c.there[n].claims = claimNames(p)
	}
}

// thin removes the oldest until no more than some are left. One that cannot be removed stays, and is as good as the workload's own.
func (c *crowd) thin(ctx context.Context, s store, most int) {
	for ; len(c.there) > most; c.there = c.there[1:] {
		p := c.there[0]
		_ = ask(ctx, func(ctx context.Context) error { return s.deletePod(ctx, p.namespace, p.name, p.uid) })
		for _, claim := range p.claims {
			_ = ask(ctx, func(ctx context.Context) error { return s.deleteClaim(ctx, p.namespace, claim) })
		}
	}
}

// leave removes all.
func (c *crowd) leave(ctx context.Context, s store) { c.thin(ctx, s, 0) }

// every calls do again and again until the returned function is called, which waits for the end of the last.
func every(ctx context.Context, tick time.Duration, do func(context.Context, int)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	working.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			do(ctx, i)
			sleep(ctx, tick)
		}
	})
	return func() { cancel(); working.Wait() }
}

// relistStorm lets watches expire, so that all there is is listed again and again, while pods that fit nowhere come and go:
// the statuses of these are written meanwhile.
func (n *nemesis) relistStorm(ctx context.Context, number int) func() error {
	var storm crowd
	n.api.set(APIFault{Expire: true})
	stop := every(ctx, stormTick, func(ctx context.Context, i int) {
		storm.add(ctx, n.store, pod(classHuge, fmt.Sprintf("storm-%d-%d", number, i), 10*nodeCPU))
		storm.thin(ctx, n.store, stormPods)
	})
	return func() error {
		n.api.set(APIFault{})
		stop()
		storm.leave(ctx, n.store)
		return nil
	}
}

// churnImages has the image of the workload's pods come to one node after the other, and go again, as a kubelet does that pulls
// and collects images.
func (n *nemesis) churnImages(ctx context.Context) func() error {
	stop := every(ctx, churnTick, func(ctx context.Context, i int) {
		// A change that fails is one change less.
		_ = n.store.changeNode(ctx, node(i%plainNodes).Name, func(node *corev1.Node) {
			node.Status.Images = []corev1.ContainerImage{{Names: []string{fmt.Sprintf("pulled:%d", i)}, SizeBytes: 1 << 28}}
			if i/plainNodes%2 == 0 {
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{podImage}, SizeBytes: 1 << 30})
			}
		})
	})
	return func() error { stop(); return nil }
}

// untoldPod makes a pod whose image is not UTF-8, which the API server takes, and which no message to a replica can say. It stays:
// everybody else must go on, and it must be told that it is not placed.
func (n *nemesis) untoldPod(ctx context.Context, number int) (func() error, error) {
	p := pod(classUntold, fmt.Sprintf("%s-%d", classUntold, number), 10)
	p.Spec.Containers[0].Image = badText
	return nothing, ask(ctx, func(ctx context.Context) error {
		_, err := n.store.createPod(ctx, p)
		return err
	})
}

// untoldNode makes a node that takes no pods and has an image whose name is not UTF-8, and removes it again.
func (n *nemesis) untoldNode(ctx context.Context, number int) (func() error, error) {
	bad := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", classUntold, number)}, Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{badText}, SizeBytes: 1}}},
	}
	err := ask(ctx, func(ctx context.Context) error { return n.store.createNode(ctx, bad) })
	return func() error { return n.removeNode(ctx, bad.Name) }, err
}

// removeNode removes a node that a fault has made, and keeps trying: an answer may be lost, or the API server be restarting.
func (n *nemesis) removeNode(ctx context.Context, name string) error {
	for until := time.Now().Add(undoLimit); ; time.Sleep(undoPause) {
		err := ask(ctx, func(ctx context.Context) error { return n.store.deleteNode(ctx, name) })
		if n.store.outcome(err) != Unknown {
			return nil
		}
		if time.Now().After(until) {
			return err
		}
	}
}
