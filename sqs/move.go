package sqs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// task is a move task: messages of a dead letter queue go to another queue, or back to where they came from. Each step
// is one transaction, which also counts the messages, so none is moved twice or lost. Any server that runs continues
// it. A message that cannot be moved stays in its queue; see sift.
type task struct {
	ID      string `json:"id"`
	Source  string `json:"source"`
	To      string `json:"to,omitempty"` // "" = each message to the queue that it came from
	Rate    int64  `json:"rate,omitempty"`
	Started int64  `json:"started"` // ms
	Total   int64  `json:"total"`   // messages when it began
	Moved   int64  `json:"moved"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Until   int64  `json:"until"` // ms; until then the server that runs it counts as alive
	Runner  string `json:"runner"`
}

const (
	running    = "RUNNING"
	completed  = "COMPLETED"
	cancelling = "CANCELLING"
	cancelled  = "CANCELLED"
	broken     = "FAILED"

	taskLease = 15 * time.Second
	taskStep  = 50 // messages of a step, at most
	taskBytes = 1 << 20
	taskTime  = time.Second // a step begins no take after it: the last one must end before the transaction fails at 5 s
	maxTasks  = 10          // that are listed, and kept
	oldTasks  = 50          // of earlier versions, which kept all: what a new task clears, at most
	maxRate   = 500
)

func (t task) active() bool { return t.Status == running || t.Status == cancelling }

// key sorts the tasks of a queue by their age.
func (s *Server) taskKey(t task) []byte { return s.key("task", t.Source, t.Started, t.ID) }

// tasks are the newest tasks of a queue, the newest first.
func (s *Server) tasks(ctx context.Context, tx kv.ReadTx, source string, limit int) ([]task, error) {
	rows, err := tx.GetRange(
		kv.PrefixRange(s.key("task", source)).Selectors(), kv.RangeOptions{Limit: limit, Reverse: true}).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	all := make([]task, 0, len(rows))
	for _, row := range rows {
		var t task
		if json.Unmarshal(row.Value, &t) == nil && t.ID != "" { // no server runs another
			all = append(all, t)
		}
	}
	return all, nil
}

func (s *Server) handleOf(t task) string {
	return base64.StdEncoding.EncodeToString(marshal(struct {
		Task   string `json:"taskId"`
		Source string `json:"sourceArn"`
	}{t.ID, s.arn(t.Source)}))
}

func noResource(format string, args ...any) error {
	e := fail(schemas.ResourceNotFoundException, format, args...)
	e.status = http.StatusNotFound
	return e
}

// byARN opens the queue of an ARN that a parameter has.
func (s *Server) byARN(ctx context.Context, arn *string, parameter string) (*queue, error) {
	if arn == nil || *arn == "" {
		return nil, missing(parameter)
	}
	name, err := arnName(*arn)
	if err != nil {
		return nil, invalid("You must use this format to specify the %s: "+
			"arn:<partition>:<service>:<region>:<account-id>:<resource-id>", parameter)
	}
	q, err := s.open(ctx, name)
	if isNoQueue(err) {
		return nil, noResource("The resource that you specified for the %s parameter doesn't exist.", parameter)
	}
	return q, err
}

func (s *Server) startMessageMoveTask(
	ctx context.Context, c *call, in *startMessageMoveTaskRequest,
) (*startMessageMoveTaskResult, error) {
	source, err := s.byARN(ctx, in.SourceArn, "SourceArn")
	if err != nil {
		return nil, err
	}
	defer source.release()
	c.queue = source.Name()
	if len(source.dead) == 0 {
		return nil, invalid("Source queue must be configured as a Dead Letter Queue.")
	}
	now := s.options.Now()
	t := task{
		ID: uuid.NewString(), Source: source.Name(), Started: now.UnixMilli(), Status: running,
		Until: now.Add(taskLease).UnixMilli(), Runner: s.id,
	}
	if in.DestinationArn != nil {
		to, err := s.byARN(ctx, in.DestinationArn, "DestinationArn")
		if err != nil {
			return nil, err
		}
		t.To = to.Name()
		to.release()
		if t.To == t.Source {
			return nil, invalid("The destination of a move task must be another queue than its source.")
		}
	}
	if r := in.MaxNumberOfMessagesPerSecond; r != nil {
		if *r < 1 || *r > maxRate {
			return nil, invalidValue(*r, "MaxNumberOfMessagesPerSecond", "Must be between 1 and 500, if provided.")
		}
		t.Rate = *r
	}
	if err := s.moveSources(ctx, source, time.Time{}); err != nil { // all of them: the task counts its messages once
		return nil, err
	}
	stats, err := s.stats(ctx, source)
	if err != nil {
		return nil, err
	}
	t.Total = stats.Depth
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "start a move"}, func(tx kv.Tx, _ kv.Attempt) error {
		before, err := s.tasks(ctx, tx, t.Source, maxTasks+oldTasks) // one of a clock that was ahead stays the newest
		if err != nil {
			return err
		}
		before = slices.DeleteFunc(before, func(b task) bool { return b.ID == t.ID }) // of an earlier attempt
		if slices.ContainsFunc(before, task.active) {
			return invalid("There is already a task running. " +
				"Only one active task is allowed for a source queue arn at a given time.")
		}
		for _, b := range before[min(maxTasks-1, len(before)):] { // is listed no more
			tx.Clear(s.taskKey(b))
		}
		tx.Set(s.taskKey(t), marshal(t))
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.run(t)
	return &startMessageMoveTaskResult{TaskHandle: s.handleOf(t)}, nil
}

func (s *Server) cancelMessageMoveTask(
	ctx context.Context, _ *call, in *cancelMessageMoveTaskRequest,
) (*cancelMessageMoveTaskResult, error) {
	bad := invalid("Value for parameter TaskHandle is invalid.")
	text, err := base64.StdEncoding.DecodeString(in.TaskHandle)
	var handle struct {
		Task   string `json:"taskId"`
		Source string `json:"sourceArn"`
	}
	if err != nil || json.Unmarshal(text, &handle) != nil || handle.Task == "" {
		return nil, bad
	}
	source, err := s.byARN(ctx, &handle.Source, "SourceArn")
	if err != nil {
		return nil, err
	}
	defer source.release()
	var moved int64
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "cancel a move"}, func(tx kv.Tx, a kv.Attempt) error {
		all, err := s.tasks(ctx, tx, source.Name(), maxTasks)
		if err != nil {
			return err
		}
		for _, t := range all {
			if t.ID != handle.Task {
				continue
			}
			if a.MaybeCommitted && t.Status == cancelled { // the server that runs the task has ended it since
				moved = t.Moved
				return nil
			}
			if !t.active() {
				return fail(schemas.UnsupportedOperation, "Only active tasks can be cancelled.")
			}
			t.Status, moved = cancelling, t.Moved
			tx.Set(s.taskKey(t), marshal(t))
			return nil
		}
		return noResource("Task does not exist.")
	})
	return &cancelMessageMoveTaskResult{ApproximateNumberOfMessagesMoved: moved}, err
}

func (s *Server) listMessageMoveTasks(
	ctx context.Context, c *call, in *listMessageMoveTasksRequest,
) (*listMessageMoveTasksResult, error) {
	source, err := s.byARN(ctx, in.SourceArn, "SourceArn")
	if err != nil {
		return nil, err
	}
	defer source.release()
	c.queue = source.Name()
	limit := int64(1)
	if in.MaxResults != nil {
		limit = min(max(*in.MaxResults, 1), maxTasks)
	}
	var all []task
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "list moves"}, func(tx kv.Tx, _ kv.Attempt) error {
		var err error
		all, err = s.tasks(ctx, tx.Snapshot(), source.Name(), int(limit))
		return err
	})
	result := &listMessageMoveTasksResult{}
	for _, t := range all {
		e := moveTaskEntry{
			Status: t.Status, SourceArn: s.arn(t.Source), MaxNumberOfMessagesPerSecond: t.Rate, FailureReason: t.Reason,
			ApproximateNumberOfMessagesMoved: t.Moved, ApproximateNumberOfMessagesToMove: t.Total,
			StartedTimestamp: t.Started,
		}
		if t.Status == running {
			e.TaskHandle = s.handleOf(t)
		}
		if t.To != "" {
			e.DestinationArn = s.arn(t.To)
		}
		result.Results = append(result.Results, e)
	}
	return result, err
}

// tasksPage bounds how many tasks resumeTasks reads in a transaction.
const tasksPage = 1000

// resumeTasks continues the tasks of servers that are gone.
func (s *Server) resumeTasks(ctx context.Context) error {
	for r := kv.PrefixRange(s.key("task")); ; {
		rows, err := s.rows(ctx, "list moves", r, tasksPage)
		if err != nil {
			return err
		}
		for _, row := range rows {
			var t task
			if json.Unmarshal(row.Value, &t) == nil && t.active() && !s.until(t.Until, taskLease) {
				s.run(t)
			}
		}
		if len(rows) < tasksPage {
			return nil
		}
		r.Begin = kv.KeyAfter(rows[tasksPage-1].Key)
	}
}

// run runs a task, unless this server does so already.
func (s *Server) run(t task) { s.alone(t.ID, func() { s.moveMessages(s.stopped, t) }) }

// errNotOurs: another server runs the task.
var errNotOurs = errors.New("sqs: another server runs the move task")

// moveMessages does steps until the task is done, or the server stops.
func (s *Server) moveMessages(ctx context.Context, t task) {
	n, pause := taskStep, time.Duration(0)
	if t.Rate > 0 {
		n = int(min(max(t.Rate/4, 1), taskStep))
		pause = time.Duration(n) * time.Second / time.Duration(t.Rate)
	}
	var last lastTold
	for progress := time.Now(); ; {
		after, err := s.moveStep(ctx, t, n)
		wait, left := pause, 0
		if errors.Is(err, errKept) {
			wait, err = time.Second, nil
		}
		if err == nil {
			progress = time.Now()
		} else if stays(err) {
			wait = time.Second
			var p *sifting
			if p, err = s.sift(ctx, t); p != nil {
				after = p.after
				if p.moved {
					progress = time.Now()
				}
				if err == nil && p.why != nil && after.active() && !(p.waits() && time.Since(progress) < fullPatience) {
					left, err = p.left, p.why
				}
			}
		}
		switch {
		case err == nil && !after.active(), errors.Is(err, errNotOurs), ctx.Err() != nil:
			return
		case stays(err):
			switch ended := s.end(ctx, t, failureReason(err)); {
			case ended == nil:
				s.options.Logger.Warn("sqs: a move task has failed, and left messages where they were",
					"queue", t.Source, "left", left, "err", err)
				return
			case errors.Is(ended, errNotOurs):
				return
			}
			wait = time.Second
		case err != nil:
			if last.isNews(err) {
				s.options.Logger.Warn("sqs: a step of a move task has failed", "queue", t.Source, "err", err)
			}
			wait = time.Second
		}
		if s.rest(ctx, wait) != nil {
			return
		}
	}
}

// own reads a task in tx, and claims it for this server for taskLease. With errNotOurs it returns the task as stored.
func (s *Server) own(ctx context.Context, tx kv.Tx, t task) (task, error) {
	value, err := tx.Get(s.taskKey(t)).Wait(ctx)
	if err != nil {
		return t, fmt.Errorf("read task: %w", err)
	}
	if value == nil || json.Unmarshal(value, &t) != nil || !t.active() ||
		t.Runner != s.id && s.until(t.Until, taskLease) {
		return t, errNotOurs
	}
	t.Runner, t.Until = s.id, s.options.Now().Add(taskLease).UnixMilli()
	return t, nil
}

// end stores that a task has failed.
func (s *Server) end(ctx context.Context, t task, reason string) error {
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "end a move"}, func(tx kv.Tx, a kv.Attempt) error {
		now, err := s.own(ctx, tx, t)
		switch {
		case a.MaybeCommitted && errors.Is(err, errNotOurs) && now.Status == broken && now.Runner == s.id:
			return nil // an earlier attempt has stored it
		case err != nil:
			return err
		}
		now.Status, now.Reason = broken, reason
		tx.Set(s.taskKey(now), marshal(now))
		return nil
	})
	return err
}

// target is the name of the queue that a message goes to; "" = it is not known.
func (t task) target(item layer.Item) string {
	if t.To != "" {
		return t.To
	}
	return item.Headers[headerSource]
}

// errKept: the queue of a task is paused, or its rate is used up. The task goes on later.
var errKept = errors.New("sqs: the queue gives no message now")

// keeps reports whether a queue that has given no message gives one later: it is paused, or a group is ready that the
// rate, or an old copy of the pause, has kept back. Both are of one read version. So a pause that ends after the take
// hides no message.
func (q *queue) keeps(ctx context.Context) (bool, error) {
	stats, err := q.Stats(ctx, layer.StatsOptions{MaxGroups: 1, MaxTimers: 100}) // the first due
	return stats.Paused != nil || stats.ReadyGroups > 0, err
}

// takeHead takes up to n messages from the head of the queue in tx, as many as a step of a task may move. none: the
// queue has given all that it gives now.
func (q *queue) takeHead(ctx context.Context, tx kv.Tx, n int) (items []layer.Item, none bool, err error) {
	for size, begun := 0, time.Now(); len(items) < n && size < taskBytes && time.Since(begun) < taskTime; {
		more, again, err := q.TakeTx(ctx, tx, n-len(items), layer.TakeOptions{})
		if err != nil {
			return nil, false, err
		}
		if len(more) == 0 { // again: old messages were in the way, and the next step continues
			return items, !again, nil
		}
		for _, item := range more {
			items, size = append(items, item), size+len(item.Body)
		}
	}
	return items, false, nil
}

// moveStep moves up to n messages from the head of the queue. It completes the task when none is left, or when the task
// has moved as many messages as there were when it began. So each task ends: a message that has failed again since, or
// that another task has moved back, waits for the next task. errKept means that the task must go on later.
func (s *Server) moveStep(ctx context.Context, t task, n int) (after task, err error) {
	from, err := s.open(ctx, t.Source)
	if err != nil {
		return t, err
	}
	defer from.release()
	for asked := false; ; asked = true {
		var none bool
		after, err = s.moveBy(ctx, t, func(tx kv.Tx, now task) (items []layer.Item, done bool, err error) {
			left := now.Total - now.Moved
			items, none, err = from.takeHead(ctx, tx, min(n, int(left)))
			return items, none && asked || int64(len(items)) >= left, err
		})
		if err != nil || !none || !after.active() {
			return after, err
		}
		if keeps, err := from.keeps(ctx); err != nil || keeps {
			return after, cmp.Or(err, errKept)
		}
	}
}

// moveBy moves the messages that take removes from the task's queue, and stores their number, in one transaction. take
// says whether the task is done then. It is not called if the task is cancelled.
func (s *Server) moveBy(
	ctx context.Context, t task, take func(tx kv.Tx, now task) (items []layer.Item, done bool, err error),
) (task, error) {
	from, err := s.open(ctx, t.Source)
	if err != nil {
		return t, err
	}
	defer from.release()
	targets := make(map[string]*queue)
	defer func() {
		for _, to := range targets {
			to.release()
		}
	}()
	var after task
	err = from.Once(ctx, func(tx kv.Tx) error {
		now, err := s.own(ctx, tx, t)
		if err != nil {
			return err
		}
		var items []layer.Item
		switch now.Status {
		case cancelling:
			now.Status = cancelled
		case running:
			var done bool
			if items, done, err = take(tx, now); err != nil {
				return err
			}
			if done {
				now.Status = completed
			}
		}
		standing := make(map[string]bool)
		for _, item := range items {
			name := t.target(item)
			switch name {
			case "":
				return noSource()
			case t.Source: // by its own redrive policy: the messages would come back
				return invalid(
					"The messages of %q came from that queue: name another queue as the DestinationArn.", name)
			}
			if targets[name] == nil {
				to, err := s.open(ctx, name)
				if errors.Is(err, errUnreadable) { // its messages stay, as if it were gone
					err = noQueue()
				}
				if err != nil {
					return err
				}
				targets[name] = to
			}
			if !standing[name] {
				if err := targets[name].stands(ctx, tx); err != nil {
					return err
				}
				standing[name] = true
			}
			if err := targets[name].accept(ctx, tx, redriven(from, targets[name], item)); err != nil {
				return err
			}
		}
		now.Moved += int64(len(items))
		tx.Set(s.taskKey(now), marshal(now))
		after = now
		return nil
	})
	s.forgetLost(err, append(slices.Collect(maps.Keys(targets)), t.Source)...)
	return after, err
}
