package kube

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

// TestAWriteThatIsLateChangesNothingBehindOneThatMakesItVoid, where it is the first that says no.
func TestAWriteThatIsLateChangesNothingBehindOneThatMakesItVoid(t *testing.T) {
	c := startCluster(t)
	for _, both := range []bool{false, true} {
		name := map[bool]string{false: "one claim, which somebody else has bound", true: "the claim before it is refused"}[both]
		t.Run(name, func(t *testing.T) {
			prefix := map[bool]string{false: "x", true: "y"}[both]
			v1name, v2name, c1, c2 := prefix+"v1", prefix+"v2", prefix+"c1", prefix+"c2"
			c.SetObject(t, sourcetest.LateClass())
			for _, v := range []string{v1name, v2name} {
				c.SetObject(t, sourcetest.Volume(v, nil))
			}
			c.SetObject(t, sourcetest.Claim(c1))
			c.SetObject(t, sourcetest.Claim(c2))
			var hold atomic.Bool
			release, arrived := make(chan struct{}), make(chan int, 10)
			hold.Store(true)
			server := startProxy(t, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/persistentvolumes/"+v2name) || !hold.CompareAndSwap(true, false) {
					next.ServeHTTP(w, r)
					return
				}
				body, _ := io.ReadAll(r.Body)
				late := r.Clone(context.WithoutCancel(r.Context()))
				late.Body = io.NopCloser(bytes.NewReader(body))
				go func() { // it is on its way for long
					<-release
					answer := httptest.NewRecorder()
					next.ServeHTTP(answer, late)
					arrived <- answer.Code
				}()
				<-r.Context().Done()
			})
			cfg := c.config()
			cfg.Kubeconfig, cfg.RequestTimeout = filepath.Join(t.TempDir(), "kubeconfig"), time.Second
			writeKubeconfig(t, cfg.Kubeconfig, server.URL)
			s := newSource(t, cfg)
			r := sourcetest.Record(t, s).Synced()
			uids := map[string]string{}
			r.View(func(v sourcetest.View) {
				for _, n := range []string{c1, c2} {
					uids[n] = v.ClaimOf(n).UID
				}
			})
			b := choosing("one", cluster.VolumeChoice{Claim: c2, UID: uids[c2], Volume: v2name})
			if both {
				b = choosing("one", cluster.VolumeChoice{Claim: c1, UID: uids[c1], Volume: v1name}, cluster.VolumeChoice{Claim: c2, UID: uids[c2], Volume: v2name})
			}
			if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != source.BindUnknown {
				t.Fatalf("%+v", o)
			}
			// Somebody else acts.
			if both {
				if _, err := c.client.CoreV1().PersistentVolumes().Patch(t.Context(), v1name, types.MergePatchType,
					[]byte(`{"spec":{"claimRef":{"namespace":"other","name":"claim","uid":"another"}}}`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				r.Await("v1", func(v sourcetest.View) bool { return v.VolumeOf(v1name).Claim.Namespace == "other" })
			} else {
				if _, err := c.client.CoreV1().PersistentVolumeClaims(sourcetest.Namespace).Patch(t.Context(), c2, types.MergePatchType,
					[]byte(`{"spec":{"volumeName":"somebody-elses"}}`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				r.Await("c2", func(v sourcetest.View) bool { return v.ClaimOf(c2).Volume != "" })
			}
			if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != source.BindRefused {
				t.Fatalf("%+v", o)
			}
			b.Void = true
			if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != source.BindDone {
				t.Fatalf("%+v", o)
			}
			close(release)
			code := <-arrived
			pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), v2name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if pv.Spec.ClaimRef != nil {
				t.Errorf("behind that %s was bound to %s (answer %d)", v2name, pv.Spec.ClaimRef.Name, code)
			}
		})
	}
}

// refusing returns a source whose patches are answered with a code as a webhook would, and none passes, as long as there is one, and what it tells.
func refusing(t *testing.T, c *testCluster, code *atomic.Int32) (*Source, *sourcetest.Recorder) {
	server := startProxy(t, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if code := int(code.Load()); code != 0 && r.Method == http.MethodPatch {
			refuse(w, code, map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict}[code])
			return
		}
		next.ServeHTTP(w, r)
	})
	cfg := c.config()
	cfg.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, cfg.Kubeconfig, server.URL)
	s := newSource(t, cfg)
	return s, sourcetest.Record(t, s).Synced()
}

// That there is no such claim is not believed because a webhook says so.
func TestAWriteIsNotVoidBecauseAWebhookSaysThatThereIsNoClaim(t *testing.T) {
	c := startCluster(t)
	c.SetObject(t, sourcetest.LateClass())
	c.SetObject(t, sourcetest.Claim("c"))
	answer := new(atomic.Int32)
	s, _ := refusing(t, c, answer)
	b := choosing("one", cluster.VolumeChoice{Claim: "gone", UID: "u"}, cluster.VolumeChoice{Claim: "c", UID: "u"})
	b.Void = true
	for _, code := range []int{http.StatusInternalServerError, http.StatusUnprocessableEntity, http.StatusNotFound, 0} {
		answer.Store(int32(code))
		want := source.BindUnknown
		if code == 0 {
			want = source.BindDone
		}
		if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != want {
			t.Errorf("where writes are answered with %d: %+v", code, o)
		}
	}
}

// isBare reports whether an error is what an API server has answered and no more, as kube-scheduler tells it.
func isBare(err error, code int32) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Code == code
}

// Both answers say that nothing has happened: there is no doubt.
func TestAClaimThatKeepsChangingIsRefused(t *testing.T) {
	c := startCluster(t)
	c.SetObject(t, sourcetest.LateClass())
	c.SetObject(t, sourcetest.Volume("v", nil))
	for _, name := range []string{"c", "d"} {
		c.SetObject(t, sourcetest.Claim(name))
	}
	answer := new(atomic.Int32)
	answer.Store(http.StatusConflict)
	s, r := refusing(t, c, answer)
	r.View(func(v sourcetest.View) {
		for name, volume := range map[string]string{"c": "", "d": "v"} {
			b := choosing("one", cluster.VolumeChoice{Claim: name, UID: v.ClaimOf(name).UID, Volume: volume})
			answer.Store(http.StatusForbidden)
			if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != source.BindRefused || !isBare(o.Err, http.StatusForbidden) {
				t.Errorf("%s, which may not be written: %+v", name, o)
			}
			answer.Store(http.StatusConflict)
			if o := s.BindVolumes(t.Context(), coord.Cond{}, b); o.Result != source.BindRefused || !isBare(o.Err, http.StatusConflict) {
				t.Errorf("%s: %+v", name, o)
			}
		}
	})
}
