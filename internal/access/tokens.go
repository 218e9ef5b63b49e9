package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/reread"
)

// Tokens is a Reviewer that knows a fixed set of tokens.
type Tokens struct {
	owners map[[sha256.Size]byte]owner // by hash, so that a lookup tells nothing of other tokens
}

type owner struct {
	user   string
	writes bool
}

// ReadTokens reads one token per line: the token, its user, and "read" or "write", which may read too, separated by commas.
// Empty lines and those that begin with # say nothing: where there are no others, nobody has a token. An error names the line.
func ReadTokens(r io.Reader) (*Tokens, error) {
	t := &Tokens{owners: make(map[[sha256.Size]byte]owner)}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ",")
		for k := range fields {
			fields[k] = strings.TrimSpace(fields[k])
		}
		if len(fields) != 3 || fields[0] == "" || fields[1] == "" || fields[2] != "read" && fields[2] != "write" {
			return nil, fmt.Errorf("tokens: line %d: want TOKEN,USER,read or TOKEN,USER,write", n)
		}
		key := sha256.Sum256([]byte(fields[0]))
		if _, taken := t.owners[key]; taken {
			return nil, fmt.Errorf("tokens: line %d: the token of %s is in another line too", n, fields[1])
		}
		t.owners[key] = owner{fields[1], fields[2] == "write"}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	return t, nil
}

// Authenticate implements Reviewer.
func (t *Tokens) Authenticate(_ context.Context, token string) (Caller, error) {
	o, ok := t.owners[sha256.Sum256([]byte(token))]
	if !ok {
		return Caller{}, ErrUnknownToken
	}
	c := Caller{User: o.user}
	if o.writes {
		c.Groups = []string{writers}
	}
	return c, nil
}

// writers is the group of those whose tokens are for writing.
const writers = "berth:writers"

// Allowed implements Reviewer: everybody may read, and those who write may do everything.
func (t *Tokens) Allowed(_ context.Context, c Caller, p Permission) (bool, string, error) {
	if p.Reads() || slices.Contains(c.Groups, writers) {
		return true, "", nil
	}
	return false, "the token is for reading", nil
}

// TokenFile is a Reviewer that knows the tokens of a file as it is now: it is read again when it changes, see reread.Value.
type TokenFile struct{ tokens *reread.Value[*Tokens] }

// OpenTokens reads a file of tokens, see ReadTokens. There must be one; if there is none later, all have been taken back. Errors name
// the file.
func OpenTokens(file string, log *slog.Logger) (*TokenFile, error) {
	value, err := reread.Open(reread.Config[*Tokens]{
		Files: []string{file}, What: "tokens", Log: log,
		Parse: func(contents [][]byte) (*Tokens, error) {
			t, err := ReadTokens(bytes.NewReader(contents[0]))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			return t, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	if len(value.Latest().owners) == 0 {
		return nil, fmt.Errorf("read tokens: %s: there is none", file)
	}
	return &TokenFile{value}, nil
}

// Authenticate implements Reviewer.
func (f *TokenFile) Authenticate(ctx context.Context, token string) (Caller, error) {
	return f.tokens.Latest().Authenticate(ctx, token)
}

// Allowed implements Reviewer.
func (f *TokenFile) Allowed(ctx context.Context, c Caller, p Permission) (bool, string, error) {
	return f.tokens.Latest().Allowed(ctx, c, p)
}

// Stale reports whether the file, as it is now, cannot be used, and the tokens of before are known.
func (f *TokenFile) Stale() bool { return f.tokens.Stale() }
