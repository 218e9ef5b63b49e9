package coord

import (
	"context"
	"crypto/rand"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const identityName = "identity"

// Identity returns the name that all members of this Berth share, and no other Berth has: whoever is elected first makes
// it, and it stays for as long as etcd's data does. It fails with ErrFenced if it would have to be made, and the term does not hold.
func (t *Term) Identity(ctx context.Context) (string, error) {
	c := t.client
	key := c.coordPrefix() + identityName
	mine := "berth_" + rand.Text()
	absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	r, err := c.commit(ctx, []clientv3.Cmp{t.holds(), absent}, []clientv3.Op{clientv3.OpPut(key, mine)}, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return "", fmt.Errorf("read identity: %w", err)
	}
	if r.Succeeded {
		return mine, nil
	}
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return string(kvs[0].Value), nil
	}
	return "", fmt.Errorf("make identity in epoch %d: %w", t.epoch, ErrFenced)
}
