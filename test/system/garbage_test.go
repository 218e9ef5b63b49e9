package system

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

// berthMethods returns every method of every service of Berth's protos.
func berthMethods() []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "berth.") {
			for i := range f.Services().Len() {
				for k := range f.Services().Get(i).Methods().Len() {
					out = append(out, f.Services().Get(i).Methods().Get(k))
				}
			}
		}
		return true
	})
	return out
}

// wild returns a message of well-formed nonsense: extreme numbers, odd strings, many elements.
func wild(r *rand.Rand, d protoreflect.MessageDescriptor, depth int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	scalar := func(f protoreflect.FieldDescriptor) protoreflect.Value {
		numbers := []int64{0, -1, 1, 63, 64, 1000, math.MaxInt32, math.MinInt32}
		n := numbers[r.IntN(len(numbers))]
		switch f.Kind() {
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(n > 0)
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(n))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64([]int64{n, math.MaxInt64, math.MinInt64}[r.IntN(3)])
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(uint32(n))
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(uint64(n))
		case protoreflect.StringKind:
			return protoreflect.ValueOfString([]string{"", "\x00", "../../x", strings.Repeat("a", 5000), "{{", "kind: ["}[r.IntN(6)])
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte(strings.Repeat("\xff", r.IntN(5000))))
		}
		panic("no value for " + f.Kind().String())
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		isMessage := f.Kind() == protoreflect.MessageKind
		switch {
		case f.IsMap() || isMessage && depth > 4 || r.IntN(4) == 0:
		case f.IsList():
			list := m.Mutable(f).List()
			for range r.IntN(4) {
				if isMessage {
					list.Append(protoreflect.ValueOfMessage(wild(r, f.Message(), depth+1)))
				} else {
					list.Append(scalar(f))
				}
			}
		case isMessage:
			m.Set(f, protoreflect.ValueOfMessage(wild(r, f.Message(), depth+1)))
		default:
			m.Set(f, scalar(f))
		}
	}
	return m
}

func TestGarbageToAnyRPCOfAnyRoleHarmsNothing(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1})
	p.Apply(berthtest.Nodes(100)...)
	p.Apply(plainPods(0, 20)...)
	p.AwaitDecided(20)
	members, err := p.GetStatus(p.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(members.GetMembers()) != 5 {
		t.Fatalf("members: %v", members.GetMembers())
	}
	r := rand.New(rand.NewPCG(1, 2))
	served := 0
	for _, member := range members.GetMembers() {
		conn, err := grpc.NewClient(member.GetAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range berthMethods() {
			name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
			payloads := [][]byte{nil, []byte("\xff\xff\xff\xff"), []byte(strings.Repeat("\x0a", 3000))}
			for range 30 {
				b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(wild(r, method.Input(), 0))
				if err != nil {
					continue // a string that is not UTF-8
				}
				payloads = append(payloads, b)
			}
			for _, payload := range payloads {
				err := send(conn, name, method.IsStreamingServer(), payload)
				code := status.Code(err)
				if code == codes.Unimplemented {
					break // another role serves it
				}
				served++
				undecodable := code == codes.Internal && strings.Contains(err.Error(), "unmarshal")
				if !undecodable && (code == codes.Internal || code == codes.Unknown) {
					t.Errorf("%s %s with %d bytes: %v", member.GetId(), name, len(payload), err)
				}
			}
		}
		conn.Close()
	}
	if served < 500 {
		t.Errorf("only %d calls were served: the test does not reach the roles", served)
	}
	for id, proc := range p.ByID {
		select {
		case <-proc.Done():
			t.Fatalf("%s ended: %v", id, proc.Err())
		default:
		}
		if strings.Contains(p.Log(id), "panic") {
			t.Errorf("%s panicked", id)
		}
	}
	p.Apply(plainPods(20, 40)...)
	p.AwaitDecided(40)
	if got := len(p.Placements()); got != 40 {
		t.Errorf("%d of 40 pods placed afterwards", got)
	}
	p.CheckCapacity()
}

// send makes one call with these bytes and reads at most a little of the answer.
func send(conn *grpc.ClientConn, method string, stream bool, payload []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var answer []byte
	if !stream {
		return conn.Invoke(ctx, method, &payload, &answer, grpc.ForceCodec(rawCodec{}))
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(&payload); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.RecvMsg(&answer) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(100 * time.Millisecond): // a stream that has nothing to say is fine; cancel ends it
		cancel()
		<-ended
		return nil
	}
}
