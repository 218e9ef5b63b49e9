package coord

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Database says how full etcd is: of the members that answer, the fullest counts, since one that is full stops all.
type Database struct {
	Size  int64 // bytes of the file; it never shrinks by itself, and when it comes to Quota etcd takes no more writes
	InUse int64 // bytes of it that hold something; the others are used again before the file grows
	Quota int64 // bytes; 0: not known, before etcd 3.6
	// Full says that etcd takes no writes that need room, no leases either, until an administrator has made room and says so.
	Full     bool
	Revision int64 // the newest
	Members  int   // how many have answered
}

// Database asks all members of etcd that the client was told of. It is an error if none answers.
func (c *Client) Database(ctx context.Context) (Database, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	answers := make([]*pb.StatusResponse, len(c.endpoints))
	errs := make([]error, len(c.endpoints))
	var asked sync.WaitGroup
	for i, e := range c.endpoints {
		asked.Go(func() {
			answers[i], errs[i] = pb.NewMaintenanceClient(e.conn).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(false))
		})
	}
	asked.Wait()
	var d Database
	for _, r := range answers {
		if r == nil {
			continue
		}
		d.Members++
		d.Size, d.InUse, d.Revision = max(d.Size, r.DbSize), max(d.InUse, r.DbSizeInUse), max(d.Revision, r.Header.GetRevision())
		if r.DbSizeQuota > 0 && (d.Quota == 0 || r.DbSizeQuota < d.Quota) {
			d.Quota = r.DbSizeQuota
		}
		for _, e := range r.Errors {
			d.Full = d.Full || strings.Contains(e, pb.AlarmType_NOSPACE.String())
		}
	}
	if d.Members == 0 {
		return Database{}, fmt.Errorf("ask etcd how full it is: %w", errors.Join(errs...))
	}
	return d, nil
}

// Compact drops what etcd keeps of the past before a revision, and returns when the room is free to be used again. It is no error
// if that has been dropped already. Watches and lists that want what was before fail with ErrCompacted.
func (c *Client) Compact(ctx context.Context, revision int64) error {
	ctx, cancel := c.request(ctx)
	defer cancel()
	_, err := c.etcd.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err = c.readError(err); err != nil && !errors.Is(err, ErrCompacted) {
		return fmt.Errorf("compact etcd to revision %d: %w", revision, err)
	}
	return nil
}
