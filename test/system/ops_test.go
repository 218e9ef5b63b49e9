package system

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// operated is a role's process, with TLS, seen through its operators' endpoints.
type operated struct {
	t     *testing.T
	certs string // the directory
	at    string // host:port
}

// operate starts a role that has certificates, and waits until it answers.
func operate(t *testing.T, role string, args ...string) *operated {
	t.Helper()
	o := &operated{t: t, certs: filepath.Join(t.TempDir(), "certs")}
	out, err := exec.Command(berthtest.Binary(t), "certs", "--dir", o.certs, "--role", "gateway,queue,metrics,operator").CombinedOutput()
	if err != nil {
		t.Fatalf("berth certs: %v\n%s", err, out)
	}
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	o.at = "127.0.0.1:" + ports[0]
	identity := role
	if role == "all" {
		identity = "gateway"
	}
	argv := append([]string{berthtest.Binary(t), role, "--listen", "127.0.0.1:0", "--metrics-listen", o.at, "--profiling",
		"--tls-cert", o.file(identity + ".crt"), "--tls-key", o.file(identity + ".key"), "--tls-ca", o.file("ca.crt")}, args...)
	proc, err := kubetest.StartProcess(role, filepath.Join(t.TempDir(), "log"), argv...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proc.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", role, proc.LogTail(4<<10))
		}
	})
	berthtest.Await(t, berthtest.Patience, role+" to answer", func(ctx context.Context) error {
		if code, body := o.get("", "", "/livez"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	return o
}

func (o *operated) file(name string) string { return filepath.Join(o.certs, name) }

// get asks for a path, with the certificate of an identity and a token, if they are not empty. The code is 0 if there was no
// answer.
func (o *operated) get(identity, token, path string) (code int, body string) {
	o.t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true} // as a kubelet's probe
	if identity != "" {
		pair, err := tls.LoadX509KeyPair(o.file(identity+".crt"), o.file(identity+".key"))
		if err != nil {
			o.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, "https://"+o.at+path, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true, ForceAttemptHTTP2: true}, Timeout: 5 * time.Minute}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// guardedPaths are those that strangers do not get.
var guardedPaths = []string{"/metrics", "/configz", "/flagz", "/statusz", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/symbol", "/readyz/ping", "/livez/ping"}

func TestARoleWithoutTheAPIServerKnowsItsOperatorsByCertificate(t *testing.T) {
	o := operate(t, "queue", "--etcd-endpoints", strings.Join(etcdtest.Start(t).Endpoints(), ","))
	for _, path := range guardedPaths {
		for identity, want := range map[string]int{"": 401, "queue": 403, "metrics": 403, "operator": 200} {
			if identity == "metrics" && path == "/metrics" {
				want = 200
			}
			if code, body := o.get(identity, "", path); code != want {
				t.Errorf("%s with a certificate of %q: %d %.100s, want %d", path, identity, code, body, want)
			}
		}
		if code, body := o.get("", "a-token", path); code != 401 || !strings.Contains(body, "tokens are not known here") {
			t.Errorf("%s with a token: %d %s", path, code, body)
		}
	}
	if code, body := o.get("", "", "/readyz"); code != 500 || !strings.Contains(body, "[-]queue failed: reason withheld") {
		t.Errorf("/readyz without a binder: %d %s", code, body)
	}
	if code, body := o.get("operator", "", "/readyz/queue"); code != 500 || !strings.Contains(body, "no snapshot of the ledger yet") {
		t.Errorf("/readyz/queue without a binder: %d %s", code, body)
	}
	_, metrics := o.get("metrics", "", "/metrics")
	for _, certificate := range []string{"own", "authorities"} {
		if !regexp.MustCompile(`berth_certificate_expiry_timestamp_seconds{certificate="` + certificate + `"} [0-9.e+]+\n`).MatchString(metrics) {
			t.Errorf("no metric says when the certificate %q ends", certificate)
		}
	}
	if !strings.Contains(metrics, `berth_member_ready{member="`) || !strings.Contains(metrics, `role="queue"} 0`) {
		t.Error("no metric says that the queue member is not ready")
	}
}

func TestTokensOpenTheOperatorsEndpointsToo(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("look,reader,read\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := operate(t, "all", "--data-dir", t.TempDir(), "--http-listen", "", "--metrics-authenticate", "tokens", "--metrics-token-file", tokens)
	for _, path := range guardedPaths {
		for _, c := range []struct {
			identity, token string
			want            int
		}{{"", "look", 200}, {"", "guess", 401}, {"", "", 401}, {"queue", "look", 200}, {"operator", "", 200}} {
			if code, body := o.get(c.identity, c.token, path); code != c.want {
				t.Errorf("%s as %+v: %d %.100s", path, c, code, body)
			}
		}
	}
	for path, wants := range map[string][]string{
		"/flagz":   {"\nmetrics-authenticate=tokens\n", "\nmetrics-token-file=" + tokens + "\n", "\nshards=4\n"},
		"/statusz": {"\nUp: ", "\nGo version: go", "\nMember binder: id ", "\nMember gateway: id ", ", epoch ", "\nPaths: /configz "},
	} {
		_, body := o.get("", "look", path)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not say %q:\n%s", path, want, body)
			}
		}
	}
	var config struct {
		Scheduler struct {
			Kind     string `json:"kind"`
			Profiles []struct {
				SchedulerName string `json:"schedulerName"`
				PluginConfig  []struct {
					Name string         `json:"name"`
					Args map[string]any `json:"args"`
				} `json:"pluginConfig"`
			} `json:"profiles"`
		} `json:"componentconfig"`
		Berth map[string]map[string]any `json:"berth.dev"`
	}
	_, text := o.get("", "look", "/configz")
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatalf("/configz: %v\n%s", err, text)
	}
	if p := config.Scheduler.Profiles; config.Scheduler.Kind != "KubeSchedulerConfiguration" || len(p) != 1 || p[0].SchedulerName != "default-scheduler" || len(p[0].PluginConfig) == 0 {
		t.Errorf("/configz says of kube-scheduler's configuration %s", text)
	}
	if b := config.Berth; b["binder"]["shards"] != 4.0 || b["process"]["leaseTTL"] != "5s" || b["queue"]["batchSize"] != 256.0 || b["gateway"]["authenticate"] != "none" {
		t.Errorf("/configz says of Berth %v", config.Berth)
	}
	for _, path := range guardedPaths {
		if _, body := o.get("operator", "", path); path != "/debug/pprof/heap" && strings.Contains(body, "look,reader") {
			t.Errorf("%s shows a token", path)
		}
	}
}

func TestTheAPIServerSaysWhoOperates(t *testing.T) {
	plane := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC"})
	client := plane.Client()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	token := func(name string, paths ...string) string {
		t.Helper()
		if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(paths) > 0 {
			meta := metav1.ObjectMeta{Name: name}
			rule := rbacv1.PolicyRule{NonResourceURLs: paths, Verbs: []string{"get"}}
			if _, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		request, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	scraper, operator, nobody := token("scraper", "/metrics"), token("operator", "/*"), token("nobody")
	o := operate(t, "all", "--source", "local", "--data-dir", t.TempDir(), "--http-listen", "",
		"--metrics-authenticate", "kubernetes", "--metrics-authentication-kubeconfig", plane.Kubeconfig())
	for _, path := range guardedPaths {
		wants := map[string]int{scraper: 403, operator: 200, nobody: 403, "forged": 401, "": 401}
		if path == "/metrics" {
			wants[scraper] = 200
		}
		for who, want := range wants {
			if code, body := o.get("", who, path); code != want {
				t.Errorf("%s: %d %.200s, want %d", path, code, body, want)
			}
		}
	}
	plane.Stop()
	if code, body := o.get("", "another", "/metrics"); code != 503 {
		t.Errorf("while the API server is away: %d %s, want 503", code, body)
	}
	if code, body := o.get("", "", "/livez"); code != 200 {
		t.Errorf("/livez while the API server is away: %d %s", code, body)
	}
}
