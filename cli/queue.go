package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func (s *session) queueOptions() layer.Options {
	return layer.Options{
		Owner: s.app.Owner, Now: s.app.Now, Test: &layer.TestOptions{Seed: s.app.Seed},
		Hooks: append(s.beside.operations(s.app.Now), s.acting.hooks()...),
		Tx:    kv.TxOptions{OnTrouble: s.troubles.Note},
	}
}

// sayTrouble says on stderr that the database keeps the command waiting.
func (s *session) sayTrouble(t kv.Trouble) {
	if !t.Over {
		s.notice("%v", t)
	}
}

// closeTimeout bounds what is done at the end of a command, and interruptedTimeout if its context has ended.
const (
	closeTimeout       = 10 * time.Second
	interruptedTimeout = 500 * time.Millisecond
)

// ending returns a context for the last steps of a command, whose own context may have ended.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := closeTimeout
	if ctx.Err() != nil {
		timeout = interruptedTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// withQueue runs fn on the queue that --queue names; create says that it is made if it does not exist. The
// engine is closed afterwards.
func (s *session) withQueue(ctx context.Context, create bool, fn func(q *layer.Queue) error) error {
	return s.withQueueOf(ctx, create, func(_ kv.DB, q *layer.Queue) error { return fn(q) })
}

// withQueueOf is withQueue for a command that uses the database, too.
func (s *session) withQueueOf(ctx context.Context, create bool, fn func(db kv.DB, q *layer.Queue) error) error {
	if err := s.lasting(); err != nil {
		return err
	}
	return s.withEngine(ctx, create, func(db kv.DB) (err error) {
		q, err := s.openQueue(ctx, db, create)
		if err != nil {
			return err
		}
		defer func() { s.toldAtEnd(err, shut(ctx, q)) }()
		stop, err := s.beside.start(ctx, s, db, q)
		if err != nil {
			return err
		}
		defer stop()
		return fn(db, q)
	})
}

// lasting refuses an engine that is empty when a command begins, and gone when it ends: "enqueued" would be no truth.
func (s *session) lasting() error {
	if !s.inMemory() {
		return nil
	}
	return usagef("the engine memory keeps nothing from one command to the next: it is for demo and bench alone")
}

func (s *session) withEngine(ctx context.Context, create bool, fn func(db kv.DB) error) (err error) {
	closeLog, err := s.openLog(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := closeLog(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	db, err := s.openEngine(ctx, create)
	if err != nil {
		return err
	}
	defer func() { s.toldAtEnd(err, db.Close()) }()
	if err := s.locate(ctx, db); err != nil {
		return err
	}
	return fn(db)
}

// closeEngine sets *err, unless that says already why the engine is being closed.
func closeEngine(db kv.DB, err *error) {
	if e := db.Close(); e != nil && *err == nil {
		*err = fmt.Errorf("close the engine: %w", e)
	}
}

// closeQueue sets *err, unless that says already what went wrong.
func closeQueue(ctx context.Context, q *layer.Queue, err *error) {
	if e := shut(ctx, q); e != nil && *err == nil {
		*err = e
	}
}

// shut closes a queue, also when ctx has ended. If it fails, the handle leaves rows behind which a sweep clears.
func shut(ctx context.Context, q *layer.Queue) error {
	ctx, cancel := ending(ctx)
	defer cancel()
	return q.Close(ctx)
}

// toldAtEnd tells that something cannot be closed, unless err says already what went wrong. It is not the command's
// error: the command is done by then, and a script must not do it again.
func (s *session) toldAtEnd(err, closing error) {
	if err == nil && closing != nil {
		s.notice("the command is done; afterwards: %v", closing)
	}
}

func (s *session) openQueue(ctx context.Context, db kv.DB, create bool) (*layer.Queue, error) {
	q, err := layer.Open(ctx, db, s.prefix(), s.queue, s.queueOptions())
	if errors.Is(err, layer.ErrDropping) {
		return nil, s.dropping(err)
	}
	if !errors.Is(err, layer.ErrNoQueue) {
		return q, err
	}
	if !create {
		return nil, s.unknownQueue(ctx, db, err)
	}
	q, err = layer.Create(ctx, db, s.prefix(), s.queue, s.queueOptions())
	if errors.Is(err, layer.ErrQueueExists) {
		// Another process was faster.
		return layer.Open(ctx, db, s.prefix(), s.queue, s.queueOptions())
	}
	if err != nil {
		return nil, err
	}
	s.notice("created queue %q", s.queue)
	if err := s.tellNamesakes(ctx, db); err != nil {
		closeQueue(ctx, q, &err)
		return nil, err
	}
	return q, nil
}

func (s *session) dropping(err error) error {
	return &Error{
		Text: fmt.Sprintf("queue %q is being dropped", s.queue), Exit: ExitNoQueue, Err: err,
		Hint: "Wait. If the drop was interrupted, " + s.placed() + " drop " + shellWord(s.queue) + " --yes ends it.",
	}
}

// shownNames is how many queues an error names.
const shownNames = 20

// unknownQueue says which queues there are, under other prefixes too.
func (s *session) unknownQueue(ctx context.Context, db kv.DB, noQueue error) error {
	there, err := layer.Queues(ctx, db, s.prefix())
	if err != nil {
		return errors.Join(noQueue, err)
	}
	others, err := lookElsewhere(ctx, db)
	if err != nil {
		return errors.Join(noQueue, err)
	}
	e := &Error{Text: fmt.Sprintf("there is no queue %q", s.queue), Exit: ExitNoQueue, Err: noQueue}
	if !bytes.Equal(s.prefix(), prefix()) {
		e.Text += " under " + placeFlag(s.prefix(), others.paths)
	}
	switch more := others.hint(s); {
	case len(there) > 0:
		e.Hint = "There are: " + names(there, shownNames) + "." + more
	case more != "":
		e.Hint = "There are none under this prefix." + more
	case others.cut:
		e.Hint = fmt.Sprintf("There are none under this prefix. Elsewhere %v.", others.incomplete())
	default:
		e.Hint = "There are no queues yet: " + s.command("enqueue") + " makes the first."
	}
	return e
}

// tellNamesakes prints the queues of the same name under other prefixes. A user that has just created a queue may have
// meant one of those.
func (s *session) tellNamesakes(ctx context.Context, db kv.DB) error {
	others, err := lookElsewhere(ctx, db)
	if err != nil {
		return err
	}
	for _, p := range others.others(s.prefix()) {
		if slices.Contains(p.queues, s.queue) {
			s.notice("there is another queue %q: %s", s.queue, placeFlag(p.prefix, others.paths))
		}
	}
	return nil
}

// empty reports whether the queue has no items at all, held ones included.
func empty(ctx context.Context, q *layer.Queue) (bool, error) { return emptyOf(ctx, q, nil, nil) }

// emptyOf is empty for a group; nil = the whole queue.
func emptyOf(ctx context.Context, q *layer.Queue, group *string, where layer.Template) (bool, error) {
	if group != nil {
		info, err := q.Admin().Group(ctx, *group, where)
		return err == nil && info.Depth == 0, err
	}
	page, err := q.Admin().Groups(ctx, layer.GroupsOptions{Limit: 1, MaxDepth: 1, Where: where})
	return err == nil && len(page.Groups) == 0, err
}
