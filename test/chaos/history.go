package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
)

// Entry is one line of a history: when it was recorded, and one of the other fields.
//
// There are three orders in a history, and none between them but the time: that of Berth's etcd (Key.Revision), that of
// the API server's etcd, which is that of resource versions (Object.Revision), and the harness's own clock. With the local source
// the first two are one.
type Entry struct {
	At     Micros  `json:"at"`
	Fault  *Fault  `json:"fault,omitempty"`
	Key    *Key    `json:"key,omitempty"`
	Object *Object `json:"object,omitempty"`
	Call   *Call   `json:"call,omitempty"`
	Exit   *Exit   `json:"exit,omitempty"`
	Usage  *Usage  `json:"usage,omitempty"`
	Mode   *Mode   `json:"mode,omitempty"`
	Mark   Mark    `json:"mark,omitempty"`
}

// Mode says how the system under test was set up. A history without one is of an API server, and of plaintext.
type Mode struct {
	Source string    `json:"source"` // kube or local
	TLS    bool      `json:"tls,omitempty"`
	Began  time.Time `json:"began"` // when the run began, by the machine's clock
}

// Micros is a time since the run began, in microseconds.
type Micros int64

// Duration returns the time since the run began.
func (m Micros) Duration() time.Duration { return time.Duration(m) * time.Microsecond }

// Key is a change of a key of Berth's in etcd.
type Key struct {
	Revision int64  `json:"revision"`
	Created  int64  `json:"created,omitempty"` // the create revision; 0 if Deleted
	Name     string `json:"name"`              // below the prefix: coord/leader
	Value    string `json:"value,omitempty"`
	Deleted  bool   `json:"deleted,omitempty"`
}

// Object is a change of a pod, a node, a volume, a claim, a PodGroup or an Scv, as the API server, or the local source, has stored it.
type Object struct {
	Revision int64  `json:"revision"`
	Name     string `json:"name"` // of a pod, a claim or a PodGroup with its namespace
	UID      string `json:"uid,omitempty"`
	Deleted  bool   `json:"deleted,omitempty"`

	// Of a pod.
	On      string      `json:"on,omitempty"`      // the node it is bound to
	Placed  bool        `json:"placed,omitempty"`  // this is its placement, of the local source
	Written *time.Time  `json:"written,omitempty"` // by the clock of the writer, just before it was written; of the local source
	Leaving bool        `json:"leaving,omitempty"` // it has a deletion timestamp
	Reason  string      `json:"reason,omitempty"`  // of the condition PodScheduled, if that is false
	Ended   bool        `json:"ended,omitempty"`   // it has run, and does no longer
	Pod     *corev1.Pod `json:"pod,omitempty"`     // what scheduling reads of it, when it is new
	// What its annotations say of its cards.
	Cards       string `json:"cards,omitempty"`
	CardsMemory string `json:"cardsMemory,omitempty"`

	Node *corev1.Node `json:"node,omitempty"` // of a node: what scheduling reads of it

	// Of a volume or a claim: what binding reads of it; nothing is in it if it was deleted.
	Volume *corev1.PersistentVolume      `json:"volume,omitempty"`
	Claim  *corev1.PersistentVolumeClaim `json:"claim,omitempty"`

	Group *schedulingv1alpha2.PodGroup `json:"group,omitempty"` // of a PodGroup: what scheduling reads of it; nothing is in it if it was deleted

	Told *Told `json:"told,omitempty"` // of an Scv, which has the name of a node
}

// Told is what a collector has told of the cards of its node.
type Told struct {
	Cards []ToldCard `json:"cards,omitempty"`
}

// ToldCard is a card as it is told.
type ToldCard struct {
	ID      string `json:"id"`
	Healthy bool   `json:"healthy,omitempty"`
	MiB     int64  `json:"mib"` // of memory, in all
}

// ofPod reports whether it is a change of a pod.
func (o *Object) ofPod() bool {
	return o.Node == nil && o.Volume == nil && o.Claim == nil && o.Group == nil && o.Told == nil
}

// Call is a request whose answer the harness saw: a bind of Berth's on its way through the proxy, or one of its own.
type Call struct {
	Verb     string  `json:"verb"` // bind, create, delete, resize
	Began    Micros  `json:"began"`
	Returned Micros  `json:"returned"`
	UID      string  `json:"uid,omitempty"`
	Name     string  `json:"name,omitempty"`
	Node     string  `json:"node,omitempty"`
	Outcome  Outcome `json:"outcome"`
}

// Outcome is what a call is known to have done.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // and so without an effect
	Unknown Outcome = "unknown"
)

// Exit is the end of a process.
type Exit struct {
	Name  string `json:"name"`
	Asked bool   `json:"asked,omitempty"` // by the harness
	// Error says how it ended; empty with exit status 0, and after SIGKILL if that was meant.
	Error string `json:"error,omitempty"`
}

// Usage is what a process had used when it was about to be ended.
type Usage struct {
	Name string        `json:"name"`
	CPU  time.Duration `json:"cpu"`
	Peak int64         `json:"peak,omitempty"` // bytes of memory
}

// Mark divides a run into its phases.
type Mark string

// The phases begin with these.
const (
	Calm    Mark = "calm"    // no faults yet
	Faulty  Mark = "faulty"  // faults
	Healing Mark = "healing" // everything runs, the workload shrinks
	End     Mark = "end"     // all is over but the checks
)

// Recorder writes a history to a file. Its methods may be called concurrently.
type Recorder struct {
	began time.Time

	mu   sync.Mutex
	file *os.File
	buf  *bufio.Writer
	err  error
}

// NewRecorder makes the file, which must not exist. The run begins now.
func NewRecorder(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make history: %w", err)
	}
	return &Recorder{began: time.Now(), file: f, buf: bufio.NewWriterSize(f, 1<<20)}, nil
}

// Began returns when the run began.
func (r *Recorder) Began() time.Time { return r.began }

// Now returns the time since the run began.
func (r *Recorder) Now() Micros { return Micros(time.Since(r.began).Microseconds()) }

// Add writes an entry, and fills in when.
func (r *Recorder) Add(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = r.Now()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.buf.Write(append(line, '\n'))
	}
	r.err = errors.Join(r.err, err)
}

// Close writes what is left. An error says that something is missing in the file.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.err, r.buf.Flush(), r.file.Close())
}

// ReadHistory reads what a Recorder has written.
func ReadHistory(path string) ([]Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer f.Close()
	var entries []Entry
	d := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var e Entry
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return entries, nil
		case err != nil:
			return nil, fmt.Errorf("read history: entry %d: %w", len(entries), err)
		}
		entries = append(entries, e)
	}
}
