package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// registry is where images are to be pushed to. Nothing here talks to it.
const registry = "ghcr.io/berth-scheduler"

// Whom images run as: user and group, as in deploy/Dockerfile and in distroless images.
const (
	root    = 0
	nonroot = 65532
)

// roles have a folder for their certificates in the image of berth, which volumes can take the owner from.
var roles = []string{"binder", "etcd", "filter-worker", "gateway", "queue", "score-worker"}

// container is what an image of a program is.
type container struct {
	name string
	user int
	what string // in a line
}

// image is one for all platforms.
type image struct {
	Name      string            `json:"name"`
	Digest    string            `json:"digest"` // of the index
	Platforms map[string]string `json:"platforms"`
}

// images writes an image for each program that has one: a layout as the OCI has it, with an index of all platforms, and the same as an archive.
func (r *release) images(ctx context.Context) error {
	base, err := layerOf(system(), r.created)
	if err != nil {
		return err
	}
	for _, p := range r.what {
		if p.images == nil {
			continue
		}
		var on []*built
		for i := range r.built {
			if r.built[i].name == p.name {
				on = append(on, &r.built[i])
			}
		}
		if len(on) == 0 {
			r.leave("images of %s: there is no program for them", p.name)
			continue
		}
		layers := make(map[platform][]v1.Layer)
		for _, b := range on {
			top, err := r.layer(b)
			if err != nil {
				return fmt.Errorf("make images of %s: %w", p.name, err)
			}
			layers[b.platform] = []v1.Layer{base, top}
		}
		for _, c := range p.images {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.image(c, on, layers); err != nil {
				return fmt.Errorf("make the image %s: %w", c.name, err)
			}
		}
	}
	return nil
}

// image writes an image of one program.
func (r *release) image(c container, on []*built, layers map[platform][]v1.Layer) error {
	words := r.labels(c)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	index = mutate.Annotations(index, words).(v1.ImageIndex)
	made := image{Name: registry + "/" + c.name, Platforms: make(map[string]string)}
	for _, b := range on {
		one, err := r.imageOf(b, c, layers[b.platform], words)
		if err != nil {
			return err
		}
		digest, err := one.Digest()
		if err != nil {
			return err
		}
		made.Platforms[b.platform.String()] = digest.String()
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: b.os, Architecture: b.arch}}})
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	made.Digest = digest.String()
	r.pushed = append(r.pushed, made)

	dir := filepath.Join(r.dir, c.name+"_image")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version,                                 // as the OCI has it, and skopeo and podman read it
		"io.containerd.image.name":          registry + "/" + c.name + ":" + r.version, // as containerd does
	}))
	if err != nil {
		return err
	}
	r.say("made the image %s: %s", c.name, made.Digest)
	return r.archiveLayout(dir)
}

// labels is what an image says of itself.
func (r *release) labels(c container) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         c.name,
		"org.opencontainers.image.description":   c.what,
		"org.opencontainers.image.version":       r.version,
		"org.opencontainers.image.revision":      r.revision(),
		"org.opencontainers.image.created":       r.created.Format(time.RFC3339),
		"org.opencontainers.image.source":        repository,
		"org.opencontainers.image.url":           repository,
		"org.opencontainers.image.documentation": repository + "/blob/" + r.version + "/docs/README.md",
		"org.opencontainers.image.licenses":      license,
		"org.opencontainers.image.vendor":        "Berth",
	}
}

// layer returns what an image of a program has besides its base: what deploy/Dockerfile, or that of the program, copies.
func (r *release) layer(b *built) (v1.Layer, error) {
	content, err := os.ReadFile(b.file)
	if err != nil {
		return nil, fmt.Errorf("read what was compiled: %w", err)
	}
	files := []entry{{name: b.name, mode: 0o755, content: content}, {name: "licenses/", mode: 0o755}}
	for _, e := range b.legal {
		e.name = "licenses/" + e.name
		files = append(files, e)
	}
	if b.name == "berth" {
		files = append(files, entry{name: "certs/", mode: 0o755, owner: nonroot})
		for _, role := range roles {
			files = append(files, entry{name: "certs/" + role + "/", mode: 0o755, owner: nonroot})
		}
		files = append(files, entry{name: "usr/", mode: 0o755}, entry{name: "usr/local/", mode: 0o755}, entry{name: "usr/local/bin/", mode: 0o755},
			entry{name: "usr/local/bin/kube-scheduler", mode: 0o777, link: "/berth"})
	}
	return layerOf(files, r.created)
}

// imageOf returns an image for one platform.
func (r *release) imageOf(b *built, c container, layers []v1.Layer, words map[string]string) (v1.Image, error) {
	one := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	at := v1.Time{Time: r.created}
	one, err := mutate.Append(one,
		mutate.Addendum{Layer: layers[0], History: v1.History{Created: at, CreatedBy: "make release", Comment: "users, folders and certificates of authorities"}},
		mutate.Addendum{Layer: layers[1], History: v1.History{Created: at, CreatedBy: "make release", Comment: b.name + " " + r.version}})
	if err != nil {
		return nil, err
	}
	config, err := one.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Author = b.os, b.arch, at, "Berth"
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", c.user), Entrypoint: []string{"/" + b.name}, Cmd: []string{"--help"}, WorkingDir: "/", Labels: words,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=/" + authorities},
	}
	if one, err = mutate.ConfigFile(one, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(one, words).(v1.Image), nil
}

// authorities is where images have the certificates of authorities.
const authorities = "etc/ssl/certs/ca-certificates.crt"

// home is that of whom images run as.
const home = "home/nonroot"

// system is what static programs expect of a base: who users are, a folder for temporary files, a home, and the authorities that browsers trust, as
// Mozilla lists them.
func system() []entry {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // to memory
	}
	return []entry{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/" + home + ":/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: authorities, mode: 0o644, content: roots.Bytes()},
		{name: "home/", mode: 0o755},
		{name: home + "/", mode: 0o700, owner: nonroot},
		{name: "root/", mode: 0o700},
		{name: "tmp/", mode: 0o1777},
	}
}

// layerOf returns entries as a layer.
func layerOf(entries []entry, at time.Time) (v1.Layer, error) {
	var out bytes.Buffer
	if err := tarred(&out, entries, at); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9), tarball.WithCompressedCaching)
}

// archiveLayout writes what is in a folder beside it, as a tar of the same name: an oci-archive, as skopeo and podman call it.
func (r *release) archiveLayout(dir string) error {
	files := make(map[string]entry)
	err := filepath.WalkDir(dir, func(path string, f os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if f.IsDir() {
			files[name+"/"] = entry{name: name + "/", mode: 0o755}
			return nil
		}
		content, err := os.ReadFile(path)
		files[name] = entry{name: name, mode: 0o644, content: content}
		return err
	})
	if err != nil {
		return err
	}
	all := slices.SortedFunc(maps.Values(files), func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	out, err := os.Create(dir + ".tar")
	if err != nil {
		return err
	}
	defer out.Close()
	if err := tarred(out, all, r.created); err != nil {
		return err
	}
	return out.Close()
}

// digests returns a line for each image, by which it is signed and pulled.
func (r *release) digests() []byte {
	var lines []string
	for _, i := range r.pushed {
		lines = append(lines, i.Name+"@"+i.Digest+"\n")
	}
	return []byte(strings.Join(lines, ""))
}
