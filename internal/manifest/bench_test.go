package manifest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
)

// usual are a pod and a node as the local source stores them, with names and uids of which some look like quantities.
func usual(kind string, n int) (raw []byte, into func() any) {
	id := uuid.NewSHA1(uuid.NameSpaceDNS, fmt.Append(nil, n))
	if kind == KindPod {
		return fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"pod-%06d","namespace":"default","uid":"%s","creationTimestamp":"2026-11-23T10:20:59Z","labels":{"app":"plain"}},`+
			`"spec":{"containers":[{"name":"main","image":"registry.example/app:1","resources":{"requests":{"cpu":"250m","memory":"500Mi"}}}],"schedulerName":"berth","nodeName":"node-%07d"},"status":{}}`,
			n, id, n*17%100_000), func() any { return new(v1.Pod) }
	}
	return fmt.Appendf(nil, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-%07d","uid":"%s","creationTimestamp":"2026-11-23T10:20:59Z","labels":{"kubernetes.io/hostname":"node-%[1]07d","topology.kubernetes.io/zone":"zone-3"}},`+
		`"spec":{},"status":{"allocatable":{"cpu":"64","memory":"256Gi","pods":"110"},"images":[{"names":["registry.example/other-1:1"],"sizeBytes":20971520},{"names":["registry.example/other-2:1"],"sizeBytes":41943040}]}}`,
		n*17%100_000, id), func() any { return new(v1.Node) }
}

// BenchmarkUnmarshalStored: what a look at each object costs besides decoding it.
func BenchmarkUnmarshalStored(b *testing.B) {
	for _, kind := range []string{KindPod, KindNode} {
		var all [][]byte
		var into func() any
		for n := range 1024 {
			raw, of := usual(kind, n*37)
			all, into = append(all, raw), of
		}
		for _, by := range []struct {
			name      string
			unmarshal func([]byte, any) error
		}{{"json", json.Unmarshal}, {"stored", UnmarshalStored}} {
			b.Run("kind="+kind+"/by="+by.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := by.unmarshal(all[i%len(all)], into()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
