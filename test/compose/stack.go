package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// The cluster that is scheduled: more room than all pods need.
const (
	nodes       = 40
	podsPerNode = 20 // the room of one
	firstPods   = 200
	morePods    = 20 // after each event
)

// Times of the stack.
const (
	healthWait   = 3 * time.Minute
	scheduleWait = 2 * time.Minute
	scaleWait    = time.Minute
)

// project is Compose's name for the containers.
const project = "berth-test"

// services are those whose containers must be healthy, and how many there are of each.
var services = map[string]int{
	"etcd-1": 1, "etcd-2": 1, "etcd-3": 1, "binder": 2, "queue": 2, "filter-worker": 2, "score-worker": 2, "gateway": 1,
}

// secretsOf are those that have secrets of their own.
var secretsOf = []string{"binder", "queue", "filter-worker", "score-worker", "gateway", "etcd"}

// stack is what docker-compose.yaml describes.
type stack struct {
	*daemon
	root        string
	compose     string // the program
	etcdContext string
	say         func(format string, args ...any)

	ca   string // file with the authority of the gateway's certificate
	pods int    // applied so far
}

// check brings the stack up, tries it, and takes it down.
func (s *stack) check(ctx context.Context) error {
	// 1. Up.
	if err := s.up(ctx, "--build"); err != nil {
		return err
	}
	if err := s.healthy(ctx, services); err != nil {
		return err
	}
	size, err := s.docker(ctx, "image", "inspect", "--format={{.Size}}", "berth-test")
	if err != nil {
		return err
	}
	s.say("up: %s, all healthy; Berth's image has %s bytes", s.count(), size)
	// 2. The published port, by TLS and with a token only.
	s.ca = filepath.Join(filepath.Dir(s.etcdContext), "ca.crt")
	ids, err := s.containers(ctx, "gateway")
	if err != nil {
		return err
	}
	for from, to := range map[string]string{"ca.crt": s.ca, "admin.token": s.token()} {
		if _, err := s.docker(ctx, "cp", ids[0]+":/certs/"+from, to); err != nil {
			return err
		}
	}
	for _, less := range [][]string{{}, {"--tls-ca=" + s.ca}} {
		if _, err := s.inside(ctx, "", append([]string{s.berth(), "get", "status", "--timeout=5s"}, less...)...); err == nil {
			return fmt.Errorf("the gateway answers without a token, with the flags %q", less)
		}
	}
	if _, err := s.run(ctx, "exec", "-T", "gateway", "/berth", "get", "status", "--token-file=/certs/admin.token"); err != nil {
		return err
	}
	// Etcd lets in its users only, from here on.
	if err := s.initiated(ctx); err != nil {
		return err
	}
	// Each role's secrets are its own.
	if err := s.checkSecrets(ctx); err != nil {
		return err
	}
	// 3. Schedule.
	if err := s.apply(ctx, nodeManifests()); err != nil {
		return err
	}
	if err := s.schedule(ctx, firstPods); err != nil {
		return err
	}
	s.say("scheduled %d pods on %d nodes through the gateway; without TLS, or a token, it does not answer", firstPods, nodes)
	// 4. Crashes.
	for _, service := range []string{"binder", "queue", "filter-worker", "score-worker", "gateway", "etcd-1"} {
		if err := s.crash(ctx, service); err != nil {
			return fmt.Errorf("crash of %s: %w", service, err)
		}
	}
	if err := s.healthy(ctx, services); err != nil {
		return err
	}
	s.say("all healthy again")
	// 5. Scale.
	for _, n := range []int{4, 1} {
		if err := s.scale(ctx, "filter-worker", n); err != nil {
			return err
		}
	}
	// 6. Down.
	if _, err := s.run(ctx, "down", "--volumes"); err != nil {
		return err
	}
	left, err := s.docker(ctx, "ps", "--all", "--quiet")
	if err != nil {
		return err
	}
	volumes, err := s.docker(ctx, "volume", "ls", "--quiet")
	if err != nil {
		return err
	}
	if left+volumes != "" {
		return fmt.Errorf("after down there are containers %q and volumes %q", left, volumes)
	}
	s.say("down: no containers and no volumes are left")
	return nil
}

// checkSecrets returns an error if a container has files of secrets that are not its role's.
func (s *stack) checkSecrets(ctx context.Context) error {
	for service := range services {
		role := service
		if strings.HasPrefix(service, "etcd-") {
			role = "etcd"
		}
		want := map[string]bool{"ca.crt": true, role + ".crt": true, role + ".key": true}
		if role == "gateway" {
			want["tokens"], want["admin.token"] = true, true
		}
		ids, err := s.containers(ctx, service)
		if err != nil {
			return err
		}
		for _, id := range ids {
			to := s.ca + ".of." + id
			if _, err := s.docker(ctx, "cp", id+":/certs", to); err != nil {
				return err
			}
			entries, err := os.ReadDir(to)
			if err != nil {
				return err
			}
			have := map[string]bool{}
			for _, entry := range entries {
				have[entry.Name()] = true
			}
			if !maps.Equal(have, want) {
				return fmt.Errorf("a container of %s has %v in /certs, want %v", service, slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)))
			}
		}
	}
	s.say("no container has another role's key, or the authority's")
	return nil
}

// run runs a command of Compose on the project.
func (s *stack) run(ctx context.Context, args ...string) (string, error) {
	line := append([]string{
		"--project-name=" + project, "--project-directory=" + s.root,
		"--file=" + filepath.Join(s.root, "docker-compose.yaml"), "--file=" + filepath.Join(s.root, "test", "compose", "override.yaml"),
	}, args...)
	environment := s.environment("IMAGE=berth-test", "BASE=scratch", "BUILDER=scratch", "BINARY=prebuilt",
		"ETCD_IMAGE=berth-test-etcd", "ETCD_CONTEXT="+s.etcdContext)
	return command(ctx, environment, "", s.compose, line...)
}

func (s *stack) up(ctx context.Context, args ...string) error {
	_, err := s.run(ctx, append([]string{"up", "--detach"}, args...)...)
	return err
}

// containers returns the ids of a service's running containers.
func (s *stack) containers(ctx context.Context, service string) ([]string, error) {
	out, err := s.docker(ctx, "ps", "--quiet", "--filter=label=com.docker.compose.service="+service)
	if err != nil {
		return nil, err
	}
	if out == "" {
		return nil, fmt.Errorf("%s has no running container", service)
	}
	return strings.Fields(out), nil
}

// healthy waits until there are that many healthy containers of each service, and no other.
func (s *stack) healthy(ctx context.Context, want map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	return await(ctx, "all containers to be healthy", func(ctx context.Context) error {
		out, err := s.docker(ctx, "ps", "--format", `{{.Label "com.docker.compose.service"}} {{.Status}}`)
		if err != nil {
			return err
		}
		have := map[string]int{}
		for line := range strings.Lines(out) {
			service, status, _ := strings.Cut(line, " ")
			if strings.Contains(status, "(healthy)") {
				have[service]++
			}
		}
		if !maps.Equal(have, want) {
			return fmt.Errorf("healthy are %v, want %v; all:\n%s", have, want, out)
		}
		return nil
	})
}

// initiated waits until etcd-init has made etcd's users and has ended, and looks whether it has switched authentication on.
func (s *stack) initiated(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	var id string
	err := await(ctx, "etcd-init to end", func(ctx context.Context) (err error) {
		if id, err = s.docker(ctx, "ps", "--all", "--quiet", "--filter=label=com.docker.compose.service=etcd-init"); err != nil {
			return err
		}
		state, err := s.docker(ctx, "inspect", "--format={{.State.Status}} {{.State.ExitCode}}", id)
		if err == nil && state != "exited 0" {
			err = fmt.Errorf("it is: %s", state)
		}
		return err
	})
	if err != nil {
		return err
	}
	said, err := s.docker(ctx, "logs", id)
	if err != nil {
		return err
	}
	if !strings.Contains(said, "authentication switched on") {
		return fmt.Errorf("etcd-init has not switched authentication on; it said:\n%s", said)
	}
	s.say("etcd-init has made etcd's users, and switched authentication on")
	return nil
}

func (s *stack) count() string {
	var parts []string
	for _, service := range slices.Sorted(maps.Keys(services)) {
		parts = append(parts, fmt.Sprintf("%s x%d", service, services[service]))
	}
	return strings.Join(parts, ", ")
}

// berth is the path of the client, the same binary as in the image.
func (s *stack) berth() string { return filepath.Join(s.root, ".bin", "image", "berth") }

// client runs a client command of berth against the published port.
func (s *stack) client(ctx context.Context, stdin string, args ...string) (string, error) {
	return s.inside(ctx, stdin, append([]string{s.berth()}, append(args, "--server=127.0.0.1:7070", "--tls-ca="+s.ca, "--token-file="+s.token())...)...)
}

// token is the path of the admin's token.
func (s *stack) token() string { return s.ca + ".token" }

func (s *stack) status(ctx context.Context) (*schedulingv1.GetStatusResponse, error) {
	out, err := s.client(ctx, "", "get", "status", "--output=json", "--timeout=5s")
	if err != nil {
		return nil, err
	}
	status := new(schedulingv1.GetStatusResponse)
	if err := protojson.Unmarshal([]byte(out), status); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return status, nil
}

// apply applies manifests. The gateway may just have come back.
func (s *stack) apply(ctx context.Context, manifests string) error {
	ctx, cancel := context.WithTimeout(ctx, scheduleWait)
	defer cancel()
	return await(ctx, "manifests to be taken", func(ctx context.Context) error {
		_, err := s.client(ctx, manifests, "apply", "--filename=-", "--timeout=10s")
		return err
	})
}

// schedule applies n more pods and waits until all pods are bound, none of them beyond a node's room.
func (s *stack) schedule(ctx context.Context, n int) error {
	if err := s.apply(ctx, podManifests(s.pods, n)); err != nil {
		return err
	}
	s.pods += n
	ctx, cancel := context.WithTimeout(ctx, scheduleWait)
	defer cancel()
	err := await(ctx, fmt.Sprintf("%d pods to be bound", s.pods), func(ctx context.Context) error {
		status, err := s.status(ctx)
		if err != nil {
			return err
		}
		if int(status.GetPods().GetBound()) != s.pods {
			return fmt.Errorf("pods are %v; members %v", status.GetPods(), status.GetMembers())
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := s.client(ctx, "", "get", "pods", "--output=json")
	if err != nil {
		return err
	}
	list := new(schedulingv1.ListPodsResponse)
	if err := protojson.Unmarshal([]byte(out), list); err != nil {
		return fmt.Errorf("read pods: %w", err)
	}
	on := map[string]int{}
	for _, pod := range list.GetPods() {
		on[pod.GetNode()]++
	}
	if len(list.GetPods()) != s.pods || on[""] > 0 {
		return fmt.Errorf("%d pods are listed, %d of them without a node; %d were applied", len(list.GetPods()), on[""], s.pods)
	}
	for node, n := range on {
		if n > podsPerNode {
			return fmt.Errorf("%s has %d pods, and room for %d", node, n, podsPerNode)
		}
	}
	return nil
}

// crash kills the process of one container of a service, of the active one if it is a binder, while pods arrive, and waits
// until they are bound. Docker starts it again.
func (s *stack) crash(ctx context.Context, service string) error {
	ids, err := s.containers(ctx, service)
	if err != nil {
		return err
	}
	victim := ids[0]
	if service == "binder" {
		status, err := s.status(ctx)
		if err != nil {
			return err
		}
		// A member's id has its host's name in it, which is the container's id.
		at := slices.IndexFunc(ids, func(id string) bool { return strings.Contains(status.GetLeader(), id) })
		if at < 0 {
			return fmt.Errorf("the active binder is %q, the containers are %v", status.GetLeader(), ids)
		}
		victim = ids[at]
	}
	began := time.Now()
	process, err := s.docker(ctx, "inspect", "--format={{.State.Pid}}", victim)
	if err != nil {
		return err
	}
	if _, err := s.inside(ctx, "", "sh", "-c", "kill -KILL "+process); err != nil {
		return err
	}
	if err := s.schedule(ctx, morePods); err != nil {
		return err
	}
	bound := time.Since(began)
	wait, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	err = await(wait, "Docker to start it again", func(ctx context.Context) error {
		out, err := s.docker(ctx, "inspect", "--format={{.RestartCount}} {{.State.Running}}", victim)
		if err == nil && out != "1 true" {
			err = fmt.Errorf("restarts and running: %s", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.say("killed one of %s: %d more pods were bound within %.1f s, and it was started again", service, morePods, bound.Seconds())
	return nil
}

// scale changes how many containers of a service run, and waits until the gateway's status has as many ready members.
func (s *stack) scale(ctx context.Context, service string, n int) error {
	if err := s.up(ctx, "--no-recreate", fmt.Sprintf("--scale=%s=%d", service, n)); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, scaleWait)
	defer cancel()
	var seen time.Time
	err := await(wait, fmt.Sprintf("status to have %d ready of %s", n, service), func(ctx context.Context) error {
		status, err := s.status(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, m := range status.GetMembers() {
			if m.GetRole() == service && m.GetReady() {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d are ready; members %v", ready, status.GetMembers())
		}
		seen = time.Now()
		return nil
	})
	if err != nil {
		return err
	}
	ids, err := s.containers(ctx, service)
	if err != nil {
		return err
	}
	out, err := s.docker(ctx, append([]string{"inspect", "--format={{.State.StartedAt}}"}, ids...)...)
	if err != nil {
		return err
	}
	if len(ids) != n {
		return fmt.Errorf("%d containers of %s run, want %d", len(ids), service, n)
	}
	if err := s.schedule(ctx, morePods); err != nil {
		return err
	}
	if n < services[service] {
		s.say("scaled %s to %d: status has as many; %d more pods are bound", service, n, morePods)
		return nil
	}
	var last time.Time
	for _, at := range strings.Fields(out) {
		started, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return err
		}
		if started.After(last) {
			last = started
		}
	}
	s.say("scaled %s to %d: status had as many ready ones %.1f s after the last of them started; %d more pods are bound",
		service, n, seen.Sub(last).Seconds(), morePods)
	return nil
}

// logs returns the end of what the containers have written. It has a time of its own, since that of the test may have run out.
func (s *stack) logs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := s.run(ctx, "logs", "--no-color", "--tail=15")
	if err != nil {
		return err.Error()
	}
	return out
}

func nodeManifests() string {
	var b strings.Builder
	for i := range nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus:\n  allocatable: {cpu: \"%d\", memory: 64Gi, pods: \"110\"}\n", i, podsPerNode)
	}
	return b.String()
}

func podManifests(from, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d, namespace: default}\nspec:\n"+
			"  containers: [{name: work, image: work, resources: {requests: {cpu: \"1\", memory: 1Gi}}}]\n", from+i)
	}
	return b.String()
}
