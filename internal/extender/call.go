package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/manifest"
)

// mostAnswered is how many bytes of an answer are read; of one to a filter, if that is more, twice what was sent, for an answer may be all of it, encoded otherwise. 5,000 nodes in full
// have 40 to 170 MiB, with their images and managedFields; scores have a hundred times less, and whether a pod is bound is a word.
func mostAnswered(verb Verb) int {
	switch verb {
	case Prioritize:
		return 8 << 20
	case Bind:
		return 1 << 20
	}
	return 64 << 20
}

// An answer has at most elementsPerAsked times as many elements as nodes were asked about, or leastElements: nodes in full, and names, reasons and
// scores. An empty one takes two bytes there, and up to a thousand here.
const (
	elementsPerAsked = 4
	leastElements    = 1000
)

// An answer to filter or preempt has at most valuesPerNode times as many values as nodes were asked about, and mostValues, or twice what was sent, by the count of
// [manifest.Values]: those of what nodes have in full, of which one takes two bytes there, and up to a hundred here. A node with a thousand images has some 5,000, one of a
// kubelet's as a rule 400 to 1,000.
const (
	valuesPerNode = 20_000
	mostValues    = 5_000_000
)

// MaxText bounds what an error says of a text that is an extender's, in bytes. It gets into logs.
const MaxText = 1 << 10

// Call is a request to an extender, and what has become of it.
type Call struct {
	Extender      string // its urlPrefix, without user and password
	Verb          Verb
	Took          time.Duration
	RequestBytes  int // of the body
	ResponseBytes int // of the body, as far as it was read
	// Err is nil if the extender has answered, and has not said that it has failed.
	Err error
}

// Observer is told of each call when it has ended, by the goroutine that has made it; some at the same time.
type Observer func(Call)

// Stated is what an extender has answered in Error. It is the only error by which the extender itself says that it has not done what it was asked:
// after any other, a pod may be bound. A longer one than MaxText is cut.
type Stated string

func (s Stated) Error() string { return string(s) }

// call sends a body to the place of a verb and decodes the answer. asked is how many nodes the body is about.
func (e *extender) call(ctx context.Context, verb Verb, body []byte, asked int, answer any) error {
	began := time.Now()
	read, err := e.send(ctx, verb, body, asked, answer)
	err = cut(err)
	e.observe(Call{Extender: e.url, Verb: verb, Took: time.Since(began), RequestBytes: len(body), ResponseBytes: read, Err: err})
	return err
}

// send does the same, and returns how much of the answer was read.
func (e *extender) send(ctx context.Context, verb Verb, body []byte, asked int, answer any) (read int, err error) {
	place := e.places[verb]
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, place.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.clientOf(verb).Do(request)
	if err != nil {
		if failed, ok := err.(*url.Error); ok {
			failed.URL = WithoutUser(failed.URL)
		}
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("failed %v with extender at URL %v, code %v", place.verb, WithoutUser(place.url), response.StatusCode)
	}
	most := e.mostAnswered(verb)
	if verb == Filter {
		most = max(most, 2*len(body))
	}
	within := &bounded{body: response.Body, most: most}
	err = e.read(within, verb, body, asked, answer)
	return within.read, err
}

// read reads the answer to what was sent and decodes it, if that takes no more memory than answers do.
func (e *extender) read(body *bounded, verb Verb, sent []byte, asked int, answer any) error {
	var v value
	whole := v.read(body)
	switch {
	case body.failed == errTooMuch:
		return fmt.Errorf("extender %q answers %s with more than %d MiB: have it answer with less", e.url, verb, body.most>>20)
	case !whole:
		// It is nothing that extenders answer. The decoder says of it what kube-scheduler does.
		return json.NewDecoder(io.MultiReader(bytes.NewReader(v.text), body)).Decode(answer)
	case v.most(verb) > max(elementsPerAsked*asked, leastElements):
		return fmt.Errorf("extender %q was asked about %d nodes, and answers with far more: have it answer with each once", e.url, asked)
	case (verb == Filter || verb == Preempt) && tooMany(manifest.Values(v.text), sent, asked):
		return fmt.Errorf("extender %q was asked about %d nodes, and answers with far more than they have: have it answer with what it was sent, or make it nodeCacheCapable", e.url, asked)
	}
	return decode(v.text, answer)
}

// tooMany reports whether an answer has more values than there may be in one to what was sent.
func tooMany(values int, sent []byte, asked int) bool {
	return values > valuesPerNode*max(asked, 1) || values > mostValues && values > 2*manifest.Values(sent)
}

// decode decodes an answer and looks whether it says that the extender has failed.
func decode(text []byte, answer any) error {
	switch answer := answer.(type) {
	case *extenderv1.ExtenderFilterResult:
		if err := manifest.UnmarshalAnswer(text, answer); err != nil { // it may have quantities
			return err
		}
		return stated(answer.Error)
	case *extenderv1.ExtenderBindingResult:
		if err := json.Unmarshal(text, answer); err != nil {
			return err
		}
		return stated(answer.Error)
	default:
		return json.Unmarshal(text, answer)
	}
}

func stated(text string) error {
	if text == "" {
		return nil
	}
	return Stated(Short(text))
}

// Short returns a text, which may be anybody's, as it is told: valid, and cut if it is longer than MaxText.
func Short(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > MaxText {
		text = strings.ToValidUTF8(text[:MaxText], "") + "…"
	}
	return text
}

// cut makes the text of an error no longer than MaxText.
func cut(err error) error {
	if err == nil || len(err.Error()) <= MaxText {
		return err
	}
	if stated, is := err.(Stated); is {
		return Stated(Short(string(stated)))
	}
	return shortened{err}
}

// shortened is an error whose text is cut.
type shortened struct{ error }

func (s shortened) Error() string { return Short(s.error.Error()) }
func (s shortened) Unwrap() error { return s.error }

// value is the first JSON value of a body, which may be followed by anything, or by nothing while the server does not end its answer. To find its
// end takes a part of the time that it takes to decode it, and counts what would take far more memory than it takes here.
type value struct {
	text            []byte
	counts          [levels]int // how many values there are at each level: those in the value are at level 1, and so on
	depth, scanned  int
	quoted, escaped bool
}

// levels are as many as are counted: nodes in full are the deepest, in Nodes.items of an answer to a filter.
const levels = 4

// most returns how many elements an answer to a verb has: at one level, for they are in one list or map, or in a few.
func (v *value) most(verb Verb) int {
	switch verb {
	case Prioritize: // a list of scores
		return v.counts[1]
	case Filter: // names and reasons, and nodes in full
		return max(v.counts[2], v.counts[3])
	}
	return v.counts[2] // of a bind, there are none; of preemption, nodes with their victims
}

// counted notes one more value where the scan is.
func (v *value) counted() {
	if v.depth > 0 && v.depth < levels {
		v.counts[v.depth]++
	}
}

// leastRead is how much there is room for when a body is read.
const leastRead = 16 << 10

// read reads the value and reports whether it is a whole object or list, as far as brackets say so. If it is not, what has been read is the beginning
// of the body.
func (v *value) read(body io.Reader) (whole bool) {
	for {
		v.text = slices.Grow(v.text, leastRead)
		n, failed := body.Read(v.text[len(v.text):cap(v.text)])
		v.text = v.text[:len(v.text)+n]
		if ended, other := v.scan(); ended || other || failed != nil {
			return ended
		}
	}
}

// scan goes on to the end of the value, or of what there is. other says that it is neither an object nor a list.
func (v *value) scan() (ended, other bool) {
	for ; v.scanned < len(v.text); v.scanned++ {
		switch c := v.text[v.scanned]; {
		case v.escaped:
			v.escaped = false
		case v.quoted:
			v.escaped, v.quoted = c == '\\', c != '"'
		case c == '{' || c == '[':
			v.depth++
			v.counted()
		case v.depth == 0:
			if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
				return false, true
			}
		case c == '"':
			v.quoted = true
		case c == ',':
			v.counted()
		case c == '}' || c == ']':
			if v.depth--; v.depth == 0 {
				v.scanned++
				v.text = v.text[:v.scanned]
				return true, false
			}
		}
	}
	return false, false
}

// bounded reads so many bytes of a body at most, and then fails. Once it has failed, it fails the same way, which not every body does.
type bounded struct {
	body       io.Reader
	most, read int
	failed     error
}

var errTooMuch = errors.New("the body is larger than it may be")

func (b *bounded) Read(p []byte) (n int, err error) {
	if b.failed != nil {
		return 0, b.failed
	}
	if left := b.most - b.read; left == 0 {
		b.failed = errTooMuch
	} else {
		n, b.failed = b.body.Read(p[:min(len(p), left)])
	}
	b.read += n
	return n, b.failed
}
