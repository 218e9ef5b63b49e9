package rpc

import "net"

const (
	UnreadLimit = unreadLimit
	UnreadShare = unreadShare
	UnreadFor   = unreadFor
)

// Unread returns how many bytes of answers the server counts as not read.
func (s *Server) Unread() int {
	s.unread.mu.Lock()
	defer s.unread.mu.Unlock()
	return s.unread.bytes
}

const ReadAtOnce = readAtOnce

// Reading returns how many requests of known callers are being read, and how many wait for that.
func (s *Server) Reading() (reading, waiting int) { return s.public.known.load() }

// Following returns how many streams are open, but for those of health, and how many of these.
func (s *Server) Following() (following, health int) {
	following, _ = s.public.following.Used()
	health, _ = s.public.health.Used()
	return following, health
}

// Talking returns how many streams are open whose clients say more than one thing, and of how many callers.
func (s *Server) Talking() (streams, callers int) { return s.public.talking.Used() }

// StrangersReading returns how many requests of those that nobody knows are being read, and how many wait for that.
func (s *Server) StrangersReading() (reading, waiting int) { return s.public.strangers.load() }

const (
	StrangersOpen    = strangersOpen
	StrangersStreams = strangersStreams
)

// StrangersOpen returns how many calls and streams those have open whose certificates name no role of Berth's.
func (s *Server) StrangersOpen() int {
	n, _ := s.strangers.open.Used()
	return n
}

// Strangers returns how many connections of the listener of one may have to give way.
func Strangers(conn net.Conn) int {
	l := unbound(conn).listener
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.strangers.Len()
}

// HeldStreams returns how many streams gRPC holds that no handler has.
func (s *Server) HeldStreams() int {
	n, _ := s.held.share.Used()
	return n
}

// Why returns why a service is not serving: "" if it is, "unknown service" if it is neither registered nor Set.
func (h *Health) Why(service string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.states[service]
	if !ok {
		return "unknown service"
	}
	return s.why
}

// load returns how many run and wait.
func (g *Gate) load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running.used, g.waiting.used
}
