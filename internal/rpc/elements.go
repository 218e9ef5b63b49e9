package rpc

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// publicElements is how many elements a request may have in all: messages in it, and texts of lists. One takes two bytes to send, and
// seventy to hold.
const publicElements = 10_000

// arriving is a request that is counted before it is decoded, by [answerCodec].
type arriving struct {
	request proto.Message
	refused error // why it was not decoded
}

// decode decodes what has arrived, unless it has too many elements.
func (a *arriving) decode(data mem.BufferSlice, codec answerCodec) error {
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	left := publicElements
	if field := countElements(a.request.ProtoReflect().Descriptor(), whole.ReadOnlyData(), &left); field != "" {
		a.refused = Invalid(Violation{Field: field, Description: fmt.Sprintf("too many: a request has at most %d elements", publicElements)})
		return nil
	}
	return codec.CodecV2.Unmarshal(mem.BufferSlice{whole}, a.request)
}

// countElements takes from left the elements of an encoded message, and returns the field that has more, "" if none has. What cannot be
// decoded it leaves to who decodes. Numbers are not counted: in memory they take eight times what they take on the wire, at most.
func countElements(d protoreflect.MessageDescriptor, data []byte, left *int) string {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return ""
		}
		data = data[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
				return ""
			}
			data = data[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return ""
		}
		data = data[n:]
		field := d.Fields().ByNumber(number)
		if field == nil || field.Message() == nil && (!field.IsList() || field.IsPacked()) {
			continue
		}
		if *left--; *left < 0 {
			return string(field.Name())
		}
		if message := field.Message(); message != nil {
			if inner := countElements(message, value, left); inner != "" {
				return string(field.Name()) + "." + inner
			}
		}
	}
	return ""
}
