package rpc

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/test/bubble"
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

// elapse lets so much of a bubble's fake time pass: nobody waits for it.
func elapse(d time.Duration) { time.Sleep(d) }

func (p *countedPipe) want(taken int) {
	p.t.Helper()
	if n, _ := p.held.share.Used(); n != taken {
		p.t.Errorf("%d streams are held that no handler has, want %d", n, taken)
	}
}

func TestStreamsAreHeldFromTheirHeadersToTheEndOfTheAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
		p.answer(framed(frameReset, 0, 5))
		p.want(1)
		p.send(framed(frameReset, 0, 3)) // the client does not want it
		elapse(dealtWithin)
		synctest.Wait()
		p.want(0)
	})
}

// gRPC keeps headers with a stream, and in its answer, if it did not understand them.
func TestStreamsOfManyHeadersCountMoreThanOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		headers := func(kind byte, stream uint32, bytes int) []byte {
			f := data(stream, bytes)
			f[3] = kind
			return f
		}
		p.send(headers(frameHeaders, 1, heldHeadersFree))
		p.want(1)
		p.send(headers(frameHeaders, 3, heldHeadersFree), headers(frameMore, 3, 2*heldHeaders), headers(frameMore, 3, 2*heldHeaders))
		p.want(6)
		p.runs(1) // one of them
		p.want(3)
		p.runs(1)
		p.want(0)
		p.runs(-2)
		p.want(6)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1))
		p.want(5)
		p.send(framed(frameReset, 0, 3))
		p.want(5)
		elapse(dealtWithin)
		synctest.Wait()
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
	bubble.Test(t, func(t *testing.T) {
		p := newDeafPipe(t, quietHeld(100), "a")
		defer p.close()
		stream := uint32(1)
		reset := func(times int) {
			for range times {
				p.send(framed(frameHeaders, 4, stream), framed(frameReset, 0, stream))
				stream += 2
			}
		}
		settle := func() {
			elapse(dealtWithin)
			synctest.Wait()
		}
		// 1. Where nothing is to be written, that is soon.
		reset(2)
		p.want(2)
		settle()
		p.want(0)
		// 2. Not where gRPC waits to write.
		wrote := p.write(writeBuffer)
		reset(3)
		settle()
		p.want(3)
		p.read(writeBuffer)
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		p.want(2) // and has more to write, before which it may have dealt with one
		wrote = p.write(100)
		p.want(0) // that is all there was
		reset(1)
		p.read(100)
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		p.want(1)
		settle()
		p.want(0)
		// 3. Nor does it help to reset more.
		p.write(100)
		for range 4 {
			reset(1)
			elapse(heldStreamsFor/4 + time.Second)
		}
		synctest.Wait()
		p.want(0)
		p.wantCut()
	})
}

// What gRPC has read and not looked at is as it was.
func TestStreamsThatAreResetAreHeldUntilTheResetIsLookedAt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := quietHeld(100)
		server, client := net.Pipe()
		c := newCounted(server, h)
		defer func() { _ = c.Close() }()
		go func() {
			_, _ = client.Write(slices.Concat([]byte(clientPreface), framed(frameHeaders, 4, 1), framed(frameReset, 0, 1)))
		}()
		if _, err := c.Read(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.ReadFull(client, make([]byte, frameHeadBytes)) }()
		if _, err := c.Write(framed(frameSettings, 0, 0)); err != nil { // whatever it writes
			t.Fatal(err)
		}
		want := func(held int) {
			t.Helper()
			elapse(2 * dealtWithin)
			synctest.Wait()
			if n, _ := h.share.Used(); n != held {
				t.Errorf("%d streams are held, want %d", n, held)
			}
		}
		want(1)
		go func() { _, _ = c.Read(make([]byte, 1)) }()
		want(0)
	})
}

// gRPC gives a stream's number again, if it did not understand the stream's headers the first time; and resets what it does not understand,
// of streams too that are opened only then.
func TestFramesOfNoStreamEndTheirConnection(t *testing.T) {
	for name, frames := range map[string][][]byte{
		"opened again":          {framed(frameHeaders, 4, 1), framed(frameHeaders, 4, 1)},
		"opened out of order":   {framed(frameHeaders, 4, 3), framed(frameHeaders, 4, 1)},
		"a window before it is": {framed(frameWindow, 0, 1)},
		"a reset before it is":  {framed(frameHeaders, 4, 1), framed(frameReset, 0, 3)},
		"data before it is":     {framed(frameData, 0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newCountedPipe(t, quietHeld(100), "a")
				defer p.close()
				for k, f := range frames {
					if p.closed.Load() {
						t.Errorf("it is cut before frame %d", k)
					}
					p.send(f)
				}
				p.want(0)
				p.wantCut()
			})
		})
	}
}

func TestFramesOfTheConnectionAndUnknownOnesEndNone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		for _, kind := range []byte{2, frameSettings, framePing, 7, frameWindow, 16, 255} {
			p.send(framed(kind, 0, 0))
		}
		for _, kind := range []byte{2, 16, 255} { // priority may come before
			p.send(framed(kind, 0, 5))
		}
		p.send(framed(frameHeaders, 4, 5), framed(frameWindow, 0, 5), framed(frameData, 1, 5), framed(frameWindow, 0, 3))
		p.want(1)
		if p.closed.Load() {
			t.Error("it is cut")
		}
	})
}

func TestAClientThatSendsWhatIsKeptAndDoesNotReadIsCut(t *testing.T) {
	for name, kind := range map[string]byte{"settings": frameSettings, "pings": framePing, "windows": frameWindow} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newDeafPipe(t, quietHeld(100), "a")
				defer p.close()
				f := framed(kind, 0, 0)
				f[1] = 4
				f = append(f, make([]byte, 1024)...)
				for k := range 200 { // which it may, for a while
					if p.send(f); k%60 == 0 {
						elapse(dealtWithin)
					}
				}
				p.write(100)
				p.read(100)
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
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		for k := range 5 { // while one ends now and then, the others may wait
			p.send(framed(frameHeaders, 4, uint32(4*k+1)), framed(frameHeaders, 4, uint32(4*k+3)))
			elapse(heldStreamsFor - time.Second)
			p.answer(framed(frameHeaders, 4|flagEndStream, uint32(4*k+1)))
		}
		p.want(5)
		elapse(heldStreamsFor + time.Second)
		synctest.Wait()
		p.want(0)
		p.wantCut()
	})
}

// Nor while its client gives answers up.
func TestAConnectionOfWhichAnswersAreGivenUpIsNotCut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		for k := range 5 {
			p.send(framed(frameHeaders, 4, uint32(4*k+1)), framed(frameHeaders, 4, uint32(4*k+3)))
			elapse(heldStreamsFor - time.Second)
			p.send(framed(frameReset, 0, uint32(4*k+1)))
		}
		elapse(dealtWithin)
		synctest.Wait()
		p.want(5)
	})
}

func TestAConnectionWhoseHandlersTakeLongIsNotCut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.runs(1) // a watch
		for range 5 {
			elapse(heldStreamsFor)
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
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.answer(framed(frameHeaders, 4, 1))
		for range 20 { // three times as long as nothing may move, at 13 KiB a second
			for range 4 {
				p.answer(data(1, 16<<10))
			}
			elapse(heldStreamsFor / 6)
			synctest.Wait()
		}
		p.want(1)
		p.answer(framed(frameHeaders, 4|flagEndStream, 1))
		p.want(0)
	})
}

func TestAConnectionThatReadsNextToNothingIsCut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newCountedPipe(t, quietHeld(100), "a")
		defer p.close()
		p.send(framed(frameHeaders, 4, 1))
		p.answer(framed(frameHeaders, 4, 1))
		for range 6 {
			p.answer(data(1, heldStreamsMove/6-1))
			elapse(heldStreamsFor / 6)
		}
		elapse(time.Second)
		synctest.Wait()
		p.want(0)
		p.wantCut()
	})
}

func TestAnAddressHoldsHalfOfTheStreamsAtMost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
	bubble.Test(t, func(t *testing.T) {
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

func TestCutsAreToldFromTimeToTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		h := newHeld(slog.New(slog.NewTextHandler(&logs, nil)), 2)
		cut := func(times int) {
			for range times {
				p := newCountedPipe(t, h, "a")
				p.send(framed(frameHeaders, 4, 1), framed(frameHeaders, 4, 3))
				p.wantCut()
				p.close()
			}
		}
		cut(3)
		elapse(quietEvery)
		cut(3)
		if n := strings.Count(logs.String(), "cut a client"); n != 2 || !strings.Contains(logs.String(), "cuts=3") {
			t.Errorf("%d lines, want 2 of which the second one tells of 3:\n%s", n, &logs)
		}
	})
}

// Of one address, too.
func TestOfOneAddressTheConnectionThatHoldsMostGivesWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
