package roles

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/bubble"
)

// inThisProcess serves a service s in a group, until ctx ends or the group fails.
func inThisProcess(t *testing.T, ctx context.Context, serve InProcess) (*env, *errgroup.Group) {
	t.Helper()
	within, e := rpc.Memory(), &env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
	clients := rpc.NewClients(rpc.Config{Net: within, Outside: true})
	t.Cleanup(func() { _ = clients.Close() })
	g, ctx := errgroup.WithContext(ctx)
	if _, err := e.serveInProcess(ctx, g, clients, within, "s", &Cluster{Kubeconfig: "k", InProcess: map[string]InProcess{"s": serve}}); err != nil {
		t.Fatal(err)
	}
	return e, g
}

func TestAServiceInThisProcessIsBegunAnewWhereItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var began []InProcessConfig
		var at string
		e, g := inThisProcess(t, ctx, func(ctx context.Context, of InProcessConfig) error {
			began = append(began, of)
			l, err := of.Listen()
			if err != nil {
				return err
			}
			if len(began) == 1 {
				return errors.New("it ends by itself, and has closed nothing")
			}
			at = l.Addr().String()
			return plugin.Serve(ctx, plugin.Config{Plugins: []plugin.Plugin{{Name: "P", Score: func(context.Context, *plugin.Kind, *plugin.Node) (int64, error) { return 0, nil }}}, Listener: l})
		})
		time.Sleep(time.Minute) // of the bubble, which takes none: it is begun anew meanwhile
		synctest.Wait()
		if len(began) != 2 || began[1].Kubeconfig != "k" || began[1].Metrics == began[0].Metrics || at != "s" {
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
		hangs := make(chan struct{})
		defer close(hangs)
		_, g := inThisProcess(t, ctx, func(context.Context, InProcessConfig) error { <-hangs; return nil })
		synctest.Wait()
		end()
		began := time.Now()
		if err := g.Wait(); err != nil || time.Since(began) != inProcessEnds {
			t.Errorf("it has ended after %v with %v, want %v", time.Since(began), err, inProcessEnds)
		}
	})
}

// Nothing ends a service in this process that answers nobody any more, so this process is to end.
func TestThisProcessEndsWithAServiceInItThatAnswersNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		hangs := make(chan struct{})
		_, g := inThisProcess(t, ctx, func(context.Context, InProcessConfig) error { <-hangs; return errors.New("it has hung") })
		if err := g.Wait(); err == nil || !strings.Contains(err.Error(), `plugin service "s", which is in this process: it does not answer`) {
			t.Errorf("it ends with %v", err)
		}
		close(hangs)
	})
}

// One that fails each time that it is begun is silent for half a minute between: other plugins, and pods that need none, are not to suffer.
func TestThisProcessGoesOnWithAServiceInItThatFailsEachTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		began := 0
		_, g := inThisProcess(t, ctx, func(context.Context, InProcessConfig) error { began++; return errors.New("it fails") })
		time.Sleep(time.Hour) // of the bubble, which takes none
		synctest.Wait()
		if began < 100 {
			t.Errorf("after an hour it was begun %d times", began)
		}
		end()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// collects is a collector that calls itself.
type collects func()

func (c collects) Describe(out chan<- *prometheus.Desc) {
	out <- prometheus.NewDesc("m", "", nil, nil)
}

func (c collects) Collect(chan<- prometheus.Metric) { c() }

// undescribed is a collector that cannot say what it collects.
type undescribed struct{ collects }

func (undescribed) Describe(chan<- *prometheus.Desc) { panic("what am I") }

func TestWhatAServiceInThisProcessMeasuresHarmsNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, register := newRegistered(registry), guardedRegisterer{registry}
		panics := collects(func() { panic("oh no") })
		register.MustRegister(&panics)
		if _, err := m.get(t.Context()); err == nil || !strings.Contains(err.Error(), "a collector has panicked: oh no") {
			t.Errorf("one that panics: %v", err)
		}
		if !register.Unregister(&panics) {
			t.Error("it is not to be unregistered")
		}
		gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "g"}, func() float64 { panic("oh dear") })
		register.MustRegister(gauge)
		if _, err := m.get(t.Context()); err == nil || !strings.Contains(err.Error(), "a collector has panicked: oh dear") {
			t.Errorf("a gauge that panics: %v", err)
		}
		register.Unregister(gauge)
		if err := register.Register(undescribed{}); err == nil || !strings.Contains(err.Error(), "a collector has panicked: what am I") {
			t.Errorf("one that panics when it is to describe itself: %v", err)
		}
		hung := make(chan struct{})
		hangs := collects(func() { <-hung })
		register.MustRegister(&hangs)
		for range 3 { // which is as many as are left behind, if each is
			began := time.Now()
			if _, err := m.get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != hostedWithin {
				t.Errorf("one that hangs: %v after %v", err, time.Since(began))
			}
		}
		close(hung)
		synctest.Wait()
		register.Unregister(&hangs)
		counter, same := prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}), prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})
		register.MustRegister(counter)
		if is := new(prometheus.AlreadyRegisteredError); !errors.As(register.Register(same), is) || is.ExistingCollector != prometheus.Collector(counter) {
			t.Errorf("the one that there is: %v", is.ExistingCollector)
		}
		much := prometheus.NewGauge(prometheus.GaugeOpts{Name: "much", Help: strings.Repeat("much ", hostedMost/5)})
		register.MustRegister(much)
		if _, err := m.get(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes") {
			t.Errorf("a flood: %v", err)
		}
	})
}

func TestAServiceThatIsNotInThisProcessIsNotServedThere(t *testing.T) {
	e := env{Common: Common{Log: slog.New(slog.DiscardHandler)}}
	if _, err := e.serveInProcess(t.Context(), nil, nil, rpc.Memory(), "s", &Cluster{}); err == nil || !strings.Contains(err.Error(), "no service of that name") {
		t.Errorf("says %v", err)
	}
}
