package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServer is as much of an API server as source/kube needs to follow everything, and to write to volumes and claims: watches that begin with
// what there is, reads and merge patches with a resource version. What is put there later, those who watch are told when it is read or patched, as if they lagged.
type apiServer struct {
	mu       sync.Mutex
	version  int
	objects  map[string]json.RawMessage // by resource, namespace if it has one, and name
	watchers map[string][]chan json.RawMessage
}

// startAPIServer returns a server, and the path of a kubeconfig for it. It is to be stopped when nobody watches any more.
func startAPIServer(t *testing.T) (s *apiServer, kubeconfig string, stop func()) {
	s = &apiServer{version: 1000, objects: make(map[string]json.RawMessage), watchers: make(map[string][]chan json.RawMessage)}
	server := httptest.NewServer(s)
	config := clientcmdapi.NewConfig()
	config.Clusters["oracle"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["oracle"] = &clientcmdapi.Context{Cluster: "oracle"}
	config.CurrentContext = "oracle"
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s, kubeconfig, server.Close
}

// put sets an object, and tells nobody yet.
func (s *apiServer) put(t *testing.T, o metav1.Object) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o.(runtime.Object))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := json.Marshal(metav1.TypeMeta{Kind: kinds[0].Kind, APIVersion: kinds[0].GroupVersion().String()})
	if err != nil {
		t.Fatal(err)
	}
	if text, err = jsonpatch.MergePatch(text, typed); err != nil {
		t.Fatal(err)
	}
	plural, _ := meta.UnsafeGuessKindToResource(kinds[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path.Join(plural.Resource, o.GetNamespace(), o.GetName())] = text
}

// read returns an object.
func (s *apiServer) read(t *testing.T, resource, namespace, name string, into metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := json.Unmarshal(s.objects[path.Join(resource, namespace, name)], into); err != nil {
		t.Fatalf("read %s %s/%s: %v", resource, namespace, name, err)
	}
}

// kindOfResource returns the kind and the version of the objects of a resource.
func kindOfResource(group, version, resource string) (out metav1.TypeMeta) {
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if plural, _ := meta.UnsafeGuessKindToResource(gvk); plural.Resource == resource && gvk.Group == group && gvk.Version == version {
			out.Kind, out.APIVersion = gvk.Kind, gvk.GroupVersion().String()
		}
	}
	return out
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group, version, rest := "", parts[1], parts[2:]
	if parts[0] == "apis" {
		group, version, rest = parts[1], parts[2], parts[3:]
	}
	namespace := ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	resource := rest[0]
	w.Header().Set("Content-Type", "application/json")
	switch {
	case len(rest) == 1 && r.URL.Query().Get("sendInitialEvents") == "true":
		s.watch(w, r, resource, kindOfResource(group, version, resource))
	case len(rest) == 2 && r.Method == http.MethodGet:
		s.write(w, path.Join(resource, namespace, rest[1]), nil)
	case len(rest) == 2 && r.Method == http.MethodPatch:
		patch, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		s.write(w, path.Join(resource, namespace, rest[1]), patch)
	default:
		refuse(w, http.StatusNotImplemented, metav1.StatusReasonMethodNotAllowed, r.Method+" "+r.URL.String())
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	encode(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func encode(w io.Writer, o any) {
	if err := json.NewEncoder(w).Encode(o); err != nil {
		panic(http.ErrAbortHandler) // who asked is gone
	}
}

// write answers with an object, patched first if there is a patch, as it is then.
func (s *apiServer) write(w http.ResponseWriter, key string, patch []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, there := s.objects[key]
	if !there {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, key)
		return
	}
	if patch != nil {
		var is, wanted metav1.PartialObjectMetadata
		err := errors.Join(json.Unmarshal(text, &is), json.Unmarshal(patch, &wanted))
		if err != nil {
			panic(err)
		}
		if wanted.ResourceVersion != "" && wanted.ResourceVersion != is.ResourceVersion {
			refuse(w, http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf("%s has the version %s", key, is.ResourceVersion))
			return
		}
		s.version++
		newer := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q}}`, strconv.Itoa(s.version))
		for _, p := range [][]byte{patch, newer} {
			if text, err = jsonpatch.MergePatch(text, p); err != nil {
				panic(err)
			}
		}
		s.objects[key] = text
	}
	resource, _, _ := strings.Cut(key, "/")
	for _, told := range s.watchers[resource] {
		told <- text
	}
	encode(w, text)
}

// watchBacklog bounds what a watch has not been told yet: no case writes as much.
const watchBacklog = 100

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string, kind metav1.TypeMeta) {
	told := make(chan json.RawMessage, watchBacklog)
	event := func(what string, o any) {
		encode(w, map[string]any{"type": what, "object": o})
		w.(http.Flusher).Flush()
	}
	s.mu.Lock()
	s.watchers[resource] = append(s.watchers[resource], told)
	var there []json.RawMessage
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, resource+"/") {
			there = append(there, s.objects[key])
		}
	}
	version := strconv.Itoa(s.version)
	s.mu.Unlock()
	for _, o := range there {
		event("ADDED", o)
	}
	event("BOOKMARK", metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	for {
		select {
		case <-r.Context().Done():
			return
		case o := <-told:
			event("MODIFIED", o)
		}
	}
}
