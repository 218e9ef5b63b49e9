package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// etcdCluster is an etcd of several members, each a process, and a client of it. The members reach each other through
// proxies; the client reaches them themselves, by JSON over HTTP, which etcd does not serve where it checks the host names of clients'
// certificates: it has a port of its own, in plaintext also when the others are not. Its methods may be called concurrently; two calls about
// the same member must not be.
type etcdCluster struct {
	etcdClient
	dir      string
	binary   string
	peers    string   // --initial-cluster
	client   []string // host:port, by member, for Berth
	plain    []string // for the harness
	peer     []string
	announce []string // the proxies in front of peer
	network  *Network
	ids      *identities // nil: no TLS

	mu      sync.Mutex
	members []*kubetest.Process
}

const etcdStart = 60 * time.Second // for a majority to answer

// startEtcd starts n members and waits until they answer. An error comes with a cluster if some of them run.
func startEtcd(ctx context.Context, dir string, n int, network *Network, ids *identities) (*etcdCluster, error) {
	programs, err := kubetest.Build(ctx, kubetest.Etcd)
	if err != nil {
		return nil, err
	}
	ports, err := kubetest.FreePorts(3 * n)
	if err != nil {
		return nil, err
	}
	e := &etcdCluster{dir: dir, binary: programs[kubetest.Etcd], network: network, ids: ids, members: make([]*kubetest.Process, n)}
	var peers []string
	for i := range n {
		e.client = append(e.client, "127.0.0.1:"+ports[3*i])
		e.peer = append(e.peer, "127.0.0.1:"+ports[3*i+1])
		e.plain = append(e.plain, "127.0.0.1:"+ports[3*i+2])
		e.urls = append(e.urls, "http://"+e.plain[i])
		front, err := network.Front(etcdName(i), e.peer[i])
		if err != nil {
			return nil, err
		}
		e.announce = append(e.announce, ids.scheme()+front)
		peers = append(peers, etcdName(i)+"="+e.announce[i])
	}
	e.peers = strings.Join(peers, ",")
	for i := range n {
		if err := e.start(i); err != nil {
			return e, err
		}
	}
	return e, e.await(ctx)
}

// member returns the process of a member: the last, if it does not run.
func (e *etcdCluster) member(i int) *kubetest.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.members[i]
}

func etcdName(i int) string { return "etcd-" + strconv.Itoa(i) }

// start starts a member on its data. It may have none yet.
func (e *etcdCluster) start(i int) error {
	client, peer := e.ids.scheme()+e.client[i], e.ids.scheme()+e.peer[i]
	args := append([]string{e.binary,
		"--name", etcdName(i), "--data-dir", filepath.Join(e.dir, etcdName(i)),
		"--listen-client-urls", client + ",http://" + e.plain[i], "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", e.announce[i], "--initial-cluster", e.peers,
		"--heartbeat-interval", "100", "--election-timeout", "1000",
		"--unsafe-no-fsync", // processes are killed, not the machine
		"--log-level", "warn",
	}, e.ids.etcdFlags(etcdName(i))...)
	p, err := kubetest.StartProcess(etcdName(i), filepath.Join(e.dir, etcdName(i)+".log"), args...)
	if err != nil {
		return err
	}
	e.network.Is(etcdName(i), p.PID())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.members[i] = p
	return nil
}

// await waits until etcd answers.
func (e *etcdCluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, etcdStart)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := e.get(ctx, "/")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for etcd: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// stop ends all members. There may be no cluster.
func (e *etcdCluster) stop() {
	if e == nil {
		return
	}
	for i := range e.members {
		if p := e.member(i); p != nil {
			p.Kill()
		}
	}
}

// etcdClient calls etcd's JSON gateway. Only package coord may use etcd's own client; what is read here is to be
// independent of it besides.
type etcdClient struct {
	urls []string  // of the members
	user *etcdUser // nil: etcd asks nobody who they are
}

// etcdUser is who the harness is to etcd, where only users are let in: of the JSON gateway's callers it does not know the certificates.
type etcdUser struct {
	mu    sync.Mutex
	token string
}

// harnessUser is the name and the password of the harness' user, who may do everything.
const harnessUser = "harness"

// admit makes the user of the harness, has a command of Berth set up all others, and uses etcd as that user from then on.
func (e *etcdCluster) admit(ctx context.Context, berth, source string, network []string) error {
	var answer struct{}
	for _, step := range []struct {
		path    string
		request map[string]any
	}{
		{"/v3/auth/role/add", map[string]any{"name": "root"}},
		{"/v3/auth/user/add", map[string]any{"name": harnessUser, "password": harnessUser}},
		{"/v3/auth/user/grant", map[string]any{"user": harnessUser, "role": "root"}},
	} {
		if err := e.call(ctx, step.path, step.request, &answer); err != nil {
			return fmt.Errorf("make a user of etcd: %w", err)
		}
	}
	f := e.ids.etcd.files(etcdName(0)) // etcd's own certificate is an administrator's
	p, err := kubetest.StartProcess("etcd-init", filepath.Join(e.dir, "etcd-init.log"), berth, "etcd-init", "--etcd-owned", "--source", source,
		"--etcd-endpoints", strings.Join(network, ","), "--etcd-ca", f.CA, "--etcd-cert", f.Cert, "--etcd-key", f.Key)
	if err != nil {
		return err
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("berth etcd-init: %w\n%s", err, p.LogTail(2048))
	}
	e.user = &etcdUser{}
	return nil
}

// show adds a token to a request, if etcd wants one: a new one if the last was not taken.
func (u *etcdUser) show(r *http.Request, refused string) error {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.token == refused {
		body := fmt.Sprintf(`{"name":%q,"password":%q}`, harnessUser, harnessUser)
		ask, err := http.NewRequestWithContext(r.Context(), http.MethodPost, r.URL.Scheme+"://"+r.URL.Host+"/v3/auth/authenticate", strings.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(ask)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var answer struct {
			Token string `json:"token"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Token == "" {
			return fmt.Errorf("authenticate to etcd: %s: %w", resp.Status, err)
		}
		u.token = answer.Token
	}
	r.Header.Set("Authorization", u.token)
	return nil
}

// etcdCall bounds a request to one member.
const etcdCall = 2 * time.Second

// number is an int64 that JSON carries as a string.
type number int64

// UnmarshalJSON reads "12" and 12.
func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*n = number(v)
	return err
}

// etcdKV is a key with its value.
type etcdKV struct {
	Key     []byte `json:"key"`
	Value   []byte `json:"value"`
	Created number `json:"create_revision"`
	Mod     number `json:"mod_revision"`
	Lease   number `json:"lease"`
}

// call asks the members in turn until one answers.
func (c etcdClient) call(ctx context.Context, path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	var failed error
	for _, url := range c.urls {
		err := c.callOne(ctx, url+path, body, answer)
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func (c etcdClient) callOne(ctx context.Context, url string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, etcdCall)
	defer cancel()
	resp, err := c.post(ctx, url, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// post makes a request, a second time if the token is not taken: a member that has been restarted knows none.
func (c etcdClient) post(ctx context.Context, url string, body []byte) (*http.Response, error) {
	refused := ""
	for try := 0; ; try++ {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		if err := c.user.show(r, refused); err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode == http.StatusOK || c.user == nil || try > 0 {
			return resp, err
		}
		resp.Body.Close()
		refused = r.Header.Get("Authorization")
	}
}

// get returns a key, nil if there is none.
func (c etcdClient) get(ctx context.Context, key string) (*etcdKV, error) {
	var answer struct {
		KVs []etcdKV `json:"kvs"`
	}
	if err := c.call(ctx, "/v3/kv/range", map[string]any{"key": []byte(key)}, &answer); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	if len(answer.KVs) == 0 {
		return nil, nil
	}
	return &answer.KVs[0], nil
}

// list returns all keys that begin so, in order.
func (c etcdClient) list(ctx context.Context, first string) ([]etcdKV, error) {
	var answer struct {
		KVs []etcdKV `json:"kvs"`
	}
	if err := c.call(ctx, "/v3/kv/range", map[string]any{"key": []byte(first), "range_end": []byte(behind(first))}, &answer); err != nil {
		return nil, fmt.Errorf("list %s: %w", first, err)
	}
	return answer.KVs, nil
}

// behind returns the first key behind all that begin so, which ends with a slash.
func behind(prefix string) string { return strings.TrimSuffix(prefix, "/") + "0" }

// count returns how many keys begin so.
func (c etcdClient) count(ctx context.Context, first string) (int64, error) {
	var answer struct {
		Count number `json:"count"`
	}
	if err := c.call(ctx, "/v3/kv/range", map[string]any{"key": []byte(first), "range_end": []byte(behind(first)), "count_only": true}, &answer); err != nil {
		return 0, fmt.Errorf("count keys from %s: %w", first, err)
	}
	return int64(answer.Count), nil
}

// put writes a key.
func (c etcdClient) put(ctx context.Context, key, value string) error {
	var answer struct{}
	return c.call(ctx, "/v3/kv/put", map[string]any{"key": []byte(key), "value": []byte(value)}, &answer)
}

// compact forgets what is older than a revision.
func (c etcdClient) compact(ctx context.Context, revision int64) error {
	var answer struct{}
	return c.call(ctx, "/v3/kv/compaction", map[string]any{"revision": strconv.FormatInt(revision, 10), "physical": true}, &answer)
}

// revoke ends a lease.
func (c etcdClient) revoke(ctx context.Context, lease int64) error {
	var answer struct{}
	return c.call(ctx, "/v3/lease/revoke", map[string]any{"ID": strconv.FormatInt(lease, 10)}, &answer)
}

// etcdEvent is a change of a key.
type etcdEvent struct {
	Type string `json:"type"` // PUT, which is not said, or DELETE
	KV   etcdKV `json:"kv"`
}

// errHole is a history that etcd has no longer.
var errHole = errors.New("etcd has compacted what was not recorded yet")

// watch tells of all changes of keys from first to before last, from a revision on and in their order, until ctx ends, from whichever
// member answers. An error other than ctx's means that there is a hole in what was told.
func (c etcdClient) watch(ctx context.Context, first, last string, revision int64, tell func(etcdEvent)) error {
	for member := 0; ; member++ {
		var err error
		revision, err = c.watchOne(ctx, c.urls[member%len(c.urls)], first, last, revision, tell)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errHole) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// watchOne watches one member until its connection ends, and returns from which revision on to go on.
func (c etcdClient) watchOne(ctx context.Context, url, first, last string, revision int64, tell func(etcdEvent)) (int64, error) {
	body, err := json.Marshal(map[string]any{"create_request": map[string]any{
		"key": []byte(first), "range_end": []byte(last), "start_revision": strconv.FormatInt(revision, 10),
	}})
	if err != nil {
		return revision, err
	}
	resp, err := c.post(ctx, url+"/v3/watch", body)
	if err != nil {
		return revision, err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	for {
		var answer struct {
			Result struct {
				Compacted number      `json:"compact_revision"`
				Canceled  bool        `json:"canceled"`
				Reason    string      `json:"cancel_reason"`
				Events    []etcdEvent `json:"events"`
			} `json:"result"`
		}
		if err := d.Decode(&answer); err != nil {
			return revision, err
		}
		switch r := answer.Result; {
		case r.Compacted > 0:
			return revision, errHole
		case r.Canceled:
			return revision, errors.New(r.Reason)
		default:
			for _, event := range r.Events {
				tell(event)
				// Changes of one revision come in one answer.
				revision = int64(event.KV.Mod) + 1
			}
		}
	}
}
