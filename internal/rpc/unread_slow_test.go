package rpc

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/berth-scheduler/berth/test/bubble"
)

// An answer of many megabytes takes longer than a connection may read none.
func TestAClientThatReadsALargeAnswerSlowlyIsNotCutForTheRoomOfIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		u := newUnread(slog.New(slog.DiscardHandler), MessageLimit, false)
		var rooms []*room
		takes := func(address string) *countedPipe {
			p := newCountedPipe(t, quietHeld(100), address)
			t.Cleanup(p.close)
			rooms = append(rooms, (&connection{Conn: p.counted, unread: u, streams: p.counted}).take("", unreadShare))
			return p
		}
		slow, deaf := takes("a"), takes("b")
		for k := range uint32(5) {
			elapse(unreadFor / 3)
			for _, p := range []*countedPipe{slow, deaf} { // both have small answers to their ends
				p.send(framed(frameHeaders, 4, 2*k+3))
				p.answer(framed(frameHeaders, 4|flagEndStream, 2*k+3))
			}
			for range heldStreamsMove >> 14 {
				slow.answer(data(1, 16<<10))
			}
		}
		for range unreadLimit/unreadShare - 2 {
			takes("c")
		}
		for _, r := range rooms {
			if r == nil {
				t.Fatal("there was no room")
			}
		}
		if (&connection{unread: u}).take("", 1) != nil {
			t.Error("there is room")
		}
		synctest.Wait()
		if len(deaf.failed) == 0 {
			t.Error("the connection that reads nothing of it goes on")
		}
		if len(slow.failed) > 0 {
			t.Error("the connection that reads 64 KiB in 10 s is cut")
		}
		for _, r := range rooms {
			r.Put(new([]byte))
		}
	})
}
