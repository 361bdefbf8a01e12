package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// prefix is where the queues of the command line live: below the tuple ("fdbfifo"), so that they can share a
// database with others.
func prefix() []byte { return tuple.Tuple{"fdbfifo"}.Pack() }

func (s *session) queueOptions() layer.Options {
	return layer.Options{Owner: s.app.Owner, Now: s.app.Now, Test: &layer.TestOptions{Seed: s.app.Seed}}
}

// closeTimeout bounds what is done after a command's context has ended.
const closeTimeout = 10 * time.Second

// withQueue runs fn on the queue that --queue names; create says that it is made if it does not exist. The
// engine is closed afterwards.
func (s *session) withQueue(ctx context.Context, create bool, fn func(q *layer.Queue) error) error {
	if err := s.lasting(); err != nil {
		return err
	}
	return s.withEngine(ctx, create, func(db kv.DB) (err error) {
		q, err := s.openQueue(ctx, db, create)
		if err != nil {
			return err
		}
		defer closeQueue(ctx, q, &err)
		return fn(q)
	})
}

// lasting refuses an engine that is empty when a command begins, and gone when it ends: "enqueued" would be no truth.
func (s *session) lasting() error {
	if s.engine != "memory" {
		return nil
	}
	return usagef("the engine memory keeps nothing from one command to the next: it is for demo and bench alone")
}

func (s *session) withEngine(ctx context.Context, create bool, fn func(db kv.DB) error) (err error) {
	db, err := s.openEngine(ctx, create)
	if err != nil {
		return err
	}
	defer closeEngine(db, &err)
	return fn(db)
}

// closeEngine sets *err, unless that says already why the engine is being closed.
func closeEngine(db kv.DB, err *error) {
	if e := db.Close(); e != nil && *err == nil {
		*err = fmt.Errorf("close the engine: %w", e)
	}
}

// closeQueue closes a queue, also when ctx has ended. It sets *err, unless that says already what went wrong:
// what a handle that cannot be closed leaves behind harms nobody.
func closeQueue(ctx context.Context, q *layer.Queue, err *error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if e := q.Close(ctx); e != nil && *err == nil {
		*err = e
	}
}

func (s *session) openQueue(ctx context.Context, db kv.DB, create bool) (*layer.Queue, error) {
	q, err := layer.Open(ctx, db, prefix(), s.queue, s.queueOptions())
	if errors.Is(err, layer.ErrDropping) {
		return nil, s.dropping(err)
	}
	if !errors.Is(err, layer.ErrNoQueue) {
		return q, err
	}
	if !create {
		return nil, s.unknownQueue(ctx, db, err)
	}
	q, err = layer.Create(ctx, db, prefix(), s.queue, s.queueOptions())
	if errors.Is(err, layer.ErrQueueExists) {
		// Another process was faster.
		return layer.Open(ctx, db, prefix(), s.queue, s.queueOptions())
	}
	if err != nil {
		return nil, err
	}
	s.notice("created queue %q", s.queue)
	return q, nil
}

func (s *session) dropping(err error) error {
	return &Error{
		Text: fmt.Sprintf("the queue %q is being dropped", s.queue), Exit: ExitNoQueue, Err: err,
		Hint: "Wait. If that was interrupted: fdbfifo drop " + display(s.queue) + " --yes ends it.",
	}
}

// unknownQueue says which queues there are.
func (s *session) unknownQueue(ctx context.Context, db kv.DB, noQueue error) error {
	names, err := layer.Queues(ctx, db, prefix())
	if err != nil {
		return errors.Join(noQueue, err)
	}
	text := fmt.Sprintf("there is no queue %q", s.queue)
	if len(names) == 0 {
		return &Error{Text: text, Hint: "There are no queues yet: fdbfifo enqueue makes the first.", Exit: ExitNoQueue, Err: noQueue}
	}
	const shown = 20
	rest := ""
	if len(names) > shown {
		rest = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	for i := range names {
		names[i] = display(names[i])
	}
	return &Error{Text: text, Hint: "There are: " + strings.Join(names, ", ") + rest + ".", Exit: ExitNoQueue, Err: noQueue}
}

// empty reports whether the queue has no items at all, held ones included.
func empty(ctx context.Context, q *layer.Queue) (bool, error) {
	page, err := q.Admin().Groups(ctx, layer.GroupsOptions{Limit: 1, MaxDepth: 1})
	return err == nil && len(page.Groups) == 0, err
}
