package rpc

import (
	"context"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/berth-scheduler/berth/test/bubble"
)

// servingOps serves operators' endpoints in a bubble.
func servingOps(t *testing.T, cfg OpsConfig) (l *pipes, stop func()) {
	l = newPipes(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeOps(ctx, l, cfg) }()
	return l, func() {
		l.hangUp()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	}
}

// noWindow has a client take nothing of any answer.
var noWindow = http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}

func TestOperatorsRequestsThatWaitForTheirClientAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stop := servingOps(t, OpsConfig{})
		defer stop()
		var askers []*asker
		for range 5 { // an address has 128 of 256
			a := l.connect(t, "192.0.2.1", noWindow)
			askers = append(askers, a)
			a.ask(opsRequests, "/healthz")
		}
		ended := 0
		for _, a := range askers {
			if a.hasEnded() {
				ended++
			}
		}
		if ended != 1 {
			t.Errorf("%d connections are closed, want that which has most", ended)
		}
		other := l.connect(t, "192.0.2.2")
		other.ask(1, "/healthz")
		if frame := other.until(http2.FrameData); frame == nil {
			t.Error("another address is not answered")
		}
	})
}

// until reads frames to one of a kind of the first stream; nil if there is none.
func (a *asker) until(kind http2.FrameType) (found http2.Frame) {
	framer := http2.NewFramer(nil, a.conn)
	_ = a.read(func() error { // why it ends says nothing: there is the frame, or not
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return err
			}
			if h := frame.Header(); h.Type == kind && h.StreamID == 1 {
				found = frame
				return nil
			}
		}
	})
	return found
}

func TestAnAnswerAboutHealthThatIsNotTakenIsGivenUpSoon(t *testing.T) {
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		t.Run(path, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l, stop := servingOps(t, OpsConfig{Profiling: true})
				defer stop()
				a := l.connect(t, "192.0.2.1", noWindow)
				a.ask(1, path)
				elapse(opsHealthTimeout)
				if a.until(http2.FrameRSTStream) == nil {
					t.Errorf("after %v it goes on", opsHealthTimeout)
				}
			})
		})
	}
}

func TestAConnectionOfOperatorsThatCannotBeWrittenToIsClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stop := servingOps(t, OpsConfig{Profiling: true})
		defer stop()
		a := l.connect(t, "192.0.2.1")
		a.ask(1, "/flagz")
		elapse(2 * opsWriteTimeout) // and TLS takes its time to say goodbye
		synctest.Wait()
		if _, err := a.conn.NetConn().Write([]byte{0}); err == nil {
			t.Error("it goes on")
		}
	})
}
