package rpc

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestClientsThatAreCutForWhatTheyDoNotReadDoNotFillTheLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		logs := &logtest.Buffer{}
		u := newUnread(slog.New(slog.NewTextHandler(logs, nil)), MessageLimit, false)
		cut := func(times int) {
			for range times {
				server, client := net.Pipe()
				u.end([]deaf{{&connection{Conn: from{server, "192.0.2.1"}, unread: u}, 1 << 20}})
				_, _ = server.Close(), client.Close()
			}
		}
		cut(20)
		if text := logs.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "192.0.2.1") {
			t.Errorf("want a line:\n%s", text)
		}
		elapse(quietEvery)
		cut(1)
		if text := logs.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "cuts=20") {
			t.Errorf("want another, which tells of those between:\n%s", text)
		}
	})
}
