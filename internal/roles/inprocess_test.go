package roles

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestAServiceInThisProcessIsBegunAnewWhereItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		within, e := rpc.Memory(), env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
		clients := rpc.NewClients(rpc.Config{Net: within, Outside: true})
		defer clients.Close()
		var began []InProcessConfig
		cl := &Cluster{Kubeconfig: "k", InProcess: map[string]InProcess{"s": func(ctx context.Context, of InProcessConfig) error {
			if began = append(began, of); len(began) == 1 {
				return errors.New("it ends by itself, and has closed nothing")
			}
			<-ctx.Done()
			return nil
		}}}
		g, ctx := errgroup.WithContext(ctx)
		if _, err := e.serveInProcess(ctx, g, clients, within, "s", cl); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(began) != 2 || began[1].Kubeconfig != "k" || began[1].Metrics == began[0].Metrics || began[1].Listener.Addr().String() != "s" {
			t.Fatalf("it was begun %d times: %+v", len(began), began)
		}
		if text, known, err := e.pluginMetrics(ctx, "service/s"); !known || err != nil {
			t.Errorf("what it measures: %q, %v, %v", text, known, err)
		}
		end()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestAServiceInThisProcessThatHangsKeepsNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		within, e := rpc.Memory(), env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
		clients := rpc.NewClients(rpc.Config{Net: within, Outside: true})
		defer clients.Close()
		hangs := make(chan struct{})
		defer close(hangs)
		cl := &Cluster{InProcess: map[string]InProcess{"s": func(context.Context, InProcessConfig) error { <-hangs; return nil }}}
		var g errgroup.Group
		if _, err := e.serveInProcess(ctx, &g, clients, within, "s", cl); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		end()
		began := time.Now()
		if err := g.Wait(); err != nil || time.Since(began) != inProcessEnds {
			t.Errorf("it has ended after %v with %v, want %v", time.Since(began), err, inProcessEnds)
		}
	})
}

func TestAServiceThatIsNotInThisProcessIsNotServedThere(t *testing.T) {
	e := env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
	if _, err := e.serveInProcess(t.Context(), nil, nil, rpc.Memory(), "s", &Cluster{}); err == nil || !strings.Contains(err.Error(), "no service of that name") {
		t.Errorf("says %v", err)
	}
}
