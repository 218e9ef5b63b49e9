package command

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestAProcessSaysWhatItIsWhenItStarts(t *testing.T) {
	t.Setenv("GOGC", "150")
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := binderCommand(nil)
	if err := c.ParseFlags([]string{"--etcd-endpoints", "https://u:secret@etcd:2379", "--lease-ttl", "7s"}); err != nil {
		t.Fatal(err)
	}
	sayStart(log, "binder", flagValues(c.Flags()))
	for _, want := range []string{"msg=starting role=binder build=", "commit=", "gogc=150 gomaxprocs=", `level=DEBUG msg=flag line="--lease-ttl=7s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %s:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "secret") {
		t.Errorf("it tells a password:\n%s", &out)
	}
}
