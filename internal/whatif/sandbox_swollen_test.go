package whatif

import "testing"

func TestASandboxThatManyNodesWereTriedInIsSwollen(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 2000)))
	for round, want := range []bool{false, true} {
		err := s.Try(t.Context(), func(w *World) error {
			n, _ := w.Node("a")
			for range round + 1 {
				if err := w.AddNodesLike(n, 10_000); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Swollen(); got != want {
			t.Errorf("after %d nodes were tried it is swollen: %v, want %v", 10_000*(round+1), got, want)
		}
	}
}
