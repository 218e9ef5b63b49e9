package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/coord/announced"
)

// Announced are the processes of a plugin service that have announced themselves.
type Announced struct {
	// Addresses are where they are reached, in order, each once: no more than announced.MaxProcesses.
	Addresses []string
	// Ignored is what is wrong with one of those announcements that make no sense, nil if there is none. It is not longer than one may be.
	Ignored error
}

// WatchAnnounced sends which processes of a plugin service have announced themselves: at once and after each change. A reader that is slow misses some but always gets the newest next. While etcd is away
// the last stands. The channel is closed when ctx or the client ends.
func (c *Client) WatchAnnounced(ctx context.Context, service string) <-chan Announced {
	prefix := announced.Prefix + service + "/"
	limits := bounds{key: announced.MaxKey, value: announced.MaxValue, all: announced.MaxProcesses}
	var warned time.Time
	return follow(ctx, c, c.prefix, prefix, limits, func(keys map[string]KV) (now Announced) {
		worst := ""
		for key, kv := range keys {
			address, err := decodeAnnounced(strings.TrimPrefix(key, prefix), kv.Value)
			switch {
			case err == nil:
				now.Addresses = append(now.Addresses, address)
			case now.Ignored == nil || key < worst: // always the same one
				now.Ignored, worst = err, key
			}
		}
		slices.Sort(now.Addresses)
		now.Addresses = slices.Compact(now.Addresses)
		if now.Ignored != nil && time.Since(warned) >= warnEvery {
			warned = time.Now()
			c.log.Warn("announcement of a plugin service ignored: it makes no sense", "service", service, "key", worst, "err", now.Ignored)
		}
		return now
	})
}

func decodeAnnounced(process string, value []byte) (address string, err error) {
	if process == "" || strings.Contains(process, "/") {
		return "", errors.New("want one name in its key behind that of the service")
	}
	if address, err = announced.Decode(value); err != nil {
		return "", fmt.Errorf("%.80q: %w", process, err)
	}
	return address, nil
}
