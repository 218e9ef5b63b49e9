package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// write puts a file into a directory of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const three = `# a cluster
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
# only a comment
---
apiVersion: v1
kind: Node
metadata: {name: n-1}
--- {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}}
`

func TestApplyPrintsWhatWasDone(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	file := write(t, "cluster.yaml", three)
	out, _, err := h.run("", "apply", "-f", file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "node/n-1 created\npod/shop/web unchanged\n"; out != want {
		t.Errorf("apply printed %q, want %q", out, want)
	}
	if len(g.applied) != 1 || g.applied[0].GetDryRun() {
		t.Fatalf("%d requests, want one that is no dry run", len(g.applied))
	}
	sent := g.applied[0].GetManifests()
	if n := strings.Count("\n"+sent, "\n---"); n != 2 || strings.Contains(sent, "only a comment") {
		t.Errorf("%d separators in %q, want 2 and no empty document", n, sent)
	}
	if out, _, err := h.run(three, "apply", "-f", "-", "--dry-run"); err != nil || !strings.Contains(out, "node/n-2 created (dry run)") {
		t.Errorf("dry run from standard input: %q, %v", out, err)
	}
	if !g.applied[1].GetDryRun() || g.applied[1].GetManifests() != sent {
		t.Error("standard input was not sent as the file was, as a dry run")
	}
}

func TestLargeInputsAreCheckedWholeThenSentInParts(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	var input strings.Builder
	const documents = 10_000
	for i := range documents {
		fmt.Fprintf(&input, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p-%d, annotations: {pad: %s}}\n", i, strings.Repeat("x", 700))
	}
	if _, _, err := h.run(input.String(), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for i, r := range g.applied {
		if size := len(r.GetManifests()); size > 3<<20 {
			t.Errorf("request %d has %d bytes", i, size)
		}
		if wantDry := i < len(g.applied)/2; r.GetDryRun() != wantDry {
			t.Errorf("request %d of %d: dry run %t", i, len(g.applied), r.GetDryRun())
		}
		if !r.GetDryRun() {
			sent += strings.Count(r.GetManifests(), "kind: Pod")
		}
	}
	if sent != documents || len(g.applied) < 4 {
		t.Errorf("%d documents in %d requests, want %d in several", sent, len(g.applied), documents)
	}
}

func TestLargeListsAreTakenApart(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	items := make([]string, 2000)
	for i := range items {
		items[i] = fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p-%d","annotations":{"pad":"%s"}}}`, i, strings.Repeat("x", 700))
	}
	list := `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",") + `]}`
	if _, _, err := h.run(list, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(g.applied[0].GetManifests(), "\n---\n"); n != 1999 {
		t.Errorf("%d separators in the request, want 1999", n)
	}
}

func TestTooLargeDocumentIsNamed(t *testing.T) {
	h := start(t, &gateway{})
	file := write(t, "cluster.yaml", three+"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: huge\n  labels:\n    k: "+strings.Repeat("v", 10<<20)+"\n")
	_, _, err := h.run("", "apply", "-f", file)
	if err == nil || !strings.Contains(err.Error(), file+", line 13: Node huge") || !strings.Contains(err.Error(), "too large") {
		t.Errorf("apply: %.300v, want the file, line 13 and the node's name", err)
	}
}

func TestViolationsNameFileAndLine(t *testing.T) {
	g := &gateway{err: rpc.Invalid(
		rpc.Violation{Field: "documents[1].spec.taints[0].effect", Description: `Node n-1: "Never" is no effect`},
		rpc.Violation{Field: "documents[2]", Description: "Pod shop/web: not a pod"},
		rpc.Violation{Field: "documents[99].x", Description: "beyond"},
	)}
	h := start(t, g)
	file := write(t, "cluster.yaml", three)
	_, _, err := h.run("", "apply", "-f", file)
	want := "3 things are invalid:\n" +
		"  " + file + `, line 8: spec.taints[0].effect: Node n-1: "Never" is no effect` + "\n" +
		"  " + file + ", line 11: Pod shop/web: not a pod\n" +
		"  documents[99].x: beyond"
	if err == nil || err.Error() != want {
		t.Errorf("apply: %v\nwant: %s", err, want)
	}
}

func TestErrorsAreToldInPlainWords(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	for _, test := range []struct {
		err  error
		want string
	}{
		{rpc.Error(codes.FailedPrecondition, "NOT_LOCAL", "the cluster of this Berth is Kubernetes: use kubectl"), "the cluster of this Berth is Kubernetes: use kubectl"},
		{rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "loading"), "the gateway at berth cannot answer now: loading"},
		{rpc.Error(codes.DeadlineExceeded, "", "x"), "no answer from the gateway at berth within 30s"},
		{rpc.Error(codes.Unimplemented, "", "unknown service"), "is not a gateway of Berth"},
	} {
		g.err = test.err
		if _, _, err := h.run(three, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("over %v: %v, want %q", test.err, err, test.want)
		}
	}
}

func TestDeleteGoesOnOverWhatIsMissing(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	out, _, err := h.run(strings.Replace(three, "name: n-1", "name: missing-1", 1), "delete", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "Node missing-1 not found") {
		t.Errorf("delete: %v, want what was missing", err)
	}
	if want := "pod/shop/web deleted\nnamespace/shop deleted\n"; out != want {
		t.Errorf("delete printed %q, want %q", out, want)
	}
	if want := []string{"Pod shop/web", "Namespace /shop"}; !slices.Equal(g.deleted, want) {
		t.Errorf("deleted %q, want %q: last first", g.deleted, want)
	}
	if _, _, err := h.run("", "delete", "node", "missing-2", "--ignore-not-found"); err != nil {
		t.Errorf("delete with --ignore-not-found: %v", err)
	}
	if _, _, err := h.run("", "delete", "pod", "web", "-n", "shop"); err != nil {
		t.Error(err)
	}
	if last := g.deleted[len(g.deleted)-1]; last != "Pod shop/web" {
		t.Errorf("deleted %q, want Pod shop/web", last)
	}
}

func TestEveryKindIsDeletedByItsNames(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	want := map[string]string{
		"po p": "Pod shop/p", "no n": "Node /n", "ns n": "Namespace /n", "svc s": "Service shop/s", "Services s": "Service shop/s",
		"rc r": "ReplicationController shop/r", "rs r": "ReplicaSet shop/r", "replicaset r": "ReplicaSet shop/r", "sts s": "StatefulSet shop/s",
		"pdb b": "PodDisruptionBudget shop/b", "pv v": "PersistentVolume /v", "pvc c": "PersistentVolumeClaim shop/c", "sc s": "StorageClass /s",
		"csinode n": "CSINode /n", "csidrivers d": "CSIDriver /d", "csistoragecapacity c": "CSIStorageCapacity shop/c",
		"volumeattachment a": "VolumeAttachment /a",
	}
	for args, deleted := range want {
		if _, _, err := h.run("", append(strings.Fields("delete "+args), "-n", "shop")...); err != nil {
			t.Errorf("delete %s: %v", args, err)
		}
		if last := g.deleted[len(g.deleted)-1]; last != deleted {
			t.Errorf("delete %s deleted %q, want %q", args, last, deleted)
		}
	}
	file := `{"kind":"Service","metadata":{"name":"web","namespace":"shop"}}`
	if _, _, err := h.run(file, "delete", "-f", "-"); err != nil || g.deleted[len(g.deleted)-1] != "Service shop/web" {
		t.Errorf("delete of a file deleted %q, %v; want Service shop/web", g.deleted[len(g.deleted)-1], err)
	}
}

func TestListIsDeletedItemByItem(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	list := `{"kind":"List","items":[{"kind":"Node","metadata":{"name":"a"}},{"kind":"Node","metadata":{"name":"b"}}]}`
	if _, _, err := h.run(list, "delete", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Node /b", "Node /a"}; !slices.Equal(g.deleted, want) {
		t.Errorf("deleted %q, want %q", g.deleted, want)
	}
}

func TestInputThatCannotBeReadIsNamed(t *testing.T) {
	h := start(t, &gateway{})
	for _, test := range []struct{ args, stdin, want string }{
		{"apply -f /does/not/exist.yaml", "", "/does/not/exist.yaml"},
		{"apply -f -", "# nothing\n---\n", "no document"},
		{"delete -f -", "{", "standard input, line 1"},
		{"delete -f -", "kind: Deployment\nmetadata: {name: x}", `"Deployment" is not a kind`},
		{"delete -f -", "kind: Pod", "metadata.name: required"},
	} {
		if _, _, err := h.run(test.stdin, strings.Fields(test.args)...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
}
