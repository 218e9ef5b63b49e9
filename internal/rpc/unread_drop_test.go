package rpc

import (
	"log/slog"
	"runtime"
	"testing"
	"time"
)

// gRPC drops the buffer of an answer whose stream is reset between its last look at the stream and the queueing of the answer, which
// no test can time.
func TestDroppedAnswerIsGivenBackWhenItIsCollected(t *testing.T) {
	u := newUnread(slog.New(slog.DiscardHandler), MessageLimit, false)
	c := &connection{unread: u}
	if c.take("", unreadShare) == nil || c.take("", 1) != nil {
		t.Fatalf("a connection's share is %d bytes, want %d", c.bytes, unreadShare)
	}
	held := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.bytes
	}
	for deadline := time.Now().Add(5 * time.Minute); held() != 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are counted for an answer that is gone", held())
		}
	}
	kept := c.take("", unreadShare)
	runtime.GC()
	if held() != unreadShare {
		t.Errorf("%d bytes are counted for an answer that is kept", held())
	}
	runtime.KeepAlive(kept)
}
