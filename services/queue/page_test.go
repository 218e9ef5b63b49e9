package queue

import (
	"strings"
	"testing"

	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

func TestAPageEndsWhereItsBytesDo(t *testing.T) {
	pods := make([]*queuev1.PendingPod, 10)
	for i := range pods {
		pods[i] = &queuev1.PendingPod{Message: strings.Repeat("x", 100)} // 102 bytes
	}
	for bytes, want := range map[int]int{1: 1, 102: 1, 103: 2, 500: 5, 1020: 10, 5000: 10} {
		if got := len(fitting(pods, bytes)); got != want {
			t.Errorf("%d pods within %d bytes, want %d", got, bytes, want)
		}
	}
	if got := fitting(nil, 100); len(got) != 0 {
		t.Errorf("%d pods of none", len(got))
	}
}
