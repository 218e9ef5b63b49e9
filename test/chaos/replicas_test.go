package main

import (
	"bytes"
	"encoding/binary"
	"testing"

	"google.golang.org/protobuf/proto"

	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// told returns a frame that tells a follower of a node with so much CPU.
func told(t *testing.T, kind logv1.FollowResponse_Kind, cpu int64) []byte {
	t.Helper()
	delta, err := proto.Marshal(&logv1.Delta{Change: &logv1.Delta_NodeSet{NodeSet: &logv1.NodeSet{
		Name: "n", Allocatable: []*logv1.Quantity{{Name: "cpu", Value: cpu}, {Name: "memory", Value: 8 << 30}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := proto.Marshal(&logv1.FollowResponse{Version: &logv1.Version{Epoch: 3, Seq: 9}, Kind: kind, Deltas: [][]byte{delta}})
	if err != nil {
		t.Fatal(err)
	}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	return append([]byte{0, byte(len(body) >> 8), byte(len(body)), 0, 0, 0, 0, 0, 1}, body...)
}

func TestWhatAReplicaIsToldOfANodeIsAltered(t *testing.T) {
	for _, cpu := range []int64{nodeCPU, largerCPU} {
		frame := told(t, logv1.FollowResponse_KIND_DELTAS, cpu)
		var out bytes.Buffer
		f := frames{to: &out, tamper: func(f []byte) { alterNode(f) }}
		for _, b := range frame { // a frame arrives in any pieces
			if _, err := f.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if want := told(t, logv1.FollowResponse_KIND_DELTAS, cpu^1<<12); !bytes.Equal(out.Bytes(), want) {
			t.Errorf("a node of %d became\n%x, want\n%x", cpu, out.Bytes(), want)
		}
	}
}

func TestOtherFramesStayAsTheyAre(t *testing.T) {
	headers := told(t, logv1.FollowResponse_KIND_DELTAS, nodeCPU)
	headers[3] = 1
	for name, frame := range map[string][]byte{
		"a snapshot": told(t, logv1.FollowResponse_KIND_SNAPSHOT_MORE, nodeCPU), "headers": headers,
		"the beginning of a message": told(t, logv1.FollowResponse_KIND_DELTAS, nodeCPU)[:30], "nothing": make([]byte, frameHeader),
	} {
		was := bytes.Clone(frame)
		if alterNode(frame) || !bytes.Equal(was, frame) {
			t.Errorf("%s was altered", name)
		}
	}
}

func TestMetricsAreSummed(t *testing.T) {
	text := "# TYPE a_total counter\na_total{reason=\"x\"} 2\na_total{reason=\"y\"} 3\nb_total 4\n"
	for name, want := range map[string]float64{"a_total": 5, `a_total{reason="y"}`: 3, "b_total": 4, "c_total": 0} {
		if got := sumOf(text, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
