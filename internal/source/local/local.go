package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
)

const (
	root          = "local/"
	nodeKeys      = root + "nodes/"
	namespaceKeys = root + "namespaces/"
	podKeys       = root + "pods/"
	placementKeys = root + "placements/"
	conditionKeys = root + "conditions/"
)

// objectKeys are the kinds of objects, of package manifest, by the prefix of their keys.
var objectKeys = keysOf(manifest.Kinds())

func keysOf(kinds []string) map[string]string {
	keys := make(map[string]string, len(kinds))
	for _, kind := range kinds {
		resource, _ := manifest.Resource(kind)
		keys[root+resource+"/"] = kind
	}
	return keys
}

// keyOf returns the key of an object, false if there is no such kind. The namespace of a kind that is in none is passed over.
func keyOf(kind, namespace, name string) (string, bool) {
	resource, ok := manifest.Resource(kind)
	switch {
	case !ok:
		return "", false
	case manifest.Namespaced(kind):
		return root + resource + "/" + namespace + "/" + name, true
	}
	return root + resource + "/" + name, true
}

// split takes the prefix, up to the second slash, off a key.
func split(key string) (prefix, rest string) {
	if i := strings.IndexByte(key[min(len(root), len(key)):], '/'); i >= 0 {
		i += len(root) + 1
		return key[:i], key[i:]
	}
	return "", key
}

// maxBatch leaves room in a transaction for the fence: each binding has two conditions.
const maxBatch = (coord.MaxTxnOps - 1) / 2

// maxAnnotated are as many with annotations, which may have some 24 KiB each in JSON: etcd bounds the bytes of a transaction.
const maxAnnotated = 16

// ErrNotFound: there is no object of the kind and name.
var ErrNotFound = errors.New("not found")

// errUnread is what Watch waits for at first.
var errUnread = errors.New("waiting for the manifests in etcd to be read")

// Config is what a Source and a Store need besides etcd. The zero value is good.
type Config struct {
	Log *slog.Logger     // nil means no log
	Now func() time.Time // for the times that are written; nil means time.Now
}

func (cfg Config) withDefaults() Config {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = logs.Bounded(cfg.Log)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return cfg
}

// placement is the value of a placement's key.
type placement struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Node      string    `json:"node"`
	Time      time.Time `json:"time"`
	// Annotations were chosen for the pod when it was placed.
	Annotations map[string]string `json:"annotations,omitempty"`
}

func podKey(namespace, name string) string { return podKeys + namespace + "/" + name }

// deletePod returns the operations that delete a pod with all that is its. Their order counts: see view.update.
func deletePod(key, uid string) []coord.Op {
	return []coord.Op{coord.Delete(key), coord.Delete(placementKeys + uid), coord.Delete(conditionKeys + uid)}
}

// Source is the cluster of manifests as the binder sees it. Watch runs at most once at a time.
type Source struct {
	etcd *coord.Client
	cfg  Config

	mu      sync.Mutex
	known   map[string]*knownPod // by uid: what the running Watch has told
	waiting error                // what Watch waits for
	told    int64                // the revision up to which Watch has told everything
	// toldMore is closed when told is another; nil while nobody waits.
	toldMore chan struct{}
}

// knownPod is a pod that Watch has told: as much as is needed to write about it without reading it first, and to tell where it
// is. There are as many as there are pods, so what it asks for is not kept. Watch changes it, under Source.mu.
type knownPod struct {
	key, uid                    string
	createRevision, modRevision int64

	manifest struct{ node, nominated string } // spec.nodeName, status.nominatedNodeName
	placed   string                           // the node of its placement, "" if it has none
	told     struct{ node, nominated string }
}

var _ source.Source = (*Source)(nil)

// New returns the cluster of manifests that is kept in etcd.
func New(etcd *coord.Client, cfg Config) *Source {
	return &Source{
		etcd: etcd, cfg: cfg.withDefaults(), known: map[string]*knownPod{},
		waiting: errUnread,
	}
}

// Name returns "local".
func (s *Source) Name() string { return "local" }

// MaxBatch returns how many placements fit one transaction.
func (s *Source) MaxBatch() int { return maxBatch }

// Fenced returns true: a placement is a transaction that the fence guards.
func (s *Source) Fenced() bool { return true }

// Ready says that the manifests have not been read yet, and why. Once they have, etcd's own absence is not said here:
// whoever uses etcd knows.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Lookup reads the pod and its placement.
func (s *Source) Lookup(ctx context.Context, namespace, name string) (uid, node string, found bool, err error) {
	p, err := s.read(ctx, namespace, name)
	if err != nil || p == nil {
		return "", "", false, err
	}
	return p.uid, p.node, true, nil
}

// storedPod is a pod as etcd has it.
type storedPod struct {
	uid, node      string
	nominated      string // by its manifest
	createRevision int64
}

// read returns the pod of the name, or nil.
func (s *Source) read(ctx context.Context, namespace, name string) (*storedPod, error) {
	key := podKey(namespace, name)
	kv, _, err := s.etcd.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	if kv == nil {
		return nil, nil
	}
	var pod v1.Pod
	if err := manifest.UnmarshalStored(kv.Value, &pod); err != nil {
		return nil, fmt.Errorf("decode pod %s/%s: %w", namespace, name, err)
	}
	p := &storedPod{
		uid: string(pod.UID), node: pod.Spec.NodeName, nominated: pod.Status.NominatedNodeName, createRevision: kv.CreateRevision,
	}
	placed, _, err := s.etcd.Get(ctx, placementKeys+p.uid)
	if err != nil {
		return nil, fmt.Errorf("read placement of pod %s/%s: %w", namespace, name, err)
	}
	if placed != nil {
		var at placement
		if err := json.Unmarshal(placed.Value, &at); err != nil {
			return nil, fmt.Errorf("decode placement of pod %s/%s: %w", namespace, name, err)
		}
		p.node = cmp.Or(p.node, at.Node)
	}
	return p, nil
}

// Scheduled does nothing: the placement is itself the record.
func (s *Source) Scheduled(context.Context, source.Binding) error { return nil }

// lookup returns what is known of a pod, zero if nothing is.
func (s *Source) lookup(uid string) knownPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod := s.known[uid]; pod != nil {
		return *pod
	}
	return knownPod{}
}
