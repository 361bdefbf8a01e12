package sqs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// A move task takes messages from the head of its queue, many in a transaction. If one of them cannot be moved, the
// task sifts the queue: it looks at each message once, moves it by its id, and leaves it where it is if it cannot be
// moved. So a bad message stops no other, except those behind it for whose group the target has no room, and those
// behind one that cannot be read. A task that has left messages ends as FAILED, with the reason.

// fullPatience is how long a task waits for room in its target.
const fullPatience = time.Minute

// stays reports whether an error concerns single messages of a move, which stay in their queue. Others may be moved.
func stays(err error) bool {
	var known *apiError
	return refused(err) || errors.As(err, &known)
}

// failureReason is why a task has failed, as ListMessageMoveTasks says it: AWS's code, if AWS has one.
func failureReason(err error) string {
	var known *apiError
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.Is(err, layer.ErrFull):
		return "DestinationQueueFull"
	case errors.Is(err, layer.ErrCorrupt):
		return "MessageUnreadable"
	case errors.Is(err, errSwallowed):
		return "MessageIsDuplicate"
	}
	return "MessageTooLarge"
}

// noSource is the answer to a message that was sent to the dead letter queue as such: it came from no other queue.
func noSource() error {
	return fail(schemas.ResourceNotFoundException, "The message came from no other queue.").as(
		"CouldNotDetermineMessageSource")
}

// as is the error with another code.
func (e *apiError) as(code string) *apiError {
	e.code = code
	return e
}

// sifting is one pass over the queue of a task.
type sifting struct {
	s      *Server
	t      task
	from   *queue
	pause  time.Duration // after each message, by the task's rate
	full   map[string]bool
	left   int       // messages that stay
	why    error     // of the first of them
	moved  bool      // any
	after  task      // as the last step has stored it
	stored time.Time // by the last step
}

// sift passes over the queue of a task once.
func (s *Server) sift(ctx context.Context, t task) (*sifting, error) {
	from, err := s.open(ctx, t.Source)
	if err != nil {
		return nil, err
	}
	defer from.release()
	p := &sifting{s: s, t: t, from: from, full: make(map[string]bool), after: t}
	if t.Rate > 0 {
		p.pause = time.Second / time.Duration(t.Rate)
	}
	for g, err := range from.Admin().AllGroups(ctx, layer.GroupsOptions{}) {
		if err != nil {
			return p, p.stay(err)
		}
		if g.Mark != nil { // an operator has stopped the group
			continue
		}
		if err := p.group(ctx, g.Group); err != nil || !p.after.active() {
			return p, err
		}
	}
	return p, nil
}

// group passes over the messages of a group.
func (p *sifting) group(ctx context.Context, group string) error {
	for item, err := range p.from.Admin().AllItems(ctx, group, nil) {
		if err != nil {
			return p.stay(err)
		}
		if item.DeliverAt.After(p.s.options.Now()) {
			continue
		}
		if err := p.item(ctx, item); err != nil || !p.after.active() {
			return err
		}
	}
	return nil
}

// item moves a message, unless it stays.
func (p *sifting) item(ctx context.Context, item layer.Item) error {
	place := p.t.target(item) + "\x00" + item.ID.Group
	err := layer.ErrFull
	if !p.full[place] {
		var after task
		after, err = p.s.moveBy(ctx, p.t, func(tx kv.Tx, _ task) ([]layer.Item, bool, error) {
			return []layer.Item{item}, false, p.from.Admin().CancelTx(ctx, tx, item.ID)
		})
		if err == nil {
			p.moved, p.after, p.stored = true, after, time.Now()
			return p.s.rest(ctx, p.pause)
		}
	}
	if errors.Is(err, layer.ErrNoItem) || errors.Is(err, layer.ErrInFlight) {
		return nil // a client has it, or had it
	}
	p.full[place] = errors.Is(err, layer.ErrFull)
	if err := p.stay(err); err != nil || time.Since(p.stored) < taskLease/3 {
		return err
	}
	p.stored = time.Now() // otherwise another server would take the task for abandoned
	p.after, err = p.s.moveBy(ctx, p.t, func(kv.Tx, task) ([]layer.Item, bool, error) { return nil, false, nil })
	return err
}

// stay notes that a message stays, or returns an error that is no message's.
func (p *sifting) stay(err error) error {
	if !stays(err) {
		return err
	}
	p.left++
	if p.why == nil {
		p.why = err
	}
	return nil
}

// waits reports whether a message stays only until there is room for it.
func (p *sifting) waits() bool {
	for _, full := range p.full {
		if full {
			return true
		}
	}
	return false
}

// rest waits for a while, or until ctx ends.
func (s *Server) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sqs: wait: %w", ctx.Err())
	}
}
