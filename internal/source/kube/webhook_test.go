package kube

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// failBindings makes an admission webhook fail the bindings in a namespace: with this status, or, if there is none, because
// nobody answers.
func (c *testCluster) failBindings(t *testing.T, namespace string, status *metav1.Status) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: status}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	if status == nil {
		server.Close()
	}
	fail, none, equivalent := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Exact
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: namespace + ".example.com", FailurePolicy: &fail, SideEffects: &none, MatchPolicy: &equivalent,
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelMetadataName: namespace}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}},
			}},
		}},
	}
	if _, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(within(t), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A webhook that is down, and webhooks that deny with codes that mean something else when the API server says them.
func TestABindThatAWebhookFailsCanBeWithdrawn(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	for name, test := range map[string]struct {
		status *metav1.Status
		bind   source.Result
		text   string
	}{
		"down":           {nil, source.BindUnknown, "failed calling webhook"},
		"conflict":       {&metav1.Status{Code: http.StatusConflict, Message: "not now"}, source.BindUnknown, "not now"},
		"not-found":      {&metav1.Status{Code: http.StatusNotFound, Message: "no team"}, source.BindUnknown, "no team"},
		"internal-error": {&metav1.Status{Code: http.StatusInternalServerError, Message: "bug"}, source.BindUnknown, "bug"},
		"forbidden":      {&metav1.Status{Code: http.StatusForbidden, Message: "never"}, source.BindRefused, "never"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := "webhook-" + name
			c.SetNamespace(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
			c.failBindings(t, namespace, test.status)
			pod := sourcetest.Pod("p")
			pod.Namespace = namespace
			b := []source.Binding{{UID: c.SetPod(t, pod), Namespace: namespace, Name: "p", Node: "one"}}
			s := newSource(t, c.config())
			r := sourcetest.Record(t, s).Synced()
			r.Pod(namespace, "p", "")
			s.Prepare(b)
			var out source.Outcome
			await(t, func() string { // the API server learns of the webhook some time; until then nothing may be bound
				out = s.Bind(within(t), coord.Cond{}, withUID(b, "uid-of-another"))[0]
				if out.Err == nil || !strings.Contains(out.Err.Error(), test.text) {
					return fmt.Sprintf("Bind of a pod that was replaced: %+v", out)
				}
				return ""
			})
			if out = s.Bind(within(t), coord.Cond{}, b)[0]; out.Result != test.bind || !strings.Contains(out.Err.Error(), test.text) {
				t.Fatalf("Bind: %+v, want result %d of %q", out, test.bind, test.text)
			}
			why := source.Report{UID: b[0].UID, Namespace: namespace, Name: "p", Reason: "SchedulerError", Message: out.Err.Error()}
			if out := s.Withdraw(within(t), coord.Cond{}, b[0], why); out.Result != source.BindRefused {
				t.Fatalf("Withdraw: %+v", out)
			}
			if got := scheduled(c.pod(t, namespace, "p")); got == nil || got.Status != v1.ConditionFalse || !strings.Contains(got.Message, test.text) {
				t.Errorf("condition: %+v, want it to say %q", got, test.text)
			}
			// The webhook is well again, and what was sent before arrives only now.
			webhooks := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
			if err := webhooks.Delete(within(t), namespace, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			await(t, func() string {
				out = s.Bind(within(t), coord.Cond{}, b)[0]
				if out.Result == source.BindDone {
					t.Fatal("a bind that was withdrawn was done")
				}
				if strings.Contains(out.Err.Error(), test.text) {
					return out.Err.Error()
				}
				return ""
			})
			s.Prepare(b)
			if out := s.Bind(within(t), coord.Cond{}, b)[0]; out.Result != source.BindDone {
				t.Errorf("Bind that was prepared after the withdrawal: %+v", out)
			}
		})
	}
}

// withUID returns bindings with another uid, which are never done.
func withUID(bindings []source.Binding, uid string) []source.Binding {
	other := append([]source.Binding(nil), bindings...)
	for i := range other {
		other[i].UID = uid
	}
	return other
}

// denied is a source of an API server at which a pod is on a node, or waits for one, and a webhook denies what has one of the methods.
func denied(t *testing.T, node string, status metav1.Status, methods ...string) *Source {
	status.TypeMeta, status.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = map[string]any{
			"kind": "Pod", "apiVersion": "v1",
			"metadata": map[string]any{"namespace": "default", "name": "p", "uid": "u", "resourceVersion": "7"},
			"spec":     map[string]any{"nodeName": node},
		}
		w.Header().Set("Content-Type", "application/json")
		if slices.Contains(methods, r.Method) {
			answer = status
			w.WriteHeader(int(status.Code))
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, kubeconfig, server.URL)
	return newSource(t, Config{Kubeconfig: kubeconfig, SchedulerNames: []string{"berth"}})
}

// What a webhook denies with is its own: also a code, or a cause, by which the API server says that the pod is not there.
func TestAPodIsNotGoneBecauseAWebhookSaysSo(t *testing.T) {
	for name, status := range map[string]metav1.Status{
		"not found": {Code: http.StatusNotFound, Message: "no team"},
		"conflict":  {Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "no team"},
		"replaced": {Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "no team", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Field: "metadata.uid", Message: "no team"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			says := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "no team") {
					t.Errorf("%s: %v", what, err)
				}
			}
			s := denied(t, "", status, http.MethodPatch)
			report := source.Report{UID: "u", Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "m"}
			out := s.Withdraw(within(t), coord.Cond{}, source.Binding{UID: "u", Namespace: "default", Name: "p", Node: "n", Version: "6"}, report)
			if says("Withdraw", out.Err); out.Result != source.BindUnknown {
				t.Errorf("Withdraw: %+v, want result %d", out, source.BindUnknown)
			}
			s.mirrors[podsResource] = newMirror(nil, kind{}, nil)
			s.mirrors[podsResource].put(types.NamespacedName{Namespace: "default", Name: "p"}, &seen{uid: "u", version: "7", status: &podStatus{}})
			says("Unschedulable", s.Unschedulable(within(t), report))
			for _, method := range []string{http.MethodPatch, http.MethodDelete} {
				s := denied(t, "n", status, method)
				says("Evict, which is denied at "+method, s.Evict(within(t), coord.Cond{}, source.Eviction{UID: "u", Namespace: "default", Name: "p", Node: "n"}))
			}
		})
	}
}
