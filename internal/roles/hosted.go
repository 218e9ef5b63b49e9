package roles

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// hostedWithin is how long a process with plugins may take to say what it measures, and hostedMost is how much it may say, in bytes.
	hostedWithin = 5 * time.Second
	hostedMost   = 4 << 20
)

// hostedService is before the name of a service whose process Berth runs, where processes with the plugins of one profile have that of the profile.
const hostedService = "service/"

// measures says what plugins measure that Berth runs, in Prometheus' text format.
type measures interface {
	get(ctx context.Context) ([]byte, error)
}

// hosted is what a process with plugins measures that Berth runs. It is passed on as it is: what is foreign is not looked at here, and is nothing of what Berth measures.
type hosted struct{ client *http.Client }

// newHosted returns what a process measures that serves it on a socket.
func newHosted(socket string) *hosted {
	return &hosted{&http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives:      true, // the process may be another one the next time
			DisableCompression:     true,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// get returns that, in Prometheus' text format if the process is honest.
func (h *hosted) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, hostedWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://plugins/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the plugins' process answers with status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, hostedMost+1))
	if err == nil && len(text) > hostedMost {
		err = fmt.Errorf("the plugins' process says more than %d bytes", hostedMost)
	}
	return text, err
}

// pluginMetrics returns what plugins measure that Berth runs, by the name of the profile or, behind "service/", of the service; false: there is none of that name here.
func (e *env) pluginMetrics(ctx context.Context, process string) (text []byte, known bool, err error) {
	h, known := e.hosted.Load(process)
	if !known {
		return nil, false, nil
	}
	text, err = h.(measures).get(ctx)
	return text, true, err
}
