package announced

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestAddressesThatCanBeReachedAreTakenAndNoOthers(t *testing.T) {
	for _, address := range []string{"gpu-0.internal:9000", "10.0.0.7:1", "[2001:db8::1]:65535", "localhost:7200", "127.0.0.1:7200", strings.Repeat("a", 253) + ":1"} {
		if err := Check(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{
		"", ":9000", "gpu", "gpu:", "gpu:0", "gpu:65536", "gpu:grpc", "gpu:-1", "gpu:+1", "unix:///run/gpu.sock", "unix:/run:1", "dns:///gpu:9000", "http://gpu:1", "a b:1", "a\n:1", "a/b:1", "a%b:1", "ä:1", "a@b:1",
		"[fe80::1%eth0]:1", "fe80::1:1", "0.0.0.0:9000", "[::]:9000", "[::ffff:0.0.0.0]:1", strings.Repeat("a", 254) + ":1", "@abstract:1", "a\x00:1",
	} {
		if err := Check(address); err == nil {
			t.Errorf("%q is taken", address)
		} else if len(err.Error()) > 400 {
			t.Errorf("%q: the error has %d bytes", address, len(err.Error()))
		}
	}
}

func TestAValueIsJSONWithAnAddressAndNotLong(t *testing.T) {
	for value, want := range map[string]string{
		`{"address": "gpu:1"}`:                                    "gpu:1",
		`{"address": "gpu:1", "version": {"later": true}}`:        "gpu:1",
		`{"address": "gpu:1"}` + strings.Repeat(" ", MaxValue-20): "gpu:1",
		`{"address": "gpu:1"}` + strings.Repeat(" ", MaxValue-19): "",
		`gpu:1`:                         "",
		`"gpu:1"`:                       "",
		`{"address": 1}`:                "",
		`{}`:                            "",
		`null`:                          "",
		``:                              "",
		`{"address": "unix:///a.sock"}`: "",
		`{"address": "gpu:1"} {}`:       "",
	} {
		got, err := Decode([]byte(value))
		if (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%.60s: %q, %v; want %q", value, got, err, want)
		}
	}
}

// FuzzDecode: what is taken is an address that can be dialled and nothing else, and what is wrong with others is told in few words.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"address": "gpu-0.internal:9000"}`))
	f.Add([]byte(`{"address": "[::1]:9000"}`))
	f.Add([]byte(`{"address": "unix:///a"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		address, err := Decode(value)
		if err != nil {
			if len(err.Error()) > 700 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || port == "" || len(address) > MaxValue {
			t.Fatalf("%q: %v", address, err)
		}
		if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/%@ \t\r\n\x00\\") {
			t.Errorf("%q is taken", address)
		}
		if got := fmt.Sprintf("%q", host); len(got) != len(host)+2 {
			t.Errorf("%q is taken", address)
		}
	})
}
