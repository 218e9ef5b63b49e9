package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/test/bubble"
)

// filling is an etcd whose every look finds one more revision, and more than three quarters of its quota in use.
type filling struct {
	mu       sync.Mutex
	revision int64
	why      error // nil: it compacts
	asked    int   // compactions
}

// refuses has it refuse from now on, unless why is nil, and returns how often it has been asked.
func (f *filling) refuses(why error) (asked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
	return f.asked
}

func (f *filling) Database(context.Context) (coord.Database, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	return coord.Database{Members: 1, Quota: 100, InUse: 76, Size: 76, Revision: f.revision}, nil
}

func (f *filling) Compact(_ context.Context, revision int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.why != nil {
		return fmt.Errorf("compact etcd to revision %d: %w", revision, f.why)
	}
	return nil
}

// Version implements etcdLeader: it leads.
func (*filling) Version() cluster.Version { return cluster.Version{Epoch: 1} }

func TestThatEtcdRefusesToBeCompactedIsToldWhenItChangesAndOnceAnHour(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		etcd := &filling{why: errors.New("permission denied")}
		w := &etcdWatch{
			coord: etcd, every: etcdLook, owned: true, log: slog.New(slog.NewTextHandler(&log, nil)),
			compactions: prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}),
		}
		w.binder.Store(etcd)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.run(ctx)
		}()
		told := func(after time.Duration, message string, want int) {
			t.Helper()
			time.Sleep(after) // of the bubble's clock: it takes no time
			synctest.Wait()
			if got := strings.Count(log.String(), message); got != want {
				t.Errorf("%q is told %d times, want %d:\n%s", message, got, want, log.String())
			}
		}
		told(59*time.Minute, "permission denied", 1)
		told(2*time.Minute, "permission denied", 2)
		told(58*time.Minute, "permission denied", 2)
		if asked := etcd.refuses(errors.New("no leader")); asked < 7000 { // each second, for it is pressed
			t.Errorf("it has been tried %d times in two hours, want each second", asked)
		}
		told(time.Minute, "no leader", 1)
		etcd.refuses(nil)
		told(time.Minute, "compacted again", 1)
		told(3*time.Hour, "compacted again", 1)
		etcd.refuses(errors.New("no leader"))
		told(time.Minute, "no leader", 2)
		told(0, "permission denied", 2)
		// Whatever becomes of its connection meanwhile.
		for _, state := range []string{"READY", "TRANSIENT_FAILURE", "CONNECTING", "READY"} {
			etcd.refuses(fmt.Errorf("no answer from etcd at e1, connection %s: %w", state, context.DeadlineExceeded))
			told(time.Minute, "no answer from etcd", 1)
			etcd.refuses(status.Error(codes.Unavailable, "no answer from etcd, but an error of the connection, which is "+state))
			told(time.Minute, "no answer from etcd", 1)
		}
		told(time.Hour, "no answer from etcd", 2)
		etcd.refuses(nil)
		told(time.Minute, "compacted again", 2)
		etcd.refuses(fmt.Errorf("no answer from etcd: %w", context.DeadlineExceeded))
		told(time.Minute, "no answer from etcd", 3)
		cancel()
		<-ended
	})
}

func TestTheLastFiveMinutesOfAnEtcdOfBerthsOwnAreKeptUnlessItIsPressed(t *testing.T) {
	var p etcdPast
	now := time.Unix(0, 0)
	d := coord.Database{Quota: 100, InUse: 50}
	for minute := range int64(5) {
		if d.Revision = 1000 * (minute + 1); p.until(now.Add(time.Duration(minute)*time.Minute), d) != 0 {
			t.Errorf("after %d minutes something is dropped", minute)
		}
	}
	d.Revision = 9000
	if got := p.until(now.Add(5*time.Minute), d); got != 1000 {
		t.Errorf("after 5 minutes all before %d is dropped, want 1000, the newest of 5 minutes ago", got)
	}
	if got := p.until(now.Add(5*time.Minute+5*time.Second), d); got != 1000 {
		t.Errorf("when that has not been done all before %d is dropped, want 1000 again", got)
	}
	p.last = 1000
	if got := p.until(now.Add(5*time.Minute+10*time.Second), d); got != 0 {
		t.Errorf("and 10 s later all before %d, again", got)
	}
	d.InUse = 51
	if got := p.until(now.Add(5*time.Minute+20*time.Second), d); got != 8000 {
		t.Errorf("with more than half of the quota in use, all before %d is dropped, want 8000", got)
	}
	d.InUse, d.Quota, d.Revision = etcdQuota/2+1, 0, 20_000
	if got := p.until(now.Add(5*time.Minute+30*time.Second), d); got != 19_000 {
		t.Errorf("of an etcd that tells no quota all before %d is dropped, want 19000", got)
	}
	d.InUse, d.Full, d.Revision = 1, true, 30_000
	if got := p.until(now.Add(5*time.Minute+40*time.Second), d); got != 30_000 {
		t.Errorf("of one that is full all before %d is dropped, want 30000", got)
	}
	d = coord.Database{Quota: 100, InUse: 76, Revision: 40_000}
	if got := p.until(now.Add(5*time.Minute+50*time.Second), d); got != 40_000 {
		t.Errorf("with more than three quarters in use all before %d is dropped, want 40000", got)
	}
	p.last = 40_000
	if got := p.until(now.Add(6*time.Minute), d); got != 0 {
		t.Errorf("when nothing is left to drop, all before %d is", got)
	}
	// A thousand revisions may be all that there are.
	d = coord.Database{Quota: 100, InUse: 51, Revision: 40_500}
	if got := p.until(now.Add(6*time.Minute+10*time.Second), d); got != 40_250 {
		t.Errorf("of 500 revisions all before %d is dropped, want 40250, the older half", got)
	}
}

func TestAnEtcdOfBerthsOwnThatIsPressedIsLookedAtMoreOften(t *testing.T) {
	pressed, not := coord.Database{Quota: 100, InUse: 51}, coord.Database{Quota: 100, InUse: 50}
	for _, c := range []struct {
		owned bool
		of    coord.Database
		want  time.Duration
	}{{true, not, etcdLook}, {true, pressed, time.Second}, {false, pressed, etcdLook}} {
		if got := (&etcdWatch{every: etcdLook, owned: c.owned}).pause(c.of); got != c.want {
			t.Errorf("owned %t, %+v: the next look is in %v, want %v", c.owned, c.of, got, c.want)
		}
	}
}
