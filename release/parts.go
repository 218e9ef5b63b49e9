package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// What the chart and its values say in the repository, where nothing is released.
var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
	devName      = regexp.MustCompile(`(?m)^( *repository: )(berth(?:-yoda|-scv)?)( *(?:#.*)?)$`)
	devTag       = regexp.MustCompile(`(?m)^ *tag: [^" ].*$`) // the release would have it, too: where it is "", it is the chart's appVersion
)

// chart writes the chart's archive, as "helm package" would but for times: of the release's version, with the release's images.
func (r *release) chart(context.Context) error {
	chart, err := loader.LoadDir(filepath.Join(r.source, "deploy", "helm", "berth"))
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}
	version := strings.TrimPrefix(r.version, "v")
	files := slices.Clone(chart.Raw)
	slices.SortFunc(files, func(a, b *helm.File) int { return cmp.Compare(a.Name, b.Name) })
	var entries []entry
	for _, f := range files {
		content := f.Data
		switch f.Name {
		case "Chart.yaml":
			if !chartVersion.Match(content) || !appVersion.Match(content) {
				return fmt.Errorf("the chart's Chart.yaml has no line version, or none appVersion")
			}
			content = chartVersion.ReplaceAll(content, []byte("version: "+version))
			content = appVersion.ReplaceAll(content, []byte("appVersion: "+r.version))
		case "values.yaml":
			if !devName.Match(content) {
				return fmt.Errorf("the chart's values.yaml names no image of Berth's in a line such as \"repository: berth\"")
			}
			if tag := devTag.Find(content); tag != nil {
				return fmt.Errorf("the chart's values.yaml says %q: want \"\", for the image of the chart's appVersion", bytes.TrimSpace(tag))
			}
			content = devName.ReplaceAll(content, []byte("${1}"+registry+"/${2}${3}"))
		}
		entries = append(entries, entry{name: chart.Name() + "/" + f.Name, mode: 0o644, content: content})
	}
	packed, err := tarGz(entries, r.created)
	if err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}
	// Read it back as Helm does: what Helm would refuse is not released.
	read, err := loader.LoadArchive(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("read the chart's archive: %w", err)
	}
	if err := read.Validate(); err != nil {
		return fmt.Errorf("read the chart's archive: %w", err)
	}
	if read.Metadata.Version != version || read.AppVersion() != r.version {
		return fmt.Errorf("the chart's archive is of version %s and of Berth %s, want %s and %s", read.Metadata.Version, read.AppVersion(), version, r.version)
	}
	return r.write(chart.Name()+"-"+version+".tgz", packed)
}

// krew writes the manifest of the kubectl plugin. In a dry run of some platforms the sums of others stay open.
func (r *release) krew(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.source, "deploy", "krew", "berth.yaml"))
	if err != nil {
		return fmt.Errorf("read the plugin's manifest: %w", err)
	}
	var unknown []string
	filled := os.Expand(string(text), func(name string) string {
		if name == "VERSION" {
			return r.version
		}
		system, _ := strings.CutPrefix(name, "SHA256_")
		for _, end := range []string{".tar.gz", ".zip"} {
			if sum := r.archives["kubectl-berth_"+system+end]; sum != "" {
				return sum
			}
		}
		unknown = append(unknown, name)
		return "${" + name + "}"
	})
	if len(unknown) > 0 && r.platforms == nil {
		return fmt.Errorf("deploy/krew/berth.yaml wants %v, which the release does not have", unknown)
	}
	return r.write("berth.yaml", []byte(filled))
}

// metadata writes what the release was made from, for who wants to make it again, and the images' digests.
func (r *release) metadata(context.Context) error {
	var on []string
	for _, p := range clients {
		if r.wants(p) {
			on = append(on, p.String())
		}
	}
	text, err := json.MarshalIndent(struct {
		Version   string   `json:"version"`
		DryRun    bool     `json:"dryRun,omitempty"` // it is no release
		Revision  string   `json:"revision"`
		Created   string   `json:"created"`   // when the commit was made
		Go        string   `json:"goVersion"` // the same makes the same bytes
		C         []string `json:"cCompilers,omitempty"`
		Platforms []string `json:"platforms"`
		LeftOut   []string `json:"leftOut,omitempty"`
		Images    []image  `json:"images"`
	}{r.version, r.dryRun, r.revision(), r.created.Format(time.RFC3339), r.toolchain, r.compilers, on, r.leftOut, r.pushed}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what the release is made from: %w", err)
	}
	if err := r.write("release.json", append(text, '\n')); err != nil {
		return err
	}
	return r.write("image-digests.txt", r.digests())
}
