package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// checkVersion returns why a version is none that can be released, if it is not. Build metadata ("+…") is refused, as tags of images
// cannot have it.
func checkVersion(v string) error {
	if !semver.IsValid(v) || semver.Canonical(v) != v {
		return fmt.Errorf("VERSION %q is not a version as v0.1.0 or v0.2.0-rc.1 are (https://semver.org, with a v and three numbers, and without build metadata)", v)
	}
	return nil
}

// state is what the repository says of itself.
type state struct {
	commit  string    // in full
	created time.Time // when that was committed
	dirty   bool      // the tree has something else than the commit
	changes string    // what, as git tells it

	tagged map[string]string // the commits that the version's tags are at; none of one that there is not
}

// tagsOf are the tags of a version: the release's, and, as Go wants it, those of modules of this repository that others import.
func tagsOf(version string) []string { return []string{version, "berthapp/" + version} }

// revision is what programs and images say that they were made from.
func (s *state) revision() string {
	if s.dirty {
		return s.commit + "-dirty"
	}
	return s.commit
}

// inspect reads the state of a repository.
func inspect(ctx context.Context, repo, version string) (state, error) {
	var s state
	var err error
	if s.commit, err = git(ctx, repo, "rev-parse", "--verify", "HEAD"); err != nil {
		return s, err
	}
	text, err := git(ctx, repo, "log", "-1", "--format=%ct", s.commit)
	if err != nil {
		return s, err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return s, fmt.Errorf("read the time of commit %s: %w", s.commit, err)
	}
	s.created = time.Unix(seconds, 0).UTC()
	if s.changes, err = git(ctx, repo, "status", "--porcelain"); err != nil {
		return s, err
	}
	s.dirty = s.changes != ""
	s.tagged = make(map[string]string)
	for _, name := range tagsOf(version) {
		found, err := git(ctx, repo, "tag", "--list", name)
		if err != nil {
			return s, err
		}
		if found == "" {
			continue
		}
		if s.tagged[name], err = git(ctx, repo, "rev-parse", "--verify", "refs/tags/"+name+"^{commit}"); err != nil {
			return s, err
		}
	}
	return s, nil
}

// export writes what a commit has into a folder. index is a file that git keeps meanwhile.
func export(ctx context.Context, repo, commit, index, dir string) error {
	env := append(os.Environ(), "GIT_INDEX_FILE="+index) // else it is the repository's own
	if _, err := command(ctx, repo, env, "git", "read-tree", commit); err != nil {
		return err
	}
	_, err := command(ctx, repo, env, "git", "checkout-index", "--all", "--prefix="+dir+"/")
	return err
}

// mayTag returns why a tag could not be made, as far as that can be known without making it: git does not know by whom it would be.
func mayTag(ctx context.Context, repo string) error {
	if _, err := git(ctx, repo, "var", "GIT_COMMITTER_IDENT"); err != nil {
		return fmt.Errorf("the tag would be nobody's: set user.name and user.email (git config): %w", err)
	}
	return nil
}

// tag makes an annotated tag of a version at a commit, as whoever runs this.
func tag(ctx context.Context, repo, name, version, commit string) error {
	_, err := git(ctx, repo, "tag", "--annotate", "--message", "Berth "+version, name, commit)
	return err
}

// git runs git in a repository and returns its output, without the space at its end.
func git(ctx context.Context, repo string, args ...string) (string, error) {
	out, err := command(ctx, repo, nil, "git", args...)
	return strings.TrimRight(string(out), " \n"), err
}

// command runs a program in a folder and returns what it prints. nil env: that of this process.
func command(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), dir, err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// section is the heading of a version in CHANGELOG.md, as https://keepachangelog.com has it.
var section = regexp.MustCompile(`(?m)^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?[ \t]*$`)

// unreleased is the section of what no version has yet.
const unreleased = "Unreleased"

// notesOf returns what CHANGELOG.md says of a version. A dry run and what comes before a release, such as v1.0.0-rc.1, take what is not released yet, if
// there is nothing else: it stays there for the release.
func notesOf(file, version string, dryRun bool) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read what has changed: %w", err)
	}
	at := section.FindAllSubmatchIndex(text, -1)
	if len(at) == 0 || string(text[at[0][2]:at[0][3]]) != unreleased {
		return "", errors.New("CHANGELOG.md: the first section has to be [Unreleased]")
	}
	sections, dates := make(map[string]string), make(map[string]bool)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name := string(text[m[2]:m[3]])
		if _, twice := sections[name]; twice {
			return "", fmt.Errorf("CHANGELOG.md: two sections [%s]", name)
		}
		sections[name], dates[name] = strings.TrimSpace(string(text[m[1]:end])), m[4] >= 0
	}
	name := strings.TrimPrefix(version, "v")
	notes, found := sections[name]
	switch {
	case (dryRun || semver.Prerelease(version) != "") && !found:
		name, notes = unreleased, sections[unreleased]
	case !found:
		return "", fmt.Errorf("CHANGELOG.md has no section [%s]: move what [%s] has that goes into %s there, as in \"## [%s] - %s\"", name, unreleased, version, name, time.Now().UTC().Format(time.DateOnly))
	case !dates[name]:
		return "", fmt.Errorf("CHANGELOG.md: the section [%s] has no date: want \"## [%s] - %s\"", name, name, time.Now().UTC().Format(time.DateOnly))
	}
	if notes == "" && !dryRun {
		return "", fmt.Errorf("CHANGELOG.md: the section [%s] is empty", name)
	}
	return "# Berth " + version + "\n\n" + notes + "\n", nil
}
