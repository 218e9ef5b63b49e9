package binder

import (
	"context"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
)

// askTurn is a turn of extenders, in which pods of one request are asked about one after the other, and room that they use.
type askTurn struct {
	extenders *extenders
	in        extender.Interest // whose turn it is; 0: it has not been taken
	began     time.Time         // or when the request did
	leave     func()
	taken     func() (end func()) // called once it is; nil: nothing is
	ended     func()
	scratch   *scratch
	letting   *letting       // of the last pod that was placed, of which it is not known yet whether it may be; nil: that is known
	sufficed  int            // of how many nodes enough were left for the last pod; 0: nobody knows
	left      cluster.Bitmap // which were, if plugin services may take what they have said of these for the next pod; nil: they do not
}

func newAskTurn(e *extenders) *askTurn {
	return &askTurn{extenders: e, began: time.Now(), leave: func() {}, ended: func() {}, scratch: scratches.Get().(*scratch)}
}

func (t *askTurn) end() {
	if t.letting != nil { // somebody has panicked
		t.letting.done()
	}
	t.ended()
	t.leave()
	clear(t.scratch.seen[:cap(t.scratch.seen)]) // of names
	clear(t.scratch.inTurn[:cap(t.scratch.inTurn)])
	scratches.Put(t.scratch)
}

// take waits for the turn of some extenders, unless it is had. An error says that it has not come, or that it is the turn of others.
func (t *askTurn) take(ctx context.Context, in extender.Interest) error {
	if t.in != 0 {
		if t.in != in {
			return errNoTurn
		}
		return nil
	}
	leave, err := t.extenders.take(ctx, in)
	if err != nil {
		return err
	}
	t.in, t.leave, t.began = in, leave, time.Now()
	if t.taken != nil {
		t.ended = t.taken()
	}
	return nil
}
