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

	"golang.org/x/mod/module"
)

const (
	repository  = "https://" + mainModule
	license     = "Apache-2.0" // Berth's
	noAssertion = "NOASSERTION"
)

// document is a bill of materials as SPDX 2.3 has it (https://spdx.github.io/spdx-spec/v2.3), as far as it is used here.
type document struct {
	Version           string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	ID                string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name             string     `json:"name"`
	ID               string     `json:"SPDXID"`
	VersionInfo      string     `json:"versionInfo"`
	PackageFileName  string     `json:"packageFileName,omitempty"`
	Supplier         string     `json:"supplier"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	Checksums        []checksum `json:"checksums,omitempty"`
	SourceInfo       string     `json:"sourceInfo,omitempty"`
	LicenseConcluded string     `json:"licenseConcluded"`
	LicenseDeclared  string     `json:"licenseDeclared"`
	CopyrightText    string     `json:"copyrightText"`
	ExternalRefs     []external `json:"externalRefs"`
	PrimaryPurpose   string     `json:"primaryPackagePurpose,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// packageURL names a Go module, or a package in it, as scanners look it up (https://github.com/package-url/purl-spec).
func packageURL(path, version, inside string) external {
	url := "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
	if inside != "" {
		url += "#" + inside
	}
	return external{"PACKAGE-MANAGER", "purl", url}
}

// notInID is what names in SPDX must not have.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// material is a module that a program has parts of.
type material struct{ path, version, sum string }

// materials returns the modules that are linked into a program, by path, and Go's own packages as the last. Those of this repository have
// the version of the release, and no sum.
func (r *release) materials(b *built) []material {
	var all []material
	for _, m := range b.info.Deps {
		if m.Replace != nil && m.Replace.Sum == "" { // by a folder of this repository
			all = append(all, material{path: m.Path, version: r.version})
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, material{m.Path, m.Version, m.Sum})
	}
	slices.SortFunc(all, func(a, b material) int { return cmp.Compare(a.path, b.path) })
	return append(all, material{path: stdlib, version: strings.TrimPrefix(b.info.GoVersion, "go")})
}

// stdlib is what package URLs call Go's own packages.
const stdlib = "stdlib"

// ours reports whether a module lies in this repository.
func ours(path string) bool { return path == mainModule || strings.HasPrefix(path, mainModule+"/") }

// bill returns the bill of materials of a program: what its own build information says is in it.
func (r *release) bill(b *built) ([]byte, error) {
	const program = "SPDXRef-Program"
	d := document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: b.base() + "-" + r.version,
		DocumentNamespace: repository + "/spdx/" + b.base() + "-" + r.version + "-" + b.sum,
		CreationInfo:      creation{Created: r.created.Format(time.RFC3339), Creators: []string{"Organization: Berth", "Tool: make-release-" + r.version}},
		Packages: []spdxPackage{{
			Name: b.name, ID: program, VersionInfo: r.version, PackageFileName: b.executable(), Supplier: "Organization: Berth",
			DownloadLocation: "git+" + repository + "@" + r.commit, Checksums: []checksum{{"SHA256", b.sum}},
			SourceInfo:       "compiled by " + b.info.GoVersion + " for " + b.platform.String() + " from commit " + r.revision(),
			LicenseConcluded: license, LicenseDeclared: license, CopyrightText: noAssertion, PrimaryPurpose: "APPLICATION",
			ExternalRefs: []external{packageURL(b.info.Main.Path, r.version, strings.TrimPrefix(strings.TrimPrefix(b.info.Path, b.info.Main.Path), "/"))},
		}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", program}},
	}
	for _, m := range r.materials(b) {
		p := spdxPackage{
			Name: m.path, ID: "SPDXRef-" + notInID.ReplaceAllString(m.path, "-") + "-" + notInID.ReplaceAllString(m.version, "-"), VersionInfo: m.version,
			Supplier: noAssertion, DownloadLocation: noAssertion, LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
			ExternalRefs: []external{packageURL(m.path, m.version, "")},
		}
		switch {
		case m.path == stdlib:
			p.Supplier, p.DownloadLocation, p.LicenseDeclared = "Organization: The Go Authors", "https://go.dev/dl/go"+m.version+".src.tar.gz", "BSD-3-Clause"
		case ours(m.path):
			p.Supplier, p.DownloadLocation, p.LicenseConcluded, p.LicenseDeclared = "Organization: Berth", "git+"+repository+"@"+r.commit, license, license
		default:
			path, err := module.EscapePath(m.path)
			if err != nil {
				return nil, fmt.Errorf("make the bill of materials of %s: %w", b.base(), err)
			}
			version, err := module.EscapeVersion(m.version)
			if err != nil {
				return nil, fmt.Errorf("make the bill of materials of %s: %w", b.base(), err)
			}
			p.DownloadLocation = "https://proxy.golang.org/" + path + "/@v/" + version + ".zip"
			p.SourceInfo = "in go.sum: " + m.sum
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{program, "DEPENDS_ON", p.ID})
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("make the bill of materials of %s: %w", b.base(), err)
	}
	return append(text, '\n'), nil
}

// licenseFile are the names of files that say on which terms a module may be passed on.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

// licenses returns the licenses and notices of everything that is linked into a program and is not Berth's, as most of them want them passed on.
// A module without any is an error.
func (r *release) licenses(ctx context.Context, b *built) ([]byte, error) {
	dir := filepath.Join(r.source, b.dir)
	root, err := command(ctx, dir, r.environment(b.platform, ""), "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	at := map[string]string{stdlib: strings.TrimSpace(string(root))}
	list := []string{"list", "-m", "-f", "{{.Path}}\t{{with .Replace}}{{.Path}}{{end}}\t{{.Dir}}"}
	var theirs []material
	for _, m := range r.materials(b) {
		if !ours(m.path) {
			theirs = append(theirs, m)
			if m.path != stdlib {
				list = append(list, m.path)
			}
		}
	}
	if len(theirs) > 1 {
		lines, err := command(ctx, dir, r.environment(b.platform, ""), "go", list...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(lines)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			at[cmp.Or(f[1], f[0])] = f[2]
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s has parts of these, besides Berth, whose terms are in LICENSE.\n", b.name, r.version)
	for _, m := range theirs {
		files, err := os.ReadDir(at[m.path])
		if err != nil {
			return nil, fmt.Errorf("read the license of %s: %w", m.path, err)
		}
		found := false
		for _, f := range files {
			if f.IsDir() || !licenseFile.MatchString(f.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(at[m.path], f.Name()))
			if err != nil {
				return nil, fmt.Errorf("read the license of %s: %w", m.path, err)
			}
			found = true
			name := m.path
			if name == stdlib {
				name = "Go"
			}
			fmt.Fprintf(&out, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), name, m.version, f.Name(), bytes.TrimSpace(text))
		}
		if !found {
			return nil, fmt.Errorf("%s %s, which %s has parts of, has no license at its top", m.path, m.version, b.name)
		}
	}
	return out.Bytes(), nil
}
