// Package announcer announces in etcd where a process with plugins listens, as long as it runs. It is for package plugin/announce, and has no more of etcd than its client, so that programs with plugins
// have not, either.
package announcer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/berth-scheduler/berth/internal/coord/announced"
)

// Config is what is announced, and where.
type Config struct {
	Endpoints   []string                         // of etcd's members, as of its client
	Credentials credentials.TransportCredentials // nil: plaintext, or the system's authorities
	Prefix      string                           // Berth's, with the slash at its end
	Service     string
	Address     string
	TTL         time.Duration // how long others know of a process that is gone without a word; whole seconds
	Log         *slog.Logger
}

const (
	// pause is between two tries.
	pause = time.Second
	// request is how long one request to etcd may take. withdrawal is how long a process that ends waits for etcd to take its announcement back: else that goes with its lease.
	request    = 5 * time.Second
	withdrawal = 2 * time.Second
	// A connection that answers nothing for pingEvery + pingWait is given up.
	pingEvery = 10 * time.Second
	pingWait  = 4 * time.Second
)

// Key returns the key of an announcement. A process is told from others by its address, so that one which is started again takes its own place.
func (c *Config) key() string { return c.Prefix + announced.Prefix + c.Service + "/" + c.Address }

// Run announces until ctx ends, then takes that back and returns nil. While etcd is away, it tries again. An error says what is wrong with cfg.
func Run(ctx context.Context, cfg Config) error {
	value, err := json.Marshal(announced.Value{Address: cfg.Address})
	if err != nil {
		return fmt.Errorf("announce %q: %w", cfg.Address, err)
	}
	if err := announced.Check(cfg.Address); err != nil {
		return err
	}
	if len(announced.Prefix)+len(cfg.Service)+1+len(cfg.Address) > announced.MaxKey {
		return fmt.Errorf("announce %q: the name of the service, or the address, is longer than others read", cfg.Address)
	}
	var options []grpc.DialOption
	if cfg.Credentials != nil {
		options = append(options, grpc.WithTransportCredentials(cfg.Credentials)) // instead of the client's own, which never change
	}
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, DialTimeout: request, DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingWait, DialOptions: options, Logger: zap.NewNop(),
	})
	if err != nil {
		return fmt.Errorf("connect to etcd at %s: %w", strings.Join(cfg.Endpoints, ","), err)
	}
	defer etcd.Close()
	for {
		err := cfg.announce(ctx, etcd, string(value))
		if ctx.Err() != nil {
			return nil
		}
		cfg.Log.Warn("not announced, trying again", "key", cfg.key(), "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// announce keeps a key under a lease until ctx ends, or etcd does not keep it any more.
func (c *Config) announce(ctx context.Context, etcd *clientv3.Client, value string) error {
	within := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, request) }
	granting, cancel := within()
	lease, err := etcd.Grant(granting, int64(c.TTL/time.Second))
	cancel()
	if err != nil {
		return fmt.Errorf("grant lease of %v: %w", c.TTL, err)
	}
	defer func() { // whatever is hung on it
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawal)
		defer cancel()
		_, _ = etcd.Revoke(ctx, lease.ID) // else it expires
	}()
	keep, stop := context.WithCancel(ctx)
	defer stop()
	renewed, err := etcd.KeepAlive(keep, lease.ID)
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	put := clientv3.OpPut(c.key(), value, clientv3.WithLease(lease.ID))
	putting, cancel := within()
	_, err = etcd.Do(putting, put)
	cancel()
	if err != nil {
		return fmt.Errorf("put %s: %w", c.key(), err)
	}
	c.Log.Info("announced", "key", c.key(), "address", c.Address)
	for range renewed {
		putting, cancel := within()
		again, err := c.restore(putting, etcd, put)
		cancel()
		switch {
		case again:
			c.Log.Info("announced again: the key had been deleted, or overwritten", "key", c.key(), "address", c.Address)
		case err != nil && ctx.Err() == nil:
			c.Log.Warn("etcd does not say whether the key is there", "key", c.key(), "err", err)
		}
	}
	return errors.Join(context.Cause(ctx), errors.New("the lease has ended"))
}

// restore puts the key where somebody has deleted it, or written something else, and reports whether that was so. One that is another lease's, with the same address, is another process's, which was started in the place of this one.
func (c *Config) restore(ctx context.Context, etcd *clientv3.Client, put clientv3.Op) (again bool, err error) {
	r, err := etcd.Get(ctx, c.key())
	if err != nil {
		return false, err
	}
	revision := int64(0)
	if len(r.Kvs) > 0 {
		if address, err := announced.Decode(r.Kvs[0].Value); err == nil && address == c.Address {
			return false, nil
		}
		revision = r.Kvs[0].ModRevision
	}
	done, err := etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.key()), "=", revision)).Then(put).Commit()
	return err == nil && done.Succeeded, err
}
