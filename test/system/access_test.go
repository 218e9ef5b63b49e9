package system

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

func TestOnlyKnownCallersReachThePublicAPI(t *testing.T) {
	berth, dir := berthtest.Binary(t), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tokens", "look, reader, read\nchange, writer, write\n")
	write("reader", "look\n")
	write("pod.yaml", berthtest.Pod("p", "1", "1Gi", ""))
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	at, json := "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1]
	proc, err := kubetest.StartProcess("all", file("log"), berth, "all", "--data-dir", file("data"), "--listen", at, "--http-listen", json,
		"--authenticate", "tokens", "--token-file", file("tokens"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proc.Stop)

	// 1. gRPC.
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	api := schedulingv1.NewSchedulingServiceClient(conn)
	as := func(ctx context.Context, token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	berthtest.Await(t, berthtest.Patience, "an answer for a known caller", func(ctx context.Context) error {
		_, err := api.GetStatus(as(ctx, "look"), &schedulingv1.GetStatusRequest{})
		return err
	})
	if _, err := api.GetStatus(t.Context(), &schedulingv1.GetStatusRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v, want UNAUTHENTICATED", err)
	}
	watch, err := api.WatchPlacements(as(t.Context(), "guess"), &schedulingv1.WatchPlacementsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a watch with an unknown token: %v, want UNAUTHENTICATED", err)
	}

	// 2. JSON goes the same way.
	for token, want := range map[string]int{"": http.StatusUnauthorized, "guess": http.StatusUnauthorized, "look": http.StatusOK} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+json+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("JSON with token %q: %d %s, want %d", token, answer.StatusCode, body, want)
		}
	}

	// 3. The client shows its token.
	command := func(env string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), berth, append(args, "--server", at)...)
		c.Env = append(os.Environ(), env)
		out, _ := c.CombinedOutput()
		return string(out)
	}
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"", []string{"get", "status"}, "no token"},
		{"BERTH_TOKEN=look", []string{"get", "status"}, "leader"},
		{"", []string{"get", "status", "--token-file", file("reader")}, "leader"},
		{"BERTH_TOKEN=look", []string{"apply", "-f", file("pod.yaml")}, "reader may not create /berth/manifests"},
		{"BERTH_TOKEN=change", []string{"apply", "-f", file("pod.yaml")}, "pod/default/p created"},
		{"BERTH_TOKEN=look", []string{"drain-worker", "f-0"}, "reader may not delete /berth/members"},
		{"BERTH_TOKEN=change", []string{"drain-worker", "f-0"}, "there is no member f-0"},
	} {
		if out := command(c.env, c.args...); !strings.Contains(strings.ToLower(out), strings.ToLower(c.want)) {
			t.Errorf("%s %v: %q, want %q in it", c.env, c.args, out, c.want)
		}
	}
}
