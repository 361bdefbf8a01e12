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
// behind one that cannot be read. As the take does, the task leaves the messages of a group behind one that is delayed
// or in flight. A task that has left messages that cannot be moved ends as FAILED, with the reason.

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
	bad    map[string]error // the targets to which no message of the task can go
	left   int              // messages that stay
	why    error            // of the first of them
	moved  bool             // any
	after  task             // as the last step has stored it
	stored time.Time        // by the last step
}

// sift passes over the queue of a task once.
func (s *Server) sift(ctx context.Context, t task) (*sifting, error) {
	from, err := s.open(ctx, t.Source)
	if err != nil {
		return nil, err
	}
	defer from.release()
	p := &sifting{s: s, t: t, from: from, full: make(map[string]bool), bad: make(map[string]error), after: t}
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
		switch err := p.group(ctx, g.Group); {
		case errors.Is(err, errEnough):
			return p, nil
		case err != nil || !p.after.active():
			return p, err
		}
	}
	return p, nil
}

// group passes over the messages of a group, up to the first that is delayed or in flight: a move of those behind it
// would change their order.
func (p *sifting) group(ctx context.Context, group string) error {
	for item, err := range p.from.Admin().AllItems(ctx, group, nil) {
		if err != nil {
			return p.stay(err)
		}
		switch err := p.item(ctx, item); {
		case errors.Is(err, errDelayed) || errors.Is(err, layer.ErrInFlight):
			return nil
		case err != nil || !p.after.active():
			return err
		}
	}
	return nil
}

var (
	// errDelayed: the message is delayed.
	errDelayed = errors.New("sqs: the message is delayed")
	// errEnough: the task has moved as many messages as there were when it began. See moveStep.
	errEnough = errors.New("sqs: the task has moved all its messages")
)

// item moves a message, unless it stays.
func (p *sifting) item(ctx context.Context, item layer.Item) error {
	if item.DeliverAt.After(p.s.options.Now()) {
		return errDelayed
	}
	name := p.t.target(item)
	place := name + "\x00" + item.ID.Group
	err := p.bad[name]
	if err == nil && p.full[place] {
		err = layer.ErrFull
	}
	if err == nil {
		var after task
		after, err = p.s.moveBy(ctx, p.t, func(tx kv.Tx, now task) ([]layer.Item, bool, error) {
			item, err := p.take(ctx, tx, now, item.ID)
			return []layer.Item{item}, false, err
		})
		if err == nil {
			p.moved, p.after, p.stored = true, after, time.Now()
			return p.s.rest(ctx, p.pause)
		}
	}
	if errors.Is(err, layer.ErrNoItem) {
		return nil // a client had it
	}
	p.full[place] = errors.Is(err, layer.ErrFull)
	if known := (*apiError)(nil); errors.As(err, &known) {
		p.bad[name] = err
	}
	if err := p.stay(err); err != nil || time.Since(p.stored) < taskLease/3 {
		return err
	}
	p.stored = time.Now() // otherwise another server would take the task for abandoned
	p.after, err = p.s.moveBy(ctx, p.t, func(kv.Tx, task) ([]layer.Item, bool, error) { return nil, false, nil })
	return err
}

// take removes a message in tx, and returns it as it is then. An operator may have changed it since the pass has read
// it. CancelTx reads the lock of the group with a conflict, and each change of the message writes a conflict on it. So
// tx fails if the message changes after the version at which tx reads. The read here is at that version or a later one.
func (p *sifting) take(ctx context.Context, tx kv.Tx, now task, id layer.ID) (layer.Item, error) {
	if now.Moved >= now.Total {
		return layer.Item{}, errEnough
	}
	if err := p.from.Admin().CancelTx(ctx, tx, id); err != nil {
		return layer.Item{}, err
	}
	item, err := p.read(ctx, id)
	if err == nil && item.DeliverAt.After(p.s.options.Now()) {
		err = errDelayed
	}
	return item, err
}

// read reads a message. It is the first of its group, unless others stay before it.
func (p *sifting) read(ctx context.Context, id layer.ID) (layer.Item, error) {
	head, err := p.from.Peek(ctx, id.Group, 1, nil)
	if err == nil && len(head) > 0 && head[0].ID == id {
		return head[0], nil
	}
	for item, err := range p.from.Admin().AllItems(ctx, id.Group, nil) {
		if err != nil || item.ID == id {
			return item, err
		}
	}
	return layer.Item{}, layer.ErrNoItem
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
