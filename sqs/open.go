package sqs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// lostWakeAfter is how often a handle whose long polls wait looks without being woken.
const lostWakeAfter = 3 * time.Second

// opened is a queue that the server has open. All fields but handle, moving and line are guarded by Server.mu.
type opened struct {
	handle *layer.Queue
	record record
	dead   []string  // the queues whose dead letter queue it is
	read   time.Time // of record and dead
	users  int       // requests at work
	used   time.Time // by the last of them
	looked time.Time // for its dead letters; there were none that stayed
	gone   bool      // close it when no request uses it

	toldStay time.Time // the log last had a dead letter that cannot be moved
	// moving has an element while a goroutine moves the dead letters of the queue.
	moving chan struct{}

	line line // of its long polls
}

// queue is a queue for one request. Its record does not change while the request is answered.
type queue struct {
	*layer.Queue
	record record
	dead   []string
	server *Server
	opened *opened
	own    bool // used by the server's own work, which does not keep it open
}

// queue opens the queue of a request. It returns an error if the client must not use the queue in this way. The caller
// must release the queue.
func (s *Server) queue(ctx context.Context, c *call, url string) (*queue, error) {
	name, err := c.queueName(url)
	if err != nil {
		return nil, err
	}
	if s.foreign(c) {
		if err := s.mayUse(ctx, c, name); err != nil {
			return nil, err
		}
	}
	return s.open(ctx, name)
}

// open opens a queue. A handle whose record the server has read less than a second ago (freshFor) is used as it is.
func (s *Server) open(ctx context.Context, name string) (*queue, error) {
	if q := s.use(name, func(o *opened) bool { return time.Since(o.read) < freshFor }); q != nil {
		return q, nil
	}
	now, changes := time.Now(), s.changes.Load()
	r, dead, err := s.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if !r.live() {
		s.forget(name)
		return nil, noQueue()
	}
	q := s.use(name, func(o *opened) bool {
		same := o.record.ID == r.ID && !r.Behind
		if same && now.After(o.read) && s.changes.Load() == changes { // else there may be a newer one
			o.record, o.dead, o.read = r, dead, now
		}
		return same
	})
	if q != nil {
		q.record, q.dead = r, dead // also if o has not kept them
		return q, nil
	}
	handle, err := s.handle(ctx, name, r)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(name)
	o := &opened{handle: handle, record: r, dead: dead, read: now, used: now, moving: make(chan struct{}, 1)}
	if s.changes.Load() != changes {
		o.read = time.Time{}
	}
	s.queues[name] = o
	return s.useLocked(o), nil // in use before closeIdle sees the queue, which would take it for idle
}

// maxSources bounds how many queues' dead letters the server moves at the use of their dead letter queue.
const maxSources = 1000

// look reads the record of a queue, and the names of the queues whose dead letter queue it is.
func (s *Server) look(ctx context.Context, name string) (r record, dead []string, err error) {
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "open"}, func(tx kv.Tx, _ kv.Attempt) error {
		base := s.key("source", name)
		sources := tx.Snapshot().GetRange(kv.PrefixRange(base).Selectors(), kv.RangeOptions{Limit: maxSources})
		var err error
		if r, err = s.readRecord(ctx, tx.Snapshot(), name); err != nil {
			return err
		}
		rows, err := sources.Wait(ctx)
		if err != nil {
			return fmt.Errorf("read sources: %w", err)
		}
		dead = make([]string, 0, len(rows))
		for _, row := range rows {
			if source, _, err := tuple.DecodeString(row.Key[len(base):]); err == nil {
				dead = append(dead, source)
			}
		}
		return nil
	})
	return r, dead, err
}

// use takes the open queue of the name, if it is as wanted.
func (s *Server) use(name string, wanted func(o *opened) bool) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.queues[name]
	if o == nil || !wanted(o) {
		return nil
	}
	return s.useLocked(o)
}

func (s *Server) useLocked(o *opened) *queue {
	o.users++
	return &queue{Queue: o.handle, record: o.record, dead: o.dead, server: s, opened: o}
}

// release ends a request's use of the queue.
func (q *queue) release() {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	o := q.opened
	o.users--
	if !q.own {
		o.used = time.Now()
	}
	q.server.closeUnused(o)
}

// looked stores that the server has looked for dead letters of the queue at the time, and none has stayed.
func (q *queue) looked(at time.Time) {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	q.opened.looked = at
}

// fifo reports whether it is a FIFO queue.
func (q *queue) fifo() bool { return q.record.fifo() }

// dedupInGroup reports whether the layer looks for duplicates within groups. An operator may change that.
func (q *queue) dedupInGroup() bool { return q.Config().DedupInGroup }

// perItem reports whether each message in flight has a visibility timeout of its own.
func (q *queue) perItem() bool { return q.Config().LeasePerItem }

// outdate makes the next request read the record of a queue again; "" = of none. A request that is reading the record
// now does not keep it for others.
func (s *Server) outdate(name string) {
	if name == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes.Add(1)
	if o := s.queues[name]; o != nil {
		o.read = time.Time{}
	}
}

// forget drops the open handle of a queue that is gone or has changed.
func (s *Server) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(name)
}

func (s *Server) forgetLocked(name string) {
	if o := s.queues[name]; o != nil {
		delete(s.queues, name)
		o.gone = true
		s.closeUnused(o)
	}
}

// forgetLost drops the open handles of queues if err says that the layer's queue of one of them is gone. An operator
// may have dropped it. The next request opens the queue, and so makes it again, as its record says.
func (s *Server) forgetLost(err error, names ...string) {
	if errors.Is(err, layer.ErrNoQueue) {
		for _, name := range names {
			s.forget(name)
		}
	}
}

// closeUnused closes a forgotten handle (gone) if no request uses it, in a goroutine that Close waits for. The caller
// must hold s.mu.
func (s *Server) closeUnused(o *opened) {
	if !o.gone || o.users > 0 {
		return
	}
	closed := make(chan struct{})
	s.closing[o] = closed
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = o.handle.Close(ctx) // the queue may be gone; a sweep clears the rest
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.closing, o)
		close(closed)
	}()
}

const closeTimeout = 10 * time.Second

// closeIdle closes the queues that no request has used for idleFor.
func (s *Server) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, o := range s.queues {
		if o.users == 0 && time.Since(o.used) > idleFor {
			s.forgetLocked(name)
		}
	}
}

// tenantShards is the number of shards for the tenants of a standard queue. One in 16 quiet tenants shares its shard
// with a loud tenant. With more shards it would be fewer, but a receive reads all shards.
const tenantShards = 16

// handle opens the layer's queue. It makes the queue if the server that wrote the record did not do so.
func (s *Server) handle(ctx context.Context, name string, r record) (*layer.Queue, error) {
	s.signs.Store(nil) // the queue may be of another database than the key, if an operator has replaced the database
	o := s.queueOptions()
	if r.configure(&o.Config); !r.fifo() {
		o.Config.Shards = tenantShards
	}
	o.Config.LeasePerItem = r.leasePerItem()
	handle, err := layer.Open(ctx, s.db, s.options.Prefix, name, o)
	if errors.Is(err, layer.ErrNoQueue) {
		handle, err = s.ensure(ctx, name, r, o)
	}
	if err != nil || !r.Behind {
		return handle, err
	}
	if err := s.conform(ctx, handle, r); err != nil {
		return nil, errors.Join(err, handle.Close(ctx))
	}
	return handle, nil
}

// ensure makes the layer's queue of a record. Since the record was read, another server may have deleted the queue and
// dropped it. Then the record must say that the queue was deleted just now, so that a server drops it again.
func (s *Server) ensure(ctx context.Context, name string, r record, o layer.Options) (*layer.Queue, error) {
	handle, _, err := layer.Ensure(ctx, s.db, s.options.Prefix, name, o)
	if err != nil {
		return nil, err
	}
	gone := false
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "create"}, func(tx kv.Tx, _ kv.Attempt) error {
		now, err := s.readRecord(ctx, tx, name)
		if gone = !now.live(); err != nil || !gone {
			return err
		}
		deleted := now
		if now.ID == uuid.Nil { // the name is free again
			deleted = r
		}
		deleted.Deleted, deleted.Cleared = s.options.Now().UnixMilli(), false
		return s.writeRecord(tx, name, now, deleted)
	})
	if err == nil && gone {
		err = noQueue()
	}
	if err != nil {
		return nil, errors.Join(err, handle.Close(ctx))
	}
	return handle, nil
}

// conform configures the layer's queue as its record says. If the record has changed since, it does so again: two
// servers or requests may configure the queue at the same time, and the older record may come last.
func (s *Server) conform(ctx context.Context, q *layer.Queue, r record) error {
	for {
		if _, _, err := q.Admin().Configure(ctx, r.configure); err != nil {
			return err
		}
		now, err := s.changeRecord(ctx, q.Name(), func(now *record) error {
			now.Behind = now.Behind && !now.isLike(r)
			return nil
		})
		if err != nil || now.ID != r.ID || now.isLike(r) {
			return err
		}
		r = now
	}
}

// isLike reports whether the record has the attributes of another one of the queue.
func (r record) isLike(other record) bool {
	return r.ID == other.ID && maps.Equal(r.Attributes, other.Attributes)
}
