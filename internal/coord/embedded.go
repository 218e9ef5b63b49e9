package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// EmbeddedConfig says where an embedded etcd keeps its data.
type EmbeddedConfig struct {
	Dir           string       // data directory, created if needed, kept over restarts; one process at a time; required
	Log           *slog.Logger // etcd's warnings and errors; nil means no log
	UnsafeNoFsync bool         // do not wait for the disk: faster, and data is lost when the machine (not the process) dies
	// Ephemeral says that the data goes with the process: it does not wait for the disk, and takes no more room than it has to. All embedded etcds of a process are, or none.
	Ephemeral bool
	// Peers, if it is not nil, are the processes whose embedded etcds are one cluster. Nil: there is one member, which listens on no port.
	Peers *Peers
}

// Embedded is an etcd in this process, of one member or one of several. For clients, it listens on a Unix socket in its directory, which only the user that
// runs it can enter, and on no port: there is no authentication behind it.
type Embedded struct {
	etcd   *embed.Etcd
	peers  *peerage    // nil: there is one member
	kv     pb.KVServer // what a connection would be answered by
	lock   *fileutil.LockedFile
	socket *socket

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error
}

const (
	embeddedName = "berth"
	// nowhere is what the member advertises to peers and clients, always the same, so that it looks the same after a restart. It has
	// no peers, and nobody looks up how to reach it.
	nowhere = "http://127.0.0.1:0"
	// One member elects itself and sends no heartbeats over a network: it need not wait a second for an election.
	tickMillis     = 50
	electionMillis = 500
	// keepHistory bounds what etcd keeps of the past: every so often it drops what is older. A number of revisions would say little
	// about bytes, since one may write a pod or a thousand.
	keepHistory = 5 * time.Minute
	quotaBytes  = 8 << 30 // the largest size that etcd recommends
	// etcd keeps the latest writes in memory for members that lag, of which there are none, and at a restart those since its
	// last snapshot, which is cheap: the data is in its file. A write may have a megabyte; by default it keeps 5,000 and 10,000.
	keepWrites, snapshotWrites = 100, 1000
	// Of several members, one that lags by more gets all there is.
	keepPeerWrites = 1000
	// Members on several machines elect anew when they have heard nothing of the elected one for so long: as etcd has it by default.
	peerTickMillis, peerElectionMillis = 100, 1000
)

// ephemeralPrefix begins the names of the folders of [Ephemeral].
const ephemeralPrefix = "berth-etcd-"

// ephemeralSegment is how large the files are in which etcd keeps its latest writes, where nobody reads them again. By default it makes two of 64 MB at once.
const ephemeralSegment = 4 << 20

// ephemeralMark is a file in each folder of [Ephemeral], which is locked as long as the folder is used.
const ephemeralMark = "in-use"

// Folder is a folder among temporary files that goes with the process.
type Folder struct {
	Path string
	lock *fileutil.LockedFile
}

// Ephemeral makes a folder of its own among temporary files, for data that goes with the process; an image may have no folder for these. It takes away those of processes of this user that were
// killed. Close it.
func Ephemeral() (*Folder, error) {
	parent := os.TempDir()
	if err := os.MkdirAll(parent, 0o777|os.ModeSticky); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(parent, ephemeralPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range left {
		removeLeft(dir)
	}
	dir, err := os.MkdirTemp(parent, ephemeralPrefix)
	if err != nil {
		return nil, err
	}
	// The mark is locked when it gets its name: else another process could take the folder away in between.
	mark := filepath.Join(dir, ephemeralMark)
	lock, err := fileutil.TryLockFile(mark+"-soon", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := os.Rename(mark+"-soon", mark); err != nil {
		return nil, errors.Join(err, lock.Close(), os.RemoveAll(dir))
	}
	return &Folder{dir, lock}, nil
}

// Close takes the folder away.
func (f *Folder) Close() error { return errors.Join(os.RemoveAll(f.Path), f.lock.Close()) }

// removeLeft takes away a folder of Ephemeral's that nobody uses: one of this user, whom nobody else can put something else there, with a mark that nobody has locked. What cannot be taken away is in
// nobody's way.
func removeLeft(dir string) {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || !OwnedByThisUser(info) || info.Mode().Perm()&0o077 != 0 {
		return
	}
	path := filepath.Join(dir, ephemeralMark)
	if mark, err := os.Lstat(path); err != nil || !mark.Mode().IsRegular() {
		return // it is another thing, or so new that it has none yet
	}
	lock, err := fileutil.TryLockFile(path, os.O_WRONLY, 0o600)
	if err != nil {
		return // it is used
	}
	_ = (&Folder{dir, lock}).Close()
}

// StartEmbedded starts etcd and waits until it serves, or until ctx ends.
// A directory that another process uses is an error at once. After an error that says that etcd cannot use its data,
// the process should exit: etcd leaves its files open then, and would wait for itself at a second start.
func StartEmbedded(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	if cfg.Dir == "" {
		return nil, errors.New("start embedded etcd: Dir: empty")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e, err := startEmbedded(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd in %s: %w", cfg.Dir, err)
	}
	return e, nil
}

func startEmbedded(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	// One that was there before may be open to others, and so would the socket be.
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep others out of the directory: %w", err)
	}
	// etcd locks its own files, but waits for them without end.
	lock, err := fileutil.TryLockFile(filepath.Join(cfg.Dir, "lock"), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, errors.New("the directory is in use by another process")
	}
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	e := &Embedded{lock: lock, closing: make(chan struct{})}
	if e.socket, err = newSocket(cfg.Dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	var how begins
	if cfg.Peers != nil {
		if e.peers, err = startPeerage(cfg.Peers, cfg.Dir, e.socket.path, cfg.Log); err != nil {
			return nil, errors.Join(err, e.socket.remove(), lock.Close())
		}
		how, err = e.peers.begin(ctx)
	}
	for try := 1; err == nil; try++ {
		if e.etcd, err = launch(cfg, how, e.socket.path, e.closing); err == nil {
			break
		}
		if !how.joins || try == joinTries || ctx.Err() != nil {
			break
		}
		cfg.Log.Warn("etcd has not taken its place yet, trying again", "err", err)
		err = nil
		select {
		case <-ctx.Done():
		case <-time.After(peerAgain):
		}
	}
	if err != nil {
		if e.peers != nil {
			err = errors.Join(err, e.peers.close())
		}
		return nil, errors.Join(err, e.socket.remove(), lock.Close())
	}
	select {
	case <-e.etcd.Server.ReadyNotify():
	case <-e.etcd.Server.StopNotify():
		err = errors.New("etcd stopped before it was ready")
	case err = <-e.etcd.Err():
	case <-ctx.Done():
		err = fmt.Errorf("wait until ready: %w", context.Cause(ctx))
	}
	if err != nil {
		e.etcd.Server.HardStop() // Close would wait until it is ready
	} else if e.peers != nil {
		err = e.peers.is(e.etcd.Server)
		if err == nil {
			err = e.peers.serves()
		}
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.kv = v3rpc.NewQuotaKVServer(e.etcd.Server)
	return e, nil
}

// launch starts etcd. etcd panics, or would end the process, when it cannot read its data; launch returns an error.
func launch(cfg EmbeddedConfig, how begins, socket string, closing <-chan struct{}) (etcd *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			etcd, err = nil, fmt.Errorf("etcd cannot use its data: %v", p)
		}
	}()
	advertised, err := url.Parse(nowhere)
	if err != nil {
		return nil, err
	}
	c := embed.NewConfig()
	c.Name = embeddedName
	c.Dir = cfg.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{{Scheme: unixScheme, Path: socket}}, []url.URL{*advertised}
	// etcd cannot listen for peers on a socket with a path (it takes the URL's host alone, and for the empty one a socket that all of
	// the machine can reach), and need not.
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{*advertised}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, keepHistory.String()
	c.QuotaBackendBytes = quotaBytes
	c.SnapshotCatchUpEntries, c.SnapshotCount = keepWrites, snapshotWrites
	if cfg.Peers != nil {
		if err := cluster(c, cfg.Peers, how); err != nil {
			return nil, err
		}
	}
	c.EnableGRPCGateway = false
	c.UnsafeNoFsync = cfg.UnsafeNoFsync || cfg.Ephemeral
	if cfg.Ephemeral {
		wal.SegmentSizeBytes = ephemeralSegment
	}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(cfg.Log, closing))
	return embed.StartEtcd(c)
}

// cluster makes etcd one of several.
func cluster(c *embed.Config, p *Peers, how begins) error {
	self, err := url.Parse(peerURL(p.Self))
	if err != nil {
		return err
	}
	c.Name = p.Self
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*self}, []url.URL{*self}
	c.PeerTLSInfo = p.tls()
	c.InitialCluster, c.InitialClusterToken = how.cluster, peersToken
	if how.existing {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.TickMs, c.ElectionMs = peerTickMillis, peerElectionMillis
	c.SnapshotCatchUpEntries = keepPeerWrites
	return nil
}

// Endpoints returns where to connect, for the Config.Endpoints of another process of the same user.
func (e *Embedded) Endpoints() []string { return []string{unixScheme + "://" + e.socket.path} }

// Wait returns nil when ctx ends or Close is called, and an error when etcd stops by itself, which it does not survive.
func (e *Embedded) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.closing:
		return nil
	case err := <-e.etcd.Err():
		return e.stopped(err)
	case <-e.etcd.Server.StopNotify():
		return e.stopped(errors.New("no reason given"))
	}
}

func (e *Embedded) stopped(err error) error {
	select {
	case <-e.closing:
		return nil
	default:
		if e.peers != nil {
			return fmt.Errorf("embedded etcd has stopped; if it is no member any more, take its folder %s away, and it takes a place anew: %w", e.peers.dir, err)
		}
		return fmt.Errorf("embedded etcd has stopped: %w", err)
	}
}

// Yield has another member lead the cluster, if this one does and there is another, and waits for that: what others want written while the leader ends is lost, and they would wait for it
// until their requests time out. Call it before what ends with this process does.
func (e *Embedded) Yield() error {
	if err := e.etcd.Server.TryTransferLeadershipOnShutdown(); err != nil {
		return fmt.Errorf("have another etcd lead: %w", err)
	}
	return nil
}

// Close stops etcd and waits until it has. Close clients first: it waits some seconds for their watches to end, and those of
// this process call it.
func (e *Embedded) Close() error {
	e.closeOnce.Do(func() {
		close(e.closing)
		e.etcd.Close()
		if e.peers != nil {
			e.closeErr = e.peers.close()
		}
		if err := errors.Join(e.socket.remove(), e.lock.Close()); err != nil {
			e.closeErr = errors.Join(e.closeErr, fmt.Errorf("leave the directory of embedded etcd: %w", err))
		}
	})
	return e.closeErr
}
