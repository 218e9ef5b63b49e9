package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
)

// Own says where Berth's own etcd is, or is to be. What is empty is not looked at.
type Own struct {
	Endpoints []string
	TLS       certs.Files // of https endpoints
	Prefix    string
	DataDir   string // of an etcd that Berth embeds
}

const (
	ownReads  = 20
	ownWrites = 50
	slowRead  = 100 * time.Millisecond // of the middle one; each batch of pods waits for a write, which takes no less
	slowSync  = 25 * time.Millisecond  // likewise, of what a disk has written; etcd wants 10 ms of nearly all

	leastRoom = 1 << 30
	wantsRoom = 9 << 30 // etcd's largest size, and its log
)

// RunOwn looks at Berth's own etcd, and returns what it has found.
func RunOwn(ctx context.Context, own Own) []Finding {
	var out []Finding
	if len(own.Endpoints) > 0 {
		out = append(out, lookAtEtcd(ctx, own)...)
	}
	if own.DataDir != "" {
		out = append(out, lookAtFolder(own.DataDir)...)
	}
	for i := range out {
		out[i].Check = "Berth's etcd"
	}
	return out
}

func lookAtEtcd(ctx context.Context, own Own) []Finding {
	failed := func(err error) []Finding {
		return []Finding{{Level: Fail, What: err.Error(), Fix: "see that --etcd-endpoints are etcd's client URLs, that a majority of its members runs, and that --etcd-ca, --etcd-cert and --etcd-key are those of Berth"}}
	}
	cfg := coord.Config{Endpoints: own.Endpoints, Prefix: own.Prefix}
	if own.TLS != (certs.Files{}) {
		source, err := certs.Open(own.TLS, "", slog.New(slog.DiscardHandler))
		if err != nil {
			return failed(err)
		}
		cfg.Credentials = source.Credentials()
	}
	c, err := coord.Connect(cfg)
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	// 1. How fast it is. The first answer waits for connections.
	if err := awaitEtcd(ctx, c); err != nil {
		return failed(err)
	}
	var took []time.Duration
	for range ownReads {
		began := time.Now()
		if err := c.Ready(ctx); err != nil {
			return failed(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	fast := Finding{Level: OK, What: fmt.Sprintf("a read that a majority agrees to takes %v, the slowest of %d %v", round(took[len(took)/2]), len(took), round(took[len(took)-1]))}
	if took[len(took)/2] > slowRead {
		fast.Level, fast.Fix = Note, "have etcd nearer, or on a faster disk: each batch of pods waits for one write to it"
	}
	out := []Finding{fast}
	// 2. How full it is.
	d, err := c.Database(ctx)
	if err != nil {
		return append(out, Finding{Level: Note, What: "how full it is could not be seen: " + err.Error(), Fix: "let Berth's user ask for etcd's status"})
	}
	full := Finding{Level: OK, What: fmt.Sprintf("its database has %d MiB, of which %d MiB hold something", d.Size>>20, d.InUse>>20)}
	if d.Quota > 0 {
		full.What += fmt.Sprintf(", and may have %d MiB", d.Quota>>20)
	}
	switch {
	case d.Full:
		full.Level, full.What, full.Fix = Fail, full.What+": it is full, and takes no writes", "make room, and disarm its alarm: docs/runbook.md, BerthEtcdFull"
	case d.Quota > 0 && d.InUse > d.Quota*3/4:
		full.Level, full.Fix = Note, "see what it holds: it is for Berth alone, or has room for others"
	}
	out = append(out, full)
	if d.Members < len(own.Endpoints) {
		out = append(out, Finding{Level: Note, What: fmt.Sprintf("%d of %d endpoints answer", d.Members, len(own.Endpoints)), Fix: "see to the others: one less, and it may be that none is enough"})
	}
	return out
}

// awaitEtcd waits until etcd answers for the first time, for a while.
func awaitEtcd(ctx context.Context, c *coord.Client) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := c.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lookAtFolder looks at the disk on which an embedded etcd is to be. The folder may not be there yet.
func lookAtFolder(dir string) []Finding {
	at, err := filepath.Abs(dir)
	for err == nil {
		var info os.FileInfo
		if info, err = os.Stat(at); err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no folder", at)
		} else if errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
			at, err = filepath.Dir(at), nil
			continue
		}
		break
	}
	if err != nil {
		return []Finding{{Level: Fail, What: "--data-dir: " + err.Error(), Fix: "name a folder that Berth may make, or write to"}}
	}
	var out []Finding
	if free, memory, err := roomOf(at); err == nil {
		room := Finding{Level: OK, What: fmt.Sprintf("%s has room for %d MiB", at, free>>20)}
		switch {
		case free < leastRoom:
			room.Level, room.Fix = Fail, "make room: etcd ends when it finds none"
		case free < wantsRoom:
			room.Level, room.Fix = Note, "etcd takes 8 GiB at most, and by far less for most clusters: docs/operations.md"
		}
		if memory {
			room.Level, room.What, room.Fix = Fail, fmt.Sprintf("%s is in memory: what is recorded there is gone when the machine ends", at), "name a folder on a disk, or leave --data-dir out"
		}
		out = append(out, room)
	}
	took, err := syncs(at)
	if err != nil {
		return append(out, Finding{Level: Fail, What: fmt.Sprintf("%s cannot be written to: %v", at, err), Fix: "run this as the user that Berth runs as, and let that one write there"})
	}
	disk := Finding{Level: OK, What: fmt.Sprintf("its disk has written 4 KiB after %v, the slowest of %d after %v", round(took[len(took)/2]), len(took), round(took[len(took)-1]))}
	if took[len(took)/2] > slowSync {
		disk.Level, disk.Fix = Note, "take a faster disk, or one that others use less: each batch of pods waits for one such write"
	}
	return append(out, disk)
}

// syncs writes to a file of its own, waits for the disk each time, takes the file away, and returns how long each took, the fastest first.
func syncs(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".berth-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	for range ownWrites {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took, nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
