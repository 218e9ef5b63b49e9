package original

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Scv is the cards of a node, as an informer has it.
type Scv struct{ v1alpha1.Scv }

// DeepCopyObject returns a copy.
func (s *Scv) DeepCopyObject() runtime.Object { return s.deepCopy() }

func (s *Scv) deepCopy() *Scv {
	c := &Scv{s.Scv}
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status.Cards = slices.Clone(s.Status.Cards) // a card has nothing to share
	return c
}

// ScvList is a list of them.
type ScvList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Scv `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *ScvList) DeepCopyObject() runtime.Object {
	c := &ScvList{TypeMeta: l.TypeMeta, Items: make([]Scv, len(l.Items))}
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items[i] = *l.Items[i].deepCopy()
	}
	return c
}

// follow returns the cards of all nodes, in a cache that an informer keeps up to date until ctx ends.
func follow(ctx context.Context, config *restclient.Config) (cache.Indexer, error) {
	scheme, version := runtime.NewScheme(), schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}
	scheme.AddKnownTypeWithName(version.WithKind(v1alpha1.Kind), &Scv{})
	scheme.AddKnownTypeWithName(version.WithKind(v1alpha1.Kind+"List"), &ScvList{})
	metav1.AddToGroupVersion(scheme, version)
	own := restclient.CopyConfig(config)
	own.APIPath, own.GroupVersion, own.NegotiatedSerializer = "/apis", &version, serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := restclient.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("make client of cards: %w", err)
	}
	informer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client, v1alpha1.Resource, metav1.NamespaceAll, fields.Everything()), &Scv{}, 0, cache.Indexers{})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("read cards: %w", context.Cause(ctx))
	}
	return informer.GetIndexer(), nil
}
