package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/sqs"
)

// service is a server of the queues of a space, on the loopback, and a client of it that speaks JSON as the SDKs do.
type service struct {
	space  Space
	url    string
	client *http.Client
	stop   func() error
}

func newService(ctx context.Context, space Space) (*service, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	server := sqs.NewServer(space.DB, sqs.Options{Prefix: space.Prefix})
	go func() { ended <- server.Serve(serving, l, 0) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 10_000}
	return &service{
		space: space, url: "http://" + l.Addr().String(), client: &http.Client{Transport: transport},
		stop: func() error {
			transport.CloseIdleConnections()
			stop()
			return <-ended
		},
	}, nil
}

// received is a message as the service answers.
type received struct{ MessageId, ReceiptHandle string }

// call calls an operation. answer is nil, or what the answer is read into.
func (s *service) call(ctx context.Context, operation string, request, answer any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	r.Header.Set("X-Amz-Target", "AmazonSQS."+operation)
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s: %s", errWrong, operation, body)
	}
	if answer == nil || len(body) == 0 {
		return nil
	}
	return json.Unmarshal(body, answer)
}

// create makes a FIFO queue that takes the bodies for deduplication.
func (s *service) create(ctx context.Context, name, per string) error {
	attributes := map[string]string{
		"FifoQueue": "true", "ContentBasedDeduplication": "true", "fdbfifo.Visibility": per,
	}
	return s.call(ctx, "CreateQueue", map[string]any{"QueueName": name, "Attributes": attributes}, nil)
}

func (s *service) send(ctx context.Context, queue, group, body string) error {
	return s.call(ctx, "SendMessage", map[string]any{
		"QueueUrl": queue, "MessageGroupId": group, "MessageBody": body, "MessageDeduplicationId": body,
	}, nil)
}

func (s *service) receive(ctx context.Context, queue string, wait, visible int) ([]received, error) {
	var answer struct{ Messages []received }
	err := s.call(ctx, "ReceiveMessage", map[string]any{
		"QueueUrl": queue, "MaxNumberOfMessages": batch, "WaitTimeSeconds": wait, "VisibilityTimeout": visible,
	}, &answer)
	return answer.Messages, err
}

// delete deletes messages that were received, in one call.
func (s *service) delete(ctx context.Context, queue string, messages []received) error {
	type entry struct{ Id, ReceiptHandle string }
	entries := make([]entry, len(messages))
	for i, m := range messages {
		entries[i] = entry{fmt.Sprint(i), m.ReceiptHandle}
	}
	var answer struct{ Failed []any }
	err := s.call(ctx, "DeleteMessageBatch", map[string]any{"QueueUrl": queue, "Entries": entries}, &answer)
	if err == nil && len(answer.Failed) > 0 {
		return fmt.Errorf("%w: DeleteMessageBatch: %v", errWrong, answer.Failed)
	}
	return err
}

// check holds a queue of the service to the layer's rules, and to how many items it should have.
func (s *service) check(ctx context.Context, name string, items int64) (err error) {
	q, err := layer.Open(ctx, s.space.DB, s.space.Prefix, name, layer.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close(ctx)) }()
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	switch {
	case err != nil:
		return err
	case len(report.Violations) > 0:
		return fmt.Errorf("%w: %s", errWrong, report.Violations[0])
	case report.Items != items:
		return fmt.Errorf("%w: %s has %d items, should be %d", errWrong, name, report.Items, items)
	}
	return nil
}

const inHand = 43_200 // s; the longest visibility timeout

// leasesPer is what has a visibility timeout of its own in the queues that the service is measured with.
func leasesPer() []string { return []string{leasePerClaim, leasePerItem} }

// The kinds of queues: the values of the attribute fdbfifo.Visibility.
const leasePerClaim, leasePerItem = "claim", "item"

// servedQueue is the queue with such timeouts.
func servedQueue(per string) string { return "served-" + per + ".fifo" }

// figureOf is the name of a figure of the queue with such timeouts.
func figureOf(name, per string) string {
	if per == leasePerItem {
		name += "_item"
	}
	return name
}

// meansOf says of what queue a figure is.
func meansOf(means, per string) string {
	if per == leasePerItem {
		means += ", where each message has a visibility timeout of its own"
	}
	return means
}

// serving opens a space and a service over it with a queue of each kind, and runs do.
func serving(ctx context.Context, env Env, do func(space Space, s *service) error) (err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return err
	}
	defer space.closing(&err)
	s, err := newService(ctx, space)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for _, per := range leasesPer() {
		if err := s.create(ctx, servedQueue(per), per); err != nil {
			return err
		}
	}
	return do(space, s)
}

// sqsRatio compares the service with the layer's own calls, in the same batches.
func sqsRatio(sizes Sizes) Benchmark {
	const (
		name  = "sqs_ratio"
		means = "sqs_items_per_s / layer_items_per_s: what of the queue's speed is left to clients of SQS"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		err = serving(ctx, env, func(space Space, s *service) (err error) {
			q, err := newQueue(ctx, env, space, "own")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
			own := func(ctx context.Context, worker int) (int, error) {
				if err := q.enqueue(ctx, messages(groupName(worker), batch)...); err != nil {
					return 0, err
				}
				claims, err := q.receive(ctx)
				if err != nil {
					return 0, err
				}
				return q.ack(ctx, claims)
			}
			detail := fmt.Sprintf("%d clients, batches of %d, %d bytes each", sizes.Claimers, batch, bodySize)
			for _, per := range leasesPer() {
				served := func(ctx context.Context, worker int) (int, error) { return s.cycle(ctx, per, worker) }
				c, err := compare(ctx, env, sizes.LongRounds, sizes.Slices,
					func(ctx context.Context) (float64, error) {
						return rate(ctx, sizes.Claimers, sizes.LongSlice, own)
					},
					func(ctx context.Context) (float64, error) {
						return rate(ctx, sizes.Claimers, sizes.LongSlice, served)
					})
				if err != nil {
					return err
				}
				results = append(results,
					Result{figureOf(name, per), c.ratio(), "ratio", meansOf(means, per), c.spread(), atLeast(0.5)},
					Result{
						figureOf("sqs_items_per_s", per), c.b, "items/s",
						meansOf("the same by SQS over the loopback", per), detail, Target{},
					},
					Result{
						figureOf("layer_items_per_s", per), c.a, "items/s",
						"enqueue + receive + ack, by calls, meanwhile", detail, Target{},
					})
				if err := errors.Join(s.drain(ctx, per), s.check(ctx, servedQueue(per), 0)); err != nil {
					return err
				}
			}
			return q.verify(ctx)
		})
		return results, err
	}}
}

// sqsMutations counts the mutations of a message from its SendMessageBatch to its DeleteMessageBatch.
func sqsMutations(sizes Sizes) Benchmark {
	const (
		name  = "sqs_mutations_per_message"
		means = "sets, clears and atomic operations of SendMessageBatch, ReceiveMessage and DeleteMessageBatch of ten"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		plain, counting := env, (*record.Recorder)(nil)
		env.Open = func(ctx context.Context) (space Space, err error) {
			space, counting, err = plain.openCounted(ctx)
			return space, err
		}
		err = serving(ctx, env, func(_ Space, s *service) error {
			for _, per := range leasesPer() {
				budget := 5.0
				if per == leasePerItem {
					budget = 10 // a claim and a timer more, set and cleared
				}
				if _, err := s.cycle(ctx, per, 0); err != nil { // the first has no receipt to clear
					return err
				}
				before := counting.Counters()
				for n := range sizes.Batches {
					got, err := s.cycle(ctx, per, n)
					if err == nil && got != batch {
						err = fmt.Errorf("%w: a receive gave %d messages, should be %d", errWrong, got, batch)
					}
					if err != nil {
						return err
					}
				}
				c := counting.Counters().Sub(before)
				each := func(n int64) float64 { return float64(n) / float64(sizes.Batches*batch) }
				for _, count := range []struct {
					name, unit, means string
					n                 int64
					target            Target
				}{
					{name, "mutations", means, c.Mutations, atMost(budget)},
					{"sqs_reads_per_message", "reads", "keys and ranges read by the same", c.Reads, Target{}},
					{"sqs_transactions_per_message", "transactions", "of the same", c.Commits, Target{}},
				} {
					results = append(results, Result{
						figureOf(count.name, per), each(count.n), count.unit, meansOf(count.means, per), "",
						count.target,
					})
				}
				if err := s.check(ctx, servedQueue(per), 0); err != nil {
					return err
				}
			}
			return nil
		})
		return results, err
	}}
}

// cycle sends a batch to a group, receives one, and deletes it.
func (s *service) cycle(ctx context.Context, per string, worker int) (int, error) {
	type entry struct{ Id, MessageBody, MessageGroupId, MessageDeduplicationId string }
	body, entries := strings.Repeat("x", bodySize), make([]entry, batch)
	unique := fmt.Sprint(worker, "-", time.Now().UnixNano(), "-")
	for i := range entries {
		entries[i] = entry{fmt.Sprint(i), body, groupName(worker), unique + fmt.Sprint(i)}
	}
	queue := servedQueue(per)
	request := map[string]any{"QueueUrl": queue, "Entries": entries}
	if err := s.call(ctx, "SendMessageBatch", request, nil); err != nil {
		return 0, err
	}
	got, err := s.receive(ctx, queue, 0, 30)
	if err != nil || len(got) == 0 {
		return 0, err
	}
	return len(got), s.delete(ctx, queue, got)
}

// drain receives and deletes until nothing is left.
func (s *service) drain(ctx context.Context, per string) error {
	for {
		got, err := s.receive(ctx, servedQueue(per), 1, 30)
		if err != nil || len(got) == 0 {
			return err
		}
		if err := s.delete(ctx, servedQueue(per), got); err != nil {
			return err
		}
	}
}

// sqsBlocked measures how long a message takes to a client that waits, past a group in flight with a deep backlog.
func sqsBlocked(sizes Sizes) Benchmark {
	const name = "sqs_blocked_ms"
	backlog := sizes.Deep / 5
	means := fmt.Sprintf("from SendMessage to a client that waits, behind %d messages of a group in flight", backlog)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		err = serving(ctx, env, func(space Space, s *service) error {
			for _, per := range leasesPer() {
				took, err := s.blocked(ctx, env, sizes, per)
				if err != nil {
					return err
				}
				detail := fmt.Sprintf("median of %d, %.3g–%.3g", len(took), slices.Min(took), slices.Max(took))
				results = append(results, Result{
					figureOf(name, per), median(took), "ms", meansOf(means, per), detail, atMost(100),
				})
			}
			return nil
		})
		return results, err
	}}
}

// blocked returns how many ms it took each time.
func (s *service) blocked(ctx context.Context, env Env, sizes Sizes, per string) (took []float64, err error) {
	queue, backlog := servedQueue(per), sizes.Deep/5
	q, err := layer.Open(ctx, s.space.DB, s.space.Prefix, queue, layer.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
	for done := 0; done < backlog; done += perLoad {
		env.progress("loading", done, backlog)
		if _, err := q.Enqueue(ctx, messages(groupName(0), min(perLoad, backlog-done))...); err != nil {
			return nil, err
		}
	}
	if _, err := s.receive(ctx, queue, 0, inHand); err != nil {
		return nil, err
	}
	for round := range sizes.LongRounds + 1 {
		env.progress("measuring", round, sizes.LongRounds+1)
		ms, err := s.pass(ctx, queue, groupName(1), fmt.Sprint("round-", round), sizes.Watch/50)
		if err != nil {
			return nil, err
		}
		if round > 0 {
			took = append(took, ms)
		}
	}
	return took, s.check(ctx, queue, int64(backlog))
}

// pass lets a client wait, sends a message, and returns the milliseconds until the client has it.
func (s *service) pass(ctx context.Context, queue, group, body string, settle time.Duration) (float64, error) {
	type outcome struct {
		got []received
		at  time.Time
		err error
	}
	waiting := make(chan outcome, 1)
	go func() {
		got, err := s.receive(ctx, queue, 20, 30)
		waiting <- outcome{got, time.Now(), err}
	}()
	if err := sleep(ctx, settle); err != nil { // until it waits
		return 0, err
	}
	begun := time.Now()
	if err := s.send(ctx, queue, group, body); err != nil {
		return 0, err
	}
	o := <-waiting
	if o.err == nil && len(o.got) != 1 {
		o.err = fmt.Errorf("%w: %d messages came, should be the one", errWrong, len(o.got))
	}
	if o.err != nil {
		return 0, o.err
	}
	return float64(o.at.Sub(begun)) / float64(time.Millisecond), s.delete(ctx, queue, o.got)
}

// sqsIdle counts what many long polls cost in which nothing happens.
func sqsIdle(sizes Sizes) Benchmark {
	const (
		name   = "sqs_idle_transactions_per_s"
		queues = 10
	)
	means := fmt.Sprintf("transactions of %d long polls on %d idle queues", sizes.Idle, queues)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		plain, counting := env, (*record.Recorder)(nil)
		env.Open = func(ctx context.Context) (space Space, err error) {
			space, counting, err = plain.openCounted(ctx)
			return space, err
		}
		perSecond := 0.0
		err = serving(ctx, env, func(_ Space, s *service) error {
			polling, stop := context.WithCancel(ctx)
			defer stop()
			var wg sync.WaitGroup
			for i := range queues {
				if err := s.create(ctx, fmt.Sprintf("idle-%d.fifo", i), leasesPer()[i%2]); err != nil {
					return err
				}
			}
			errs, arrived := make([]error, sizes.Idle), make(chan struct{}, sizes.Idle)
			for i := range sizes.Idle {
				wg.Go(func() {
					for polling.Err() == nil && errs[i] == nil {
						var got []received
						got, errs[i] = s.receive(polling, fmt.Sprintf("idle-%d.fifo", i%queues), 20, inHand)
						for range got {
							arrived <- struct{}{}
						}
					}
				})
			}
			env.progress("watching", 0, -1)
			if err := sleep(ctx, sizes.Watch/5); err != nil { // until all of them wait
				return err
			}
			before, begun := counting.Counters(), time.Now()
			if err := sleep(ctx, 2*sizes.Watch); err != nil { // some polls end and begin again
				return err
			}
			perSecond = float64(attempts(counting.Counters().Sub(before))) / time.Since(begun).Seconds()
			err := s.send(ctx, "idle-0.fifo", groupName(0), "one")
			if err == nil {
				select {
				case <-arrived:
				case <-time.After(10 * sizes.Patience):
					err = fmt.Errorf("%w: no poll got the message", errWrong)
				}
			}
			stop()
			wg.Wait()
			if err == nil && len(arrived) > 0 {
				err = fmt.Errorf("%w: %d polls got the one message", errWrong, len(arrived)+1)
			}
			if err != nil {
				return err
			}
			for _, err := range errs {
				if err != nil && !errors.Is(err, context.Canceled) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("watched for %v", 2*sizes.Watch)
		return []Result{{name, perSecond, "transactions/s", means, detail, atMost(20)}}, nil
	}}
}

// sqsQuiet measures how long a message of a quiet tenant waits in a standard queue that has the backlog of a loud
// tenant. To compare, it measures the wait if the messages name no tenant, and in an empty queue.
func sqsQuiet(sizes Sizes) Benchmark {
	const (
		name  = "sqs_quiet_ms"
		queue = "tenants"
	)
	backlog := sizes.Deep / 100
	means := fmt.Sprintf(
		"from SendMessage to the worker's receive, of a tenant next to one with a backlog of %d", backlog)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		var c comparison // of an empty queue, and one with a backlog
		unnamed := 0.0
		err = serving(ctx, env, func(_ Space, s *service) error {
			for i, of := range []struct {
				backlog int
				tenants bool
			}{{0, true}, {backlog, true}, {backlog, false}} {
				name := fmt.Sprint(queue, i)
				if err := s.call(ctx, "CreateQueue", map[string]any{"QueueName": name}, nil); err != nil {
					return err
				}
				if err := s.load(ctx, env, name, of.backlog, of.tenants); err != nil {
					return err
				}
			}
			quiet := func(i int, tenants bool) side {
				return func(ctx context.Context) (float64, error) {
					return s.quiet(ctx, fmt.Sprint(queue, i), tenants)
				}
			}
			var err error
			if c, err = compare(ctx, env, sizes.LongRounds, sizes.Slices, quiet(0, true), quiet(1, true)); err != nil {
				return err
			}
			unnamed, err = quiet(2, false)(ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("one worker, batches of %d", batch)
		return []Result{
			{name, c.b, "ms", means, detail, atMost(500)},
			{"sqs_quiet_ratio", c.ratio(), "ratio", "the same to an empty queue's", c.spread(), atMost(5)},
			{"sqs_unnamed_ms", unnamed, "ms", "the same, where the messages name no tenants", detail, Target{}},
		}, nil
	}}
}

// ofTenant is a request to send n messages of a tenant, which they name or not.
func ofTenant(queue, tenant string, n int, named bool) map[string]any {
	entries := make([]any, n)
	for i := range entries {
		entry := map[string]string{"Id": fmt.Sprint(i), "MessageBody": tenant}
		if named {
			entry["MessageGroupId"] = tenant
		}
		entries[i] = entry
	}
	return map[string]any{"QueueUrl": queue, "Entries": entries}
}

// load sends the backlog of a loud tenant.
func (s *service) load(ctx context.Context, env Env, queue string, backlog int, tenants bool) error {
	for done := 0; done < backlog; done += batch {
		env.progress("loading", done, backlog)
		if err := s.call(ctx, "SendMessageBatch", ofTenant(queue, "loud", batch, tenants), nil); err != nil {
			return err
		}
	}
	return nil
}

// quiet sends one message of a quiet tenant. A worker then receives and deletes any messages. quiet returns the
// milliseconds until the worker has that message.
func (s *service) quiet(ctx context.Context, queue string, tenants bool) (float64, error) {
	begun := time.Now()
	if err := s.call(ctx, "SendMessageBatch", ofTenant(queue, "quiet", 1, tenants), nil); err != nil {
		return 0, err
	}
	took := 0.0
	for {
		var answer struct {
			Messages []struct{ MessageId, ReceiptHandle, Body string }
		}
		err := s.call(ctx, "ReceiveMessage", map[string]any{
			"QueueUrl": queue, "MaxNumberOfMessages": batch, "VisibilityTimeout": inHand,
		}, &answer)
		if err != nil {
			return 0, err
		}
		if len(answer.Messages) == 0 {
			return 0, fmt.Errorf("%w: the quiet tenant's message did not come", errWrong)
		}
		got := make([]received, len(answer.Messages))
		for i, m := range answer.Messages {
			if got[i] = (received{m.MessageId, m.ReceiptHandle}); m.Body == "quiet" && took == 0 {
				took = float64(time.Since(begun)) / float64(time.Millisecond)
			}
		}
		if err := s.delete(ctx, queue, got); err != nil || took > 0 {
			return took, err
		}
	}
}
