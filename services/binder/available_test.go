package binder

import (
	"errors"
	"strings"
	"testing"
)

func TestBindersAreAvailableWhileActiveOrStandingBy(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.goAway(errors.New("no answer from the cluster"))
	one := start(t, etcd, src, named("one"))
	eventually(t, "one waits for its source", func() bool {
		err := one.Available()
		return err != nil && strings.Contains(err.Error(), "no answer from the cluster")
	})
	src.goAway(nil)
	one.active()
	if err := one.Available(); err != nil {
		t.Errorf("active: %v", err)
	}
	two := start(t, etcd, src, named("two"))
	eventually(t, "two stands by", func() bool { return two.Available() == nil })
	if two.Ready() == nil {
		t.Error("two is ready, while one is active")
	}
	nowhere := start(t, []string{"127.0.0.1:1"}, src)
	eventually(t, "it waits for etcd", func() bool {
		err := nowhere.Available()
		return err != nil && strings.Contains(err.Error(), "etcd")
	})
}
