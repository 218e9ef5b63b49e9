// Package collector asks the driver of a node again and again, and has written what it says.
//
// All state is of one goroutine, which never waits for the driver or for the API server: a reading and a write are goroutines of their own, of which there is at most one
// each. What is written is always what is known when it is sent: nothing is queued.
package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
)

// Driver is asked for the cards.
type Driver interface {
	// Read may never return. It is not called before it has.
	Read() (cards.Reading, error)
	Close()
}

// Writer writes the resource. It is not called before it has returned.
type Writer interface {
	// Write asks for the newest status whenever it is about to send one, from whichever goroutine, and returns the one that it has written.
	Write(ctx context.Context, newest func() *scv.Status) (*scv.Status, error)
}

// Config is everything a Collector needs.
type Config struct {
	Driver Driver
	Writer Writer
	// Interval is how long after the beginning of a reading the next one begins, if it has ended.
	Interval time.Duration
	// Timeout is how long the driver may give no answer before all cards are told as unhealthy.
	Timeout time.Duration
	// Heartbeat is after how long the resource is written at the latest. Whole seconds, 1 to 3600.
	Heartbeat time.Duration
	// StepMiB and StepPercent are those of cards.Pace.
	StepMiB, StepPercent int64
	// Random returns 0 to 1.
	Random  func() float64
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

const (
	// stuck is after how long without a turn of its loop a Collector is not healthy. A turn takes no time, and one comes with each interval.
	stuck = time.Minute
	// failing is for how long readings may fail.
	failing = 5 * time.Minute
	// unseenFor is for how long there may be a driver without a library. Where a driver is installed, what puts the library into containers may come some minutes later.
	unseenFor = 10 * time.Minute
	// noteEvery is how often there is a line, at most, of what could not be read.
	noteEvery = time.Minute
	// writeLeast is how long a write may take, if a heartbeat takes less time: an API server that is slow for a moment is not to be asked again and again for what it never gets done.
	writeLeast = 10 * time.Second
)

// Collector is of one node.
type Collector struct {
	cfg     Config
	metrics *metrics
	began   time.Time // with it, times are told apart though the clock is set

	known    cards.Known
	pace     cards.Pace
	read     bool      // the driver has said something
	looked   bool      // a reading has ended
	had      bool      // cards were asked for, and the driver answered
	failed   time.Time // when the first reading failed since one that did not; 0: the last one did not
	unseen   time.Time // when there was a driver without a library first; 0: that is not so
	answered time.Time // when it did last, or the beginning
	reading  time.Time // when the reading that goes on has begun; 0: none goes on
	late     bool      // that reading has been counted as late
	told     logged

	newest atomic.Pointer[scv.Status] // what there is to tell; nil: nothing yet

	turned  atomic.Int64           // when the loop last had a turn, in ns since the beginning; 0: never yet
	written atomic.Int64           // when the resource was last written, or 0
	useless atomic.Pointer[string] // why another process would do better at reading; nil: none would
}

// logged is what has been logged last, so that it is logged once.
type logged struct {
	reads, absent, failed, notes, write string
	noted                               time.Time // when notes were
	silent                              bool
	reasons                             map[string]string // by card
}

// New returns a Collector, or says what is wrong with its configuration.
func New(cfg Config) (*Collector, error) {
	switch {
	case cfg.Interval <= 0 || cfg.Timeout <= 0:
		return nil, fmt.Errorf("--interval %v and --driver-timeout %v: want both above 0", cfg.Interval, cfg.Timeout)
	case cfg.Interval >= cfg.Timeout:
		return nil, fmt.Errorf("--interval %v: want less than --driver-timeout, which is %v", cfg.Interval, cfg.Timeout)
	case cfg.Interval > stuck/2:
		return nil, fmt.Errorf("--interval %v: want %v at most, since without a turn for %v the program is taken for stuck", cfg.Interval, stuck/2, stuck)
	case cfg.Heartbeat < time.Second || cfg.Heartbeat > time.Hour || cfg.Heartbeat%time.Second != 0:
		return nil, fmt.Errorf("a heartbeat of %v: want whole seconds, 1s to 1h", cfg.Heartbeat)
	case cfg.StepMiB < 0 || cfg.StepPercent < 0 || cfg.StepPercent > 100:
		return nil, fmt.Errorf("steps of %d MiB and %d %%: want 0 or more, and 100 %% at most", cfg.StepMiB, cfg.StepPercent)
	}
	c := &Collector{cfg: cfg, began: time.Now(), pace: cards.Pace{StepMiB: cfg.StepMiB, StepPercent: cfg.StepPercent, Heartbeat: cfg.Heartbeat}}
	c.told.reasons = make(map[string]string)
	m, err := newMetrics(cfg.Metrics, func() float64 { return c.since(&c.written).Seconds() })
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	c.metrics = m
	return c, nil
}

// since returns how long ago a time is that was stored with at.
func (c *Collector) since(stored *atomic.Int64) time.Duration {
	return time.Since(c.began) - time.Duration(stored.Load())
}

// at returns a time as it is stored.
func (c *Collector) at(t time.Time) int64 { return max(1, int64(t.Sub(c.began))) }

// Healthy returns nil unless another process would do better: it does not run, or has read cards, and then has a library that does not fit the driver any more, or has
// readings fail for long. A process that has read none would be followed by another one like it, unless the driver is loaded and it has no library at all: a container has what there was when it began. A driver that hangs is none of these: what is stuck in it could not even
// be killed.
func (c *Collector) Healthy() error {
	if since := c.since(&c.turned); c.turned.Load() != 0 && since > stuck {
		return fmt.Errorf("no turn for %v", since.Round(time.Second))
	}
	if why := c.useless.Load(); why != nil {
		return errors.New(*why)
	}
	return nil
}

// reading is a reading that has ended, and written a write.
type (
	reading struct {
		cards.Reading
		err error
	}
	written struct {
		status *scv.Status
		err    error
	}
)

// Run collects until ctx ends. A reading that hangs then is left behind.
func (c *Collector) Run(ctx context.Context) {
	readings, writes := make(chan reading, 1), make(chan written, 1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.answered = time.Now()
	var next time.Time // when the next reading begins
	writing := false
	for ctx.Err() == nil {
		now := time.Now()
		c.turned.Store(c.at(now))

		// 1. A reading, if none goes on.
		if c.reading.IsZero() && !now.Before(next) {
			c.reading, c.late, next = now, false, now.Add(c.cfg.Interval)
			go func() {
				r, err := c.ask()
				readings <- reading{r, err}
			}()
		}

		// 2. What there is to tell, and a write if it is time.
		silence := c.silence(now)
		wake := now.Add(c.cfg.Interval)
		if c.read || silence > 0 {
			status := c.known.Status(silence)
			status.Heartbeat, status.HeartbeatSeconds = metav1.NewMicroTime(now), int32(c.cfg.Heartbeat/time.Second)
			c.metrics.told(&status)
			c.logChanges(&status, silence)
			c.newest.Store(&status)
			switch at := c.pace.At(&status); {
			case writing || c.waits(silence):
			case at.After(now):
				wake = earlier(wake, at)
			default:
				c.pace.Begin(now)
				writing = true
				go func() { writes <- c.write(ctx) }()
			}
		}

		// 3. Until something happens.
		if c.reading.IsZero() {
			wake = earlier(wake, next)
		} else if end := c.answered.Add(c.cfg.Timeout); end.After(now) {
			wake = earlier(wake, end)
		}
		timer.Reset(wake.Sub(now))
		select {
		case r := <-readings:
			c.fold(time.Now(), r)
		case w := <-writes:
			writing = false
			c.wrote(ctx, time.Now(), w)
		case <-timer.C:
		case <-ctx.Done():
		}
	}

	// The write ends with ctx. A reading is given the time that it has.
	if writing {
		<-writes
	}
	if !c.reading.IsZero() {
		timer.Reset(time.Until(c.reading.Add(c.cfg.Timeout)))
		select {
		case <-readings:
		case <-timer.C:
			return
		}
	}
	c.cfg.Driver.Close()
}

// waits reports whether nothing is written yet: what was written by the process before stays until the driver has been asked, or is not believed by anybody any more.
func (c *Collector) waits(silence time.Duration) bool {
	return !c.looked && silence < 3*c.cfg.Heartbeat
}

// write writes what there is to tell, in the time until the next heartbeat.
func (c *Collector) write(ctx context.Context) written {
	ctx, cancel := context.WithTimeout(ctx, max(c.cfg.Heartbeat, writeLeast))
	defer cancel()
	status, err := c.cfg.Writer.Write(ctx, c.newest.Load)
	return written{status, err}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// ask makes an error of a panic.
func (c *Collector) ask() (r cards.Reading, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = cards.Reading{}, fmt.Errorf("ask the driver: panic: %v", p)
		}
	}()
	return c.cfg.Driver.Read()
}

// silence returns how long the driver has given no answer, or 0 if that is not too long yet.
func (c *Collector) silence(now time.Time) time.Duration {
	if !c.reading.IsZero() && !c.late && now.Sub(c.reading) >= c.cfg.Timeout {
		c.late = true
		c.metrics.readings.WithLabelValues("late").Inc()
	}
	silence := now.Sub(c.answered)
	if silence < c.cfg.Timeout {
		return 0
	}
	return silence
}

// fold takes what a reading has brought.
func (c *Collector) fold(now time.Time, r reading) {
	result := "ok"
	switch {
	case r.err != nil:
		result = "failed"
	case r.Absent != "":
		result = "absent"
	}
	took := now.Sub(c.reading)
	c.reading, c.looked = time.Time{}, true
	if c.late {
		c.metrics.seconds.Observe(took.Seconds()) // it is counted
	} else {
		c.metrics.read(result, took)
	}
	if r.err != nil {
		if c.failed.IsZero() {
			c.failed = now
		}
		if c.had && now.Sub(c.failed) >= failing {
			why := fmt.Sprintf("readings have failed for more than %v: %v", failing, r.err)
			c.useless.Store(&why)
		}
		c.logOnce(&c.told.failed, slog.LevelWarn, r.err.Error(), "the cards were not read")
		return
	}
	if c.told.failed != "" {
		c.told.failed = ""
		c.cfg.Log.Info("the cards are read again")
	}
	c.read, c.answered, c.failed = true, now, time.Time{}
	c.useless.Store(nil)
	if c.had = c.had || r.Absent == ""; c.had && r.Mismatch {
		why := cards.ReasonMismatch + ", and this process cannot load another one"
		c.useless.Store(&why)
	}
	switch {
	case !r.Unseen:
		c.unseen = time.Time{}
	case c.unseen.IsZero():
		c.unseen = now
	case now.Sub(c.unseen) >= unseenFor:
		why := fmt.Sprintf("the driver has been loaded for more than %v, and its library is not there: a new container may have it", unseenFor)
		c.useless.Store(&why)
	}
	for _, x := range r.XIDs {
		c.metrics.saw(x)
		if cards.Critical(x.Code) && x.Card == "" {
			c.cfg.Log.Warn("a critical error (XID) of no card that is known: it may be of any", "xid", x.Code)
		}
	}
	if notes := strings.Join(r.Notes, "; "); notes != c.told.notes && (c.told.noted.IsZero() || now.Sub(c.told.noted) >= noteEvery) {
		if notes != "" {
			c.told.noted = now
		}
		c.logOnce(&c.told.notes, slog.LevelWarn, notes, "something was not read")
	}
	c.logOnce(&c.told.absent, slog.LevelInfo, r.Absent, "no cards are read, and are looked for again")
	if r.Absent != "" {
		c.told.reads = ""
	} else {
		c.logOnce(&c.told.reads, slog.LevelInfo, fmt.Sprintf("driver %s names %d", r.Driver, len(r.Cards)), "cards are read")
	}
	c.known.Fold(r.Reading)
}

// wrote takes what a write has come to.
func (c *Collector) wrote(ctx context.Context, now time.Time, w written) {
	if w.err == nil {
		c.metrics.writes.WithLabelValues("ok").Inc()
		c.written.Store(c.at(now))
		c.pace.Wrote(w.status, c.cfg.Random())
		if c.told.write != "" {
			c.told.write = ""
			c.cfg.Log.Info("the resource is written again")
		}
		return
	}
	if ctx.Err() != nil {
		return
	}
	c.metrics.writes.WithLabelValues("failed").Inc()
	c.pace.Failed(now, c.cfg.Random())
	c.logOnce(&c.told.write, slog.LevelWarn, w.err.Error(), "the resource was not written, and will be")
}

// logOnce logs a reason, unless it was logged last, or is none.
func (c *Collector) logOnce(last *string, level slog.Level, reason, message string) {
	if *last != reason && reason != "" {
		c.cfg.Log.Log(context.Background(), level, message, "reason", reason)
	}
	*last = reason
}

// logChanges logs cards that have become unhealthy, for another reason than before, or healthy, and the silence of the driver once.
func (c *Collector) logChanges(s *scv.Status, silence time.Duration) {
	if silence > 0 {
		if !c.told.silent {
			c.told.silent = true
			c.cfg.Log.Warn("the driver does not answer: no card is told as healthy", "for", silence)
		}
		return
	}
	if c.told.silent {
		c.told.silent = false
		c.cfg.Log.Info("the driver answers again")
	}
	for _, card := range s.Cards {
		switch was := c.told.reasons[card.ID]; {
		case was == card.Reason:
			continue
		case card.Reason == "":
			c.cfg.Log.Info("a card is healthy again", "card", card.ID, "was", was)
		default:
			c.cfg.Log.Warn("a card is unhealthy", "card", card.ID, "reason", card.Reason)
		}
		c.told.reasons[card.ID] = card.Reason
	}
}
