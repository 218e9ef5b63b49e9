package cluster

import "testing"

// Namespaces come and go, and each has another name.
func TestOfANamespaceWithoutObjectsNothingIsLeft(t *testing.T) {
	st := New(Version{Epoch: 1})
	key := ObjectKey{Kind: BudgetKind, Namespace: "n", Name: "b"}
	for _, d := range []Delta{ObjectSet{Object: NewObject(key)}, ObjectRemoved{ObjectKey: key}} {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	if left := st.objects.of(BudgetKind).all; len(left) > 0 {
		t.Errorf("left is %v", left)
	}
	if st.Digest() != New(Version{Epoch: 1}).Digest() {
		t.Error("the digest is not that of an empty state")
	}
}
