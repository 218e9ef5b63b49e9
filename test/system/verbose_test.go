package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// klogLine is a line of klog's.
var klogLine = regexp.MustCompile(`^[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [^ :]+\.go:\d+\] `)

// saysWhatBecomesOfPods places a pod, and one that fits nowhere, and looks at what the process says of them: in its log, by kube-scheduler's words, at each verbosity, and in its metrics.
func saysWhatBecomesOfPods(t *testing.T, cp *kubetest.ControlPlane, kubeconfig string, bearer map[string]string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*servingPatience)
	defer cancel()
	if err := cp.CreateNodes(ctx, 1, func(i int) *corev1.Node {
		node := kubetest.PlainNode(i)
		node.Name = "told"
		return node
	}); err != nil {
		t.Fatal(err)
	}
	for round, c := range []struct {
		flags []string
		json  bool
		want  []string // patterns of what is logged, for the pods fits and large
		not   []string
	}{
		{[]string{"-v=5"}, false, []string{
			`"Successfully bound pod to node" .*pod="default/fits" node="`, `"Unable to schedule pod; no fit; waiting" .*pod="default/large" err="0/\d+ nodes are available: `,
			`"Attempting to schedule pod" .*pod="default/fits" attempt=1`, `"Add event for unscheduled pod" .*pod="default/fits"`, `"Pod moved to an internal scheduling queue" .*pod="default/fits" event="\w+" queue="active"`,
		}, nil},
		{[]string{"--logging-format=json", "-v=2"}, true, []string{
			`"msg":"Successfully bound pod to node",.*"v":2,.*"pod":\{"name":"fits","namespace":"default"\},"node":"`, `"msg":"Unable to schedule pod; no fit; waiting",.*"pod":\{"name":"large","namespace":"default"\},"err":"0/`,
		}, []string{"Attempting to schedule pod", "Add event for", "Pod moved to"}},
		{nil, false, []string{`"starting" role="kube-scheduler"`}, []string{"default/fits", "default/large"}},
	} {
		t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
			p := startInPlace(t, append([]string{"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig, "--leader-elect=false"}, c.flags...)...)
			p.want(t, "/readyz", nil, http.StatusOK)
			if err := cp.CreatePods(ctx, 2, func(i int) *corev1.Pod {
				pod := kubetest.PlainPod(i)
				pod.Namespace, pod.Name, pod.GenerateName = "default", []string{"fits", "large"}[i], ""
				if i == 1 {
					pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000000")}
				}
				return pod
			}); err != nil {
				t.Fatal(err)
			}
			var resources string
			berthtest.Await(t, servingPatience, "a pod to be bound, and told", func(ctx context.Context) error {
				if _, resources, _ = p.get(ctx, "/metrics/resources", bearer); !regexp.MustCompile(`(?m)^kube_pod_resource_request\{namespace="default",node="[^"]+",pod="fits",priority="0",resource="cpu",scheduler="default-scheduler",unit="cores"\} `).MatchString(resources) {
					return fmt.Errorf("told:\n%s", resources)
				}
				return nil
			})
			if !strings.Contains(resources, `node="",pod="large",priority="0",resource="cpu",scheduler="default-scheduler",unit="cores"} 1e+06`) {
				t.Errorf("a pod that waits is not told:\n%s", resources)
			}
			log := ""
			for _, pattern := range c.want {
				is := regexp.MustCompile(pattern)
				berthtest.Await(t, servingPatience, "the log to say "+pattern, func(context.Context) error {
					if log = p.proc.LogTail(8 << 20); !is.MatchString(log) {
						return fmt.Errorf("it says:\n%s", log)
					}
					return nil
				})
			}
			for _, text := range c.not {
				if strings.Contains(log, text) {
					t.Errorf("the log has %q:\n%s", text, log)
				}
			}
			for line := range strings.Lines(strings.TrimSuffix(log, "\n")) {
				var fields map[string]any
				switch err := json.Unmarshal([]byte(line), &fields); {
				case c.json && (err != nil || fields["ts"] == nil || fields["caller"] == nil || fields["msg"] == nil):
					t.Errorf("%v of %q", err, line)
				case !c.json && !klogLine.MatchString(line):
					t.Errorf("no line of klog's: %q", line)
				}
			}
			if round == 0 {
				_, text := p.want(t, "/metrics", bearer, http.StatusOK)
				for _, pattern := range []string{
					`rest_client_requests_total\{code="201",host="127\.0\.0\.1:\d+",method="POST"\} `, `rest_client_request_duration_seconds_count\{host="127\.0\.0\.1:\d+",verb="POST"\} `,
					`kubernetes_build_info\{[^}]*major="1",minor="36",[^}]*\} 1`, `workqueue_adds_total\{`, `go_sched_latencies_seconds_count `, `scheduler_schedule_attempts_total\{profile="default-scheduler",result="scheduled"\} `,
				} {
					if !regexp.MustCompile("(?m)^" + pattern).MatchString(text) {
						t.Errorf("/metrics has no %s", pattern)
					}
				}
			}
			for _, name := range []string{"fits", "large"} {
				now := int64(0)
				if err := cp.Client().CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
