package access

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tokenBytes is how many random bytes a token has.
const tokenBytes = 32

// Grant is what a token that is to be made lets its user do.
type Grant struct {
	User  string
	Write bool
}

// ParseGrant reads USER=read or USER=write.
func ParseGrant(text string) (Grant, error) {
	user, may, _ := strings.Cut(text, "=")
	if user == "" || strings.ContainsAny(user, ",/ \t\n") || may != "read" && may != "write" {
		return Grant{}, fmt.Errorf("%q: want USER=read or USER=write", text)
	}
	return Grant{user, may == "write"}, nil
}

// MakeTokens makes a token for each user: a line in the file tokens of a directory, which ReadTokens reads, and USER.token with
// the token alone. Who has a line keeps it. It returns what it did, a line each, also with an error.
func MakeTokens(dir string, grants []Grant) (did []string, err error) {
	path := filepath.Join(dir, "tokens")
	known := make(map[string]bool)
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		if _, err := ReadTokens(strings.NewReader(string(text))); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Split(line, ","); len(fields) == 3 {
				known[strings.TrimSpace(fields[1])] = true
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	for _, g := range grants {
		if known[g.User] {
			did = append(did, fmt.Sprintf("kept the token of %s", g.User))
			continue
		}
		secret := make([]byte, tokenBytes)
		rand.Read(secret)
		token, may := base64.RawURLEncoding.EncodeToString(secret), "read"
		if g.Write {
			may = "write"
		}
		// The user's own file is first: a token without a line is nobody's, a line without its token is lost.
		own := filepath.Join(dir, g.User+".token")
		if err := os.WriteFile(own, []byte(token+"\n"), 0o600); err != nil {
			return did, fmt.Errorf("write a token: %w", err)
		}
		text = fmt.Appendf(text, "%s,%s,%s\n", token, g.User, may)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return did, fmt.Errorf("write tokens: %w", err)
		}
		known[g.User] = true
		did = append(did, fmt.Sprintf("wrote %s, for %s to %s", own, g.User, may))
	}
	return did, nil
}
