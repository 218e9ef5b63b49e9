package coord

import (
	"testing"
	"time"
)

func TestATermIsContestedWhileAnotherCandidateStands(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		open := func() *Session {
			session, err := c.NewSession(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return session
		}
		mine, other := open(), open()
		if err := mine.Stand(t.Context(), "me"); err != nil {
			t.Fatal(err)
		}
		term, err := c.Campaign(t.Context(), mine, "me", "here")
		if err != nil {
			t.Fatal(err)
		}
		contested := func(want bool) {
			t.Helper()
			if got, err := term.Contested(t.Context()); got != want || err != nil {
				t.Errorf("contested: %v, %v; want %v", got, err, want)
			}
		}
		contested(false) // by itself
		for range 2 {
			if err := other.Stand(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			contested(true)
		}
		if err := other.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		contested(false)
		if err := other.Stand(t.Context(), "other"); err == nil {
			t.Error("a session that is over stands")
		}
		contested(false)
		if err := mine.Stand(t.Context(), ""); err == nil {
			t.Error("nobody stands")
		}
	})
}
