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
	p := newDeafPipe(t, h, address)
	go func() { _, _ = io.Copy(io.Discard, p.client) }()
	return p
}

// newDeafPipe is one whose client reads nothing by itself.
func newDeafPipe(t *testing.T, h *held, address string) *countedPipe {
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

func quietHeld(limit int) *held { return newHeld(slog.New(slog.DiscardHandler), limit) }

func (p *countedPipe) want(taken int) {
	p.t.Helper()
	if n, _ := p.held.share.Used(); n != taken {
		p.t.Errorf("%d streams are held that no handler has, want %d", n, taken)
	}
}

func TestStreamsAreHeldFromTheirHeadersToTheEndOfTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
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
		p.want(2)
		p.send(framed(frameReset, 0, 3)) // the client does not want it
		p.want(1)
		p.answer(framed(frameReset, 0, 5))
		p.want(0)
	})
}

// write has gRPC write, which waits until the client reads.
func (p *countedPipe) write(bytes int) (wrote chan error) {
	wrote = make(chan error, 1)
	go func() {
		_, err := p.Write(data(1, bytes-frameHeadBytes))
		wrote <- err
	}()
	synctest.Wait()
	return wrote
}

// read has the client read so much.
func (p *countedPipe) read(bytes int) {
	p.t.Helper()
	if _, err := io.CopyN(io.Discard, p.client, int64(bytes)); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

func (p *countedPipe) wantCut() {
	p.t.Helper()
	if err := <-p.failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("the connection goes on: %v", err)
	}
	// gRPC takes back what deadlines there are when its handshake is over, behind which it may have read frames already.
	if err := p.Conn.SetDeadline(time.Time{}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("it is read again: %v", err)
	}
	if _, err := p.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("it is written to again: %v", err)
	}
}

// While gRPC waits to write, it keeps streams that are reset, whatever it has read.
func TestStreamsThatAreResetAreHeldUntilThatIsDealtWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newDeafPipe(t, quietHeld(100), "a")
		defer p.close()
		stream := uint32(1)
		reset := func() {
			p.send(framed(frameHeaders, 4, stream), framed(frameReset, 0, stream))
			stream += 2
		}
		reset()
		p.want(0)
		wrote := p.write(writeBuffer)
		reset()
		reset()
		reset()
		p.want(3)
		p.read(writeBuffer)
		p.want(2) // there is more to write, before which one may have been dealt with
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		wrote = p.write(100)
		p.want(0) // that is all there was
		reset()
		p.want(1)
		p.read(100)
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		p.send(framed(frameSettings, 0, 0))
		p.want(0)
		p.write(writeBuffer)
		reset()
		reset()
		p.read(writeBuffer)
		p.want(1)
		time.Sleep(heldStreamsFor + time.Second) // nothing is written for so long: there was no more
		synctest.Wait()
		p.want(0)
		p.write(100)
		for range 4 {
			reset()
			time.Sleep(heldStreamsFor/4 + time.Second)
		}
		synctest.Wait()
		p.want(0)
		p.wantCut()
	})
}

// What gRPC has read and not looked at counts as it was.
func TestStreamsThatAreResetAreHeldUntilTheResetIsRead(t *testing.T) {
	h := quietHeld(100)
	server, client := net.Pipe()
	c := newCounted(server, h)
	defer func() { _ = c.Close() }()
	go func() {
		_, _ = client.Write(slices.Concat([]byte(clientPreface), framed(frameHeaders, 4, 1), framed(frameReset, 0, 1)))
		_ = client.Close()
	}()
	buffer := make([]byte, 1<<10)
	if _, err := c.Read(buffer); err != nil {
		t.Fatal(err)
	}
	if n, _ := h.share.Used(); n != 1 {
		t.Errorf("%d streams are held of which gRPC has not seen the reset, want 1", n)
	}
	_, _ = c.Read(buffer)
	if n, _ := h.share.Used(); n != 0 {
		t.Errorf("%d streams are held when gRPC comes back for more, want 0", n)
	}
}

// gRPC gives a stream's number again, if it did not understand the stream's headers the first time.
func TestAStreamThatIsOpenedAgainEndsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.answer(framed(frameReset, 0, 1))
		p.send(framed(frameHeaders, 4, 1))
		p.want(0)
		p.wantCut()
	})
}

func TestAClientThatSendsWhatIsKeptAndDoesNotReadIsCut(t *testing.T) {
	for name, kind := range map[string]byte{"settings": frameSettings, "pings": framePing, "windows": frameWindow} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newDeafPipe(t, quietHeld(100), "a")
				defer p.close()
				f := framed(kind, 0, 0)
				f[1] = 4
				f = append(f, make([]byte, 1024)...)
				for range 200 { // which it may, while it reads
					p.send(f)
				}
				p.write(writeBuffer)
				for range heldFrames / len(f) {
					p.send(f)
				}
				p.read(writeBuffer)
				p.send(f) // one has been dealt with
				p.write(writeBuffer)
				p.send(f[:frameHeadBytes])
				p.wantCut()
			})
		})
	}
}

func TestAConnectionOfWhichNoAnswerComesToItsEndIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
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
		p.wantCut()
	})
}

func TestAConnectionWhoseHandlersTakeLongIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
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
		p := newCountedPipe(t, quietHeld(100), "a")
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
		p := newCountedPipe(t, quietHeld(100), "a")
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
		p.wantCut()
	})
}

func TestAnAddressHoldsHalfOfTheStreamsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := quietHeld(8)
		bad, other := newCountedPipe(t, h, "a"), newCountedPipe(t, h, "b")
		defer bad.close()
		defer other.close()
		for k := range uint32(4) {
			bad.send(framed(frameHeaders, 4, 2*k+1))
		}
		bad.want(4)
		bad.send(framed(frameHeaders, 4, 9))
		bad.wantCut()
		bad.want(0)
		other.send(framed(frameHeaders, 4, 1))
		other.want(1)
	})
}

// Whoever comes when there is no room is not cut for what others hold.
func TestTheConnectionThatHoldsMostGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := quietHeld(16)
		var pipes []*countedPipe
		hold := func(address string, streams int) *countedPipe {
			p := newCountedPipe(t, h, address)
			pipes = append(pipes, p)
			for k := range streams {
				p.send(framed(frameHeaders, 4, uint32(2*k+1)))
			}
			return p
		}
		defer func() {
			for _, p := range pipes {
				p.close()
			}
		}()
		small, large := hold("a", 3), hold("a", 5)
		other, last := hold("b", 4), hold("c", 2)
		hold("d", 1)
		hold("e", 1)
		small.want(16)
		honest := hold("f", 1)
		honest.want(12)
		large.wantCut()
		for _, p := range []*countedPipe{small, other, last, honest} {
			if p.closed.Load() {
				t.Errorf("a connection of %s is cut too", p.address)
			}
		}
	})
}

// Of one address, too.
func TestOfOneAddressTheConnectionThatHoldsMostGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := quietHeld(16)
		bad, honest := newCountedPipe(t, h, "a"), newCountedPipe(t, h, "a")
		defer bad.close()
		defer honest.close()
		for k := range uint32(8) {
			bad.send(framed(frameHeaders, 4, 2*k+1))
		}
		honest.send(framed(frameHeaders, 4, 1))
		honest.want(1)
		bad.wantCut()
	})
}
