package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// publicElements is how many elements a request may have in all: messages in it, and texts of lists. One takes two bytes to send, and
// seventy to hold.
const publicElements = 10_000

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
