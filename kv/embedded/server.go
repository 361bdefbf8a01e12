package embedded

import (
	"net"
	"sync"
	"time"
)

// server serves the database that this process has open to other processes.
type server struct {
	engine   *engine
	listener net.Listener
	allowed  func(c net.Conn) error // says who may not connect

	mu       sync.Mutex // guards what follows
	closed   bool
	clients  map[net.Conn]bool     // all connections
	sessions map[clientID]*session // the last of each client
	all      sync.WaitGroup        // goroutines
}

const (
	// maxClients bounds the connections, and with what each may hold the memory of all.
	maxClients = 1000
	// slowClient is how long a client may leave what it is sent unread.
	slowClient = 10 * time.Second
)

// newServer returns a server for which others wait already: start lets them in.
func newServer(listener net.Listener, allowed func(net.Conn) error) *server {
	return &server{
		listener: listener, allowed: allowed, clients: map[net.Conn]bool{}, sessions: map[clientID]*session{},
	}
}

func (s *server) start(e *engine) {
	s.engine = e
	s.all.Go(s.accept)
}

func (s *server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			s.mu.Lock()
			closed := s.closed
			s.mu.Unlock()
			if closed {
				return
			}
			time.Sleep(lastRetry) // out of file descriptors, at the worst
			continue
		}
		s.mu.Lock()
		welcome := !s.closed && len(s.clients) < maxClients
		if welcome {
			s.clients[c] = true
			s.all.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
		if !welcome {
			_ = c.Close()
		}
	}
}

// serve is a connection's life.
func (s *server) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
	}()
	if s.allowed(c) != nil {
		return
	}
	id, ok := s.greet(c)
	if !ok {
		return
	}
	n := newSession(s.engine, c)
	// A client that comes back learns that what it has sent before is settled: nothing of it happens later.
	s.mu.Lock()
	before := s.sessions[id]
	s.sessions[id] = n
	s.mu.Unlock()
	if before != nil {
		_ = before.Close()
		<-before.settled
	}
	n.out.put(frameWelcome, func(b []byte) []byte { return appendNumbers(b, protocolVersion) })
	n.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[id] == n {
		delete(s.sessions, id)
	}
}

// greet is the handshake, up to the answer.
func (s *server) greet(c net.Conn) (id clientID, ok bool) {
	if c.SetDeadline(time.Now().Add(helloLimit)) != nil {
		return id, false
	}
	kind, body, err := (&frameReader{r: c, limit: maxHello}).next()
	f := fields{rest: string(body)}
	if err != nil || kind != frameHello || f.text() != protocolMagic {
		return id, false
	}
	if f.number() != protocolVersion {
		// The client learns which version is spoken here. What else its hello has is not known.
		_, _ = c.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte {
			return appendNumbers(b, protocolVersion)
		}))
		return id, false
	}
	if f.bad || len(f.rest) != len(id) {
		return id, false
	}
	copy(id[:], f.rest)
	return id, c.SetDeadline(time.Time{}) == nil
}

// close ends all connections, when the commits that have arrived are answered.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.clients {
		// Who is in a handshake ends with this too.
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
	_ = s.listener.Close()
	s.mu.Unlock()
	s.all.Wait()
}
