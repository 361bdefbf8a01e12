package embedded

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// server serves the database that this process has open to other processes.
type server struct {
	engine  *engine
	dir     *dir                   // of the socket
	allowed func(c net.Conn) error // says who may not connect
	over    chan struct{}          // closed by close

	mu       sync.Mutex // guards what follows
	closed   bool
	listener *listener             // nil while no socket can be made
	clients  map[net.Conn]bool     // all connections
	strange  []net.Conn            // of these, those that have not said hello, the oldest first
	sessions map[clientID]*session // the last of each client
	accepted uint64                // counts connections
	all      sync.WaitGroup        // goroutines
}

const (
	// maxClients bounds the clients. The memory of one client is bounded too, so this bounds the memory of all.
	maxClients = 1000
	// maxStrange bounds the connections that have not said hello. One more, and the oldest goes.
	maxStrange = 100
	// quietClient is the time after which a client that has sent no request since its hello may lose its place to a
	// new one, if there are maxClients.
	quietClient = 10 * time.Second
	// slowClient is how long a client may leave a frame unread.
	slowClient = 10 * time.Second
)

// newServer returns a server that accepts no connection yet. Other processes may wait already, and start accepts them.
// listener is the folder's socket; nil if none could be made.
func newServer(d *dir, l *listener, allowed func(net.Conn) error) *server {
	return &server{
		dir: d, listener: l, allowed: allowed, over: make(chan struct{}), clients: map[net.Conn]bool{},
		sessions: map[clientID]*session{},
	}
}

func (s *server) start(e *engine) {
	s.engine = e
	if l := s.listener; l != nil {
		s.all.Go(func() { s.accept(l) })
	}
	s.all.Go(s.keepSocket)
}

// keepSocket makes the socket again if its name was removed from the folder, for example by a program that removes old
// files, or if it could not be made before. Otherwise no other process could use the folder until this one ends.
func (s *server) keepSocket() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-tick.C:
		}
		if old := s.listener; old != nil && old.inPlace() { // only this goroutine changes it
			continue
		}
		if l, err := s.dir.listen(); err == nil { // else again later
			s.renew(l)
		}
	}
}

// renew accepts connections at another socket, in the place of the one before.
func (s *server) renew(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = l.Close()
		return
	}
	if s.listener != nil {
		_ = s.listener.Listener.Close() // and not its name, which the new socket has
	}
	s.listener = l
	s.all.Go(func() { s.accept(l) })
}

func (s *server) accept(l *listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(lastRetry) // out of file descriptors, at the worst
			continue
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		} else {
			s.enterLocked(c)
		}
		s.mu.Unlock()
	}
}

// enterLocked adds a connection. It closes only connections without a hello, so a client that says hello at once keeps
// its place.
func (s *server) enterLocked(c net.Conn) {
	if len(s.strange) == maxStrange {
		_ = s.strange[0].Close()
		delete(s.clients, s.strange[0])
		s.strange = slices.Delete(s.strange, 0, 1)
	}
	// The time for the hello. It is set before close can see the connection, because close sets another one.
	_ = c.SetDeadline(time.Now().Add(helloLimit))
	s.clients[c] = true
	s.strange = append(s.strange, c)
	s.accepted++
	number := s.accepted
	s.all.Go(func() { s.serve(c, number) })
}

// admit makes a client of a connection that has said hello, and returns the session that the client had before. It
// returns false if there is no place, or if the client has made another connection since, and has given up this one.
func (s *server) admit(id clientID, n *session) (before *session, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.strange, n.Conn)
	if at < 0 || s.closed {
		return nil, false // a newer connection has its place, or the server is closed
	}
	before = s.sessions[id]
	if before != nil && before.number > n.number {
		return nil, false
	}
	if len(s.clients)-len(s.strange) >= maxClients && !s.dismissLocked() {
		return nil, false
	}
	s.strange = slices.Delete(s.strange, at, at+1)
	s.sessions[id] = n
	return before, true
}

// dismissLocked ends the oldest session that is older than quietClient and has brought no request. A session that has
// brought one keeps its place. An honest client that was dismissed connects again at once, and waits until there is a
// place.
func (s *server) dismissLocked() bool {
	var oldest *session
	for _, n := range s.sessions {
		quiet := s.clients[n.Conn] && !n.asked.Load() && time.Since(n.begun) > quietClient
		if quiet && (oldest == nil || n.begun.Before(oldest.begun)) {
			oldest = n
		}
	}
	if oldest == nil {
		return false
	}
	_ = oldest.Close()
	delete(s.clients, oldest.Conn)
	return true
}

// forget takes out a connection that has ended.
func (s *server) forget(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
	if at := slices.Index(s.strange, c); at >= 0 {
		s.strange = slices.Delete(s.strange, at, at+1)
	}
}

// serve is the life of a connection, the number-th that was accepted.
func (s *server) serve(c net.Conn, number uint64) {
	defer s.forget(c)
	defer c.Close()
	if s.allowed(c) != nil {
		return
	}
	id, ok := s.greet(c)
	if !ok {
		return
	}
	n := newSession(s.engine, c)
	n.number = number
	before, ok := s.admit(id, n)
	if !ok {
		return
	}
	// A client that reconnects learns that its earlier messages are settled: none of them takes effect later.
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
	kind, f, err := (&frameReader{r: c, limit: maxHello}).next()
	if err != nil || kind != frameHello || f.text() != protocolMagic {
		return id, false
	}
	if f.number() != protocolVersion {
		// The client learns which version is spoken here. The other fields of its hello are not known.
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

// close ends all connections, when the commits that have arrived are answered. A client that reads no answers, for
// example because its process is stopped, holds it up for closeLimit.
func (s *server) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.over)
	}
	for _, n := range s.sessions {
		n.out.limit.Store(int64(closeLimit))
	}
	for c := range s.clients {
		// This ends a connection in its handshake, too.
		_ = c.SetReadDeadline(time.Unix(1, 0))
		_ = c.SetWriteDeadline(time.Now().Add(closeLimit))
	}
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.mu.Unlock()
	s.all.Wait()
}
