package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// podWay is an open way to a port of a pod, as kubectl port-forward opens it; but nothing listens on this machine. It is safe
// for concurrent use.
type podWay struct {
	conn  httpstream.Connection
	pod   *v1.Pod
	port  int32
	dials atomic.Int64
}

// openWay opens a way through the API server: over a WebSocket, or SPDY where the API server, or a proxy before it, does not know
// better.
func openWay(config *rest.Config, pod *v1.Pod, port int32) (*podWay, error) {
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	url := client.RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	dialer := portforward.NewFallbackDialerForStreaming(webSocket, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	return &podWay{conn: conn, pod: pod, port: port}, nil
}

// dial opens a connection to the port: a stream with its data, and one with what is in its way.
func (w *podWay) dial(ctx context.Context) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(v1.StreamType, v1.StreamTypeError)
	headers.Set(v1.PortHeader, strconv.Itoa(int(w.port)))
	headers.Set(v1.PortForwardRequestIDHeader, strconv.FormatInt(w.dials.Add(1), 10))
	faults, err := w.conn.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open a stream to pod %s: %w", w.pod.Name, err)
	}
	if err := faults.Close(); err != nil { // nothing is written to it
		return nil, err
	}
	headers.Set(v1.StreamType, v1.StreamTypeData)
	c := &podConn{way: w, faults: faults, ended: make(chan struct{})}
	data, err := w.conn.CreateStream(headers)
	c.Stream = data
	go c.watch()
	if err == nil {
		return c, nil
	}
	select { // why it was not opened may be on the way
	case <-c.ended:
	case <-ctx.Done():
	}
	err = errors.Join(err, faults.Reset())
	if <-c.ended; c.fault != nil {
		err = c.fault
	}
	return nil, fmt.Errorf("open a stream to pod %s: %w", w.pod.Name, err)
}

func (w *podWay) close() error { return w.conn.Close() }

// podConn is a connection to a port of a pod. It knows no deadlines: who uses it closes it.
type podConn struct {
	httpstream.Stream
	way    *podWay
	faults httpstream.Stream
	ended  chan struct{} // closed when there will be no more faults
	fault  error         // what was in the way, nil if nothing; to be read when ended is closed
}

// watch reads what is in the way until the other side has no more to say of it.
func (c *podConn) watch() {
	defer close(c.ended)
	if text, _ := io.ReadAll(c.faults); len(text) > 0 { // what breaks this stream breaks the other one too
		c.fault = errors.New(string(text))
		if c.Stream != nil {
			_ = c.Stream.Reset() // so that a Read ends
		}
	}
}

// Read reads data. At its end it says what was in the way, if anything.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err != nil {
		if <-c.ended; c.fault != nil {
			err = c.fault
		}
	}
	return n, err
}

func (c *podConn) Close() error {
	err := errors.Join(c.Stream.Reset(), c.faults.Reset())
	<-c.ended
	c.way.conn.RemoveStreams(c.Stream, c.faults)
	return err
}

func (c *podConn) LocalAddr() net.Addr              { return podAddr("local") }
func (c *podConn) RemoteAddr() net.Addr             { return podAddr(c.way.pod.Name) }
func (c *podConn) SetDeadline(time.Time) error      { return nil }
func (c *podConn) SetReadDeadline(time.Time) error  { return nil }
func (c *podConn) SetWriteDeadline(time.Time) error { return nil }

// podAddr names an end of a connection.
type podAddr string

func (podAddr) Network() string  { return "pod" }
func (a podAddr) String() string { return string(a) }
