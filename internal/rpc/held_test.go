package rpc

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// framed is a frame without payload.
func framed(kind, flags byte, stream uint32) []byte {
	return []byte{0, 0, 0, kind, flags, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}
}

// countedPipe is a connection whose streams are counted, and the client's side of it. What the server reads and the client reads is dropped.
type countedPipe struct {
	*counted
	t      *testing.T
	client net.Conn
	failed chan error // of the server's reads
}

func newCountedPipe(t *testing.T, h *held, address string) *countedPipe {
	server, client := net.Pipe()
	p := &countedPipe{counted: newCounted(server, h), t: t, client: client, failed: make(chan error, 1)}
	p.address = address
	go func() {
		buffer := make([]byte, 7) // so that frames come in pieces
		for {
			if _, err := p.Read(buffer); err != nil {
				p.failed <- err
				return
			}
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	p.send([]byte(clientPreface), framed(4, 0, 0))
	return p
}

// send has the client send.
func (p *countedPipe) send(parts ...[]byte) {
	p.t.Helper()
	for _, part := range parts {
		if _, err := p.client.Write(part); err != nil {
			p.t.Fatal(err)
		}
	}
	synctest.Wait()
}

// answer has the server send.
func (p *countedPipe) answer(part []byte) {
	p.t.Helper()
	for piece := range slices.Chunk(part, 5) {
		if _, err := p.Write(piece); err != nil {
			p.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (p *countedPipe) close() {
	_ = p.Close()
	_ = p.client.Close()
	synctest.Wait()
}

func newHeld(limit int) *held {
	return &held{log: slog.New(slog.DiscardHandler), share: NewShare(limit, 0)}
}

func (p *countedPipe) want(taken int) {
	p.t.Helper()
	if n, _ := p.held.share.Used(); n != taken {
		p.t.Errorf("%d streams are held that no handler has, want %d", n, taken)
	}
}

func TestStreamsAreHeldFromTheirHeadersToTheEndOfTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, newHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1), framed(frameHeaders, 4, 3), framed(frameHeaders, 4, 5))
		p.want(3)
		p.runs(1)
		p.runs(1)
		p.runs(1)
		p.want(0) // handlers have them
		p.answer(framed(frameHeaders, 4, 1))
		p.answer([]byte{0, 0, 2, 0, 0, 0, 0, 0, 1, frameHeaders, flagEndStream}) // data that looks like a frame
		p.runs(-1)
		p.runs(-1)
		p.runs(-1)
		p.want(3)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1))
		p.want(2)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1)) // an end is one
		p.send(framed(frameHeaders, 4|flagEndStream, 1))   // and what comes behind it no beginning
		p.want(2)
		p.send(framed(frameReset, 0, 3)) // the client does not want it
		p.want(1)
		p.answer(framed(frameReset, 0, 5))
		p.want(0)
	})
}

func TestAConnectionOfWhichNoAnswerComesToItsEndIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, newHeld(100), "a")
		defer p.close()
		for k := range 5 { // while one ends now and then, the others may wait
			p.send(framed(frameHeaders, 4, uint32(4*k+1)), framed(frameHeaders, 4, uint32(4*k+3)))
			time.Sleep(heldStreamsFor - time.Second)
			p.answer(framed(frameHeaders, 4|flagEndStream, uint32(4*k+1)))
		}
		p.want(5)
		time.Sleep(heldStreamsFor + time.Second)
		synctest.Wait()
		p.want(0)
		if err := <-p.failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection goes on: %v", err)
		}
	})
}

func TestAConnectionWhoseHandlersTakeLongIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, newHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.runs(1) // a watch
		for range 5 {
			time.Sleep(heldStreamsFor)
			synctest.Wait()
		}
		p.answer(framed(frameHeaders, 4, 1))
		p.runs(-1)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1))
		p.want(0)
	})
}

// data is a frame of an answer's bytes.
func data(stream uint32, bytes int) []byte {
	f := framed(frameData, 0, stream)
	f[1], f[2] = byte(bytes>>8), byte(bytes)
	return append(f, make([]byte, bytes)...)
}

func TestAConnectionThatReadsALargeAnswerSlowlyIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, newHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.answer(framed(frameHeaders, 4, 1))
		for range 20 { // three times as long as nothing may move, at 13 KiB a second
			for range 4 {
				p.answer(data(1, 16<<10))
			}
			time.Sleep(heldStreamsFor / 6)
			synctest.Wait()
		}
		p.want(1)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1))
		p.want(0)
	})
}

func TestAConnectionThatReadsNextToNothingIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, newHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.answer(framed(frameHeaders, 4, 1))
		for range 6 {
			p.answer(data(1, heldStreamsMove/6-1))
			time.Sleep(heldStreamsFor / 6)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		p.want(0)
		if err := <-p.failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection goes on: %v", err)
		}
	})
}

func TestAnAddressHoldsHalfOfTheStreamsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(8)
		bad, other := newCountedPipe(t, h, "a"), newCountedPipe(t, h, "b")
		defer bad.close()
		defer other.close()
		for k := range uint32(4) {
			bad.send(framed(frameHeaders, 4, 2*k+1))
		}
		bad.want(4)
		bad.send(framed(frameHeaders, 4, 9))
		if err := <-bad.failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection goes on: %v", err)
		}
		bad.want(0)
		other.send(framed(frameHeaders, 4, 1))
		other.want(1)
	})
}
