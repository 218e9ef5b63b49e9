package rpc

import (
	"sync"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Health is what a server says of itself through grpc.health.v1. The service "" stands for the whole server; a
// registered service that was never Set follows it. All start as not serving, with the reason "starting".
// Once the server drains it stays not serving. It is safe for concurrent use.
type Health struct {
	server *health.Server

	mu       sync.Mutex
	states   map[string]state
	follows  map[string]bool // registered services that follow ""
	draining bool
}

type state struct {
	serving bool
	why     string
}

func newHealth() *Health {
	h := &Health{server: health.NewServer(), states: make(map[string]state), follows: make(map[string]bool)}
	h.put("", state{why: "starting"})
	return h
}

// Set says whether a service is ready to be called and, when it is not, why.
func (h *Health) Set(service string, serving bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return
	}
	if serving {
		why = ""
	}
	delete(h.follows, service)
	h.put(service, state{serving, why})
	if service == "" {
		for follower := range h.follows {
			h.put(follower, state{serving, why})
		}
	}
}

// put records and publishes a state. The caller holds mu, or is the only one to know h.
func (h *Health) put(service string, s state) {
	if !s.serving && s.why == "" {
		s.why = "not serving"
	}
	h.states[service] = s
	answer := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if s.serving {
		answer = grpc_health_v1.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus(service, answer)
}

// follow makes a service follow "" unless it has a state of its own.
func (h *Health) follow(service string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.states[service]; !ok {
		h.follows[service] = true
		h.put(service, h.states[""])
	}
}

// drain makes every service not serving, for good.
func (h *Health) drain(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	for service := range h.states {
		h.put(service, state{why: why})
	}
	h.server.Shutdown()
}
