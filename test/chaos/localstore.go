package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// The keys of Berth's local source, below the prefix.
const (
	keyLocal      = "kv/local/"
	keyNodes      = keyLocal + "nodes/"
	keyPods       = keyLocal + "pods/"
	keyPlacements = keyLocal + "placements/"
	keyConditions = keyLocal + "conditions/"
	keyVolumes    = keyLocal + "persistentvolumes/"
	keyClaims     = keyLocal + "persistentvolumeclaims/"
	keyGroups     = keyLocal + "podgroups/"
)

// localStore is the store that Berth's local source is: what changes goes through the gateways, whichever answers, and what is
// there is read from etcd.
type localStore struct {
	etcd     etcdClient
	conns    []*grpc.ClientConn
	gateways []schedulingv1.SchedulingServiceClient
}

// newLocalStore returns the store behind gateways that listen at some addresses. They need not be there yet.
func newLocalStore(etcd etcdClient, as credentials.TransportCredentials, addresses []string) (*localStore, error) {
	s := &localStore{etcd: etcd}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(as))
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.conns = append(s.conns, conn)
		s.gateways = append(s.gateways, schedulingv1.NewSchedulingServiceClient(conn))
	}
	return s, nil
}

func (s *localStore) close() error {
	var failed error
	for _, conn := range s.conns {
		failed = errors.Join(failed, conn.Close())
	}
	return failed
}

const (
	gatewayCall  = 2 * time.Second // a gateway that does not answer for so long is left
	gatewayPause = 100 * time.Millisecond
)

// ask asks the gateways in turn until one has an answer, or ctx ends. All requests can be repeated.
func (s *localStore) ask(ctx context.Context, request func(context.Context, schedulingv1.SchedulingServiceClient) error) error {
	for {
		var failed error
		for _, gateway := range s.gateways {
			try, cancel := context.WithTimeout(ctx, gatewayCall)
			err := request(try, gateway)
			cancel()
			if s.outcome(err) != Unknown {
				return err
			}
			failed = errors.Join(failed, err)
		}
		if sleep(ctx, gatewayPause); ctx.Err() != nil {
			return failed
		}
	}
}

func (s *localStore) outcome(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case status.Code(err) == codes.NotFound, status.Code(err) == codes.InvalidArgument:
		return Refused
	}
	return Unknown
}

func (s *localStore) apply(ctx context.Context, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return s.ask(ctx, func(ctx context.Context, to schedulingv1.SchedulingServiceClient) error {
		_, err := to.Apply(ctx, &schedulingv1.ApplyRequest{Manifests: string(text)})
		return err
	})
}

func (s *localStore) remove(ctx context.Context, kind, namespace, name string) error {
	return s.ask(ctx, func(ctx context.Context, to schedulingv1.SchedulingServiceClient) error {
		_, err := to.Delete(ctx, &schedulingv1.DeleteRequest{Kind: kind, Namespace: namespace, Name: name})
		return err
	})
}

func (s *localStore) prepare(ctx context.Context) error {
	for _, class := range storageClasses() {
		class.TypeMeta = metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"}
		if err := s.apply(ctx, class); err != nil {
			return err
		}
	}
	return nil
}

// listed reads all objects from etcd whose keys begin so.
func listed[T any](ctx context.Context, s *localStore, key string) ([]T, error) {
	kvs, err := s.etcd.list(ctx, prefix+key)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(kvs))
	for i, kv := range kvs {
		if err := json.Unmarshal(kv.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("decode %s: %w", kv.Key, err)
		}
	}
	return out, nil
}

func (s *localStore) claims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	return listed[corev1.PersistentVolumeClaim](ctx, s, keyClaims)
}

func (s *localStore) volumes(ctx context.Context) ([]corev1.PersistentVolume, error) {
	return listed[corev1.PersistentVolume](ctx, s, keyVolumes)
}

func (s *localStore) createClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	c = c.DeepCopy()
	c.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
	return s.apply(ctx, c)
}

func (s *localStore) deleteClaim(ctx context.Context, namespace, name string) error {
	return s.remove(ctx, "PersistentVolumeClaim", namespace, name)
}

func (s *localStore) createVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	v = v.DeepCopy()
	v.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
	return s.apply(ctx, v)
}

// deleteVolume removes the volume of the name: nobody but who deletes it makes another one.
func (s *localStore) deleteVolume(ctx context.Context, name string, _ types.UID) error {
	return s.remove(ctx, "PersistentVolume", "", name)
}

func (s *localStore) groups(ctx context.Context) ([]schedulingv1alpha2.PodGroup, error) {
	return listed[schedulingv1alpha2.PodGroup](ctx, s, keyGroups)
}

// createGroup has no priority classes to look up, and says the priority itself.
func (s *localStore) createGroup(ctx context.Context, g *schedulingv1alpha2.PodGroup) error {
	g = g.DeepCopy()
	g.TypeMeta = metav1.TypeMeta{APIVersion: schedulingv1alpha2.SchemeGroupVersion.String(), Kind: "PodGroup"}
	if g.Spec.PriorityClassName == classUrgent {
		g.Spec.Priority = new(int32(urgentPriority))
	}
	return s.apply(ctx, g)
}

func (s *localStore) deleteGroup(ctx context.Context, namespace, name string) error {
	return s.remove(ctx, "PodGroup", namespace, name)
}

func (s *localStore) provisions() bool { return false }

// stored reads an object from etcd, and reports whether it is there.
func (s *localStore) stored(ctx context.Context, key string, object any) (bool, error) {
	kv, err := s.etcd.get(ctx, prefix+key)
	if err != nil || kv == nil {
		return false, err
	}
	return true, json.Unmarshal(kv.Value, object)
}

func (s *localStore) pods(ctx context.Context) ([]corev1.Pod, error) {
	kvs, err := s.etcd.list(ctx, prefix+keyLocal)
	if err != nil {
		return nil, err
	}
	reader := localReader{}
	var pods []corev1.Pod
	for _, kv := range kvs {
		if !strings.HasPrefix(string(kv.Key), prefix+keyPods) {
			if _, err := reader.read(etcdEvent{KV: kv}); err != nil {
				return nil, err
			}
			continue
		}
		var p corev1.Pod
		if err := json.Unmarshal(kv.Value, &p); err != nil {
			return nil, fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		pods = append(pods, p)
	}
	for i := range pods { // what is behind a key is read by now
		p := &pods[i]
		p.Spec.NodeName = reader.placed[string(p.UID)]
		if reason := reader.reasons[string(p.UID)]; reason != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
		}
	}
	return pods, nil
}

func (s *localStore) createPod(ctx context.Context, p *corev1.Pod) (types.UID, error) {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if err := s.apply(ctx, p); err != nil {
		return "", err
	}
	var made corev1.Pod
	there, err := s.stored(ctx, keyPods+p.Namespace+"/"+p.Name, &made)
	if err == nil && !there {
		err = errors.New("it has gone again")
	}
	return made.UID, err
}

// deletePod removes the pod of the name. Names that come again come from the one who deletes.
func (s *localStore) deletePod(ctx context.Context, namespace, name string, _ types.UID) error {
	return s.remove(ctx, "Pod", namespace, name)
}

func (s *localStore) createNode(ctx context.Context, n *corev1.Node) error {
	n = n.DeepCopy()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return s.apply(ctx, n)
}

func (s *localStore) changeNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	n := &corev1.Node{}
	switch there, err := s.stored(ctx, keyNodes+name, n); {
	case err != nil:
		return err
	case !there:
		return status.Error(codes.NotFound, name)
	}
	n.UID, n.CreationTimestamp = "", metav1.Time{}
	change(n)
	return s.createNode(ctx, n)
}

func (s *localStore) labelNode(ctx context.Context, name, key, value string) error {
	return s.changeNode(ctx, name, func(n *corev1.Node) { n.Labels[key] = value })
}

func (s *localStore) deleteNode(ctx context.Context, name string) error {
	return s.remove(ctx, "Node", "", name)
}

// localReader makes entries of what the local source stores: what is said of a pod under three keys is one object. Its zero value is
// ready.
type localReader struct {
	names   map[string]string // of the pods that are there, by uid
	uids    map[string]string // and the other way round
	placed  map[string]string // node by uid
	reasons map[string]string // of conditions, by uid
}

// localPlacement is the value of a placement's key, and of a condition's.
type localPlacement struct {
	Namespace, Name, Node, Reason string
	Time                          time.Time
}

// read returns the object of a change; nil if it is of no pod, node, volume, claim or PodGroup, or of a pod that has gone.
func (r *localReader) read(e etcdEvent) (*Object, error) {
	if r.names == nil {
		r.names, r.uids, r.placed, r.reasons = map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	}
	key, deleted := strings.TrimPrefix(string(e.KV.Key), prefix), e.Type == "DELETE"
	o := &Object{Revision: int64(e.KV.Mod), Deleted: deleted}
	decode := func(into any) error {
		if deleted {
			return nil
		}
		if err := json.Unmarshal(e.KV.Value, into); err != nil {
			return fmt.Errorf("decode %s: %w", key, err)
		}
		return nil
	}
	switch {
	case strings.HasPrefix(key, keyNodes):
		n := &corev1.Node{}
		if err := decode(n); err != nil {
			return nil, err
		}
		o.Name, o.UID, o.Node = strings.TrimPrefix(key, keyNodes), string(n.UID), trimNode(n)
		o.Node.Name = o.Name
		return o, nil
	case strings.HasPrefix(key, keyVolumes):
		v := &corev1.PersistentVolume{}
		if err := decode(v); err != nil {
			return nil, err
		}
		o.Name = strings.TrimPrefix(key, keyVolumes)
		o.UID, o.Volume = string(v.UID), trimVolume(v)
		return o, nil
	case strings.HasPrefix(key, keyClaims):
		c := &corev1.PersistentVolumeClaim{}
		if err := decode(c); err != nil {
			return nil, err
		}
		o.Name = strings.TrimPrefix(key, keyClaims)
		o.UID, o.Claim = string(c.UID), trimClaim(c)
		return o, nil
	case strings.HasPrefix(key, keyGroups):
		g := &schedulingv1alpha2.PodGroup{}
		if err := decode(g); err != nil {
			return nil, err
		}
		o.Name = strings.TrimPrefix(key, keyGroups)
		o.UID, o.Group = string(g.UID), trimGroup(g)
		return o, nil
	case strings.HasPrefix(key, keyPods):
		o.Name = strings.TrimPrefix(key, keyPods)
		if deleted {
			delete(r.names, r.uids[o.Name])
			delete(r.uids, o.Name)
			return o, nil
		}
		p := &corev1.Pod{}
		if err := decode(p); err != nil {
			return nil, err
		}
		o.UID, o.Written = string(p.UID), &p.CreationTimestamp.Time
		if r.names[o.UID] == "" {
			r.names[o.UID], r.uids[o.Name] = o.Name, o.UID
			o.Pod = trimPod(p)
		}
	case strings.HasPrefix(key, keyPlacements), strings.HasPrefix(key, keyConditions):
		var v localPlacement
		if err := decode(&v); err != nil {
			return nil, err
		}
		of, uid := r.placed, strings.TrimPrefix(key, keyPlacements)
		value := v.Node
		if uid == key {
			of, uid, value = r.reasons, strings.TrimPrefix(key, keyConditions), v.Reason
		} else {
			o.Placed = !deleted
		}
		of[uid] = value
		o.Name, o.UID, o.Written = v.Namespace+"/"+v.Name, uid, &v.Time
		if deleted {
			delete(of, uid)
			o.Name, o.Deleted, o.Written = r.names[uid], false, nil
			if o.Name == "" { // it went with its pod
				return nil, nil
			}
		}
	default:
		return nil, nil
	}
	o.On, o.Reason = r.placed[o.UID], r.reasons[o.UID]
	return o, nil
}
