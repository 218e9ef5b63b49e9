package rules

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/intstr"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	composeFile  = "docker-compose.yaml"
	kustomizeDir = "deploy/kustomize"
)

// documents returns the YAML documents of a file.
func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	var all [][]byte
	for r := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(readFile(t, name)))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(bytes.TrimSpace(document)) > 0 {
			all = append(all, document)
		}
	}
}

func TestEveryYAMLFileParses(t *testing.T) {
	found := 0
	for _, name := range must(t, files) {
		if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" || strings.Contains(name, "testdata/") || strings.Contains(filepath.ToSlash(name), "/helm/berth/templates/") {
			continue
		}
		found++
		for i, document := range documents(t, name) {
			var content map[string]any
			if err := yaml.UnmarshalStrict(document, &content); err != nil {
				t.Errorf("%s, document %d: %v", name, i+1, err)
			}
		}
	}
	if found < 5 {
		t.Errorf("found %d YAML files, want the compose file, manifests and buf's", found)
	}
}

// isManifest reports whether a file has Kubernetes objects that this repository's API knows.
func isManifest(name string) bool {
	name = filepath.ToSlash(name)
	return strings.HasPrefix(name, kustomizeDir+"/") && filepath.Base(name) != "kustomization.yaml" &&
		!strings.Contains(name, "/cert-manager/") && !strings.Contains(name, "/prometheus/") && // whose kinds are not Kubernetes'
		filepath.Base(name) != "crd.yaml" // whose kind has a module of its own; cmd/berth-scv tests it
}

// objects returns the Kubernetes objects of the kustomizations, decoded strictly.
func objects(t *testing.T) []runtime.Object {
	t.Helper()
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var all []runtime.Object
	for _, name := range must(t, files) {
		if !isManifest(name) {
			continue
		}
		for i, document := range documents(t, name) {
			o, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Errorf("%s, document %d: %v", name, i+1, err)
				continue
			}
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no objects", kustomizeDir)
	}
	return all
}

// workload is what makes pods.
type workload struct {
	name     string
	selector map[string]string
	template v1.PodTemplateSpec
}

func workloads(t *testing.T) []workload {
	t.Helper()
	var all []workload
	for _, o := range objects(t) {
		switch o := o.(type) {
		case *appsv1.Deployment:
			all = append(all, workload{o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template})
		case *appsv1.StatefulSet:
			all = append(all, workload{o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template})
		case *appsv1.DaemonSet:
			all = append(all, workload{o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template})
		}
	}
	return all
}

func TestKustomizationsListEveryManifest(t *testing.T) {
	listed, there := map[string]bool{}, map[string]bool{}
	for _, name := range must(t, files) {
		if name = filepath.ToSlash(name); !strings.HasPrefix(name, kustomizeDir+"/") {
			continue
		}
		if path.Base(name) != "kustomization.yaml" {
			there[name] = true
			continue
		}
		var k struct {
			Resources []string `json:"resources"`
		}
		if err := yaml.Unmarshal([]byte(readFile(t, name)), &k); err != nil {
			t.Fatal(err)
		}
		for _, r := range k.Resources {
			if strings.HasSuffix(r, ".yaml") {
				listed[path.Join(path.Dir(name), r)] = true
			}
		}
	}
	if !maps.Equal(listed, there) {
		t.Errorf("the kustomizations list %v, there are %v", slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(there)))
	}
}

func TestWorkloadsReferOnlyToWhatTheyHave(t *testing.T) {
	all := workloads(t)
	if len(all) < 7 {
		t.Errorf("found %d workloads, want etcd, five roles and the collector", len(all))
	}
	for _, w := range all {
		if !labels.SelectorFromSet(w.selector).Matches(labels.Set(w.template.Labels)) {
			t.Errorf("%s selects %v, its pods have %v", w.name, w.selector, w.template.Labels)
		}
		for _, c := range w.template.Spec.Containers {
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: container %s requests no CPU or no memory: a scheduler should know better", w.name, c.Name)
			}
			for what, p := range map[string]*v1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
				switch {
				case p == nil && what == "liveness":
					t.Errorf("%s: container %s has no liveness probe", w.name, c.Name)
				case p == nil:
				case p.Exec != nil && !asksOwnPort(c, p.Exec.Command):
					t.Errorf("%s: the %s probe of %s asks a port that the container does not name", w.name, what, c.Name)
				case p.GRPC != nil && !hasPort(c, intstr.FromInt32(p.GRPC.Port)), p.HTTPGet != nil && !hasPort(c, p.HTTPGet.Port):
					t.Errorf("%s: the %s probe of %s asks a port that the container does not name", w.name, what, c.Name)
				}
			}
			for _, m := range c.VolumeMounts {
				if data := w.name == "etcd" && m.Name == "data"; !data && (m.Name != "tls" || !m.ReadOnly) {
					t.Errorf("%s: container %s mounts %s; all it needs is its certificate, and only etcd keeps anything", w.name, c.Name, m.Name)
				}
			}
		}
	}
	for _, o := range objects(t) {
		service, ok := o.(*v1.Service)
		if !ok {
			continue
		}
		backed := false
		for _, w := range all {
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(w.template.Labels)) {
				continue
			}
			backed = true
			for _, p := range service.Spec.Ports {
				target := p.TargetPort
				if target == (intstr.IntOrString{}) {
					target = intstr.FromInt32(p.Port)
				}
				if !hasPort(w.template.Spec.Containers[0], target) {
					t.Errorf("service %s sends port %d to %s, which %s does not name", service.Name, p.Port, target.String(), w.name)
				}
			}
		}
		if !backed {
			t.Errorf("service %s selects no workload", service.Name)
		}
	}
}

// asksOwnPort reports whether a probe by berth health is about a port that the container names.
func asksOwnPort(c v1.Container, command []string) bool {
	_, port, err := net.SplitHostPort(flagsOf(command)["address"])
	return err == nil && hasPort(c, intstr.Parse(port))
}

func hasPort(c v1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p v1.ContainerPort) bool {
		return port.Type == intstr.String && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal
	})
}

func TestOnlyBindersGatewaysAndCollectorsMayUseTheAPIServerAndNoMoreThanTheyNeed(t *testing.T) {
	want := map[string]map[string]bool{}
	for _, rule := range []struct{ account, group, resources, verbs string }{
		{"berth-binder", "", "pods nodes namespaces", "list watch"}, // the ledger
		{"berth-binder", "", "pods", "get"},                         // after a conflict
		// the selectors of default spread constraints
		{"berth-binder", "", "services replicationcontrollers", "list watch"},
		{"berth-binder", "apps", "replicasets statefulsets", "list watch"},
		// what volumes are made of
		{"berth-binder", "", "persistentvolumes persistentvolumeclaims", "list watch"},
		{"berth-binder", "", "persistentvolumes persistentvolumeclaims", "get patch"}, // what has been chosen for claims
		{"berth-binder", "storage.k8s.io", "storageclasses csinodes csidrivers csistoragecapacities volumeattachments", "list watch"},
		{"berth-binder", "scheduling.k8s.io", "podgroups", "list watch"},   // which pods are placed together
		{"berth-binder", "scheduling.x-k8s.io", "podgroups", "list watch"}, // likewise, in profiles with Coscheduling
		{"berth-binder", "scheduling.k8s.io", "podgroups/status", "patch"}, // what has come of them
		{"berth-binder", "policy", "poddisruptionbudgets", "list watch"},   // which pods preemption spares
		{"berth-binder", "", "pods", "delete"},                             // their eviction
		{"berth-binder", "", "pods/binding", "create"},                     // placements
		{"berth-binder", "", "pods/status", "patch"},                       // conditions and nominations
		{"berth-binder", "events.k8s.io", "events", "create patch"},        // Scheduled, FailedScheduling, their series, and Preempted
		// who calls, and what they may
		{"berth-gateway", "authentication.k8s.io", "tokenreviews", "create"},
		{"berth-gateway", "authorization.k8s.io", "subjectaccessreviews", "create"},
		// Yoda, in the binder's pod and so with its account: who has cards, and which there are
		{"berth-binder-yoda", "", "pods nodes", "get list watch"},
		{"berth-binder-yoda", "yoda.berth.dev", "scvs", "get list watch"},
		{"berth-binder-yoda", "resource.k8s.io", "resourceslices", "get list watch"},
		// what the cards of a node are, which goes with the node
		{"berth-scv", "yoda.berth.dev", "scvs", "get create update"},
		{"berth-scv", "yoda.berth.dev", "scvs/status", "update"},
		{"berth-scv", "", "nodes", "get"},
	} {
		if want[rule.account] == nil {
			want[rule.account] = map[string]bool{}
		}
		for resource := range strings.FieldsSeq(rule.resources) {
			for verb := range strings.FieldsSeq(rule.verbs) {
				want[rule.account][verb+" "+resource+"."+rule.group] = true
			}
		}
	}
	users := slices.Collect(maps.Keys(want))
	for _, o := range objects(t) {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			for _, r := range o.Rules {
				for _, group := range r.APIGroups {
					for _, resource := range r.Resources {
						for _, verb := range r.Verbs {
							right := verb + " " + resource + "." + group
							if !want[o.Name][right] {
								t.Errorf("%s may %s, which nothing needs", o.Name, right)
							}
							delete(want[o.Name], right)
						}
					}
				}
			}
		case *rbacv1.ClusterRoleBinding:
			account := strings.TrimSuffix(o.RoleRef.Name, "-yoda")
			if len(o.Subjects) != 1 || o.Subjects[0].Name != account || o.Subjects[0].Namespace != "berth" {
				t.Errorf("%s binds %v, want the service account %s", o.Name, o.Subjects, account)
			}
		}
	}
	for account, rights := range want {
		for right := range rights {
			t.Errorf("%s may not %s", account, right)
		}
	}
	for _, w := range workloads(t) {
		spec, account := w.template.Spec, "berth-"+w.name
		if spec.ServiceAccountName != account {
			t.Errorf("%s runs as %q, want %s", w.name, spec.ServiceAccountName, account)
		}
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken != slices.Contains(users, account) {
			t.Errorf("%s: automountServiceAccountToken: only %v have a use for a token of the API server", w.name, users)
		}
	}
}

// What is requested is what a scheduler keeps free: a role that needs more than that is among the first to go when its node is short.
// What may be written to a cluster is what the page of going back says that there is afterwards.
func TestWhatBindersMayWriteIsOnThePageOfGoingBack(t *testing.T) {
	const page = "docs/coming-from-kube-scheduler.md"
	_, table, found := strings.Cut(readFile(t, page), "| written | afterwards |")
	if table, _, _ = strings.Cut(table, "\n\n"); !found {
		t.Fatalf("%s has no table of what is written", page)
	}
	row := map[string]string{
		"pods": "deletion of victims", "pods/binding": "the binding subresource", "pods/status": "conditions `PodScheduled`", "podgroups/status": "the condition `PodGroupScheduled`", "events": "| events |", "leases": "the Lease",
		"persistentvolumes": "`spec.claimRef` of PersistentVolumes", "persistentvolumeclaims": "`volume.kubernetes.io/selected-node` of PersistentVolumeClaims",
	}
	reads, written := []string{"get", "list", "watch"}, 0
	for _, o := range objects(t) {
		role, is := o.(*rbacv1.ClusterRole)
		if !is || role.Name != "berth-binder" {
			continue
		}
		for _, rule := range role.Rules {
			if !slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains(reads, verb) }) {
				continue
			}
			for _, resource := range rule.Resources {
				written++
				if row[resource] == "" || !strings.Contains(table, row[resource]) {
					t.Errorf("binders may write to %s: %s has no row with %q", resource, page, row[resource])
				}
			}
		}
	}
	if written < 6 {
		t.Errorf("binders may write to %d resources, want at least 6", written)
	}
	files, err := filepath.Glob(filepath.Join(rootDir(t), "internal/source/kube/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`"([a-z.]*berth\.dev/[a-z-]+)"`).FindAllStringSubmatch(readFile(t, filepath.Join("internal/source/kube", filepath.Base(file))), -1) {
			if own++; !strings.Contains(table, "`"+m[1]+"`") {
				t.Errorf("%s: %s is in no row of %s", filepath.Base(file), m[1], page)
			}
		}
	}
	if own != 2 {
		t.Errorf("Berth has %d annotations, and %s says two", own, page)
	}
}

func TestManifestsRequestWhatThePageOfOperationsSays(t *testing.T) {
	const file = "docs/operations.md"
	page := readFile(t, file)
	// Each row has a column for each size of the cluster, of which the middle one is the manifests'; in brackets is who differs.
	said := make(map[string]map[string]resource.Quantity) // by what the row is about, as "memory to request"
	row := regexp.MustCompile(`(?m)^\| (CPU to request|memory to request|memory to limit), per process \|[^|]*\| ([0-9.]+(?: [MG]iB)?) \(((?:[a-z-]+|, | and )+) ([0-9.]+(?: [MG]iB)?)\)`)
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		amounts := make(map[string]resource.Quantity)
		parse := func(who, amount string) {
			q, err := resource.ParseQuantity(strings.NewReplacer(" ", "", "B", "").Replace(amount))
			if err != nil {
				t.Fatalf("%s: %q: %v", file, amount, err)
			}
			amounts[who] = q
		}
		parse("", m[2])
		for _, who := range regexp.MustCompile(`, | and `).Split(m[3], -1) {
			parse(who, m[4])
		}
		said[m[1]] = amounts
	}
	roles := 0
	for _, w := range workloads(t) {
		if w.name == "etcd" || w.name == "scv" { // which are no roles
			continue
		}
		roles++
		resources := w.template.Spec.Containers[0].Resources
		for what, have := range map[string]*resource.Quantity{
			"CPU to request": resources.Requests.Cpu(), "memory to request": resources.Requests.Memory(), "memory to limit": resources.Limits.Memory(),
		} {
			want, differs := said[what][w.name]
			if !differs {
				want = said[what][""]
			}
			if have.String() != want.String() || want.IsZero() {
				t.Errorf("%s, %s: %s, and %s says %s", w.name, what, have, file, &want)
			}
		}
		if !resources.Limits.Cpu().IsZero() {
			t.Errorf("%s has a limit of CPU, which %s says that there is none of", w.name, file)
		}
	}
	if roles != 5 {
		t.Errorf("there are %d workloads of roles, want 5", roles)
	}
}

// An etcd with users, as all that we ship have, lets no role compact it: a binder that is to would warn of a refusal at each look, and
// people would rely on what is not done.
func TestNoBinderIsToCompactAnEtcdThatDoesNotLetIt(t *testing.T) {
	binders := 0
	for _, c := range commandLines(t) {
		if len(c.args) == 0 || c.args[0] != "binder" || c.from != composeFile+", binder" && c.from != kustomizeDir+", binder" {
			continue
		}
		binders++
		if slices.ContainsFunc(c.args, func(arg string) bool { return strings.HasPrefix(arg, "--etcd-owned") }) {
			t.Errorf("%s: --etcd-owned: its etcd has users, which refuses the role binder a compaction", c.from)
		}
	}
	if binders != 2 {
		t.Errorf("found %d binders, want the compose file's and the manifests'", binders)
	}
}

// compose is what the tests read of the compose file.
type compose struct {
	Services map[string]struct {
		Image       string            `json:"image"`
		Build       *struct{}         `json:"build"`
		Command     []string          `json:"command"`
		Environment map[string]string `json:"environment"`
		Ports       []string          `json:"ports"`
		Volumes     []string          `json:"volumes"`
		Deploy      struct {
			Replicas int `json:"replicas"`
		} `json:"deploy"`
		Healthcheck struct {
			Test []string `json:"test"`
		} `json:"healthcheck"`
	} `json:"services"`
	Volumes map[string]any `json:"volumes"`
	Version *string        `json:"version"`
}

func readCompose(t *testing.T) compose {
	t.Helper()
	var c compose
	if err := yaml.Unmarshal([]byte(readFile(t, composeFile)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestComposeIsAWholeBerthOnTheLoopbackInterface(t *testing.T) {
	c := readCompose(t)
	roles := map[string]int{}
	for name, s := range c.Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond this machine, where people show no certificate", name, p)
			}
		}
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); !has(c.Volumes, from) {
				t.Errorf("%s mounts %s, which is not declared", name, from)
			}
		}
		if len(s.Command) == 0 {
			t.Errorf("%s has no command", name)
			continue
		}
		// Its own secrets, and nobody else's. Service certs makes them all, and ends; etcd-init is etcd's administrator, with etcd's.
		if own := strings.TrimSuffix(s.Command[0], "-init"); own != "certs" {
			for _, v := range s.Volumes {
				from, _, _ := strings.Cut(v, ":")
				if from == "authority" || strings.HasPrefix(from, "certs") && v != "certs-"+own+":/certs:ro" {
					t.Errorf("%s mounts %s, want certs-%s, to be read at /certs, and no other secrets", name, v, own)
				}
			}
			if !slices.Contains(s.Volumes, "certs-"+own+":/certs:ro") {
				t.Errorf("%s has no secrets of its own: %q", name, s.Volumes)
			}
		}
		if s.Build == nil { // etcd
			if s.Environment["ETCD_PEER_CERT_ALLOWED_CN"] != "etcd" || s.Environment["ETCD_CLIENT_CERT_ALLOWED_HOSTNAME"] != "member.berth.internal" {
				t.Errorf("%s takes every certificate of the authority, as a client or as a member", name)
			}
			continue
		}
		role := s.Command[0]
		if role == "certs" || role == "etcd-init" {
			continue
		}
		roles[role] += max(s.Deploy.Replicas, 1)
		flags := flagsOf(s.Command)
		if host, _, _ := net.SplitHostPort(flags["listen"]); host != "0.0.0.0" || flags["advertise"] != "" {
			t.Errorf("%s listens on %q and advertises %q; others find it by its container's name, the default", name, flags["listen"], flags["advertise"])
		}
		if role == "gateway" && flags["authenticate"] != "tokens" {
			t.Errorf("%s knows its callers by %q, want tokens", name, flags["authenticate"])
		}
		for flag, want := range map[string]string{"tls-cert": role + ".crt", "tls-key": role + ".key", "tls-ca": "ca.crt", "etcd-ca": "ca.crt"} {
			if flags[flag] != "/certs/"+want {
				t.Errorf("%s has --%s=%s, want /certs/%s", name, flag, flags[flag], want)
			}
		}
		for endpoint := range strings.SplitSeq(flags["etcd-endpoints"], ",") {
			u, err := url.Parse(endpoint)
			if err != nil || !has(c.Services, u.Hostname()) || c.Services[u.Hostname()].Environment["ETCD_ADVERTISE_CLIENT_URLS"] != endpoint {
				t.Errorf("%s looks for etcd at %q, where none is", name, endpoint)
			}
		}
	}
	for role, least := range map[string]int{"binder": 2, "queue": 2, "filter-worker": 2, "score-worker": 2, "gateway": 1} {
		if roles[role] < least {
			t.Errorf("there are %d of %s, want %d", roles[role], role, least)
		}
	}
	if c.Version != nil {
		t.Error("there is a version: Compose v2 warns of it")
	}
}

func has[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// flagsOf returns the flags of a command line, by name.
func flagsOf(command []string) map[string]string {
	flags := make(map[string]string)
	for _, arg := range command {
		if name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "="); ok && strings.HasPrefix(arg, "--") {
			flags[name] = value
		}
	}
	return flags
}

// commandLine is a use of berth that some file shows.
type commandLine struct {
	from string
	args []string
}

// commandLines returns every use of berth in manifests, the compose file, the Makefile and pages.
func commandLines(t *testing.T) []commandLine {
	t.Helper()
	var all []commandLine
	for name, s := range readCompose(t).Services {
		if s.Build != nil {
			all = append(all, commandLine{composeFile + ", " + name, s.Command})
			if test := s.Healthcheck.Test; len(test) > 2 {
				all = append(all, commandLine{composeFile + ", health of " + name, test[2:]})
			}
		}
	}
	for _, w := range workloads(t) {
		for _, c := range w.template.Spec.Containers {
			if c.Image == "berth" {
				all = append(all, commandLine{kustomizeDir + ", " + w.name, c.Args})
				all = append(all, commandLine{kustomizeDir + ", probe of " + w.name, c.ReadinessProbe.Exec.Command[1:]})
			}
		}
	}
	shown := regexp.MustCompile(`(?m)^(?:\.bin/)?berth ([^\n#|<>]*)$`)
	for _, name := range pages(t) {
		for _, text := range code(readFile(t, name)) {
			for _, m := range shown.FindAllStringSubmatch(text, -1) {
				all = append(all, commandLine{name, strings.Fields(m[1])})
			}
		}
	}
	return all
}

func TestEveryCommandLineIsOneThatBerthTakes(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "berth")
	if _, err := run(rootDir(t), "env", "CGO_ENABLED=0", "go", "build", "-o", binary, "./cmd/berth"); err != nil {
		t.Fatal(err)
	}
	// With --help, flags are parsed with their values, and nothing is started.
	if _, err := run("", binary, "binder", "--no-such-flag=1", "--help"); err == nil {
		t.Fatal("berth takes a flag that does not exist: this test would find nothing")
	}
	roles := map[string]int{}
	for _, line := range commandLines(t) {
		args := slices.Clone(line.args)
		for i := range args {
			args[i] = strings.NewReplacer("$(POD_NAME)", "binder-1", "$(POD_IP)", "10.0.0.1",
				"$(ETCD_ENDPOINTS)", "https://etcd-0:2379", "$(SCHEDULER_NAME)", "berth").Replace(args[i])
		}
		out, err := run("", binary, append(args, "--help")...)
		if err != nil {
			t.Errorf("%s: %v", line.from, err)
			continue
		}
		// A name that is no command gets the help of berth itself.
		if usage := "berth " + args[0]; !strings.Contains(string(out), "\n  "+usage) {
			t.Errorf("%s: %q is no command of berth", line.from, args[0])
		}
		roles[args[0]]++
		for name, value := range flagsOf(args) {
			if !strings.HasSuffix(name, "listen") {
				continue
			}
			if _, _, err := net.SplitHostPort(value); err != nil {
				t.Errorf("%s: --%s: %v", line.from, name, err)
			}
		}
	}
	for _, role := range []string{"all", "binder", "queue", "filter-worker", "score-worker", "gateway"} {
		if roles[role] == 0 {
			t.Errorf("no file shows how to run %s", role)
		}
	}
}
