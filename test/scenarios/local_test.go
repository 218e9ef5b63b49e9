package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// Where package local keeps things; its documentation lists the keys.
const (
	nodeKeys      = "local/nodes/"
	podKeys       = "local/pods/" + namespace + "/"
	placementKeys = "local/placements/"
	conditionKeys = "local/conditions/"
)

// manifests is a cluster of the local source: users apply manifests through Berth's gateway. What Berth has decided is
// read from etcd.
type manifests struct {
	berth     schedulingv1.SchedulingServiceClient
	etcd      *coord.Client
	endpoints []string // of etcd
}

// startOnManifests starts a Berth with an empty cluster of its own.
func startOnManifests(t testing.TB, o berthtest.Options) (*berthtest.Berth, userCluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	etcd, err := coord.StartEmbedded(ctx, coord.EmbeddedConfig{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := coord.Connect(coord.Config{Endpoints: etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	o.EtcdEndpoints = etcd.Endpoints()
	b := berthtest.Start(t, o)
	return b, &manifests{berth: b.SchedulingServiceClient, etcd: client, endpoints: etcd.Endpoints()}
}

func (m *manifests) apply(ctx context.Context, object any) error {
	manifest, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = m.berth.Apply(ctx, &schedulingv1.ApplyRequest{Manifests: string(manifest)})
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func (m *manifests) createNode(ctx context.Context, n *corev1.Node) error { return m.apply(ctx, n) }
func (m *manifests) createPod(ctx context.Context, p *corev1.Pod) error   { return m.apply(ctx, p) }
func (m *manifests) setBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	return m.apply(ctx, b)
}

func (m *manifests) editNode(ctx context.Context, name string, edit func(*corev1.Node) error) error {
	return editStored(ctx, m, nodeKeys+name, edit)
}

func (m *manifests) editPod(ctx context.Context, name string, edit func(*corev1.Pod) error) error {
	return editStored(ctx, m, podKeys+name, edit)
}

func (m *manifests) resizePod(context.Context, string, func(*corev1.Pod) error) error {
	return errors.New("the local source resizes no pods: the line is for an API server only")
}

func editStored[T any](ctx context.Context, m *manifests, key string, edit func(*T) error) error {
	kv, _, err := m.etcd.Get(ctx, key)
	if err != nil {
		return err
	}
	if kv == nil {
		return fmt.Errorf("no %s", key)
	}
	object := new(T)
	if err := json.Unmarshal(kv.Value, object); err != nil {
		return err
	}
	if err := edit(object); err != nil {
		return err
	}
	return m.apply(ctx, object)
}

// remove removes a pod at once: there is nothing that it would have to end.
func (m *manifests) remove(ctx context.Context, kind, name string, _ bool) error {
	_, err := m.berth.Delete(ctx, &schedulingv1.DeleteRequest{Kind: kind, Name: name})
	return err
}

func (m *manifests) bind(ctx context.Context, name, node string) error {
	pods, err := m.pods(ctx)
	if err != nil {
		return err
	}
	if pods[name] == nil {
		return fmt.Errorf("no pod %s", name)
	}
	key := placementKeys + string(pods[name].UID)
	value, err := json.Marshal(map[string]any{"namespace": namespace, "name": name, "node": node, "time": time.Now().UTC()})
	if err != nil {
		return err
	}
	ok, _, err := m.etcd.Txn(ctx, []coord.Cond{coord.IfAbsent(key)}, []coord.Op{coord.Put(key, value)})
	if err == nil && !ok {
		return errRefused
	}
	return err
}

func (m *manifests) pods(ctx context.Context) (map[string]*corev1.Pod, error) {
	stored, err := readAll[corev1.Pod](ctx, m.etcd, podKeys)
	if err != nil {
		return nil, err
	}
	placements, err := readAll[struct{ Node string }](ctx, m.etcd, placementKeys)
	if err != nil {
		return nil, err
	}
	conditions, err := readAll[struct {
		Reason, Message string
		Nominated       *string
	}](ctx, m.etcd, conditionKeys)
	if err != nil {
		return nil, err
	}
	for _, p := range stored {
		if at := placements[string(p.UID)]; at != nil {
			p.Spec.NodeName, p.Status.NominatedNodeName = at.Node, ""
			continue
		}
		if why := conditions[string(p.UID)]; why != nil {
			if why.Nominated != nil {
				p.Status.NominatedNodeName = *why.Nominated
			}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: why.Reason, Message: why.Message, LastTransitionTime: metav1.Now(),
			})
		}
	}
	return stored, nil
}

// readAll returns the values of all keys with a prefix, by the rest of the key.
func readAll[T any](ctx context.Context, etcd *coord.Client, prefix string) (map[string]*T, error) {
	kvs, _, err := etcd.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*T, len(kvs))
	for _, kv := range kvs {
		value := new(T)
		if err := json.Unmarshal(kv.Value, value); err != nil {
			return nil, fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		out[kv.Key[len(prefix):]] = value
	}
	return out, nil
}

func (m *manifests) events(context.Context, string) ([]event, error) {
	return nil, errors.New("the local source keeps no events: the line is for an API server only")
}
