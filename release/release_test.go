package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/macho"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	imageregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	spdx "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"golang.org/x/mod/modfile"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// top is the repository that this module lies in.
const top = ".."

// committed is when small repositories are committed.
var committed = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// run runs a program in a folder and returns what it prints.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	at := committed.Format(time.RFC3339)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE="+at, "GIT_COMMITTER_DATE="+at)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// write writes files, by their names below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for file, text := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// commit commits all that is in a repository.
func commit(t *testing.T, repo string) {
	t.Helper()
	run(t, repo, "git", "add", "--all")
	run(t, repo, "git", "commit", "--quiet", "--message", "all of it")
}

// begin makes a folder a repository.
func begin(t *testing.T, repo string) {
	t.Helper()
	run(t, repo, "git", "init", "--quiet")
	run(t, repo, "git", "config", "user.name", "Somebody")
	run(t, repo, "git", "config", "user.email", "somebody@example.com")
	run(t, repo, "git", "config", "commit.gpgsign", "false")
	run(t, repo, "git", "config", "tag.gpgsign", "false")
}

// read returns a file.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// small returns a repository of Berth's form, with the real chart and manifest, and programs that only print what they are.
func small(t *testing.T) string {
	t.Helper()
	repo := t.TempDir()
	program := func(name string) string {
		return "package main\n\nimport \"" + mainModule + "/internal/member\"\n\nfunc main() { println(\"" + name + "\", member.Build()) }\n"
	}
	write(t, repo, map[string]string{
		".gitignore":                       ".bin/\n",
		"go.mod":                           "module " + mainModule + "\n\ngo 1.26.0\n",
		"LICENSE":                          "All may use this.\n",
		"internal/member/member.go":        "package member\n\nvar version, revision string\n\nfunc Build() string { return version + \" \" + revision }\n",
		"cmd/berth/main.go":                program("berth"),
		"cmd/kubectl-berth/main.go":        program("kubectl-berth"),
		"plugins/yoda/go.mod":              "module " + mainModule + "/plugins/yoda\n\ngo 1.26.0\n\nrequire " + mainModule + " v0.0.0\n\nreplace " + mainModule + " => ../..\n",
		"plugins/yoda/cmd/berth-yoda/m.go": program("berth-yoda"),
		"deploy/krew/berth.yaml":           string(read(t, top, "deploy", "krew", "berth.yaml")),
		"CHANGELOG.md":                     "# Changelog\n\n## [Unreleased]\n\nWhat is to come.\n\n## [1.2.3] - 2026-11-30\n\n- It is there.\n\n## [1.2.2]\n\n- No date.\n\n## [1.2.1] - 2026-11-29\n",
	})
	if err := os.CopyFS(filepath.Join(repo, "deploy", "helm"), os.DirFS(filepath.Join(top, "deploy", "helm"))); err != nil {
		t.Fatal(err)
	}
	begin(t, repo)
	commit(t, repo)
	return repo
}

// static are the programs that need no C compiler.
func static() []program {
	return slices.DeleteFunc(slices.Clone(programs), func(p program) bool { return p.cgo })
}

// unpacked returns what is in a compressed tar.
func unpacked(t *testing.T, packed []byte) (all []entry) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	return untarred(t, z)
}

func untarred(t *testing.T, r io.Reader) (all []entry) {
	t.Helper()
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(committed) || h.Uid != h.Gid || h.Uname != "" {
			t.Errorf("%s is of %v and belongs to %d:%d %q", h.Name, h.ModTime, h.Uid, h.Gid, h.Uname)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry{name: h.Name, mode: h.Mode, owner: h.Uid, link: h.Linkname, content: content})
	}
}

func TestAReleaseHasProgramsImagesChartManifestAndBillsOfMaterials(t *testing.T) {
	repo := small(t)
	c := &config{repo: repo, version: "v1.2.3", what: static(), log: t.Output()}
	dir, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	head := run(t, repo, "git", "rev-parse", "HEAD")

	// 1. The files, and their sums.
	want := []string{"CHANGES.md", "SHA256SUMS", "berth-1.2.3.tgz", "berth-kube-scheduler_image", "berth-kube-scheduler_image.tar", "berth-yoda_image", "berth-yoda_image.tar", "berth.yaml", "berth_image", "berth_image.tar", "image-digests.txt", "release.json"}
	for _, p := range static() {
		for _, on := range p.on {
			end := ".tar.gz"
			if on.os == "windows" {
				end = ".zip"
			}
			want = append(want, p.name+"_"+on.os+"_"+on.arch+end, p.name+"_"+on.os+"_"+on.arch+".spdx.json")
		}
	}
	slices.Sort(want)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums := make(map[string]string)
	var got []string
	for _, f := range files {
		got = append(got, f.Name())
		if !f.IsDir() && f.Name() != "SHA256SUMS" {
			sums[f.Name()] = sha256Of(read(t, dir, f.Name()))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	listed := make(map[string]string)
	for line := range strings.Lines(string(read(t, dir, "SHA256SUMS"))) {
		sum, file, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		listed[file] = sum
	}
	if diff := cmp.Diff(sums, listed); diff != "" {
		t.Errorf("SHA256SUMS (-want +got):\n%s", diff)
	}
	if got := string(read(t, dir, "CHANGES.md")); got != "# Berth v1.2.3\n\n- It is there.\n" {
		t.Errorf("CHANGES.md: %q", got)
	}

	// 2. A program runs, and says what it is. One for Windows is in a zip.
	host := filepath.Join(t.TempDir(), "berth")
	for _, e := range unpacked(t, read(t, dir, "berth_linux_"+runtime.GOARCH+".tar.gz")) {
		switch e.name {
		case "berth":
			if e.mode != 0o755 {
				t.Errorf("berth has the mode %o", e.mode)
			}
			if err := os.WriteFile(host, e.content, 0o755); err != nil {
				t.Fatal(err)
			}
		case "LICENSE":
			if string(e.content) != "All may use this.\n" {
				t.Errorf("LICENSE: %s", e.content)
			}
		case "THIRD_PARTY_LICENSES":
			if !strings.Contains(string(e.content), "Go "+strings.TrimPrefix(runtime.Version(), "go")+": LICENSE") || !strings.Contains(string(e.content), "Redistribution and use") {
				t.Errorf("the license of Go is not in %s", e.content)
			}
		default:
			t.Errorf("%s is in the archive", e.name)
		}
	}
	if out := run(t, repo, host); out != "berth v1.2.3 "+head {
		t.Errorf("berth says %q", out)
	}
	windows, err := zip.OpenReader(filepath.Join(dir, "kubectl-berth_windows_arm64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.Close()
	if f := windows.File[0]; f.Name != "kubectl-berth.exe" || !f.Modified.Equal(committed) || f.Mode() != 0o755 {
		t.Errorf("%s of %v, with the mode %v", f.Name, f.Modified, f.Mode())
	}

	// 3. krew's manifest has the sums of the archives.
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256 string }
		}
	}
	if err := yaml.Unmarshal(read(t, dir, "berth.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != len(clients) {
		t.Errorf("krew's manifest: %+v", manifest)
	}
	for _, p := range manifest.Spec.Platforms {
		if p.SHA256 != sums[filepath.Base(p.URI)] || len(p.SHA256) != 64 {
			t.Errorf("krew's manifest has %s for %s, want %s", p.SHA256, p.URI, sums[filepath.Base(p.URI)])
		}
	}

	// 4. The chart is the release's.
	chart, err := loader.LoadFile(filepath.Join(dir, "berth-1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if chart.Metadata.Version != "1.2.3" || chart.Metadata.AppVersion != "v1.2.3" {
		t.Errorf("the chart is of %s and %s", chart.Metadata.Version, chart.Metadata.AppVersion)
	}
	if values := fmt.Sprint(chart.Values); strings.Contains(values, "tag:dev") || !strings.Contains(values, registry+"/berth ") || !strings.Contains(values, registry+"/berth-scv ") {
		t.Errorf("the chart's values name images that are not the release's: %s", values)
	}

	// 5. The bill of materials is one to who reads such.
	bill, err := spdx.Read(bytes.NewReader(read(t, dir, "berth-yoda_linux_arm64.spdx.json")))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(bill); err != nil {
		t.Error(err)
	}
	var parts []string
	for _, p := range bill.Packages {
		parts = append(parts, p.PackageName+" "+p.PackageVersion+" "+p.PackageExternalReferences[0].Locator)
	}
	if want := []string{
		"berth-yoda v1.2.3 pkg:golang/" + mainModule + "/plugins/yoda@v1.2.3#cmd/berth-yoda", mainModule + " v1.2.3 pkg:golang/" + mainModule + "@v1.2.3",
		"stdlib " + strings.TrimPrefix(runtime.Version(), "go") + " pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go"),
	}; !slices.Equal(parts, want) {
		t.Errorf("the bill of materials has %q, want %q", parts, want)
	}

	// 6. What it was made from.
	var metadata struct {
		Version, Revision, Created, GoVersion string
		DryRun                                bool
		Platforms                             []string
		Images                                []image
	}
	if err := json.Unmarshal(read(t, dir, "release.json"), &metadata); err != nil {
		t.Fatal(err)
	}
	if metadata.Version != "v1.2.3" || metadata.Revision != head || metadata.Created != committed.Format(time.RFC3339) || metadata.GoVersion != runtime.Version() || metadata.DryRun || len(metadata.Platforms) != len(clients) || len(metadata.Images) != 3 {
		t.Errorf("release.json: %+v", metadata)
	}
	if got, want := string(read(t, dir, "image-digests.txt")), registry+"/berth@"+metadata.Images[0].Digest+"\n"; !strings.HasPrefix(got, want) {
		t.Errorf("image-digests.txt: %q, want %q first", got, want)
	}
	checkImage(t, filepath.Join(dir, "berth_image"), metadata.Images[0], "65532:65532", head)
	checkImage(t, filepath.Join(dir, "berth-kube-scheduler_image"), metadata.Images[1], "0:0", head)

	// 7. The tags, and that a second run changes nothing, and one of another commit is refused.
	for _, name := range []string{"v1.2.3", "berthapp/v1.2.3"} {
		if got := run(t, repo, "git", "cat-file", "-t", "refs/tags/"+name); got != "tag" {
			t.Errorf("%s is a %s, want an annotated tag", name, got)
		}
		if got := run(t, repo, "git", "rev-parse", "refs/tags/"+name+"^{commit}"); got != head {
			t.Errorf("%s is at %s, want %s", name, got, head)
		}
	}
	again := &config{repo: repo, version: "v1.2.3", what: static(), log: t.Output()}
	if _, err := again.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for file, sum := range sums {
		if got := sha256Of(read(t, dir, file)); got != sum {
			t.Errorf("%s is another one where the tag is there already", file)
		}
	}
	write(t, repo, map[string]string{"more": "more\n"})
	commit(t, repo)
	for _, is := range []string{"v1.2.3", "berthapp/v1.2.3"} { // each by itself is enough
		if _, err := again.run(t.Context()); err == nil || !strings.Contains(err.Error(), "v1.2.3 is at "+head) {
			t.Errorf("of another commit: %v", err)
		}
		run(t, repo, "git", "tag", "--delete", is)
	}
}

// checkImage has a registry take an image from its layout, and looks at what comes of it for each platform.
func checkImage(t *testing.T, dir string, is image, user, head string) {
	t.Helper()
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Manifests) != 1 || list.Manifests[0].Digest.String() != is.Digest || list.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Fatalf("index.json: %+v", list.Manifests)
	}
	of, err := index.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(imageregistry.New())
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/berth:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, of, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, on := range servers {
		pulled, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: on.os, Architecture: on.arch}), remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := pulled.Digest(); err != nil || digest.String() != is.Platforms[on.String()] {
			t.Errorf("%s: %s, %v, want %s", on, digest, err, is.Platforms[on.String()])
		}
		config, err := pulled.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		labels := config.Config.Labels
		if config.Architecture != on.arch || config.OS != "linux" || !config.Created.Equal(committed) || config.Config.User != user || !slices.Equal(config.Config.Entrypoint, []string{"/berth"}) {
			t.Errorf("%s: %+v", on, config)
		}
		for key, want := range map[string]string{"version": "v1.2.3", "revision": head, "title": filepath.Base(is.Name), "licenses": "Apache-2.0", "source": "https://github.com/berth-scheduler/berth", "created": "2026-11-30T12:00:00Z"} {
			if got := labels["org.opencontainers.image."+key]; got != want {
				t.Errorf("%s: the label %s is %q, want %q", on, key, got, want)
			}
		}
		manifest, err := pulled.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(labels, manifest.Annotations); diff != "" {
			t.Errorf("%s: annotations (-labels +annotations):\n%s", on, diff)
		}
		flat := mutate.Extract(pulled)
		in := make(map[string]entry)
		for _, e := range untarred(t, flat) {
			in[strings.TrimSuffix(e.name, "/")] = e
		}
		flat.Close()
		if e := in["berth"]; e.mode != 0o755 || !bytes.Contains(e.content, []byte("ELF")) {
			t.Errorf("%s: /berth has the mode %o and %d bytes", on, e.mode, len(e.content))
		}
		if e := in["usr/local/bin/kube-scheduler"]; e.link != "/berth" {
			t.Errorf("%s: kube-scheduler is a link to %q", on, e.link)
		}
		if e := in["certs/filter-worker"]; e.owner != nonroot {
			t.Errorf("%s: a role's folder for certificates belongs to %d", on, e.owner)
		}
		if e := in[authorities]; bytes.Count(e.content, []byte("BEGIN CERTIFICATE")) < 50 {
			t.Errorf("%s: %d authorities", on, bytes.Count(e.content, []byte("BEGIN CERTIFICATE")))
		}
		if e := in["licenses/LICENSE"]; string(e.content) != "All may use this.\n" {
			t.Errorf("%s: the license is %q", on, e.content)
		}
		if e := in["licenses/THIRD_PARTY_LICENSES"]; !bytes.Contains(e.content, []byte("Redistribution and use")) {
			t.Errorf("%s: the license of Go is not in %q", on, e.content)
		}
		if e := in["tmp"]; e.mode != 0o1777 {
			t.Errorf("%s: /tmp has the mode %o", on, e.mode)
		}
	}
}

// TestImagesAreWhatTheDockerfileMakes holds the two descriptions of the image against each other.
func TestImagesAreWhatTheDockerfileMakes(t *testing.T) {
	text := string(read(t, top, "deploy", "Dockerfile"))
	list := regexp.MustCompile(`for role in ([a-z -]+); do mkdir -p /image/certs/`).FindStringSubmatch(text)
	if list == nil {
		t.Fatal("deploy/Dockerfile makes no folders for certificates")
	}
	theirs := strings.Fields(list[1])
	slices.Sort(theirs)
	if diff := cmp.Diff(theirs, roles); diff != "" {
		t.Errorf("folders for certificates (-Dockerfile +release):\n%s", diff)
	}
	for _, line := range []string{
		fmt.Sprintf("ARG RUN_AS=%d:%[1]d\nUSER ${RUN_AS}\n", nonroot), "\nENTRYPOINT [\"/berth\"]\nCMD [\"--help\"]\n", "ln -s /berth /image/bin/kube-scheduler", " /image/bin /usr/local/bin\n", " /image/berth /berth\n", "\nCOPY LICENSE /licenses/LICENSE\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("deploy/Dockerfile has no %q, as the release has it", line)
		}
	}
}

func TestTwoReleasesOfACommitAreTheSameBytes(t *testing.T) {
	repo := small(t)
	var sums [2]string
	var ids []string
	for i := range sums {
		clone := filepath.Join(t.TempDir(), strings.Repeat("deeper", i), "clone")
		run(t, ".", "git", "clone", "--quiet", repo, clone)
		if i == 1 {
			run(t, clone, "git", "tag", "v9.9.9") // git describes it otherwise
		}
		c := &config{
			repo: clone, version: "v1.2.3", dryRun: true, what: static(), platforms: []platform{{"linux", runtime.GOARCH}, {"darwin", "amd64"}, {"darwin", "arm64"}}, log: t.Output(),
			goCache: t.TempDir(), // all is compiled again
		}
		dir, err := c.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(read(t, dir, "SHA256SUMS"))
		ids = append(ids, uuid(t, filepath.Join(dir, "kubectl-berth_darwin_arm64.tar.gz")), uuid(t, filepath.Join(dir, "kubectl-berth_darwin_amd64.tar.gz")))
		if got := run(t, clone, "git", "tag", "--list", "*v1.2.3"); got != "" {
			t.Errorf("a dry run has made the tag %s", got)
		}
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" || sums[0] == "" {
		t.Errorf("SHA256SUMS (-first +second):\n%s", diff)
	}
	if ids[0] != ids[2] || ids[1] != ids[3] || ids[0] == ids[1] {
		t.Errorf("programs for macOS have the UUIDs %q: want two of arm64 and of amd64 that are the same", ids)
	}
}

// TestSettingsOfWhoMakesItDoNotMatter has such as change bytes, by the environment and by what "go env -w" writes.
func TestSettingsOfWhoMakesItDoNotMatter(t *testing.T) {
	repo := small(t)
	write(t, repo, map[string]string{ // with C in it: what C compilers read has to matter
		"cmd/c/main.go": "package main\n\n// #if __has_include(<secret.h>)\n// #define SECRET 3\n// #endif\n// #ifndef SECRET\n// #define SECRET 0\n// #endif\n// int secret(void) { return SECRET; }\nimport \"C\"\nimport \"" + mainModule + "/internal/member\"\n\nfunc main() { println(\"c\", C.secret(), member.Build()) }\n",
	})
	commit(t, repo)
	on := platform{"linux", runtime.GOARCH}
	what := append(static(), program{name: "c", dir: ".", path: "./cmd/c", on: servers, cgo: true})
	release := func() string {
		c := &config{repo: repo, version: "v1.2.3", dryRun: true, what: what, platforms: []platform{on}, log: t.Output(), goCache: t.TempDir()}
		dir, err := c.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(read(t, dir, "SHA256SUMS"))
	}
	plain := release()
	config, header := t.TempDir(), t.TempDir()
	write(t, config, map[string]string{"go/env": "GOPROXY=" + run(t, ".", "go", "env", "GOPROXY") + "\nGOFIPS140=latest\nGOEXPERIMENT=noregabi\nGOAMD64=v3\nGOARM64=v9.0\nGOFLAGS=-tags=x\nCGO_CFLAGS=-O0 -DSECRET=1\nCGO_LDFLAGS=-Wl,--build-id=sha1\n"})
	write(t, header, map[string]string{"secret.h": ""})
	for name, value := range map[string]string{"XDG_CONFIG_HOME": config, "CGO_CPPFLAGS": "-DSECRET=2", "GO_LDFLAGS": "-w", "GODEBUG": "x509sha1=1", "CPATH": header, "C_INCLUDE_PATH": header, "LIBRARY_PATH": header, "SOURCE_DATE_EPOCH": "1"} {
		t.Setenv(name, value)
	}
	if diff := cmp.Diff(plain, release()); diff != "" {
		t.Errorf("SHA256SUMS (-plain +with settings):\n%s", diff)
	}
}

// TestWhoImportsBerthappFindsAllOfItByTags: it requires of this repository only what has a tag at each release.
func TestWhoImportsBerthappFindsAllOfItByTags(t *testing.T) {
	file, err := modfile.Parse("go.mod", read(t, top, "berthapp", "go.mod"), nil)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range append([]*modfile.Require{{Mod: file.Module.Mod}}, file.Require...) {
		if !ours(m.Mod.Path) {
			continue
		}
		found = true
		if prefix := strings.TrimPrefix(strings.TrimPrefix(m.Mod.Path, mainModule), "/"); !slices.Contains(tagsOf("v1.2.3"), path.Join(prefix, "v1.2.3")) {
			t.Errorf("%s has no tag at a release", m.Mod.Path)
		}
	}
	if !found {
		t.Error("berthapp requires nothing of this repository")
	}
}

// uuid returns the LC_UUID of the program for macOS in an archive, without which macOS does not let it speak to its network.
func uuid(t *testing.T, archive string) string {
	t.Helper()
	const lcUUID = 0x1b
	f, err := macho.NewFile(bytes.NewReader(unpacked(t, read(t, archive))[0].content))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range f.Loads {
		if raw := l.Raw(); f.ByteOrder.Uint32(raw) == lcUUID {
			return hex.EncodeToString(raw[8:])
		}
	}
	t.Errorf("%s has no LC_UUID", archive)
	return ""
}

// TestThePluginIsTheSameBytesFromTwoClones compiles a real program, from what is committed or could be.
func TestThePluginIsTheSameBytesFromTwoClones(t *testing.T) {
	repo := t.TempDir()
	for file := range strings.SplitSeq(strings.TrimRight(run(t, top, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		if info, err := os.Lstat(filepath.Join(top, file)); err != nil || !info.Mode().IsRegular() {
			continue // removed, and not committed
		}
		write(t, repo, map[string]string{file: string(read(t, top, file))})
	}
	begin(t, repo)
	commit(t, repo)
	other := filepath.Join(t.TempDir(), "somewhere", "else")
	run(t, ".", "git", "clone", "--quiet", repo, other)

	plugin := programs[slices.IndexFunc(programs, func(p program) bool { return p.name == "kubectl-berth" })]
	on := platform{"linux", runtime.GOARCH}
	var all []*built
	for _, clone := range []string{repo, other} {
		r := &release{config: &config{repo: clone, version: "v0.0.1", log: t.Output()}, dir: t.TempDir(), source: clone, archives: make(map[string]string)}
		r.work = filepath.Join(r.dir, "work")
		var err error
		if r.places, err = places(t.Context(), clone); err != nil {
			t.Fatal(err)
		}
		if r.state, err = inspect(t.Context(), clone, r.version); err != nil {
			t.Fatal(err)
		}
		if r.dirty {
			t.Fatalf("%s is dirty:\n%s", clone, r.changes)
		}
		b, err := r.compile(t.Context(), plugin, on, "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
		if clone == other {
			continue
		}
		// What it is made of has licenses, and is in its bill of materials.
		if err := r.pack(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		bill, err := spdx.Read(bytes.NewReader(read(t, r.dir, b.base()+".spdx.json")))
		if err != nil {
			t.Fatal(err)
		}
		if err := spdxlib.ValidateDocument(bill); err != nil {
			t.Error(err)
		}
		in := make(map[string]bool)
		for _, p := range bill.Packages {
			in[p.PackageName] = true
		}
		for _, e := range unpacked(t, read(t, r.dir, b.base()+".tar.gz")) {
			if e.name != "THIRD_PARTY_LICENSES" {
				continue
			}
			for _, m := range b.info.Deps {
				if !in[m.Path] || !bytes.Contains(e.content, []byte("\n"+m.Path+" "+m.Version+": ")) {
					t.Errorf("%s is not in the bill of materials, or its license is not passed on", m.Path)
				}
			}
		}
		if len(b.info.Deps) == 0 || len(bill.Packages) != len(b.info.Deps)+2 { // itself, and Go
			t.Errorf("the bill of materials has %d packages for %d modules", len(bill.Packages), len(b.info.Deps))
		}
		var says struct {
			Client struct{ Version, Revision, Kubernetes string }
		}
		if err := json.Unmarshal([]byte(run(t, ".", b.file, "version", "--client", "-o", "json")), &says); err != nil {
			t.Fatal(err)
		}
		if says.Client.Version != "v0.0.1" || says.Client.Revision != r.commit || says.Client.Kubernetes == "" {
			t.Errorf("it says that it is %+v, of commit %s", says.Client, r.commit)
		}
	}
	if all[0].sum != all[1].sum {
		t.Errorf("%s and %s are not the same bytes", all[0].file, all[1].file)
	}
}

func TestWhatIsNoReleaseIsRefusedBeforeAnythingIsCompiled(t *testing.T) {
	for version, want := range map[string]string{
		"":         "not a version",
		"0.1.0":    "not a version",
		"v1":       "not a version",
		"v1.2.03":  "not a version",
		"v1.2.3+b": "not a version",
		"f84dc946": "not a version",
		"v1.2.4":   "CHANGELOG.md has no section [1.2.4]: move what [Unreleased] has",
		"v1.2.2":   "the section [1.2.2] has no date",
		"v1.2.1":   "the section [1.2.1] is empty",
	} {
		c := &config{repo: small(t), version: version, log: t.Output()}
		if dir, err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want an error that says %q", version, dir, err, want)
		}
		nothingIn(t, filepath.Join(c.repo, ".bin", "release"))
	}
	repo := small(t)
	write(t, repo, map[string]string{"new.go": "package new\n"})
	for what, c := range map[string]*config{
		"?? new.go":                {version: "v1.2.3"},
		"only a dry run (DRY_RUN=": {version: "v1.2.3", platforms: servers},
	} {
		c.repo, c.log = repo, t.Output()
		if dir, err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s, %v, want an error that says %q", dir, err, what)
		}
	}
	nothingIn(t, filepath.Join(repo, ".bin", "release"))
	if _, err := parsePlatforms("linux/amd64,plan9/386"); err == nil || !strings.Contains(err.Error(), `"plan9/386" is none that Berth is released for`) {
		t.Errorf("an unknown platform: %v", err)
	}
}

func TestWhatComesBeforeAReleaseHasWhatIsNotReleasedYet(t *testing.T) {
	file := filepath.Join(small(t), "CHANGELOG.md")
	notes, err := notesOf(file, "v2.0.0-rc.1", false)
	if err != nil || notes != "# Berth v2.0.0-rc.1\n\nWhat is to come.\n" {
		t.Errorf("%q, %v", notes, err)
	}
	if err := os.WriteFile(file, []byte("## [Unreleased]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if notes, err := notesOf(file, "v2.0.0-rc.1", false); err == nil || !strings.Contains(err.Error(), "the section [Unreleased] is empty") {
		t.Errorf("nothing to come: %q, %v", notes, err)
	}
}

// TestMakeReleaseWantsAVersionByName: the Makefile has a version for what is built, from git, which can look like one that can be released.
func TestMakeReleaseWantsAVersionByName(t *testing.T) {
	for _, by := range []struct {
		args, env []string
		want      string
	}{
		{want: "--version '' "},
		{args: []string{"VERSION=v1.2.3"}, want: "--version 'v1.2.3' "},
		{env: []string{"VERSION=v1.2.3"}, want: "--version 'v1.2.3' "},
	} {
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"--dry-run", "--no-print-directory", "release"}, by.args...)...)
		cmd.Dir = top
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "VERSION=") || strings.HasPrefix(v, "MAKE") }), by.env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !strings.Contains(string(out), by.want) {
			t.Errorf("make %v with %v runs %s, want %s in it", by.args, by.env, out, by.want)
		}
	}
}

// nothingIn fails the test if there is something in a folder.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	if files, err := os.ReadDir(dir); len(files) > 0 || err != nil && !os.IsNotExist(err) {
		t.Errorf("in %s there are %v, %v", dir, files, err)
	}
}

// compiled fails the test when something is compiled.
type compiled struct{ *testing.T }

func (c compiled) Write(text []byte) (int, error) {
	if bytes.Contains(text, []byte("compiled")) {
		c.Errorf("%s", text)
	}
	return len(text), nil
}

func TestWhatWouldFailInTheEndFailsInTheBeginning(t *testing.T) {
	refused := func(t *testing.T, c *config, want string) {
		t.Helper()
		c.version, c.log = "v1.2.3", compiled{t}
		if dir, err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, %v, want an error that says %q", dir, err, want)
		}
		nothingIn(t, filepath.Join(c.repo, ".bin", "release"))
	}
	t.Run("the tag would be nobody's", func(t *testing.T) {
		repo := small(t)
		run(t, repo, "git", "config", "user.useConfigOnly", "true")
		run(t, repo, "git", "config", "--unset", "user.email")
		t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
		t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
		for _, name := range []string{"GIT_COMMITTER_EMAIL", "EMAIL"} { // set by who tests
			t.Setenv(name, "")
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, &config{repo: repo, what: static()}, "set user.name and user.email")
	})
	bin := func(t *testing.T, compiler string) {
		t.Helper()
		dir := t.TempDir()
		for _, name := range []string{"go", "git"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if compiler != "" {
			for _, arch := range []string{"x86_64", "aarch64"} {
				if err := os.WriteFile(filepath.Join(dir, arch+"-linux-gnu-gcc"), []byte(compiler), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Setenv("PATH", dir)
	}
	t.Run("there is no C compiler", func(t *testing.T) {
		repo := small(t)
		bin(t, "")
		refused(t, &config{repo: repo}, "compile berth-scv for linux/amd64: there is no C compiler for it")
	})
	t.Run("the C compiler has no C library", func(t *testing.T) {
		repo := small(t)
		bin(t, "#!/bin/sh\ntest \"$1\" = --version && echo it is version 1 || { echo 'no stdlib.h' >&2; exit 1; }\n")
		refused(t, &config{repo: repo}, "the C compiler x86_64-linux-gnu-gcc does not work: has it a C library?")
	})
}

// meanwhile commits something else as soon as something has been compiled.
type meanwhile struct {
	*testing.T
	repo string
	done bool
}

func (m *meanwhile) Write(text []byte) (int, error) {
	if bytes.Contains(text, []byte("compiled")) && !m.done {
		m.done = true
		write(m.T, m.repo, map[string]string{
			"LICENSE": "Nobody may use this.\n", "cmd/kubectl-berth/main.go": "package main\n\nfunc main() { println(\"another\") }\n", "deploy/krew/berth.yaml": "another\n",
		})
		commit(m.T, m.repo)
	}
	return len(text), nil
}

func TestWhatIsCommittedMeanwhileIsNotInTheRelease(t *testing.T) {
	repo := small(t)
	write(t, repo, map[string]string{".bin/x": "", ".git/info/exclude": "ignored.go\n", "cmd/berth/ignored.go": "package main\n\nfunc init() { println(\"ignored\") }\n"})
	head := run(t, repo, "git", "rev-parse", "HEAD")
	late := &meanwhile{T: t, repo: repo}
	c := &config{repo: repo, version: "v1.2.3", what: static(), log: late}
	dir, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now := run(t, repo, "git", "rev-parse", "HEAD"); !late.done || now == head {
		t.Fatalf("nothing was committed meanwhile: HEAD is %s", now)
	}
	if got := run(t, repo, "git", "rev-parse", "v1.2.3^{commit}"); got != head {
		t.Errorf("the tag is at %s, want %s, of which the programs are", got, head)
	}
	for _, program := range []string{"berth", "kubectl-berth"} {
		files := unpacked(t, read(t, dir, program+"_linux_"+runtime.GOARCH+".tar.gz"))
		file := filepath.Join(t.TempDir(), program)
		if err := os.WriteFile(file, files[0].content, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, want := run(t, repo, file), program+" v1.2.3 "+head; out != want {
			t.Errorf("%s says %q, want %q", program, out, want)
		}
		if got := string(files[1].content); got != "All may use this.\n" {
			t.Errorf("the license of %s: %s", program, got)
		}
	}
	if got := run(t, repo, "git", "status", "--porcelain"); got != "" {
		t.Errorf("the release has changed the tree:\n%s", got)
	}
}

func TestADryRunIsNeverInThePlaceOfARelease(t *testing.T) {
	repo := small(t)
	on := []platform{{"linux", runtime.GOARCH}}
	out := filepath.Join(repo, ".bin", "release")
	write(t, out, map[string]string{"v1.2.3/SHA256SUMS": "a release's\n"})
	c := &config{repo: repo, version: "v1.2.3", dryRun: true, what: static()[:1], platforms: on, log: t.Output()}
	dir, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(out, "v1.2.3-dry-run"); dir != want {
		t.Errorf("the dry run is in %s, want %s", dir, want)
	}
	if got := string(read(t, out, "v1.2.3", "SHA256SUMS")); got != "a release's\n" {
		t.Errorf("the release has now %q", got)
	}
	var metadata struct {
		DryRun    bool
		Platforms []string
	}
	if err := json.Unmarshal(read(t, dir, "release.json"), &metadata); err != nil {
		t.Fatal(err)
	}
	if !metadata.DryRun || !slices.Equal(metadata.Platforms, []string{"linux/" + runtime.GOARCH}) {
		t.Errorf("release.json: %+v", metadata)
	}

	// What is signed stays, also where a release is made anew.
	write(t, out, map[string]string{"v1.2.3/SHA256SUMS.sigstore.json": "{}"})
	again := &config{repo: repo, version: "v1.2.3", what: static(), log: compiled{t}}
	if _, err := again.run(t.Context()); err == nil || !strings.Contains(err.Error(), "v1.2.3 is signed: it is not made anew") {
		t.Errorf("over a release that is signed: %v", err)
	}
	if got := string(read(t, out, "v1.2.3", "SHA256SUMS.sigstore.json")); got != "{}" {
		t.Errorf("the signature is now %q", got)
	}
}

func TestADryRunTakesWhatIsNotReleasedYet(t *testing.T) {
	repo := small(t)
	write(t, repo, map[string]string{"new.go": "package berth\n"})
	c := &config{repo: repo, version: "v2.0.0-rc.1", dryRun: true, what: static(), platforms: []platform{{"linux", runtime.GOARCH}}, log: t.Output()}
	dir, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, dir, "CHANGES.md")); got != "# Berth v2.0.0-rc.1\n\nWhat is to come.\n" {
		t.Errorf("CHANGES.md: %q", got)
	}
	if got := string(read(t, dir, "release.json")); !strings.Contains(got, run(t, repo, "git", "rev-parse", "HEAD")+"-dirty\"") {
		t.Errorf("nothing says that the tree was not committed: %s", got)
	}
}

func TestAProgramThatNeedsALoaderIsNotStatic(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"go.mod": "module x\n\ngo 1.26.0\n", "main.go": "package main\n\nfunc main() {}\n"})
	for mode, want := range map[string]bool{"exe": true, "pie": false} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-buildmode="+mode, "-o", mode, ".")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := checkStatic(filepath.Join(dir, mode)); (err == nil) != want {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestAProgramThatWantsANewerCLibraryThanItsImageHasIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"go.mod": "module x\n\ngo 1.26.0\n", "main.go": "package main\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc main() { C.abs(1) }\n"})
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "x", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := checkGlibc(filepath.Join(dir, "x"), "99.1"); err != nil {
		t.Error(err)
	}
	if err := checkGlibc(filepath.Join(dir, "x"), "2.1"); err == nil || !strings.Contains(err.Error(), "x wants glibc 2.") {
		t.Errorf("of one that is old: %v", err)
	}
	if text := string(read(t, top, "cmd", "berth-scv", "Dockerfile")); glibc != "2.36" || !strings.Contains(text, "\nARG BASE=gcr.io/distroless/base-debian12:nonroot\n") {
		t.Errorf("the release wants glibc %s, and the image of berth-scv is no longer of Debian 12, which has 2.36", glibc)
	}
}

func TestAProgramThatDoesNotSayWhatItIsOfIsNotReleased(t *testing.T) {
	repo := small(t)
	write(t, repo, map[string]string{"cmd/mute/main.go": "package main\n\nfunc main() {}\n"})
	c := &config{repo: repo, version: "v1.2.3", dryRun: true, what: []program{{name: "mute", dir: ".", path: "./cmd/mute", on: servers}}, log: t.Output()}
	if _, err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "mute does not say which revision it is of") {
		t.Errorf("%v, want an error that says so", err)
	}
}
