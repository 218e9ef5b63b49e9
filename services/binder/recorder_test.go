package binder

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/test/bubble"
)

// sizedEtcd notes how many placements each record has.
type sizedEtcd struct {
	mu    sync.Mutex
	sizes []int
}

func (e *sizedEtcd) Record(_ context.Context, _ coord.Version, b *coord.Batch, _ []int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sizes = append(e.sizes, len(b.Intents))
	return nil
}

// Shrink is not asked for: nothing is taken back.
func (e *sizedEtcd) Shrink(context.Context, []coord.Batch) error { return nil }

// Placements that come one by one are recorded together as long as more is expected, and none waits for long; those that are not of such a question wait for nobody.
func TestPlacementsThatComeOneByOneAreRecordedTogether(t *testing.T) {
	one := func(r *recorder) { r.addOne(new(placement)) }
	pause := recordedTogether / 4 // of the bubble's clock: nobody waits
	for name, tt := range map[string]struct {
		do   func(r *recorder)
		want []int // sizes of records
		last time.Duration
	}{
		"nothing is expected":  {func(r *recorder) { one(r); synctest.Wait(); one(r) }, []int{1, 1}, 0},
		"more comes, and ends": {func(r *recorder) { end := r.expect(); one(r); time.Sleep(pause); one(r); end() }, []int{2}, pause},
		"more comes for long": {func(r *recorder) {
			end := r.expect()
			defer end()
			one(r)
			time.Sleep(pause)
			one(r)
			time.Sleep(time.Second)
		}, []int{2}, recordedTogether},
		"two expect": {func(r *recorder) {
			a, b := r.expect(), r.expect()
			one(r)
			a()
			time.Sleep(pause)
			one(r)
			b()
		}, []int{2}, pause},
		"it is enough": {func(r *recorder) {
			defer r.expect()()
			for range askPods {
				one(r)
			}
			synctest.Wait()
		}, []int{askPods}, 0},
		"another one is urgent": {func(r *recorder) {
			defer r.expect()()
			one(r)
			time.Sleep(pause)
			r.add([]*placement{{}, {}})
			time.Sleep(pause)
			one(r)
			time.Sleep(time.Second)
		}, []int{3, 1}, 2*pause + recordedTogether},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				etcd, began := new(sizedEtcd), time.Now()
				out := make(chan *placement, 2*askPods)
				var last time.Duration
				r := newRecorder(recorderConfig{
					term: etcd, version: func() cluster.Version { return cluster.Version{Epoch: 7, Seq: 1} }, out: out, prepares: func(*placement) bool { return false },
					move: func(*placement, placementState) bool { last = time.Since(began); return true },
					took: func(time.Duration) {}, log: slog.New(slog.DiscardHandler),
				})
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.run(ctx) }()
				tt.do(r)
				synctest.Wait()
				if !slices.Equal(etcd.sizes, tt.want) || last != tt.last {
					t.Errorf("records of %v placements, the last after %v, want %v and %v", etcd.sizes, last, tt.want, tt.last)
				}
				stop()
				if err := <-ended; err != nil {
					t.Errorf("run: %v", err)
				}
			})
		})
	}
}
