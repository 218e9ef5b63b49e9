package rpcs

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/berth-scheduler/berth/test/berthtest"
)

// choices reads a fuzzer's bytes as decisions. When they are used up, every decision is the first.
type choices struct{ data []byte }

func (c *choices) byte() int {
	if len(c.data) == 0 {
		return 0
	}
	b := c.data[0]
	c.data = c.data[1:]
	return int(b)
}

// bytes returns up to 255 bytes as they are.
func (c *choices) bytes() []byte {
	n := min(c.byte(), len(c.data))
	b := c.data[:n]
	c.data = c.data[n:]
	return b
}

func (c *choices) number() int64 {
	numbers := []int64{0, 1, 2, 3, 7, 64, 100, 1000, -1, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}
	k := c.byte()
	if k < len(numbers) {
		return numbers[k]
	}
	var b [8]byte
	copy(b[:], c.bytes())
	return int64(binary.LittleEndian.Uint64(b[:]))
}

// words are what means something to the Berth that is asked: names of what is there, and manifests.
var words = []string{
	"", "default", "node-0000", "node-0001", "small", "large", "default/small", "Pod", "Node", "queue", "binder", "gateway", "filter-worker",
	"t-queue-0", "t-binder-0", "t-filter-0", "default-scheduler", "kubernetes.io/hostname", "cpu", "1", "9999999Gi", "In", "NoSchedule",
	berthtest.Pod("new", "1", "1Gi", ""), berthtest.Pod("big", "100", "1Gi", "priority: 5, "), berthtest.Node("node-0003", "4", "8Gi"),
	"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 3, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
	"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n", "kind: [", "../../x", "a/b", "\x00",
}

func (c *choices) text() string {
	if k := c.byte(); k < len(words) {
		return words[k]
	}
	valid := []rune(string(c.bytes())) // a string that is not UTF-8 is no message: that is what raw bytes are for
	return string(valid)
}

// fill sets fields of a message.
func (c *choices) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		what := c.byte()
		switch {
		case what%4 == 0 || f.IsMap() || f.Message() != nil && depth > 4:
		case f.IsList():
			list := m.Mutable(f).List()
			for range what % 7 {
				if f.Message() != nil {
					e := list.NewElement()
					c.fill(e.Message(), depth+1)
					list.Append(e)
				} else {
					list.Append(c.scalar(f))
				}
			}
		case f.Message() != nil:
			c.fill(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, c.scalar(f))
		}
	}
}

func (c *choices) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(c.byte()%2 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(c.number()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(c.number()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(c.number())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(c.number()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(c.number()))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(uint32(c.number())))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(uint64(c.number())))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(c.text())
	}
	return protoreflect.ValueOfBytes(c.bytes())
}

// message returns a message filled from bytes.
func message(d protoreflect.MessageDescriptor, data []byte) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	(&choices{data}).fill(m, 0)
	return m
}
