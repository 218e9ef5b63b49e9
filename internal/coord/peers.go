package coord

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// PeerRole is the role, and the common name, of certificates of processes whose embedded etcds are one cluster.
const PeerRole = "peer"

// Peers says which embedded etcds of several processes are one cluster. All of it is required.
//
// The first time, each begins when it has heard of all others that they begin too. One that has lost its data, or is new in the place of one that is gone, learns of the others
// what they are, and takes a place among them: it never begins as what it was, for it would not know what it has promised.
type Peers struct {
	Self string   // how the others reach this one's etcd: an IP address and a port
	All  []string // the same of all, Self among them: an odd number, at least 3
	// Cert, Key and CA are files: a certificate with PeerRole as its common name, for servers and for clients, that names the address; its key; and its authority. The first two are read
	// again at each handshake, and the authority when etcd starts.
	Cert, Key, CA string
	// Listen opens a name for the other processes, and Connect returns a connection to who listens at a name in the process of a peer. Both ends have proved that they are one.
	Listen  func(name string) (net.Listener, error)
	Connect func(ctx context.Context, peer, name string) (net.Conn, error)

	goneAfter time.Duration // see unwanted; 0 means peerGone
}

const (
	// peersName is where a process answers others of its etcd: what it knows, or, by a connection to it, whatever etcd is asked.
	peersName = "etcd-of-peers"
	askStage  = 's'
	askEtcd   = 'e'

	stageNew    = 'n' // it has not been part of a cluster yet
	stageMember = 'm'

	// formedName is a file in the directory of an etcd that has served, or that takes a place among those that have.
	formedName = "formed"
	// begunName is one that says who it is, and of which peers.
	begunName = "begun"
	// soon ends the name of a file that is being written.
	soon = "-soon"

	peerWithin = 5 * time.Second // of one question
	// peerGone is for how long a member does not answer whose place another peer takes.
	peerGone = 30 * time.Second
	// peerPaused is more than there is between two questions to it, unless this process stands still.
	peerPaused = 4 * peerWithin
	// leastSilent is how often it is asked at least.
	leastSilent = 3
	// joinTries is how often an etcd that takes a place is started: a member that is asked may not have heard of it yet.
	joinTries  = 10
	peerAgain  = 500 * time.Millisecond
	peersToken = "berth"
	// askedAtOnce is how many connections of other processes are answered at a time.
	askedAtOnce = 16
)

// Canonical returns addresses as they are compared: IPv4 in IPv6 as IPv4, without zones.
func Canonical(peers []string) ([]string, error) {
	out := make([]string, len(peers))
	for i, peer := range peers {
		at, err := netip.ParseAddrPort(peer)
		if err != nil || at.Addr().IsUnspecified() || at.Addr().Zone() != "" || at.Port() == 0 || at.Port()+1 == 0 {
			return nil, fmt.Errorf("peers: %q: want the IP address of one machine and a port, as 10.0.0.1:10270, of which the next one is for roles", peer)
		}
		out[i] = netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	return out, nil
}

func (p *Peers) check() error {
	canonical, err := Canonical(p.All)
	switch {
	case err != nil:
		return err
	case !slices.Equal(canonical, p.All):
		return fmt.Errorf("peers %v: want them as %v", p.All, canonical)
	case len(p.All) < 3 || len(p.All)%2 == 0:
		return fmt.Errorf("peers %v: want 3, or 5, this one among them: fewer, or an even number, survive no more than with one less", p.All)
	case !slices.Contains(p.All, p.Self):
		return fmt.Errorf("peers %v: this one, %s, is not among them", p.All, p.Self)
	}
	for i, peer := range p.All {
		if slices.Contains(p.All[:i], peer) {
			return fmt.Errorf("peers: %s is named twice", peer)
		}
	}
	return nil
}

// tls is how etcds prove to each other who they are. Whoever has such a certificate may be at any address.
func (p *Peers) tls() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: p.Cert, KeyFile: p.Key, TrustedCAFile: p.CA,
		ClientCertAuth: true, AllowedCNs: []string{PeerRole}, SkipClientSANVerify: true,
	}
}

func peerURL(peer string) string { return "https://" + peer }

// others returns the peers but this one.
func (p *Peers) others() []string {
	return slices.DeleteFunc(slices.Clone(p.All), func(peer string) bool { return peer == p.Self })
}

// begins says how an etcd begins: whether with others that begin too, and who they are.
type begins struct {
	existing bool
	joins    bool   // it has just become a member
	cluster  string // as etcd's initial-cluster
}

// initial returns an initial cluster of peers by their addresses, which are their names.
func initial(peers []string) string {
	out := make([]string, len(peers))
	for i, peer := range peers {
		out[i] = peer + "=" + peerURL(peer)
	}
	return strings.Join(out, ",")
}

// peerage is what this process tells others of its etcd, and learns of theirs.
type peerage struct {
	*Peers
	dir, socket string
	log         *slog.Logger
	listener    net.Listener
	ends        context.Context
	end         context.CancelFunc
	work        sync.WaitGroup
	turns       chan struct{}
	silent      map[string]unanswered // of members that do not answer; of who begins
}

// unanswered is since when a member has not answered, how often it was asked, and when for the last time.
type unanswered struct {
	since, last time.Time
	times       int
}

// startPeerage answers others until it is closed.
func startPeerage(p *Peers, dir, socket string, log *slog.Logger) (*peerage, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	a := &peerage{Peers: p, dir: dir, socket: socket, log: log, turns: make(chan struct{}, askedAtOnce), silent: make(map[string]unanswered)}
	if !a.hasData() { // somebody has taken away the rest
		if err := os.Remove(filepath.Join(dir, formedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	var err error
	if a.listener, err = p.Listen(peersName); err != nil {
		return nil, err
	}
	a.ends, a.end = context.WithCancel(context.Background())
	a.work.Go(a.answer)
	return a, nil
}

func (a *peerage) close() error {
	a.end()
	err := a.listener.Close()
	a.work.Wait()
	return err
}

func (a *peerage) answer() {
	for {
		conn, err := a.listener.Accept()
		if err != nil { // it is closed
			return
		}
		select {
		case a.turns <- struct{}{}:
			a.work.Go(func() {
				defer func() { <-a.turns }()
				a.answerOne(conn)
			})
		default:
			_ = conn.Close()
		}
	}
}

// answerOne answers one connection, and ends it.
func (a *peerage) answerOne(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(a.ends, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if conn.SetDeadline(time.Now().Add(4*peerWithin)) != nil { // all of it: what is asked takes no longer
		return
	}
	ask := []byte{0}
	if _, err := io.ReadFull(conn, ask); err != nil {
		return
	}
	switch ask[0] {
	case askStage:
		_, _ = conn.Write(append([]byte{a.stage()}, a.fingerprint()...))
	case askEtcd:
		etcd, err := net.DialTimeout(unixScheme, a.socket, peerWithin)
		if err != nil {
			return
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(conn, etcd)
			_ = conn.SetDeadline(time.Unix(1, 0))
		})
		_, _ = io.Copy(etcd, conn)
		_ = etcd.Close()
		back.Wait()
	}
}

// stage returns what this process's etcd is.
func (a *peerage) stage() byte {
	if fileutil.Exist(filepath.Join(a.dir, formedName)) {
		return stageMember
	}
	return stageNew
}

// fingerprint tells lists of peers apart.
func (p *Peers) fingerprint() []byte {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(p.All)), ",")))
	return sum[:]
}

func (a *peerage) hasData() bool { return wal.Exist(filepath.Join(a.dir, "member", "wal")) }

// begins remembers who this is, and with whom it begins, before there are data.
func (a *peerage) begins() error {
	return a.remember(begunName, a.Self+" "+hex.EncodeToString(a.fingerprint()))
}

// begunAs returns an error if the data are of another peer, or, as long as there is no cluster, of one that has begun with others: then it never will be one.
func (a *peerage) begunAs() error {
	text, err := os.ReadFile(filepath.Join(a.dir, begunName))
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && a.stage() == stageMember:
		return nil // it has been part of a cluster: its data say of whom they are, when it serves
	case missing:
		return errors.New("there are data, and nothing says whose: take the folder away, and it takes a place anew")
	case err != nil:
		return fmt.Errorf("find out whose data there are: %w", err)
	}
	self, with, _ := strings.Cut(string(text), " ")
	switch {
	case self != a.Self:
		return fmt.Errorf("its data are of %s, and this is %s: take the folder away, and it takes a place anew", self, a.Self)
	case a.stage() == stageNew && with != hex.EncodeToString(a.fingerprint()):
		return fmt.Errorf("it has begun with other peers than %v, and has never been one with those: take the folder away, this one's alone, and it begins anew, or takes a place", a.All)
	}
	return nil
}

// formed remembers that this etcd is part of a cluster, or about to be.
func (a *peerage) formed() error { return a.remember(formedName, "") }

// serves remembers that this etcd is part of a cluster, and who it is, if nothing says so yet.
func (a *peerage) serves() error {
	err := a.formed()
	if err == nil && !fileutil.Exist(filepath.Join(a.dir, begunName)) {
		err = a.begins()
	}
	return err
}

// remember writes a file, whole or not at all, and returns when the disk has it.
func (a *peerage) remember(name, text string) error {
	path := filepath.Join(a.dir, name)
	f, err := os.OpenFile(path+soon, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	err = os.Rename(path+soon, path)
	dir, openErr := os.Open(a.dir)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	return errors.Join(err, dir.Sync(), dir.Close())
}

// begin waits until it is known how this etcd begins, or until ctx ends.
func (a *peerage) begin(ctx context.Context) (begins, error) {
	if a.hasData() {
		if err := a.begunAs(); err != nil {
			return begins{}, err
		}
		return begins{existing: true, cluster: initial(a.All)}, nil // it goes by its data
	}
	if err := a.begins(); err != nil { // or its disk is full: nobody is asked for a place then
		return begins{}, err
	}
	said, decided := "", false
	var how begins
	for {
		var err error
		if !decided {
			how, err = a.decide(ctx)
			decided = err == nil // the place that it has taken is its own: it asks for no other because a file cannot be written
		}
		if decided && how.existing {
			err = a.formed() // from now on, nobody who has no data is to begin with this one
		}
		if err == nil {
			return how, nil
		}
		if why := err.Error(); why != said && ctx.Err() == nil {
			said = why
			a.log.Warn("etcd cannot begin yet", "why", why)
		}
		select {
		case <-ctx.Done():
			return begins{}, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(peerAgain):
		}
	}
}

// decide asks the others how to begin. An error says why that is not known yet.
func (a *peerage) decide(ctx context.Context) (begins, error) {
	others := a.others()
	answers, errs := make([]stageOf, len(others)), make([]error, len(others))
	var asking sync.WaitGroup
	for i, peer := range others {
		asking.Go(func() { answers[i], errs[i] = a.ask(ctx, peer) })
	}
	asking.Wait()
	var why []error
	for i, peer := range others {
		switch {
		case errs[i] != nil:
			why = append(why, errs[i])
		case answers[i].stage == stageMember: // one that is there, but cannot say yet where the others are, is waited for
			how, err := a.join(ctx, peer, answers[i].same)
			if err == nil {
				return how, nil
			}
			why = append(why, fmt.Errorf("take a place, by way of %s: %w", peer, err))
		case !answers[i].same:
			why = append(why, fmt.Errorf("%s has other peers than these, %v: it has to be told the same", peer, a.All))
		}
	}
	if len(why) > 0 {
		return begins{}, fmt.Errorf("it has no data, and has to know of all peers that they have none either, or to take a place among them: %w", errors.Join(why...))
	}
	return begins{cluster: initial(a.All)}, nil
}

// stageOf is what a peer says of itself.
type stageOf struct {
	stage byte
	same  bool // its list of peers is this one's
}

// ask returns what the etcd of a peer is.
func (a *peerage) ask(ctx context.Context, peer string) (stageOf, error) {
	ctx, cancel := context.WithTimeout(ctx, peerWithin)
	defer cancel()
	conn, err := a.connect(ctx, peer, askStage)
	if err != nil {
		return stageOf{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer := make([]byte, 1+sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return stageOf{}, fmt.Errorf("ask %s: %w", peer, err)
	}
	return stageOf{answer[0], bytes.Equal(answer[1:], a.fingerprint())}, nil
}

// connect returns a connection to a peer that has been asked for something.
func (a *peerage) connect(ctx context.Context, peer string, ask byte) (net.Conn, error) {
	conn, err := a.Connect(ctx, peer, peersName)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{ask}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// join takes a place in a cluster, by way of a peer that is part of it. What data it had is lost: so the member that it was leaves, if there is one, and another comes. If there is none, and no
// place, one leaves that is no peer any more.
// Same says that the peer has the same list, which who comes anew has to have.
func (a *peerage) join(begin context.Context, peer string, same bool) (begins, error) {
	ctx, cancel := context.WithTimeout(begin, peerWithin)
	defer cancel()
	cluster, err := clientv3.New(clientv3.Config{
		Context: begin, Endpoints: []string{"http://" + peer}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return a.connect(ctx, peer, askEtcd) })},
	})
	if err != nil {
		return begins{}, err
	}
	defer cluster.Close()
	list, err := cluster.MemberList(ctx)
	if err != nil {
		return begins{}, err
	}
	members := list.Members
	mine := slices.IndexFunc(members, func(m *pb.Member) bool { return slices.Contains(m.PeerURLs, peerURL(a.Self)) })
	leaves := mine
	if mine < 0 && !same {
		return begins{}, fmt.Errorf("it is no member, and that one has other peers than %v: tell both the same", a.All)
	}
	if mine < 0 && len(members) >= len(a.All) {
		if leaves, err = a.unwanted(begin, members); err != nil {
			return begins{}, err
		}
	}
	ctx, cancel = context.WithTimeout(begin, peerWithin) // to ask who does not answer may have taken all of the time before
	defer cancel()
	if leaves >= 0 {
		a.log.Warn("etcd's member leaves, whose data is lost or whose machine is gone", "address", strings.Join(members[leaves].PeerURLs, ","))
		if _, err := cluster.MemberRemove(ctx, members[leaves].ID); err != nil {
			return begins{}, err
		}
	}
	added, err := cluster.MemberAdd(ctx, []string{peerURL(a.Self)})
	if err != nil {
		return begins{}, err
	}
	return begins{existing: true, joins: true, cluster: a.clusterOf(added.Members)}, nil
}

// unwanted returns the member that is not among the peers any more, and whose process does not answer.
func (a *peerage) unwanted(ctx context.Context, members []*pb.Member) (int, error) {
	for i, m := range members {
		for _, url := range m.PeerURLs {
			at := strings.TrimPrefix(url, "https://")
			if slices.Contains(a.All, at) {
				continue
			}
			if _, err := a.ask(ctx, at); err == nil {
				delete(a.silent, at)
				return 0, fmt.Errorf("%s is not among the peers %v, and is there: end it, or name it", at, a.All)
			}
			if ctx.Err() != nil { // which says nothing of that one
				return 0, context.Cause(ctx)
			}
			silence, now := a.silent[at], time.Now()
			if now.Sub(silence.last) > peerPaused { // it has not been asked yet, or this process stood still, and knows nothing of that time
				silence = unanswered{since: now}
			}
			silence.last = now
			silence.times++
			a.silent[at] = silence
			if after := cmp.Or(a.goneAfter, peerGone); silence.times < leastSilent || time.Since(silence.since) < after {
				return 0, fmt.Errorf("%s is not among the peers %v, and does not answer: this one takes its place when that has been so for %v", at, a.All, after)
			}
			return i, nil
		}
	}
	return 0, fmt.Errorf("there are %d members, all of them peers", len(members))
}

// is returns an error if the member that an etcd is by its data is another peer's, and says which members are none of the peers.
func (a *peerage) is(server *etcdserver.EtcdServer) error {
	for _, m := range server.Cluster().Members() {
		switch mine := m.ID == server.MemberID(); {
		case mine && !slices.Equal(m.PeerURLs, []string{peerURL(a.Self)}):
			return fmt.Errorf("its data are of %s, and this is %s: take the folder away, and it takes a place anew", strings.Join(m.PeerURLs, ","), a.Self)
		case !slices.ContainsFunc(a.All, func(peer string) bool { return slices.Contains(m.PeerURLs, peerURL(peer)) }):
			a.log.Warn("etcd has a member that is none of the peers, and counts", "address", strings.Join(m.PeerURLs, ","))
		}
	}
	return nil
}

// clusterOf returns an initial cluster of members. Those that have not been there yet have no names.
func (a *peerage) clusterOf(members []*pb.Member) string {
	var peers []string
	for _, m := range members {
		for _, url := range m.PeerURLs {
			peers = append(peers, strings.TrimPrefix(url, "https://"))
		}
	}
	return initial(peers)
}
