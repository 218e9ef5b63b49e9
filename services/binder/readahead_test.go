package binder

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/plugin"
)

// heldReads are objects of which the test says when a pod is read.
type heldReads struct {
	objects
	hold func(ctx context.Context, name string) // nil: at once

	mu    sync.Mutex
	reads []string // that have begun, in order
}

func (h *heldReads) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	h.mu.Lock()
	h.reads = append(h.reads, name)
	h.mu.Unlock()
	if h.hold != nil {
		h.hold(ctx, name)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return h.objects.Pod(ctx, namespace, name)
}

func (h *heldReads) src() *fakeSource { return h.fakeSource }

// begun returns whose reads have begun.
func (h *heldReads) begun() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(h.reads)))
}

// startReading starts a binder whose service is sent pods, with so many that wait.
func startReading(t *testing.T, c *choosy, h *heldReads, pods int) (b *running, uids []string) {
	src := newFakeSource()
	h.objects = objects{src}
	src.setNode(node("a", 4000))
	for i := range pods {
		uids = append(uids, fmt.Sprint("p", i))
		src.setPod(forChoosy(pod(uids[i], 10)))
	}
	b = start(t, startEtcd(t), src, func(cfg *Config) { cfg.Objects = h }, withChoosy(t, c, func(s *pluginhost.Service) { s.Objects = true }))
	b.active()
	return b, uids
}

// Of a question about several pods, a few are read while another one is asked about, and each is asked about.
func TestPodsAreReadWhileOthersAreAskedAbout(t *testing.T) {
	c, h := newChoosy(t, plugin.Dependencies{Pod: true}), new(heldReads)
	const pods = ahead + 5
	b, uids := startReading(t, c, h, pods)
	req := b.questions(uids...)
	asked := 0
	c.set(func() {
		c.filter = func(*plugin.Node) (string, error) {
			asked++
			want := uids[:min(asked+min(asked, ahead), pods)]
			eventually(t, "those behind it are read", func() bool { return len(h.begun()) >= len(want) })
			if got := h.begun(); !slices.Equal(got, want) {
				t.Errorf("pod %d: %v have been read, want %v", asked, got, want)
			}
			return "", nil
		}
	})
	if got, want := b.askAll(req), slices.Repeat([]string{"assumed on a"}, pods); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.awaitNothingUnbound()
}

// A pod that is not read as long as further ones are begun with ends the question: nobody waits longer for the turn.
func TestNobodyWaitsForTheTurnUntilAPodIsRead(t *testing.T) {
	c, h := newChoosy(t, plugin.Dependencies{Pod: true}), new(heldReads)
	over := make(chan struct{}, 1)
	h.hold = func(ctx context.Context, name string) {
		if name == "p1" {
			<-ctx.Done()
			over <- struct{}{}
		}
	}
	b, uids := startReading(t, c, h, 3)
	b.Service.extenders.readFor = readFor
	req := b.questions(uids...)
	c.set(func() {
		c.filter = func(*plugin.Node) (string, error) {
			eventually(t, "the next is read", func() bool { return slices.Contains(h.begun(), "p1") })
			return "", nil
		}
	})
	if got, want := b.askAll(req), []string{"assumed on a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	select {
	case <-over:
	default:
		t.Error("it is read still though the question is answered")
	}
	b.awaitNothingUnbound()
	h.hold = nil
	if got := b.ask(b.question(1, "p1")); got != "assumed on a" {
		t.Errorf("asked again: %s", got)
	}
}

// A pod that has become another one since its reading began is not asked about by what it was, but read again.
func TestAPodThatHasChangedSinceItWasReadIsReadAgain(t *testing.T) {
	c, h := newChoosy(t, plugin.Dependencies{Pod: true}), new(heldReads)
	b, uids := startReading(t, c, h, 2)
	req := b.questions(uids...)
	changes := sync.OnceFunc(func() {
		eventually(t, "the next is read", func() bool { return slices.Contains(h.begun(), "p1") })
		before := b.Version()
		h.src().setPod(forChoosy(pod("p1", 20)))
		eventually(t, "the ledger is told", func() bool { return before.Less(b.Version()) })
	})
	c.set(func() {
		c.filter = func(*plugin.Node) (string, error) { changes(); return "", nil }
	})
	if got, want := b.askAll(req), []string{"assumed on a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.awaitNothingUnbound()
	if got := b.ask(b.question(1, "p1")); got != "assumed on a" {
		t.Errorf("asked again: %s", got)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if want := []string{"p0", "p1", "p1"}; !slices.Equal(h.reads, want) {
		t.Errorf("%v have been read, want %v", h.reads, want)
	}
}

// One that is gone keeps those behind it from nothing.
func TestPodsAreReadBehindOneThatIsGone(t *testing.T) {
	c, h := newChoosy(t, plugin.Dependencies{Pod: true}), new(heldReads)
	b, uids := startReading(t, c, h, 4)
	req := b.questions(uids...)
	h.src().deletePod("p1")
	eventually(t, "the ledger is told", func() bool { return b.phase("p1") == "gone" })
	if got, want := b.askAll(req), []string{"assumed on a", "gone", "assumed on a", "assumed on a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.awaitNothingUnbound()
}

// A panic of what reads a pod is one of the call, and of no goroutine that would end the process.
func TestAPanicOfWhatReadsAheadIsTheCalls(t *testing.T) {
	c, h := newChoosy(t, plugin.Dependencies{Pod: true}), new(heldReads)
	read := make(chan struct{})
	h.hold = func(_ context.Context, name string) {
		if name == "p1" {
			defer close(read)
			panic("mine")
		}
	}
	b, uids := startReading(t, c, h, 2)
	req := b.questions(uids...)
	c.set(func() {
		c.filter = func(*plugin.Node) (string, error) { <-read; return "", nil }
	})
	func() {
		defer func() {
			if what := recover(); what != nil && what != "mine" {
				t.Errorf("panic: %v", what)
			}
		}()
		_, _ = b.Ask(t.Context(), req)
	}()
	eventually(t, "the first is placed", func() bool { return b.phase("p0") == "bound on a" })
	b.awaitNothingUnbound()
}
