package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	amounts "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

// pagesOf is an API server that has so many pods of one page each, and says of so many requests that what is gone on with is too old.
func pagesOf(t *testing.T, pods, expires int) (*Source, *[]string) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = append(asked, q.Get("limit")+"/"+q.Get("continue")+"/"+q.Get("resourceVersion")+"/"+q.Get("fieldSelector"))
		w.Header().Set("Content-Type", "application/json")
		at := 0
		_, _ = fmt.Sscan(q.Get("continue"), &at)
		if at > 0 && expires > 0 {
			expires--
			w.WriteHeader(http.StatusGone)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
			return
		}
		list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		list.Items = []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", at)}, Spec: v1.PodSpec{Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"memory": amounts.MustParse("1Gi")}},
		}}}}}
		if at+1 < pods {
			list.Continue = fmt.Sprint(at + 1)
		}
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	s, err := New(Config{Master: server.URL, SchedulerNames: []string{sourcetest.Scheduler}, Instance: "test-host"})
	if err != nil {
		t.Fatal(err)
	}
	return s, &asked
}

func podsOf(t *testing.T, p *PodResources) (names []string) {
	t.Helper()
	var text strings.Builder
	if _, err := p.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if _, after, ok := strings.Cut(line, `,pod="`); ok {
			name, _, _ := strings.Cut(after, `"`)
			names = append(names, name)
		}
	}
	return names
}

func TestAllPodsAreListedByPages(t *testing.T) {
	s, asked := pagesOf(t, 3, 0)
	all, err := s.podResources(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := podsOf(t, all); !slices.Equal(got, []string{"p0", "p1", "p2"}) {
		t.Errorf("%v", got)
	}
	if want := []string{"1///" + livePods, "1/1//" + livePods, "1/2//" + livePods}; !slices.Equal(*asked, want) {
		t.Errorf("asked for %q, want %q", *asked, want)
	}
}

func TestAListThatIsTooOldIsBegunAnew(t *testing.T) {
	s, _ := pagesOf(t, 2, listTries-1)
	all, err := s.podResources(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := podsOf(t, all); !slices.Equal(got, []string{"p0", "p1"}) { // each once
		t.Errorf("%v", got)
	}
	s, asked := pagesOf(t, 2, 100)
	if _, err := s.podResources(t.Context(), 1); err == nil || len(*asked) != 2*listTries {
		t.Errorf("%v after %d requests, want an error after %d", err, len(*asked), 2*listTries)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.PodResources(ended); err == nil {
		t.Error("it goes on without anybody who asks")
	}
}

// Whoever creates pods may ask for what takes hours to add up.
func TestVastQuantitiesAreToldAtOnce(t *testing.T) {
	vast := v1.ResourceList{"cpu": amounts.MustParse("1e999999999")}
	pod := &v1.Pod{Spec: v1.PodSpec{Overhead: v1.ResourceList{"cpu": amounts.MustParse("1")}, Containers: []v1.Container{
		{Resources: v1.ResourceRequirements{Requests: vast, Limits: vast}}, {Resources: v1.ResourceRequirements{Requests: vast, Limits: vast}},
	}}}
	all := new(PodResources)
	all.Add(pod)
	var text strings.Builder
	if _, err := all.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), `resource="cpu",scheduler="",unit="cores"} 1e+30`); n != 2 {
		t.Errorf("%s", text.String())
	}
}

func BenchmarkPodResources(b *testing.B) {
	pods := make([]*v1.Pod, 1000)
	for i := range pods {
		both := v1.ResourceList{"cpu": amounts.MustParse("100m"), "memory": amounts.MustParse("1Gi")}
		pods[i] = &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-7c5ddbdf54-%05d", i)},
			Spec: v1.PodSpec{NodeName: fmt.Sprint("node-", i/30), SchedulerName: "default-scheduler", Priority: new(int32),
				Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: both, Limits: both}}}},
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		all := new(PodResources)
		for _, pod := range pods {
			all.Add(pod)
		}
		if _, err := all.WriteTo(new(discard)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pods)), "ns/pod")
}

type discard struct{}

func (*discard) Write(b []byte) (int, error) { return len(b), nil }
