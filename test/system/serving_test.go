package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var servedPods = flag.Int("served-pods", 0, "pods that are placed before it is measured what is kept on disk")

// servingPatience bounds waits for a process to answer.
const servingPatience = 3 * time.Minute

// inPlace is Berth in kube-scheduler's place, seen by way of its secure port.
type inPlace struct {
	proc   *kubetest.Process
	base   string
	client *http.Client
}

// startInPlace starts one with kube-scheduler's flags, and waits until it listens. Its certificate is verified by what it has written to a folder.
func startInPlace(t *testing.T, flags ...string) *inPlace {
	t.Helper()
	dir := t.TempDir()
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{asKubeScheduler(t), "--secure-port=" + ports[0], "--bind-address=127.0.0.1", "--cert-dir=" + dir}, flags...)
	proc, err := kubetest.StartProcess("kube-scheduler", filepath.Join(dir, "log"), args...)
	if err != nil {
		t.Fatal(err)
	}
	p := &inPlace{proc: proc, base: "https://127.0.0.1:" + ports[0]}
	t.Cleanup(func() {
		proc.Stop()
		if t.Failed() {
			t.Logf("%s", proc.LogTail(4<<10))
		}
	})
	berthtest.Await(t, servingPatience, "the port to be served", func(ctx context.Context) error {
		text, err := os.ReadFile(filepath.Join(dir, "kube-scheduler.crt"))
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
		_, _, err = p.get(ctx, "/livez", nil)
		return err
	})
	return p
}

// get asks for a path, and returns the code and the text.
func (p *inPlace) get(ctx context.Context, path string, headers map[string]string) (*http.Response, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return nil, "", err
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	response, err := p.client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

// want asks until the answer has a code, as a process needs some time to be ready.
func (p *inPlace) want(t *testing.T, path string, headers map[string]string, code int) (*http.Response, string) {
	t.Helper()
	var response *http.Response
	var text string
	berthtest.Await(t, servingPatience, fmt.Sprintf("%s to be answered with %d", path, code), func(ctx context.Context) (err error) {
		if response, text, err = p.get(ctx, path, headers); err == nil && response.StatusCode != code {
			err = fmt.Errorf("it is with %s: %s", response.Status, text)
		}
		return err
	})
	return response, text
}

// with returns a copy of a kubeconfig in which a text is another.
func with(t *testing.T, kubeconfig, old, replacement string) string {
	t.Helper()
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), old, replacement, 1)
	if changed == string(text) {
		t.Fatalf("%s has no %q", kubeconfig, old)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTheSecurePortIsServedAsKubeSchedulers has the cases of kube-scheduler's test/integration/serving and test/integration/scheduler/serving, against the process.
func TestTheSecurePortIsServedAsKubeSchedulers(t *testing.T) {
	k := newKubeadm(t)
	cp := kubetest.StartT(t, k.plane())
	k.kubeconfig(cp)
	good := k.path("scheduler.conf")
	broken := with(t, cp.Kubeconfig(), "token: ", "token: WRONG") // nobody's
	bearer := map[string]string{"Authorization": "Bearer berth-test-admin"}
	for _, c := range []struct {
		name, path string
		headers    map[string]string
		code       int
		flags      []string
	}{
		{"health without authn and authz", "/healthz", nil, http.StatusOK, []string{"--kubeconfig", good}},
		{"metrics without authn and authz", "/metrics", nil, http.StatusForbidden, []string{"--kubeconfig", good}},
		{"health with authn and authz", "/healthz", bearer, http.StatusOK, []string{"--authentication-kubeconfig", good, "--authorization-kubeconfig", good, "--kubeconfig", good}},
		{"health with broken authn and authz", "/healthz", bearer, http.StatusOK,
			[]string{"--authentication-skip-lookup", "--authentication-kubeconfig", broken, "--authorization-kubeconfig", broken, "--kubeconfig", good}},
		{"metrics with broken authz", "/metrics", nil, http.StatusInternalServerError, []string{"--authentication-kubeconfig", good, "--authorization-kubeconfig", broken, "--kubeconfig", good}},
		{"metrics always allowed, with broken authn and authz", "/metrics", nil, http.StatusOK,
			[]string{"--authentication-skip-lookup", "--authentication-kubeconfig", broken, "--authorization-kubeconfig", broken, "--authorization-always-allow-paths", "/healthz,/metrics", "--kubeconfig", good}},
		{"metrics for a token that may", "/metrics", bearer, http.StatusOK, []string{"--authentication-kubeconfig", good, "--authorization-kubeconfig", good, "--kubeconfig", good}},
		{"metrics for a token of nobody", "/metrics", map[string]string{"Authorization": "Bearer x"}, http.StatusUnauthorized,
			[]string{"--authentication-kubeconfig", good, "--authorization-kubeconfig", good, "--kubeconfig", good}},
		{"a check that is always allowed", "/livez/ping", nil, http.StatusOK, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/livez/ping"}},
		{"a check that is not", "/healthz", nil, http.StatusForbidden, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/livez/ping"}},
		{"all is followed", "/readyz/sched-handler-sync", nil, http.StatusOK, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/readyz/sched-handler-sync"}},
		{"it does not end", "/readyz/shutdown", nil, http.StatusOK, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/readyz/shutdown"}},
		{"it elects", "/healthz/leaderElection", nil, http.StatusOK, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/healthz/*", "--leader-elect=true"}},
		{"it does not elect", "/healthz/leaderElection", nil, http.StatusNotFound, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/healthz/*"}},
		{"what is below a path that is allowed, and another one", "/healthz/../metrics", nil, http.StatusForbidden, []string{"--kubeconfig", good, "--authorization-always-allow-paths", "/healthz*"}},
		{"health as a service level", "/metrics/slis", bearer, http.StatusOK, []string{"--authentication-kubeconfig", good, "--authorization-kubeconfig", good, "--kubeconfig", good}},
		{"what pods request, without authn and authz", "/metrics/resources", nil, http.StatusForbidden, []string{"--kubeconfig", good}},
		{"ready", "/readyz", nil, http.StatusOK, []string{"--kubeconfig", good}},
		{"not ready without an API server", "/readyz", nil, http.StatusInternalServerError, []string{"--kubeconfig", with(t, good, "127.0.0.1", "127.0.0.2")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startInPlace(t, append([]string{"--leader-elect=false"}, c.flags...)...)
			if _, text := p.want(t, c.path, c.headers, c.code); strings.Contains(text, "WRONG") {
				t.Errorf("it tells the token: %s", text)
			}
		})
	}

	t.Run("a certificate of the cluster's authority", func(t *testing.T) {
		// kube-scheduler's own, which may not read metrics: it is known all the same.
		p := startInPlace(t, "--authentication-kubeconfig", good, "--authorization-kubeconfig", good, "--kubeconfig", good, "--leader-elect=false")
		config := &tls.Config{RootCAs: p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, Certificates: []tls.Certificate{certificateOf(t, good)}}
		p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		berthtest.Await(t, servingPatience, "the caller to be known by the authority that is in the cluster", func(ctx context.Context) error {
			response, text, err := p.get(ctx, "/metrics", nil)
			if err == nil && (response.StatusCode != http.StatusForbidden || !strings.Contains(text, `"system:kube-scheduler"`)) {
				err = fmt.Errorf("%s: %s", response.Status, text)
			}
			return err
		})
	})

	t.Run("what it keeps goes with it", func(t *testing.T) {
		parent, err := os.MkdirTemp("", "s") // a socket's path is short
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(parent)
		t.TempDir() // the test's own are elsewhere
		t.Setenv("TMPDIR", parent)
		p := startInPlace(t, "--kubeconfig", good, "--leader-elect=false")
		p.want(t, "/readyz", nil, http.StatusOK)
		sizeOf := func() (size int64) {
			t.Helper()
			if err := filepath.WalkDir(parent, func(_ string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return nil // files come and go
				}
				if info, err := d.Info(); err == nil {
					size += info.Size()
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return size
		}
		size := sizeOf()
		if size == 0 || size > 32<<20 {
			t.Errorf("it keeps %d bytes", size)
		}
		t.Logf("it keeps %.1f MiB at rest", float64(size)/(1<<20))
		if *servedPods > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*servingPatience)
			defer cancel()
			if err := cp.CreateNodes(ctx, *servedPods/100+1, kubetest.PlainNode); err != nil {
				t.Fatal(err)
			}
			seen := &turns{bound: make(map[string]int64)}
			seen.follow(t, cp)
			if err := cp.CreatePods(ctx, *servedPods, func(i int) *corev1.Pod {
				pod := kubetest.PlainPod(i)
				pod.Spec.Containers[0].Resources.Requests = nil
				return pod
			}); err != nil {
				t.Fatal(err)
			}
			berthtest.Await(t, 2*servingPatience, "all pods to be bound", func(context.Context) error {
				if n := seen.count(); n < *servedPods {
					return fmt.Errorf("%d are", n)
				}
				return nil
			})
			t.Logf("it keeps %.1f MiB when it has placed %d pods", float64(sizeOf())/(1<<20), *servedPods)
		}
		if err := syscall.Kill(p.proc.PID(), syscall.SIGTERM); err != nil { // and nothing after a while: on a busy machine it takes its time
			t.Fatal(err)
		}
		berthtest.Await(t, servingPatience, "the process to end", func(context.Context) error {
			select {
			case <-p.proc.Done():
				return nil
			default:
				return errors.New("it runs")
			}
		})
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("it leaves %v behind, %v", left, err)
		}
	})

	t.Run("what becomes of pods", func(t *testing.T) { saysWhatBecomesOfPods(t, cp, good, bearer) })

	t.Run("a stranger asks once a connection", func(t *testing.T) {
		p := startInPlace(t, "--kubeconfig", good, "--leader-elect=false")
		addresses := make(map[string]bool)
		for range 3 {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { addresses[c.Conn.LocalAddr().String()] = true }})
			if r, text, err := p.get(ctx, "/metrics", nil); err != nil || r.StatusCode != http.StatusForbidden || r.ProtoMajor != 2 {
				t.Fatalf("%v, %q, %v", r, text, err)
			}
		}
		if len(addresses) != 3 {
			t.Errorf("it asks again on one connection: %v", addresses)
		}
		if r, _ := p.want(t, "/healthz", nil, http.StatusOK); r.ProtoMajor != 2 {
			t.Errorf("health by %s", r.Proto)
		}
		slow := startInPlace(t, "--kubeconfig", good, "--leader-elect=false", "--disable-http2-serving")
		if r, _ := slow.want(t, "/healthz", nil, http.StatusOK); r.ProtoMajor != 1 {
			t.Errorf("without HTTP/2: %s", r.Proto)
		}
	})

	t.Run("pages", func(t *testing.T) {
		p := startInPlace(t, "--kubeconfig", good, "--leader-elect=false", "--authorization-always-allow-paths=/statusz,/flagz,/configz", "--feature-gates=CBORServingAndStorage=true")
		for path, kind := range map[string]string{"/statusz": "Statusz", "/flagz": "Flagz"} {
			accept := func(form, version string) string {
				return fmt.Sprintf("application/%s;v=%s;g=config.k8s.io;as=%s", form, version, kind)
			}
			for header, code := range map[string]int{"": 200, "*/*": 200, "text/plain": 200, accept("json", "foo") + ",*/*": 200, "application/xml": 406, "application/json": 406, "application/json;v=v1beta1;g=config.k8s.io": 406} {
				if _, text := p.want(t, path, map[string]string{"Accept": header}, code); code == 200 && !strings.Contains(text, fmt.Sprintf("kube-scheduler %s\nWarning: This endpoint is not meant to be machine parseable", path[1:])) {
					t.Errorf("%s for %q: %.200s", path, header, text)
				}
			}
			for _, form := range []string{"json", "yaml"} {
				_, text := p.want(t, path, map[string]string{"Accept": accept(form, "v1beta1")}, http.StatusOK)
				var object struct {
					Kind, APIVersion string
					Metadata         struct{ Name string }
					Paths            []string
					Flags            map[string]string
				}
				if err := yaml.Unmarshal([]byte(text), &object); err != nil || object.Kind != kind || object.APIVersion != "config.k8s.io/v1beta1" || object.Metadata.Name != "kube-scheduler" {
					t.Errorf("%s as %s: %v\n%s", path, form, err, text)
				}
				if kind == "Statusz" && !containsAll(object.Paths, "/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz") || kind == "Flagz" && object.Flags["leader-elect-resource-name"] != "kube-scheduler" {
					t.Errorf("%s as %s: %v %v", path, form, object.Paths, object.Flags)
				}
			}
			p.want(t, path, map[string]string{"Accept": accept("cbor", "v1beta1")}, http.StatusOK)
			if old, _ := p.want(t, path, map[string]string{"Accept": accept("json", "v1alpha1") + "," + accept("json", "v1beta1")}, http.StatusOK); old.Header.Get("Warning") == "" {
				t.Errorf("%s: nothing says that v1alpha1 is deprecated: %v", path, old.Header)
			}
			if is, _ := p.want(t, path, map[string]string{"Accept": accept("json", "v1beta1") + "," + accept("json", "v1alpha1")}, http.StatusOK); is.Header.Get("Warning") != "" {
				t.Errorf("%s: %v of v1beta1", path, is.Header)
			}
		}
		_, text := p.want(t, "/configz", map[string]string{"Accept": "application/json"}, http.StatusOK)
		var configz struct {
			Componentconfig configv1.KubeSchedulerConfiguration
		}
		if err := json.Unmarshal([]byte(text), &configz); err != nil || configz.Componentconfig.Kind != "KubeSchedulerConfiguration" || configz.Componentconfig.APIVersion != "kubescheduler.config.k8s.io/v1" {
			t.Errorf("/configz: %v\n%s", err, text)
		}
	})

	t.Run("without an API server to follow", func(t *testing.T) {
		proc, err := kubetest.StartProcess("kube-scheduler", filepath.Join(t.TempDir(), "log"), asKubeScheduler(t), "--secure-port=0")
		if err != nil {
			t.Fatal(err)
		}
		berthtest.Await(t, servingPatience, "the process to end", func(context.Context) error {
			select {
			case <-proc.Done():
				return nil
			default:
				return fmt.Errorf("it runs")
			}
		})
		if text := proc.LogTail(1 << 10); proc.Err() == nil || !strings.Contains(text, "berth: read the service account of this pod") {
			t.Errorf("it ended with %v, and says:\n%s", proc.Err(), text)
		}
	})
}

func containsAll(list []string, want ...string) bool {
	has := strings.Join(list, " ") + " "
	for _, w := range want {
		if !strings.Contains(has, w+" ") {
			return false
		}
	}
	return true
}

// certificateOf returns the certificate by which a kubeconfig's user is known.
func certificateOf(t *testing.T, kubeconfig string) tls.Certificate {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	t.Fatalf("%s has no user", kubeconfig)
	return tls.Certificate{}
}
