package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/certs"
)

func TestARealmReplacesCertificatesAndItsAuthority(t *testing.T) {
	r, err := newRealm(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"queue-0", "queue-1"} {
		if err := r.enlist(id, roleQueue); err != nil {
			t.Fatal(err)
		}
	}
	read := func(id string) (cert, trusted []byte, until time.Time) {
		t.Helper()
		f := r.files(id)
		source, err := certs.Open(f, roleQueue, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if cert, err = os.ReadFile(f.Cert); err != nil {
			t.Fatal(err)
		}
		if trusted, err = os.ReadFile(f.CA); err != nil {
			t.Fatal(err)
		}
		until, _ = source.Until()
		return cert, trusted, until
	}
	cert, trusted, _ := read("queue-0")
	if other, same, _ := read("queue-1"); bytes.Equal(cert, other) || !bytes.Equal(trusted, same) {
		t.Error("two members show one certificate, or trust two authorities")
	}

	if err := r.renewOne("queue-0", time.Hour); err != nil {
		t.Fatal(err)
	}
	renewed, still, until := read("queue-0")
	if left := time.Until(until); bytes.Equal(cert, renewed) || !bytes.Equal(trusted, still) || left > time.Hour || left < time.Minute {
		t.Errorf("a certificate for an hour ends in %v", left)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel() // nobody is there to wait for
	if err := r.rotate(ended); err != nil {
		t.Fatal(err)
	}
	if again, now, _ := read("queue-0"); bytes.Equal(again, renewed) || bytes.Equal(now, trusted) || bytes.Contains(now, trusted) {
		t.Error("a member still has a certificate of the authority that was replaced, or trusts it")
	}
}
