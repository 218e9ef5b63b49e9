package roles

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
)

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
