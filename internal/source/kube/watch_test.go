package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// only has a source follow some of its resources, of each of which lists and watches are answered as may says. No watch begins with all that there is.
func only(t *testing.T, log *logtest.Buffer, may map[string]func(verb string) error) *Source {
	t.Helper()
	s := newSource(t, Config{Master: "http://127.0.0.1:1", SchedulerNames: []string{"berth"}, Log: slog.New(slog.NewTextHandler(log, nil))})
	var followed []resource
	for _, r := range s.resources {
		answer := may[r.name]
		if answer == nil {
			continue
		}
		r.list = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := map[string]runtime.Object{
				"namespaces":     &v1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}},
				"storageclasses": &storagev1.StorageClassList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}},
			}[r.name]
			return list, answer("list")
		}
		r.watch = func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := answer("watch"); err != nil {
				return nil, err
			}
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("this API server does not know sendInitialEvents")
			}
			return watch.NewFake(), nil
		}
		followed = append(followed, r)
	}
	s.resources = followed
	return s
}

func forbidden(resource, verb string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("nobody may "+verb+" it"))
}

// TestWhoMayListAndNotWatchDoesNotFlap is about a role with the one verb and without the other: what is told of such a resource is as old as its last list.
func TestWhoMayListAndNotWatchDoesNotFlap(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mayWatch atomic.Bool
		var lists atomic.Int32
		log := &logtest.Buffer{}
		s := only(t, log, map[string]func(string) error{
			"namespaces": func(string) error { return nil },
			"storageclasses": func(verb string) error {
				if verb == "list" {
					lists.Add(1)
				} else if !mayWatch.Load() {
					return forbidden("storageclasses", verb)
				}
				return nil
			},
		})
		var mu sync.Mutex
		var told []string
		ctx, cancel := context.WithCancel(t.Context())
		ends := make(chan error)
		go func() {
			ends <- s.Watch(ctx, func(e source.Event) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case e.Kind == source.ObjectSet:
					told = append(told, fmt.Sprint("set ", e.Object))
				case e.Kind == source.ObjectGone:
					told = append(told, fmt.Sprint("gone ", e.Key))
				case e.Kind == source.Synced:
					told = append(told, "synced")
				}
			})
		}()
		all := func() string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(told, "; ")
		}
		time.Sleep(10 * time.Second) // of the bubble's clock, as are the others: they take no time
		first, listed := all(), lists.Load()
		if strings.Count(first, "set ") != 1 || strings.Contains(first, "gone") || s.Ready() != nil {
			t.Errorf("after 10 s it has told %q, and is ready: %v; want that it cannot be read", first, s.Ready())
		}
		time.Sleep(10 * unservedLook)
		if now := lists.Load(); now < listed+9 || now > listed+11 {
			t.Errorf("listed %d times, then %d: want once in %v", listed, now, unservedLook)
		}
		if again := all(); again != first || s.Ready() != nil {
			t.Errorf("then it has told %q, and is ready: %v; want %q", again, s.Ready(), first)
		}
		mayWatch.Store(true)
		time.Sleep(2 * unservedLook)
		if last := all(); !strings.HasPrefix(last, first+"; gone ") || strings.Count(last, "gone ") != 1 {
			t.Errorf("in the end it has told %q, want that it can be read", last)
		}
		if n := strings.Count(log.String(), "resource can be read"); n != 1 {
			t.Errorf("that it can be read is said %d times:\n%s", n, log)
		}
		cancel()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestAnAPIServerThatIsAwayIsLoggedOnce though a reflector asks in three ways, and each time in other words. All sleeps are of the bubble's clock, and take no time.
func TestAnAPIServerThatIsAwayIsLoggedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var away, denies atomic.Bool
		var calls atomic.Int32
		log := &logtest.Buffer{}
		s := only(t, log, map[string]func(string) error{"namespaces": func(verb string) error {
			switch {
			case away.Load():
				return &url.Error{Op: "Get", URL: fmt.Sprintf("http://127.0.0.1:1/api/v1/namespaces?timeoutSeconds=%d", calls.Add(1)), Err: syscall.EHOSTUNREACH}
			case denies.Load():
				return forbidden("namespaces", verb)
			}
			return nil
		}})
		lines := func(text string, want int) {
			t.Helper()
			synctest.Wait()
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("%q is said %d times, want %d:\n%s", text, n, want, log)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ends := make(chan error)
		away.Store(true)
		go func() { ends <- s.Watch(ctx, func(source.Event) {}) }()
		time.Sleep(time.Minute)
		lines("no route to host", 1)
		away.Store(false)
		denies.Store(true)
		time.Sleep(time.Minute)
		lines("nobody may list it", 1)
		lines("nobody may watch it", 1)
		lines("no route to host", 1)
		denies.Store(false)
		time.Sleep(time.Minute)
		lines("following the API server", 1)
		cancel()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		// When it is away again, that is said again.
		away.Store(true)
		ctx, cancel = context.WithCancel(t.Context())
		go func() { ends <- s.Watch(ctx, func(source.Event) {}) }()
		time.Sleep(time.Minute)
		lines("no route to host", 2)
		cancel()
		<-ends
	})
}
