// Command release makes what a release of Berth is made of: programs for each platform, images, the chart, the manifest of
// the kubectl plugin, a bill of materials of each program, and checksums of it all.
//
//	make release VERSION=v0.1.0
//	make release VERSION=v0.1.0 DRY_RUN=1 PLATFORMS=linux/amd64
//
// It writes into a folder and makes a tag; it signs, pushes and publishes nothing. The same commit and the same version of Go make
// the same bytes, wherever the repository lies. docs/releasing.md says what is done with the folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// config is what one release is made from.
type config struct {
	repo      string     // the top of the repository
	out       string     // where the folder of the release is made
	version   string     // such as v0.1.0
	dryRun    bool       // makes no tag, and takes a tree that is not committed
	platforms []platform // nil: all
	what      []program  // nil: all
	goCache   string     // a build cache of its own; "" means the user's
	log       io.Writer  // what is done, for people
}

func main() {
	var c config
	var platforms string
	flag.StringVar(&c.repo, "repo", "..", "the top of the repository")
	flag.StringVar(&c.out, "out", "", "where the folder of the release is made; empty: .bin/release in the repository")
	flag.StringVar(&c.version, "version", "", "the version, such as v0.1.0")
	flag.BoolVar(&c.dryRun, "dry-run", false, "make no tag and a folder VERSION-dry-run, and take a tree that is not committed, and a version without a section in CHANGELOG.md")
	flag.StringVar(&platforms, "platforms", "", "only these, in a dry run, such as linux/amd64,linux/arm64; empty: all")
	flag.Parse()
	c.log = os.Stdout

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := errors.New("there are flags only")
	if flag.NArg() == 0 {
		if c.platforms, err = parsePlatforms(platforms); err == nil {
			_, err = c.run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes the release and returns its folder. The folder appears whole or not at all.
func (c *config) run(ctx context.Context) (dir string, err error) {
	// 1. What can be refused is refused before minutes of compiling.
	if err := checkVersion(c.version); err != nil {
		return "", err
	}
	if c.platforms != nil && !c.dryRun {
		return "", errors.New("--platforms (PLATFORMS=…): a release has all platforms; only a dry run (DRY_RUN=1) may leave some out")
	}
	if c.repo, err = filepath.Abs(c.repo); err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	if c.what == nil {
		c.what = programs
	}
	if c.out == "" {
		c.out = filepath.Join(c.repo, ".bin", "release")
	}
	name := c.version
	if c.dryRun {
		name += "-dry-run" // never in the place of a release
	}
	dir = filepath.Join(c.out, name)
	if signed, _ := filepath.Glob(filepath.Join(dir, "*.sigstore.json")); len(signed) > 0 {
		return "", fmt.Errorf("%s is signed: it is not made anew; move it away, or give another --out", dir)
	}
	r := &release{config: c}
	if r.state, err = inspect(ctx, c.repo, c.version); err != nil {
		return "", err
	}
	if r.dirty && !c.dryRun {
		return "", fmt.Errorf("the tree is not what is committed:\n%s\ncommit or remove that, or make a dry run (DRY_RUN=1)", r.changes)
	}
	for name, at := range r.tagged {
		if at != r.commit && !c.dryRun {
			return "", fmt.Errorf("the tag %s is at %s, and this is %s: a version that has been released is never made again from something else; choose another", name, at, r.commit)
		}
	}
	if len(r.tagged) < len(tagsOf(c.version)) && !c.dryRun {
		if err := mayTag(ctx, c.repo); err != nil {
			return "", err
		}
	}
	if r.places, err = places(ctx, c.repo); err != nil {
		return "", err
	}
	partial := filepath.Join(c.out, "."+name+".partial")
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("remove what an earlier run has left: %w", err)
	}
	r.dir, r.work = partial, filepath.Join(partial, "work")
	if err := os.MkdirAll(r.work, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the release: %w", err)
	}
	defer os.RemoveAll(partial)
	// From here on the repository is not read any more, but what has been committed: it may change, and has files that git ignores.
	r.source = c.repo
	if !r.dirty {
		r.source = filepath.Join(r.work, "source")
		if err := export(ctx, c.repo, r.commit, filepath.Join(r.work, "index"), r.source); err != nil {
			return "", err
		}
	}
	notes, err := notesOf(filepath.Join(r.source, "CHANGELOG.md"), c.version, c.dryRun)
	if err != nil {
		return "", err
	}
	if err := r.findCompilers(ctx); err != nil {
		return "", err
	}

	// 2. The parts.
	if err := r.write("CHANGES.md", []byte(notes)); err != nil {
		return "", err
	}
	for _, step := range []func(context.Context) error{r.chart, r.programs, r.images, r.krew, r.metadata} {
		if err := step(ctx); err != nil {
			return "", err
		}
	}
	if err := os.RemoveAll(r.work); err != nil {
		return "", fmt.Errorf("remove what was compiled: %w", err)
	}

	// 3. What vouches for them, last.
	if err := r.sums(); err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove the folder of an earlier run: %w", err)
	}
	if err := os.Rename(partial, dir); err != nil {
		return "", fmt.Errorf("put the release in its place: %w", err)
	}
	r.say("%s is in %s", c.version, dir)
	if c.dryRun {
		r.say("a dry run: no tag was made")
		return dir, nil
	}
	for _, name := range tagsOf(c.version) {
		if r.tagged[name] != "" {
			r.say("the tag %s is there already, at this commit", name)
			continue
		}
		if err := tag(ctx, c.repo, name, c.version, r.commit); err != nil {
			return "", fmt.Errorf("the release is made, and has not all of its tags yet: %w", err)
		}
		r.say("made the tag %s", name)
	}
	r.say("docs/releasing.md says what comes next")
	return dir, nil
}

// release is one that is being made.
type release struct {
	*config
	state
	dir    string // its folder, until it is whole
	work   string // in that: what does not stay
	source string // what it is made from: what the commit has, or the repository itself in a dry run of a tree that is not committed

	places []string          // settings of Go that programs are compiled with
	cc     map[string]string // C compilers, by the processor that they compile for

	built     []built           // programs, in the order of the table, each by platform
	archives  map[string]string // SHA-256 of archives, by name
	pushed    []image           // images
	leftOut   []string          // what this machine could not make, and why
	toolchain string            // the version of Go that compiled everything
	compilers []string          // what C compilers call themselves that compile something
}

func (r *release) say(format string, args ...any) { fmt.Fprintf(r.log, format+"\n", args...) }

// write writes a file of the release.
func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// platform is what a program runs on, in Go's words.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// The platforms of a release.
var (
	servers = []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	clients = append(slices.Clone(servers), platform{"darwin", "amd64"}, platform{"darwin", "arm64"}, platform{"windows", "amd64"}, platform{"windows", "arm64"})
)

// parsePlatforms reads a list such as linux/amd64,darwin/arm64; nil of an empty one.
func parsePlatforms(list string) ([]platform, error) {
	var all []platform
	for name := range strings.SplitSeq(list, ",") {
		if name == "" && list == "" {
			break
		}
		os, arch, _ := strings.Cut(name, "/")
		p := platform{os, arch}
		if !slices.Contains(clients, p) {
			return nil, fmt.Errorf("--platforms (PLATFORMS=…): %q is none that Berth is released for; those are %v", name, clients)
		}
		all = append(all, p)
	}
	return all, nil
}

// wants reports whether the release is to have the platform.
func (c *config) wants(p platform) bool { return c.platforms == nil || slices.Contains(c.platforms, p) }
