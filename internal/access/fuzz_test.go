package access

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzReadTokens: whatever a file says, nobody gets in but by one of its tokens, and only those write who may.
func FuzzReadTokens(f *testing.F) {
	f.Add([]byte(tokens))
	f.Add([]byte("t,u,write\r\n\n#x\nt2 , u2 , read"))
	f.Add([]byte("a,b,read\na,c,write"))
	f.Add([]byte(",,read"))
	f.Fuzz(func(t *testing.T, data []byte) {
		known, err := ReadTokens(bytes.NewReader(data))
		if err != nil {
			if known != nil {
				t.Errorf("tokens and the error %v", err)
			}
			return
		}
		if _, err := known.Authenticate(t.Context(), ""); err == nil {
			t.Error("no token is a token")
		}
		for _, line := range strings.Split(string(data), "\n") {
			token, rest, _ := strings.Cut(strings.TrimSpace(line), ",")
			token = strings.TrimSpace(token)
			if token == "" || strings.HasPrefix(token, "#") {
				continue
			}
			caller, err := known.Authenticate(t.Context(), token)
			if err != nil {
				t.Fatalf("token %q of the file: %v", token, err)
			}
			may, _, err := known.Allowed(t.Context(), caller, Permission{Verb: "create"})
			if _, role, _ := strings.Cut(rest, ","); err != nil || caller.User == "" || may != (strings.TrimSpace(role) == "write") {
				t.Errorf("line %q: %+v may write: %v, %v", line, caller, may, err)
			}
		}
	})
}

// FuzzBearer: a header gives a token that is in it, or none.
func FuzzBearer(f *testing.F) {
	f.Add("Bearer abc")
	f.Add("bearer  a b ")
	f.Add("Basic abc")
	f.Fuzz(func(t *testing.T, header string) {
		token := bearer([]string{"", header})
		if token != strings.TrimSpace(token) || !strings.HasSuffix(strings.TrimSpace(header), token) {
			t.Errorf("%q gives %q", header, token)
		}
	})
}

// FuzzParseGrant: what is granted can stand in a file of tokens, and comes back.
func FuzzParseGrant(f *testing.F) {
	f.Add("alice=read")
	f.Add("a=b=write")
	f.Add("=read")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGrant(text)
		if err != nil {
			return
		}
		may := "read"
		if g.Write {
			may = "write"
		}
		known, err := ReadTokens(strings.NewReader("token," + g.User + "," + may))
		if err != nil {
			t.Fatalf("%q was granted and cannot be written: %v", text, err)
		}
		caller, err := known.Authenticate(t.Context(), "token")
		if err != nil || caller.User != g.User {
			t.Errorf("%q comes back as %+v, %v", text, caller, err)
		}
	})
}
