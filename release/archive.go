package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// entry is a file in an archive. It belongs to nobody in particular (0:0) unless owner says otherwise.
type entry struct {
	name    string // with a / at its end: a folder
	mode    int64
	owner   int // user and group
	link    string
	content []byte
}

// tarred writes entries as a tar, in their order, all of one time.
func tarred(w io.Writer, entries []entry, at time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)), ModTime: at, Format: tar.FormatUSTAR}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.name[len(e.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
		if _, err := t.Write(e.content); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
	}
	return t.Close()
}

// tarGz returns entries as a compressed tar.
func tarGz(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression) // its header has neither name nor time
	if err != nil {
		return nil, err
	}
	if err := tarred(w, entries, at); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// zipped returns entries as a zip, which has no folders, links and owners.
func zipped(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(e.mode))
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", e.name, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("write %s: %w", e.name, err)
		}
	}
	err := z.Close()
	return out.Bytes(), err
}

func sha256Of(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// sums writes SHA256SUMS, which "sha256sum -c" reads, of every file at the top of the release.
func (r *release) sums() error {
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("list the release: %w", err)
	}
	var out bytes.Buffer
	for _, f := range files { // by name
		if f.IsDir() { // the layout of an image: the same is in an archive
			continue
		}
		sum, err := sumOf(filepath.Join(r.dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s  %s\n", sum, f.Name())
	}
	return r.write("SHA256SUMS", out.Bytes())
}

// sumOf returns the SHA-256 of a file, of which not all has to fit into memory.
func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read what was made: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", filepath.Base(file), err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
