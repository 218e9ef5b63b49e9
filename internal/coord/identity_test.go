package coord

import (
	"errors"
	"testing"
)

func TestAllTermsOfAnEtcdHaveOneIdentityAndADeposedOneMakesNone(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		session := newSession(t, c, lasting)
		first := elect(t, c, session, "one")
		if err := first.Resign(within(t)); err != nil {
			t.Fatal(err)
		}
		if got, err := first.Identity(within(t)); !errors.Is(err, ErrFenced) {
			t.Errorf("a term that is over made %q, %v; want ErrFenced", got, err)
		}
		second := elect(t, c, session, "two")
		mine, err := second.Identity(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Resign(within(t)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			third := elect(t, c, session, "three")
			if got, err := third.Identity(within(t)); got != mine || err != nil || len(mine) < 20 {
				t.Errorf("Identity of a later term: %q, %v; want %q", got, err, mine)
			}
			if err := third.Resign(within(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
