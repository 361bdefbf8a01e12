package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	// deadEvery is how often the server moves the dead letters of queues in use, and deadPage how many in a
	// transaction.
	deadEvery = time.Second
	deadPage  = 50
	// sourcesTime is how long a request to a dead letter queue moves dead letters there. The server then moves the rest
	// in the background.
	sourcesTime = 200 * time.Millisecond
	// listTime is how much later a list of dead letters may end, so that a slow database moves a page, too.
	listTime = 500 * time.Millisecond
)

// A message that was received too often first becomes a dead letter of its own queue, in the transaction that counts
// the receives. The server then moves the dead letter to the dead letter queue, in a transaction of its own. It does so
// once each second for queues in use, and before a receive from the dead letter queue unless it has just done so: a
// client that receives there after its own use of the source queue sees no delay. If there are many dead letters, the
// receive moves some of them, and the server moves the rest in the background.

// moveAllDead moves the dead letters of the queues in use. A queue with many of them lets the others go on after a
// while, and the next call moves more of them.
func (s *Server) moveAllDead(ctx context.Context) error {
	var failed []error
	for _, name := range s.inUse() {
		_, err := s.moveDead(ctx, name, time.Now().Add(deadEvery))
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// moveSources moves the dead letters of the queues whose dead letter queue q is. At the time until it leaves the rest
// to a goroutine of the server; the zero time is no limit. A queue whose dead letters cannot be moved, for example
// because its configuration cannot be read, does not stop the use of q. The error is that of ctx.
func (s *Server) moveSources(ctx context.Context, q *queue, until time.Time) error {
	var rest []string
	for _, source := range q.dead {
		if s.hasLooked(source) {
			continue
		}
		more := isOver(until)
		if !more {
			var err error
			if more, err = s.moveSource(ctx, source, until); err != nil {
				return err
			}
		}
		if more {
			rest = append(rest, source)
		}
	}
	if len(rest) > 0 {
		s.alone("sources "+q.Name(), func() { s.moveRest(rest) })
	}
	return nil
}

// moveRest moves the dead letters of queues, until the server is stopped.
func (s *Server) moveRest(sources []string) {
	for _, source := range sources {
		if s.hasLooked(source) {
			continue
		}
		if _, err := s.moveSource(s.stopped, source, time.Time{}); err != nil {
			return
		}
	}
}

// isOver reports whether a time has come. The zero time never comes.
func isOver(until time.Time) bool { return !until.IsZero() && !time.Now().Before(until) }

// within returns ctx with an end at the time; the zero time is no end. Lists of dead letters need it: they have batch
// priority, and a cluster under load may serve none of them for long.
func within(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if until.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, until)
}

// moveSource is moveDead for a request. Without a limit it moves all dead letters that can be moved, though another
// server moves some of them at the same time. If dead letters cannot be moved, the log says so, and the request goes
// on. The error is that of ctx.
func (s *Server) moveSource(ctx context.Context, source string, until time.Time) (more bool, err error) {
	for again := true; again; again = more && until.IsZero() {
		more, err = s.moveDead(ctx, source, until)
	}
	if err == nil || ctx.Err() != nil {
		return more, err
	}
	if s.isNews("source "+source, err) {
		s.options.Logger.Warn("sqs: dead letters of a source queue could not be moved", "queue", source, "err", err)
	}
	return false, nil
}

// hasLooked reports whether the server has looked for dead letters of a queue just now, and since its last use.
func (s *Server) hasLooked(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.queues[name]
	return o != nil && o.used.Before(o.looked) && time.Since(o.looked) < deadEvery
}

// inUse are the open queues with a dead letter queue that are in use, or were used since the server has looked.
func (s *Server) inUse() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, o := range s.queues {
		if o.record.deadLetterQueue() != "" && (o.users > 0 || !o.used.Before(o.looked)) {
			names = append(names, name)
		}
	}
	return names
}

// errNoPolicy: a queue has dead letters, and its RedrivePolicy is removed.
var errNoPolicy = errors.New("sqs: the queue has no RedrivePolicy: set one, or look at fdbfifo dead list")

// errOwnDead: a queue names itself in its RedrivePolicy, so its dead letters would come back again and again.
var errOwnDead = errors.New("sqs: the queue is its own dead letter queue: set another RedrivePolicy")

// moveDead moves the dead letters of a queue to its dead letter queue, and ends at the time until; the zero time is no
// limit. more says that there may be more of them. If there is no dead letter queue, if it is the queue itself, or if
// it was deleted, the dead letters stay.
func (s *Server) moveDead(ctx context.Context, source string, until time.Time) (more bool, err error) {
	from, err := s.open(ctx, source)
	if err != nil {
		if errors.Is(err, errUnreadable) { // the log has it from tidy
			return false, nil
		}
		return false, ignoreNoQueue(err)
	}
	from.own = true
	defer from.release()
	dead := from.record.deadLetterQueue()
	switch dead {
	case "":
		return false, nil
	case source: // an earlier version has stored the policy
		s.tellStay(from, errOwnDead)
		return false, nil
	}
	to, err := s.open(ctx, dead)
	if err != nil {
		if errors.Is(err, errUnreadable) {
			s.tellStay(from, err)
			return false, nil
		}
		if ignoreNoQueue(err) != nil {
			return false, err
		}
		wait, cancel := within(ctx, until)
		defer cancel()
		has, failed := from.hasDead(wait)
		if has {
			s.tellStay(from, err)
		}
		if failed != nil && wait.Err() != nil && ctx.Err() == nil {
			return true, nil
		}
		return false, failed
	}
	to.own = true
	defer to.release()
	m := deadMove{from: from, to: to, until: until, full: make(map[string]bool)}
	begun, err := m.moveLetters(ctx)
	s.forgetLost(err, source, dead)
	s.tellStay(from, m.stay)
	if err == nil && m.stay == nil && !m.more {
		from.looked(begun)
	}
	if errors.Is(err, layer.ErrNotDead) { // another server has moved one of them, and the others are still there
		return true, nil
	}
	return m.more, ignoreNoQueue(err)
}

// moveBeforeDelete moves the dead letters of a queue that a client is about to delete, because the deletion removes
// those that are left, and returns how many are left. A message that becomes a dead letter later is deleted with the
// queue, as if it had been received after the deletion.
func (s *Server) moveBeforeDelete(ctx context.Context, name string) (left int64, err error) {
	if r, _, err := s.look(ctx, name); err != nil || r.deadLetterQueue() == "" {
		return 0, err
	}
	for more := true; more; {
		if more, err = s.moveDead(ctx, name, time.Time{}); err != nil {
			return 0, err
		}
	}
	q, err := s.open(ctx, name)
	if err != nil {
		return 0, err
	}
	q.own = true
	defer q.release()
	stats, err := q.Stats(ctx, layer.StatsOptions{})
	return stats.Dead, err
}

// hasDead reports whether a queue has dead letters.
func (q *queue) hasDead(ctx context.Context) (bool, error) {
	page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{Limit: 1})
	return len(page.Letters) > 0, ignoreNoQueue(err)
}

// tellEvery is how often the log has a dead letter that cannot be moved, of each queue, and the same error of
// background work.
const tellEvery = time.Minute

// tellStay logs why dead letters of a queue were not moved.
func (s *Server) tellStay(from *queue, reason error) {
	s.mu.Lock()
	silent := reason == nil || time.Since(from.opened.toldStay) < tellEvery
	if !silent {
		from.opened.toldStay = time.Now()
	}
	s.mu.Unlock()
	if !silent {
		s.logStay(from, reason)
	}
}

// logStay is tellStay each time.
func (s *Server) logStay(from *queue, reason error) {
	s.options.Logger.Warn("sqs: dead letters of the queue cannot be moved to its dead letter queue, and stay",
		"queue", from.Name(), "dead_letter_queue", from.record.deadLetterQueue(), "err", reason)
}

func isNoQueue(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.code == noQueue().code
}

// ignoreNoQueue returns err, or nil if err says that a queue was deleted.
func ignoreNoQueue(err error) error {
	if isNoQueue(err) || errors.Is(err, layer.ErrNoQueue) {
		return nil
	}
	return err
}

// deadMove moves dead letters of a queue to its dead letter queue.
type deadMove struct {
	from, to *queue
	until    time.Time       // the move ends then; zero = it has no limit
	full     map[string]bool // the groups that have no room for a letter
	stay     error           // why a letter was not moved; nil = all were
	more     bool            // the move has ended before it has seen all letters
}

// moveLetters moves the letters of the queue, page after page, and returns when it began. If another goroutine of the
// server moves letters of the queue, it waits for the end of that: two moves would only be in each other's way.
func (m *deadMove) moveLetters(ctx context.Context) (begun time.Time, err error) {
	wait, cancel := within(ctx, m.until)
	defer cancel()
	select {
	case m.from.opened.moving <- struct{}{}:
		defer func() { <-m.from.opened.moving }()
	case <-wait.Done():
		m.more = true
		return begun, ctx.Err()
	}
	begun = time.Now()
	limit := m.until
	if !limit.IsZero() {
		limit = limit.Add(listTime)
	}
	listing, end := within(ctx, limit)
	defer end()
	for page := (layer.DeadPage{}); ; {
		o := layer.DeadOptions{After: page.Next, Limit: deadPage, Bodies: true}
		page, err = m.from.Admin().DeadLetters(listing, o)
		if m.more = err != nil && listing.Err() != nil && ctx.Err() == nil; m.more {
			return begun, nil
		}
		if err == nil {
			err = m.move(ctx, page.Letters)
		}
		if err != nil || m.more || page.Next == nil {
			return begun, err
		}
		if m.more = isOver(m.until); m.more {
			return begun, nil
		}
	}
}

// move moves a page of letters. A letter that cannot be moved stays where it is: one that cannot be read, is too large
// with the headers that it needs, or whose group is full.
func (m *deadMove) move(ctx context.Context, page []layer.DeadLetter) error {
	var letters []layer.DeadLetter
	for _, l := range page {
		switch {
		case l.Err != nil:
			m.stay = l.Err
		case !m.full[l.ID.Group]:
			letters = append(letters, l)
		}
	}
	err := m.moveAll(ctx, letters)
	if !refused(err) {
		return err
	}
	for _, l := range letters { // one by one, so that a letter stops no other
		if m.full[l.ID.Group] {
			continue
		}
		if m.more = isOver(m.until); m.more {
			return nil
		}
		switch err := m.moveAll(ctx, []layer.DeadLetter{l}); {
		case refused(err):
			m.full[l.ID.Group] = errors.Is(err, layer.ErrFull)
			m.stay = err
		case err != nil:
			return err
		}
	}
	return nil
}

// refused reports whether an enqueue was refused for one of its messages. Others may be accepted.
func refused(err error) bool {
	var message *layer.MessageError
	return errors.Is(err, layer.ErrFull) || errors.Is(err, layer.ErrLimit) || errors.Is(err, layer.ErrCorrupt) ||
		errors.Is(err, errSwallowed) || errors.As(err, &message)
}

// moveAll moves letters, all or none, in one transaction. The error is ErrNotDead if another server has moved one.
func (m *deadMove) moveAll(ctx context.Context, letters []layer.DeadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	ids, messages := make([]layer.ID, len(letters)), make([]layer.Message, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
		messages[i] = moved(m.from, m.to, layer.Item{
			ID: l.ID, Body: l.Body, Headers: l.Headers, Enqueued: l.Enqueued, DedupID: l.DedupID, Attempts: l.Attempts,
		})
		messages[i].Headers[headerSource] = m.from.Name()
	}
	return m.from.Once(ctx, func(tx kv.Tx) error {
		if err := m.to.stands(ctx, tx); err != nil {
			return err
		}
		if err := m.from.Admin().DiscardTx(ctx, tx, ids...); err != nil {
			return err
		}
		return m.to.accept(ctx, tx, messages...)
	})
}

// errSwallowed: a message would be lost, because its new queue counts it as a duplicate.
var errSwallowed = errors.New("sqs: a message that is moved is taken for a duplicate")

// stands returns an error unless the queue exists and is the one that was opened. Otherwise the messages that tx
// enqueues would be lost with a queue that another server has deleted.
//
// Reads: the record of the queue, with a conflict.
func (q *queue) stands(ctx context.Context, tx kv.Tx) error {
	r, err := q.server.readRecord(ctx, tx, q.Name())
	switch {
	case err != nil:
		return err
	case !r.live():
		return noQueue()
	case r.ID != q.record.ID:
		q.server.outdate(q.Name())
		return fmt.Errorf("%w: %q was deleted, and created again", layer.ErrNoQueue, q.Name())
	}
	return nil
}

// accept enqueues messages that tx removes from another queue. It enqueues all of them, or none and returns an error.
// It is an error if one counts as a duplicate, because the message would then be in neither queue.
func (q *queue) accept(ctx context.Context, tx kv.Tx, messages ...layer.Message) error {
	sent, err := q.EnqueueTx(ctx, tx, messages...)
	if err == nil && slices.ContainsFunc(sent, func(one layer.Sent) bool { return one.Duplicate }) {
		return errSwallowed
	}
	return err
}

// moved returns a message as it goes to the dead letter queue. It keeps its MessageId, its receives and, between
// standard queues, the time when it was sent and its tenant. It gets a new dedup id in the layer, which makes it no
// duplicate of another message, and no other message one of it. Its MessageDeduplicationId is the MessageId, see
// stored.system.
func moved(from, to *queue, item layer.Item) layer.Message {
	m := load(item)
	headers := maps.Clone(item.Headers)
	if headers == nil {
		headers = make(map[string]string)
	}
	headers[headerID] = m.id()
	headers[headerReceived] = strconv.Itoa(m.receives())
	out := layer.Message{Body: item.Body, Headers: headers, AtOnce: true, DedupID: uuid.NewString()}
	if !to.fifo() {
		headers[headerSent] = strconv.FormatInt(m.sent(), 10)
		out.Alone, out.Tenant = true, tenantOf(from, item)
		if to.dedupInGroup() { // each message has a group of its own there
			out.DedupID = ""
		}
		return out
	}
	delete(headers, headerSent)
	out.Group = item.ID.Group
	if !from.fifo() {
		out.Group = m.id()
	}
	return out
}

// tenantOf is the tenant of a message that is moved to a standard queue: its MessageGroupId in the standard queue that
// it was sent to, or its group in a FIFO queue.
func tenantOf(from *queue, item layer.Item) string {
	tenant := item.Headers[headerGroup]
	if tenant == "" && from.fifo() {
		tenant = item.ID.Group
	}
	return cmp.Or(tenant, noTenant)
}

// redriven returns a message of a dead letter queue as a move task enqueues it to another queue. As on AWS it is a new
// message, with a MessageId, a time of sending and receives of its own.
func redriven(from, to *queue, item layer.Item) layer.Message {
	m := moved(from, to, item)
	for _, name := range []string{headerID, headerReceived, headerSent, headerSource} {
		delete(m.Headers, name)
	}
	return m
}
