package resource

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

func node(uid string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n1", "uid": uid}}}
}

func cluster(objects ...runtime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{scvs: "ScvList", nodes: "NodeList"}, objects...)
}

// fails makes the first requests of a verb and a resource fail, one with each of the errors. Resource may have a subresource.
func fails(c *fake.FakeDynamicClient, verb, resource string, errs ...error) {
	resource, subresource, _ := strings.Cut(resource, "/")
	c.PrependReactor(verb, resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != subresource || len(errs) == 0 {
			return false, nil, nil
		}
		err := errs[0]
		errs = errs[1:]
		return true, nil, err
	})
}

// did returns the requests of a client since the last call, as "update scvs/status".
func did(c *fake.FakeDynamicClient) (all []string) {
	for _, a := range c.Actions() {
		text := a.GetVerb() + " " + a.GetResource().Resource
		if a.GetSubresource() != "" {
			text += "/" + a.GetSubresource()
		}
		all = append(all, text)
	}
	c.ClearActions()
	return all
}

func status(model string) *scv.Status {
	return &scv.Status{
		Heartbeat: metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)), HeartbeatSeconds: 60, Driver: "550", CardNumber: 1, HealthyNumber: 1,
		FreeMemoryMiB: 1, TotalMemoryMiB: 2, Cards: []scv.Card{{ID: "GPU-1", Model: model, Health: scv.Healthy, FreeMemoryMiB: 1, TotalMemoryMiB: 2}},
	}
}

func stored(t *testing.T, c *fake.FakeDynamicClient) *scv.Scv {
	t.Helper()
	o, err := c.Resource(scvs).Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.ClearActions()
	var s scv.Scv
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &s, true); err != nil {
		t.Fatal(err)
	}
	return &s
}

// write writes one status.
func write(t *testing.T, w *Writer, s *scv.Status) error {
	t.Helper()
	written, err := w.Write(t.Context(), func() *scv.Status { return s })
	if err == nil && written != s {
		t.Errorf("what was written is said to be %+v, want %+v", written, s)
	}
	return err
}

var notFound = apierrors.NewNotFound(scvs.GroupResource(), "n1")

func TestTheFirstWriteMakesAnObjectThatGoesWithItsNode(t *testing.T) {
	c := cluster(node("u1"))
	w := New(c, "n1", time.Minute, slog.New(slog.DiscardHandler))
	if err := write(t, w, status("a")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"get nodes", "get scvs", "create scvs", "update scvs/status"}, did(c)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	got := stored(t, c)
	if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}}, got.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(*status("a"), got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}

	// From then on a write is one request.
	if err := write(t, w, status("b")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"update scvs/status"}, did(c)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if got := stored(t, c).Status.Cards[0].Model; got != "b" {
		t.Errorf("model %q, want b", got)
	}
}

func TestAnObjectThatIsThereIsTaken(t *testing.T) {
	for _, c := range []struct {
		owner string
		want  []string
	}{
		{"u1", []string{"get nodes", "get scvs", "update scvs/status"}},
		{"u0", []string{"get nodes", "get scvs", "update scvs", "update scvs/status"}}, // of another Node that had the name
		{"", []string{"get nodes", "get scvs", "update scvs", "update scvs/status"}},   // made by hand
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "yoda.berth.dev/v1alpha1", "kind": "Scv", "metadata": map[string]any{"name": "n1"}}}
		if c.owner != "" {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}})
			o.Object["metadata"].(map[string]any)["ownerReferences"].([]any)[0].(map[string]any)["uid"] = c.owner
		}
		client := cluster(node("u1"), o)
		if err := write(t, New(client, "n1", time.Minute, slog.New(slog.DiscardHandler)), status("a")); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, did(client)); diff != "" {
			t.Errorf("owned by %q: requests (-want +got):\n%s", c.owner, diff)
		}
		if got := stored(t, client); len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "u1" {
			t.Errorf("owned by %q: is then by %v", c.owner, got.OwnerReferences)
		}
	}
}

func TestAWriteSurvivesConflictsAndDeletion(t *testing.T) {
	c := cluster(node("u1"))
	w := New(c, "n1", time.Minute, slog.New(slog.DiscardHandler))
	if err := write(t, w, status("a")); err != nil {
		t.Fatal(err)
	}
	did(c)
	conflict := apierrors.NewConflict(scvs.GroupResource(), "n1", errors.New("changed"))
	fails(c, "update", "scvs/status", conflict)
	if err := write(t, w, status("b")); err != nil {
		t.Errorf("after a conflict: %v", err)
	}
	if diff := cmp.Diff([]string{"update scvs/status", "get nodes", "get scvs", "update scvs/status"}, did(c)); diff != "" {
		t.Errorf("requests after a conflict (-want +got):\n%s", diff)
	}
	if err := c.Resource(scvs).Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	did(c)
	if err := write(t, w, status("c")); err != nil {
		t.Errorf("after its deletion: %v", err)
	}
	if diff := cmp.Diff([]string{"update scvs/status", "get nodes", "get scvs", "create scvs", "update scvs/status"}, did(c)); diff != "" {
		t.Errorf("requests after its deletion (-want +got):\n%s", diff)
	}
	if got := stored(t, c); got.Status.Cards[0].Model != "c" || got.OwnerReferences[0].UID != "u1" {
		t.Errorf("object %+v, want model c, of node u1", got)
	}

	// It does not go on for ever.
	fails(c, "update", "scvs/status", conflict, conflict, conflict, conflict, conflict)
	if err := write(t, w, status("d")); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
}

func TestEachTryWritesTheNewest(t *testing.T) {
	c := cluster(node("u1"))
	w := New(c, "n1", time.Minute, slog.New(slog.DiscardHandler))
	fails(c, "update", "scvs/status", apierrors.NewConflict(scvs.GroupResource(), "n1", errors.New("changed")))
	asked := 0
	written, err := w.Write(t.Context(), func() *scv.Status {
		asked++
		return status(strconv.Itoa(asked))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := stored(t, c).Status.Cards[0].Model; got != strconv.Itoa(asked) || written.Cards[0].Model != got || asked < 2 {
		t.Errorf("written is status %s, said to be %s, want the last of %d", got, written.Cards[0].Model, asked)
	}
}

func TestWhatFailsIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*fake.FakeDynamicClient)
		want    string
	}{
		"no node": {func(c *fake.FakeDynamicClient) {
			fails(c, "get", "nodes", apierrors.NewNotFound(nodes.GroupResource(), "n1"))
		}, `read Node n1, which is to own the Scv: nodes "n1" not found`},
		"no resource": {func(c *fake.FakeDynamicClient) { fails(c, "create", "scvs", notFound) }, "is the custom resource scvs.yoda.berth.dev defined in this cluster?"},
		"no right": {func(c *fake.FakeDynamicClient) {
			fails(c, "get", "scvs", apierrors.NewForbidden(scvs.GroupResource(), "n1", nil))
		}, "read Scv n1: "},
		"refused": {func(c *fake.FakeDynamicClient) { fails(c, "update", "scvs/status", apierrors.NewBadRequest("no")) }, "write the status of Scv n1: no"},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(node("u1"))
			c.arrange(client)
			w := New(client, "n1", time.Minute, slog.New(slog.DiscardHandler))
			if err := write(t, w, status("a")); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err := write(t, w, status("a")); err != nil {
				t.Errorf("the next write: %v", err)
			}
		})
	}
}

func TestEachRequestHasItsDeadline(t *testing.T) {
	_, err := request(t.Context(), 0, func(ctx context.Context) (*unstructured.Unstructured, error) { return nil, ctx.Err() })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline that is exceeded", err)
	}
}

// foreign is an object that somebody has made, with an owner of theirs and the Node that had the name before.
func foreign() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "yoda.berth.dev/v1alpha1", "kind": "Scv", "metadata": map[string]any{"name": "n1"}}}
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "a/v1", Kind: "Rack", Name: "n1", UID: "r1"}, {APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u0"}})
	return o
}

func TestOtherOwnersStay(t *testing.T) {
	c := cluster(node("u1"), foreign())
	if err := write(t, New(c, "n1", time.Minute, slog.New(slog.DiscardHandler)), status("a")); err != nil {
		t.Fatal(err)
	}
	want := []metav1.OwnerReference{{APIVersion: "a/v1", Kind: "Rack", Name: "n1", UID: "r1"}, {APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}}
	if diff := cmp.Diff(want, stored(t, c).OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

func TestAnObjectThatMayNotBecomeTheNodesIsWrittenAndThereIsAWarning(t *testing.T) {
	c := cluster(node("u1"), foreign())
	var log bytes.Buffer
	w := New(c, "n1", time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
	no := apierrors.NewForbidden(scvs.GroupResource(), "n1", errors.New("not yours"))
	fails(c, "update", "scvs", no, no)
	for _, model := range []string{"a", "b"} {
		if err := write(t, w, status(model)); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, c).Status.Cards[0].Model; got != model {
			t.Errorf("model %q, want %s", got, model)
		}
		w.object = nil // as after a conflict
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "not yours") {
		t.Errorf("want one warning:\n%s", log.String())
	}
}

func TestANodeThatTellsOfGPUsOfWhichNoneIsReadIsWarnedOf(t *testing.T) {
	for _, x := range []struct {
		capacity string
		cards    int
		want     int
	}{{"8", 0, 1}, {"8", 1, 0}, {"0", 0, 0}, {"", 0, 0}} {
		n := node("u1")
		if x.capacity != "" {
			n.Object["status"] = map[string]any{"capacity": map[string]any{"nvidia.com/gpu": x.capacity}}
		}
		var log bytes.Buffer
		w := New(cluster(n), "n1", time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
		for range 2 {
			s := status("a")
			s.Cards = s.Cards[:x.cards]
			if err := write(t, w, s); err != nil {
				t.Fatal(err)
			}
			w.object = nil
		}
		if got := strings.Count(log.String(), "the node tells of GPUs"); got != x.want {
			t.Errorf("capacity %q, %d cards: %d warnings, want %d", x.capacity, x.cards, got, x.want)
		}
	}
}
