package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

const mainModule = "github.com/berth-scheduler/berth"

// program is what is compiled.
type program struct {
	name   string
	dir    string // the folder, in the repository, of the module that it is compiled in
	path   string // the package, relative to dir
	on     []platform
	images []container // that it is in
	says   string      // the package whose version and revision it says that it is of; "" means internal/member
	// cgo: it is linked with the C library, by the C compiler of its platform, as it loads a library that is its driver's. All others are static.
	cgo bool
}

// programs is what a release has.
var programs = []program{
	{name: "berth", dir: ".", path: "./cmd/berth", on: servers, images: []container{
		{name: "berth", user: nonroot, what: "A Kubernetes scheduler built as gRPC microservices"},
		{name: "berth-kube-scheduler", user: root, what: "Berth for kubeadm's static pod of kube-scheduler, whose file of credentials is root's"},
	}},
	{name: "berth-yoda", dir: "plugins/yoda", path: "./cmd/berth-yoda", on: servers, images: []container{
		{name: "berth-yoda", user: nonroot, what: "Berth with Yoda, which places pods by the GPUs of nodes"},
	}},
	{name: "berth-scv", dir: "cmd/berth-scv", path: ".", on: servers, cgo: true, says: "main"},
	{name: "kubectl-berth", dir: ".", path: "./cmd/kubectl-berth", on: clients},
}

// built is a program for one platform.
type built struct {
	program
	platform
	file  string  // what was compiled
	legal []entry // the licenses of it and of what it is made of
	info  *buildinfo.BuildInfo
	sum   string // SHA-256 of file
}

// name is that of its archive and its bill of materials, without their ends.
func (b *built) base() string { return b.name + "_" + b.os + "_" + b.arch }

// executable is the name of the file in the archive.
func (b *built) executable() string {
	if b.os == "windows" {
		return b.name + ".exe"
	}
	return b.name
}

// programs compiles, checks and packs all programs.
func (r *release) programs(ctx context.Context) error {
	r.archives = make(map[string]string)
	for _, p := range r.what {
		for _, on := range p.on {
			if !r.wants(on) {
				continue
			}
			compiler := ""
			if p.cgo {
				if compiler = r.cc[on.arch]; compiler == "" {
					r.leave("%s for %s: there is no C compiler for it here", p.name, on)
					continue
				}
			}
			b, err := r.compile(ctx, p, on, compiler)
			if err != nil {
				return err
			}
			if err := r.pack(ctx, b); err != nil {
				return err
			}
			r.built = append(r.built, *b)
		}
	}
	if r.built == nil {
		return errors.New("--platforms (PLATFORMS=…): nothing is released for these alone")
	}
	return nil
}

// findCompilers finds the C compilers that are needed, and tries each. Only a dry run goes without.
func (r *release) findCompilers(ctx context.Context) error {
	r.cc = make(map[string]string)
	for _, p := range r.what {
		for _, on := range p.on {
			if !p.cgo || !r.wants(on) || r.cc[on.arch] != "" {
				continue
			}
			name := cCompiler(on.arch)
			if name == "" {
				if !r.dryRun {
					return fmt.Errorf("compile %s for %s: there is no C compiler for it; %s", p.name, on, debians)
				}
				continue
			}
			is, err := command(ctx, r.work, nil, name, "--version")
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(r.work, "try.c"), []byte("#include <stdlib.h>\nint main(void) { return abs(0); }\n"), 0o644); err != nil {
				return fmt.Errorf("try the C compiler %s: %w", name, err)
			}
			if _, err := command(ctx, r.work, r.environment(on, name), name, "-o", "try", "try.c"); err != nil {
				return fmt.Errorf("the C compiler %s does not work: has it a C library? %s: %w", name, debians, err)
			}
			first, _, _ := strings.Cut(string(is), "\n")
			r.cc[on.arch], r.compilers = name, append(r.compilers, first)
		}
	}
	return nil
}

// debians is where Debian has C compilers.
const debians = "Debian's are gcc, gcc-aarch64-linux-gnu with libc6-dev-arm64-cross, and gcc-x86-64-linux-gnu with libc6-dev-amd64-cross"

// leave notes what the release has not.
func (r *release) leave(format string, args ...any) {
	r.leftOut = append(r.leftOut, fmt.Sprintf(format, args...))
	r.say("left out: "+format, args...)
}

// cCompiler returns the C compiler for Linux on a processor, "" if there is none.
func cCompiler(arch string) string {
	for _, name := range []string{map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-linux-gnu-gcc", "gcc"} {
		if name == "gcc" && (runtime.GOOS != "linux" || runtime.GOARCH != arch) {
			continue
		}
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	return ""
}

// compile compiles a program, so that its bytes depend on nothing but the commit, the version and Go's version, and checks that it is what
// was asked for.
func (r *release) compile(ctx context.Context, p program, on platform, compiler string) (*built, error) {
	b := &built{program: p, platform: on, file: filepath.Join(r.work, on.os+"_"+on.arch, p.name)}
	says := cmp.Or(p.says, mainModule+"/internal/member")
	flags := fmt.Sprintf("-s -w -X %[1]s.version=%[2]s -X %[1]s.revision=%[3]s", says, r.version, r.revision())
	if on.os != "darwin" { // macOS wants an LC_UUID of each program, which Go's linker makes from the build id
		flags += " -buildid=" // of cgo's it has the name of the C compiler
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", // what git says differs before and after the tag is made
		"-ldflags=" + flags, "-o", b.file, p.path}
	if _, err := command(ctx, filepath.Join(r.source, p.dir), r.environment(on, compiler), "go", args...); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(b.file)
	if err != nil {
		return nil, fmt.Errorf("read what was compiled: %w", err)
	}
	b.sum = sha256Of(content)
	if !bytes.Contains(content, []byte(r.revision())) { // the linker says nothing of a variable that there is not
		return nil, fmt.Errorf("%s does not say which revision it is of: it has no %s.revision that it reads", p.name, says)
	}
	if b.info, err = buildinfo.Read(bytes.NewReader(content)); err != nil {
		return nil, fmt.Errorf("read what %s was compiled from: %w", p.name, err)
	}
	if r.toolchain = cmp.Or(r.toolchain, b.info.GoVersion); r.toolchain != b.info.GoVersion {
		return nil, fmt.Errorf("%s was compiled by %s, and others by %s: set GOTOOLCHAIN to one of them", p.name, b.info.GoVersion, r.toolchain)
	}
	for _, s := range b.info.Settings {
		if strings.HasPrefix(s.Key, "vcs") || s.Key == "GOEXPERIMENT" || s.Key == "GOFIPS140" || s.Key == "-tags" {
			return nil, fmt.Errorf("%s was compiled with %s=%s, which is not to be in a release: unset it (go env)", p.name, s.Key, s.Value)
		}
	}
	if on.os == "linux" {
		if err = checkStatic(b.file); p.cgo {
			err = checkGlibc(b.file, glibc)
		}
		if err != nil {
			return nil, err
		}
	}
	r.say("compiled %-13s for %-13s %9d bytes", p.name, on, len(content))
	return b, nil
}

// ofPlace are settings of Go that say where things lie and come from. Whoever makes a release may have set them, as they change no byte.
var ofPlace = []string{"GOAUTH", "GOCACHE", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY", "GOSUMDB", "GOTMPDIR", "GOTOOLCHAIN", "GOVCS"}

// passed are the variables that programs are compiled with besides, if they are set: what the tools need, and nothing that compilers read.
var passed = []string{"PATH", "HOME", "TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSH_AUTH_SOCK"}

// places reads ofPlace, also what "go env -w" has written, which nothing is compiled with.
func places(ctx context.Context, repo string) ([]string, error) {
	text, err := command(ctx, repo, nil, "go", append([]string{"env", "-json"}, ofPlace...)...)
	if err != nil {
		return nil, err
	}
	var set map[string]string
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("read what go env says: %w", err)
	}
	var env []string
	for _, name := range ofPlace {
		env = append(env, name+"="+set[name])
	}
	return env, nil
}

// environment is that of a compilation: the same for everybody but for where things lie.
func (r *release) environment(on platform, compiler string) []string {
	env := slices.Clone(r.places)
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	env = append(env, "GOENV=off", "GOOS="+on.os, "GOARCH="+on.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GOWORK=off", "GOFLAGS=-mod=readonly", "LC_ALL=C")
	if r.goCache != "" {
		env = append(env, "GOCACHE="+r.goCache)
	}
	if compiler == "" {
		return append(env, "CGO_ENABLED=0")
	}
	// NVIDIA's bindings name all functions of NVML, deprecated ones too. Without -g, no path of this machine gets into the program.
	return append(env, "CGO_ENABLED=1", "CC="+compiler, "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
}

// checkStatic returns why a program of Linux is not static, if it is not: it asks for an interpreter, or for libraries.
func checkStatic(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(file), err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("%s is not static: it has a segment %s", filepath.Base(file), p.Type)
		}
	}
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
		return fmt.Errorf("%s is not static: it needs %v, %v", filepath.Base(file), libraries, err)
	}
	return nil
}

// glibc is that of the base of images of programs that are linked with the C library: Debian 12's, as cmd/berth-scv/Dockerfile has it.
const glibc = "2.36"

// checkGlibc returns why a program does not run with a version of glibc, if it does not: it wants a newer one.
func checkGlibc(file, version string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(file), err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return fmt.Errorf("read what %s imports: %w", filepath.Base(file), err)
	}
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && semver.Compare("v"+v, "v"+version) > 0 {
			return fmt.Errorf("%s wants glibc %s, for %s, and its image has %s: compile it where the C library is no newer, as on Debian 12", filepath.Base(file), v, s.Name, version)
		}
	}
	return nil
}

// pack writes the archive of a program, with the licenses of what it is made of, and its bill of materials.
func (r *release) pack(ctx context.Context, b *built) error {
	content, err := os.ReadFile(b.file)
	if err != nil {
		return fmt.Errorf("read what was compiled: %w", err)
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	theirs, err := r.licenses(ctx, b)
	if err != nil {
		return err
	}
	b.legal = []entry{
		{name: "LICENSE", mode: 0o644, content: license},
		{name: "THIRD_PARTY_LICENSES", mode: 0o644, content: theirs},
	}
	files := append([]entry{{name: b.executable(), mode: 0o755, content: content}}, b.legal...)
	name, archive := b.base()+".tar.gz", tarGz
	if b.os == "windows" {
		name, archive = b.base()+".zip", zipped
	}
	packed, err := archive(files, r.created)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	r.archives[name] = sha256Of(packed)
	if err := r.write(name, packed); err != nil {
		return err
	}
	bill, err := r.bill(b)
	if err != nil {
		return err
	}
	return r.write(b.base()+".spdx.json", bill)
}
