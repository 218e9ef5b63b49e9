package rpc

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestWhatALibraryLogsIsToldFromTimeToTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		logs := &logtest.Buffer{}
		l := slog.NewLogLogger(LibraryLog(slog.New(slog.NewTextHandler(logs, nil))), slog.LevelError).Writer()
		say := func(line string) {
			if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		for range 5 {
			say("http2: bogus greeting: http: panic serving " + strings.Repeat("\xff", 100_000) + "\n")
		}
		elapse(quietEvery)
		say("http: TLS handshake error\n")
		text := logs.String()
		if n := strings.Count(text, "\n"); n != 2 || !strings.Contains(text, "lines=5") || len(text) > 2<<10 {
			t.Errorf("%d lines of %d bytes, want 2, of which the second one tells of 5:\n%.2000s", n, len(text), text)
		}
		for range 2 { // each is told, with its stack
			say("http: panic serving 192.0.2.1:1: no\ngoroutine 1:\n\tmain.go:1")
		}
		if n := strings.Count(logs.String(), "main.go:1"); n != 2 {
			t.Errorf("%d of 2 panics are told:\n%s", n, logs)
		}
	})
}

func TestHandshakesWithOperatorsThatFailDoNotFillTheLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		logs := &logtest.Buffer{}
		l, stop := servingOps(t, OpsConfig{Log: slog.New(slog.NewTextHandler(logs, nil))})
		defer stop()
		for range 20 {
			server, client := net.Pipe()
			l.accepted <- from{server, "192.0.2.1"}
			if err := tls.Client(client, &tls.Config{ServerName: "x"}).Handshake(); err == nil { // which does not trust it
				t.Error("it is trusted")
			}
			_ = client.Close()
			synctest.Wait()
		}
		if text := logs.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "TLS handshake error") {
			t.Errorf("want a line:\n%s", text)
		}
	})
}
