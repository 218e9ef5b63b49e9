package binder

import (
	"context"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// fakeVolumes are the volumes and claims of a fakeSource.
type fakeVolumes struct {
	objects map[cluster.ObjectKey]cluster.Object
	// bindVolumes, if not nil, is asked before claims are bound; BindDone lets it happen.
	bindVolumes func(source.VolumeBinding) source.Outcome
	volumes     []source.VolumeBinding // all that were tried
}

func (s *fakeSource) setObjects(objects ...cluster.Object) {
	s.change(func() {
		for _, o := range objects {
			s.setObject(o)
		}
	})
}

// setObject sets an object. The caller holds the lock.
func (s *fakeSource) setObject(o cluster.Object) {
	if s.objects == nil {
		s.objects = make(map[cluster.ObjectKey]cluster.Object)
	}
	s.objects[o.Key()] = o
	s.log = append(s.log, source.Event{Kind: source.ObjectSet, Object: o})
}

func (s *fakeSource) removeObject(key cluster.ObjectKey) {
	s.change(func() {
		delete(s.objects, key)
		s.log = append(s.log, source.Event{Kind: source.ObjectGone, Key: key})
	})
}

// answersVolumes sets what BindVolumes is answered; nil: as the cluster would.
func (s *fakeSource) answersVolumes(answer func(source.VolumeBinding) source.Outcome) {
	s.change(func() { s.bindVolumes = answer })
}

// triedVolumes returns what was tried of a pod's claims.
func (s *fakeSource) triedVolumes(uid string) (of []source.VolumeBinding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.volumes {
		if b.UID == uid {
			of = append(of, b)
		}
	}
	return of
}

// claim and volume return what there is, nil if there is none. The caller holds the lock.
func (s *fakeSource) claim(namespace, name string) *cluster.PersistentVolumeClaim {
	c, _ := s.objects[(&cluster.PersistentVolumeClaim{Namespace: namespace, Name: name}).Key()].(*cluster.PersistentVolumeClaim)
	return c
}

func (s *fakeSource) volume(name string) *cluster.PersistentVolume {
	v, _ := s.objects[(&cluster.PersistentVolume{Name: name}).Key()].(*cluster.PersistentVolume)
	return v
}

// editClaim and editVolume change what there is.
func (s *fakeSource) editClaim(name string, edit func(*cluster.PersistentVolumeClaim)) {
	s.change(func() {
		c := *s.claim("default", name)
		edit(&c)
		s.setObject(&c)
	})
}

func (s *fakeSource) editVolume(name string, edit func(*cluster.PersistentVolume)) {
	s.change(func() {
		v := *s.volume(name)
		edit(&v)
		s.setObject(&v)
	})
}

// bindClaim has a claim be bound to a volume, as the controller of volumes does.
func (s *fakeSource) bindClaim(name, volume string) {
	s.editClaim(name, func(c *cluster.PersistentVolumeClaim) { c.Volume, c.Bound = volume, true })
}

func (s *fakeSource) BindVolumes(ctx context.Context, _ coord.Cond, b source.VolumeBinding) source.Outcome {
	s.mu.Lock()
	answer := s.bindVolumes
	s.mu.Unlock()
	out := source.Outcome{Result: source.BindDone}
	if answer != nil {
		out = answer(b) // without the lock: it may wait, and look
	}
	last := 0
	s.change(func() {
		s.volumes = append(s.volumes, b)
		for _, c := range b.Choices {
			if out.Result == source.BindDone && !b.Void {
				out = s.bindOne(b, c)
			}
		}
		last = len(s.log)
	})
	for out.Result != source.BindUnknown {
		s.mu.Lock()
		changed, told := s.changed, s.watches == 0 || s.told >= last
		s.mu.Unlock()
		if told {
			break
		}
		select {
		case <-ctx.Done():
			return source.Outcome{Result: source.BindUnknown, Err: ctx.Err()}
		case <-changed:
		}
	}
	return out
}

// bindOne writes what has been chosen for a claim. The caller holds the lock.
func (s *fakeSource) bindOne(b source.VolumeBinding, c cluster.VolumeChoice) source.Outcome {
	refused := func(format string, args ...any) source.Outcome {
		return source.Outcome{Result: source.BindRefused, Err: fmt.Errorf(format, args...)}
	}
	claim, v := s.claim(b.Namespace, c.Claim), s.volume(c.Volume)
	switch {
	case claim == nil || claim.UID != c.UID:
		return refused("there is no claim %s", c.Claim)
	case c.Volume == "" && claim.SelectedNode != b.Node && (claim.HasSelectedNode || b.Written || claim.Volume != ""):
		return refused("provisioning failed for PVC %q", c.Claim)
	case c.Volume == "":
		selected := *claim
		selected.HasSelectedNode, selected.SelectedNode = true, b.Node
		s.setObject(&selected)
	case v == nil:
		return refused("there is no volume %s", c.Volume)
	case v.HasClaim && v.Claim.UID == c.UID:
	case v.HasClaim || b.Written:
		return refused("ClaimRef got reset for pv %q", c.Volume)
	default:
		bound := *v
		bound.HasClaim, bound.Claim = true, cluster.ClaimReference{Namespace: b.Namespace, Name: c.Claim, UID: c.UID}
		s.setObject(&bound)
	}
	return source.Outcome{Result: source.BindDone}
}
