package keeper

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-scheduler/berth/plugins/yoda"
)

// A pod is gone, and another one of its name is there, between a watch that breaks and the list behind it: the informer says that the pod has changed, and no word that it is gone.
func TestAPodThatAnotherOneOfItsNameFollowsHasNoCardAnyMore(t *testing.T) {
	cards := New()
	cards.SetNode("n", yoda.Facts{})
	w := NewWatch(Config{Cards: cards, Log: slog.New(slog.DiscardHandler)})
	var lists atomic.Int64
	second := make(chan struct{})
	lw := &cache.ListWatch{
		ListFunc: func(metav1.ListOptions) (runtime.Object, error) {
			n := lists.Add(1)
			uid := map[bool]types.UID{true: "first", false: "second"}[n == 1]
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-0", UID: uid, ResourceVersion: map[bool]string{true: "1", false: "2"}[n == 1]}}
			p.Labels = map[string]string{yoda.LabelNumber: "1"}
			if n == 1 {
				p.Spec.NodeName, p.Annotations = "n", yoda.Grant{Cards: []string{"GPU-a"}}.Annotations()
			}
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: p.ResourceVersion}, Items: []corev1.Pod{*p}}, nil
		},
		WatchFunc: func(metav1.ListOptions) (watch.Interface, error) {
			f := watch.NewFake()
			if lists.Load() == 1 {
				go f.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410})
			}
			return f, nil
		},
	}
	set := func(o any) {
		w.setPod(o)
		if p, ok := o.(*corev1.Pod); ok && p.UID == "second" {
			close(second)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	informer := w.inform(cache.ToListWatcherWithWatchListSemantics(lw, noWatchList{}), &corev1.Pod{}, stripPod, set, w.removePod)
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	select {
	case <-second:
	case <-time.After(5 * time.Minute):
		t.Fatal("the second pod is not told")
	}
	cancel()
	<-ended
	if _, pods, _ := cards.book.Len(); pods != 0 {
		t.Errorf("%d pods have cards, want none", pods)
	}
	if s := cards.Stats(time.Now()); s.Waiting != 1 {
		t.Errorf("%d pods wait, want the second", s.Waiting)
	}
}

// noWatchList is a client that lists before it watches.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// Of a pod, what is kept is bounded, and what is wrong stays wrong.
func TestLittleIsKeptOfAPod(t *testing.T) {
	long := strings.Repeat(" ", 1<<18) + "{}"
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{yoda.LabelNumber: "1"}, Annotations: map[string]string{yoda.AnnotationRequest: long, "example.com/x": "y"},
	}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	out, err := stripPod(p)
	if err != nil {
		t.Fatal(err)
	}
	is := out.(*corev1.Pod)
	if len(is.Annotations) != 1 || len(is.Annotations[yoda.AnnotationRequest]) != mostKept || len(is.Spec.Containers) != 0 {
		t.Errorf("kept: %d annotations, %d bytes of the request, %d containers", len(is.Annotations), len(is.Annotations[yoda.AnnotationRequest]), len(is.Spec.Containers))
	}
	if _, err := yoda.ParseRequest(is.Labels, is.Annotations); err == nil {
		t.Error("a request that was too long is accepted")
	}
}

// A word of the API server that makes what is told panic ends Run, with an error, and nothing else of the process.
func TestAPanicEndsTheWatchAlone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != "/api/v1/nodes":
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusBadRequest)
		default:
			_, _ = io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "n", "uid": "u"}}]}`)
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWatch(Config{Kube: kube, Dynamic: dyn, Log: slog.New(slog.DiscardHandler), Synced: make(chan struct{})}) // without Cards
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "panic: runtime error: invalid memory address") {
		t.Errorf("it ends with %v", err)
	}
}
