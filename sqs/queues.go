package sqs

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

func (s *Server) createQueue(ctx context.Context, c *call, in *createQueueRequest) (*queueUrlResult, error) {
	if in.QueueName == nil {
		return nil, missing("QueueName")
	}
	in.Attributes = plainTruths(in.Attributes)
	name, fifo := *in.QueueName, in.Attributes[fifoQueue] == "true"
	c.queue = name
	if err := checkAttributes(fifo, in.Attributes); err != nil {
		return nil, err
	}
	if err := checkName(name, fifo); err != nil {
		return nil, err
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	// Before the first queue is there, so that receipt handles are signed from the first on. The key is read again,
	// because the database may have been replaced.
	s.signs.Store(nil)
	if _, err := s.receiptKey(ctx); err != nil {
		return nil, err
	}
	now := s.options.Now()
	wanted := record{ID: uuid.New(), Created: seconds(now), Modified: seconds(now)}.clone()
	if fifo {
		wanted.Attributes[visibilityOf] = visibleByItem
		if s.options.VisibilityPerClaim {
			wanted.Attributes[visibilityOf] = visibleByClaim
		}
	}
	setAttributes(wanted.Attributes, in.Attributes)
	maps.Copy(wanted.Tags, in.Tags)
	if err := errors.Join(wanted.checkThroughput(), wanted.checkSize()); err != nil {
		return nil, err
	}
	if err := s.checkDeadLetterQueue(ctx, name, wanted); err != nil {
		return nil, err
	}
	r, _, err := s.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if !r.live() {
		if err := s.makeRoom(ctx, name, r); err != nil {
			return nil, err
		}
	}
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "create"}, func(tx kv.Tx, _ kv.Attempt) error {
		there, err := s.readRecord(ctx, tx, name)
		switch {
		case err != nil:
			return err
		case there.live():
			return there.agrees(wanted, in.Attributes)
		case there.Deleted != r.Deleted:
			return recentlyDeleted()
		}
		tx.ClearRange(kv.PrefixRange(s.key("task", name))) // of a deleted queue
		return s.writeRecord(tx, name, there, wanted)
	})
	if err != nil {
		return nil, err
	}
	s.outdate(wanted.deadLetterQueue())
	q, err := s.open(ctx, name) // makes the layer's queue
	if err != nil {
		return nil, err
	}
	defer q.release()
	return &queueUrlResult{QueueUrl: s.queueURL(c, name)}, nil
}

func recentlyDeleted() error {
	return fail(schemas.QueueDeletedRecently,
		"You must wait 60 seconds after deleting a queue before you can create another with the same name.")
}

// makeRoom returns an error if a new queue must not have the name: a queue of the layer has it, or a queue of that name
// was deleted less than a minute ago. It drops the rest of a deleted queue of that name. r is the record of that one.
func (s *Server) makeRoom(ctx context.Context, name string, r record) error {
	if r.ID == uuid.Nil {
		q, err := layer.Open(ctx, s.db, s.options.Prefix, name, s.queueOptions())
		if errors.Is(err, layer.ErrNoQueue) && !errors.Is(err, layer.ErrDropping) {
			return nil
		}
		if err == nil {
			err = q.Close(ctx)
		}
		return errors.Join(err, fail(schemas.QueueNameExists,
			"A queue of this name exists already, and was not made through this API"))
	}
	if !s.options.ReuseNames && s.since(r.Deleted) < nameFreeAfter {
		return recentlyDeleted()
	}
	if r.Cleared {
		return nil
	}
	return s.drop(ctx, name, r)
}

// agrees returns an error unless the attributes that a CreateQueue names are in the existing queue as in wanted. Their
// form may differ.
func (r record) agrees(wanted record, attributes map[string]string) error {
	all, other := r.all(), wanted.all()
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !isSame(name, all[name], other[name]) {
			return fail(schemas.QueueNameExists,
				"A queue already exists with the same name and a different value for attribute %s", name)
		}
	}
	return nil
}

func (s *Server) deleteQueue(ctx context.Context, c *call, in *queueRequest) error {
	name, err := c.queueName(in.QueueUrl)
	if err != nil {
		return err
	}
	left, err := s.moveBeforeDelete(ctx, name)
	if err != nil && !errors.Is(err, errUnreadable) && !errors.Is(err, layer.ErrCorrupt) { // else it must be deletable
		return err
	}
	deleted, err := s.changeRecord(ctx, name, func(r *record) error {
		r.Deleted = s.options.Now().UnixMilli()
		return nil
	})
	if errors.Is(err, errUnreadable) {
		deleted, err = s.deleteUnreadable(ctx, name)
	}
	if err != nil {
		return err
	}
	s.outdate(name)
	s.forget(name)
	s.dropLater(name, deleted)
	if left > 0 {
		s.options.Logger.Warn("sqs: a queue was deleted with dead letters that could not be moved",
			"queue", name, "left", left)
	}
	return nil
}

// deleteUnreadable replaces a record that cannot be read by one of a deleted queue, and returns that.
func (s *Server) deleteUnreadable(ctx context.Context, name string) (record, error) {
	// The record does not say which dead letter queue the queue had.
	if err := s.clearSource(ctx, name); err != nil {
		return record{}, err
	}
	now := s.options.Now()
	deleted := record{ID: uuid.New(), Created: seconds(now), Modified: seconds(now), Deleted: now.UnixMilli()}
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "delete"}, func(tx kv.Tx, _ kv.Attempt) error {
		if r, err := s.readRecord(ctx, tx, name); !errors.Is(err, errUnreadable) {
			if err == nil && r.live() { // it was repaired, and may be used
				err = fmt.Errorf("%w, but can be read now: %q", errUnreadable, name)
			}
			return err
		}
		return s.writeRecord(tx, name, record{}, deleted)
	})
	return deleted, err
}

// clearSource clears the entries of a queue among the sources of dead letter queues.
func (s *Server) clearSource(ctx context.Context, name string) error {
	all := s.key("source")
	for r := kv.PrefixRange(all); ; {
		rows, err := s.rows(ctx, "delete", r, maxSources)
		if err != nil {
			return err
		}
		_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "delete"}, func(tx kv.Tx, _ kv.Attempt) error {
			if _, err := s.readRecord(ctx, tx, name); !errors.Is(err, errUnreadable) {
				return err // another server has deleted the queue
			}
			for _, row := range rows {
				if t, err := tuple.Unpack(row.Key[len(all):]); err == nil && len(t) == 2 && t[1] == name {
					tx.Clear(row.Key)
				}
			}
			return nil
		})
		if err != nil || len(rows) < maxSources {
			return err
		}
		r.Begin = kv.KeyAfter(rows[len(rows)-1].Key)
	}
}

// errAgain: the name of a deleted queue is in use again, or its record is gone.
var errAgain = errors.New("sqs: the name of the deleted queue is in use again")

// dropLater begins to drop the layer's queue of a deleted record, unless this server does so already. It takes two
// seconds. If the server is stopped, another one continues.
func (s *Server) dropLater(name string, deleted record) {
	s.alone(fmt.Sprint("drop ", deleted.ID), func() {
		if err := s.drop(s.stopped, name, deleted); err != nil && s.stopped.Err() == nil {
			s.options.Logger.Warn("sqs: a deleted queue is not dropped yet", "queue", name, "err", err)
		}
	})
}

// drop removes the layer's queue of a deleted record. It then stores in the record that the queue is gone. It does
// nothing if the record is not that of the deleted queue any more: deleted may be old by now.
func (s *Server) drop(ctx context.Context, name string, deleted record) error {
	same := func(ctx context.Context, tx kv.Tx) (record, error) {
		r, err := s.readRecord(ctx, tx, name)
		if err == nil && (r.ID != deleted.ID || r.Deleted != deleted.Deleted) {
			err = errAgain
		}
		return r, err
	}
	err := layer.Drop(ctx, s.db, s.options.Prefix, name, layer.DropOptions{
		If: func(ctx context.Context, tx kv.Tx) error { _, err := same(ctx, tx); return err },
	})
	if err == nil || errors.Is(err, layer.ErrNoQueue) {
		_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "delete"}, func(tx kv.Tx, _ kv.Attempt) error {
			r, err := same(ctx, tx)
			if err != nil {
				return err
			}
			after := r
			after.Cleared = true
			return s.writeRecord(tx, name, r, after)
		})
	}
	if errors.Is(err, errAgain) {
		return nil
	}
	return err
}

func (s *Server) getQueueURL(ctx context.Context, c *call, in *getQueueUrlRequest) (*queueUrlResult, error) {
	if in.QueueName == nil || *in.QueueName == "" {
		return nil, missing("QueueName")
	}
	if strings.Contains(*in.QueueName, "/") { // would be read as a URL
		return nil, noQueue()
	}
	q, err := s.queue(ctx, c, *in.QueueName)
	if err != nil {
		return nil, err
	}
	defer q.release()
	return &queueUrlResult{QueueUrl: s.queueURL(c, q.Name())}, nil
}

// page returns the bounds of a listing: the name after which it begins, and the number of its entries.
func page(token *string, limit *int64) (after string, count int, paged bool, err error) {
	count = 1000
	if limit != nil {
		if *limit < 1 || *limit > 1000 {
			return "", 0, false, invalidValue(*limit, "MaxResults", "MaxResults must be an integer between 1 and 1000.")
		}
		count, paged = int(*limit), true
	}
	if token != nil && *token != "" {
		text, err := base64.StdEncoding.DecodeString(*token)
		if err != nil {
			return "", 0, false, invalid("Invalid or expired next token.")
		}
		after = string(text)
	}
	return after, count, paged, nil
}

func nextToken(names []string, more, paged bool) string {
	if !more || !paged || len(names) == 0 {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(names[len(names)-1]))
}

func (s *Server) listQueues(ctx context.Context, c *call, in *listQueuesRequest) (*listQueuesResult, error) {
	after, count, paged, err := page(in.NextToken, in.MaxResults)
	if err != nil {
		return nil, err
	}
	var found []string
	for more := true; more && len(found) <= count; {
		names, records, err := s.names(ctx, after, in.QueueNamePrefix, count+1, "queue")
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			if records[i].live() {
				found = append(found, name)
			}
			after = name
		}
		more = len(names) > count
	}
	more := len(found) > count
	found = found[:min(len(found), count)]
	return &listQueuesResult{QueueUrls: s.urls(c, found), NextToken: nextToken(found, more, paged)}, nil
}

func (s *Server) urls(c *call, names []string) []string {
	urls := make([]string, len(names))
	for i, name := range names {
		urls[i] = s.queueURL(c, name)
	}
	return urls
}

func (s *Server) listDeadLetterSourceQueues(
	ctx context.Context, c *call, in *listDeadLetterSourceQueuesRequest,
) (*listDeadLetterSourceQueuesResult, error) {
	after, count, paged, err := page(in.NextToken, in.MaxResults)
	if err != nil {
		return nil, err
	}
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	names, _, err := s.names(ctx, after, "", count+1, "source", q.Name())
	if err != nil {
		return nil, err
	}
	more := len(names) > count
	names = names[:min(len(names), count)]
	return &listDeadLetterSourceQueuesResult{QueueUrls: s.urls(c, names), NextToken: nextToken(names, more, paged)}, nil
}

func (s *Server) getQueueAttributes(
	ctx context.Context, c *call, in *getQueueAttributesRequest,
) (*getQueueAttributesResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	result := &getQueueAttributesResult{}
	if len(in.AttributeNames) == 0 {
		return result, nil
	}
	everything := slices.Contains(in.AttributeNames, "All")
	wanted := func(name string) bool { // All has AWS's
		return everything && name != visibilityOf || slices.Contains(in.AttributeNames, name)
	}
	for _, name := range in.AttributeNames {
		if name != "All" && !settable(name) && !slices.Contains(counted, name) {
			return nil, unknownAttribute(name)
		}
	}
	all := q.record.all()
	all["QueueArn"] = s.arn(q.Name())
	if slices.ContainsFunc(counted[:3], wanted) {
		if err := s.moveSources(ctx, q, time.Now().Add(sourcesTime)); err != nil {
			return nil, err
		}
		stats, err := s.stats(ctx, q)
		if err != nil {
			return nil, err
		}
		visible, delayed, flying := q.counts(stats)
		for i, n := range []int64{visible, delayed, flying} {
			all[counted[i]] = strconv.FormatInt(max(n, 0), 10)
		}
	}
	maps.DeleteFunc(all, func(name, _ string) bool { return !wanted(name) })
	result.Attributes = all
	return result, nil
}

// counts returns how many messages are visible, delayed and in flight. The layer counts a message whose timeout has
// expired as in flight, until the next receive. If each message has a timeout of its own, the layer also says how many
// have expired (Lapsed). In a standard queue each group has one message, so at most HeldGroups messages are in flight.
// In a queue with more than about 10,000 messages in flight or delayed, the layer does not say of all groups which is
// the case: then as many count as in flight as may be.
func (q *queue) counts(stats layer.Stats) (visible, delayed, flying int64) {
	delayed, flying = stats.Delayed, stats.InFlight
	switch {
	case q.perItem():
		flying -= stats.Lapsed
	case !q.fifo():
		unknown := max(0, stats.BusyGroups-stats.HeldGroups-stats.DelayedGroups)
		flying = min(flying, stats.HeldGroups+unknown)
		delayed += unknown - max(0, flying-stats.HeldGroups)
	case stats.HeldGroups == 0:
		flying = 0
	}
	return stats.Depth - flying - delayed, delayed, flying
}

func (s *Server) setQueueAttributes(ctx context.Context, c *call, in *setQueueAttributesRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	if len(in.Attributes) == 0 {
		return missing("Attribute.Name")
	}
	in.Attributes = plainTruths(in.Attributes)
	if err := checkAttributes(q.fifo(), in.Attributes); err != nil {
		return err
	}
	if err := checkNotEmpty(in.Attributes); err != nil {
		return err
	}
	wanted := q.record.clone()
	setAttributes(wanted.Attributes, in.Attributes)
	if in.Attributes[redrivePolicy] != "" {
		if err := s.checkDeadLetterQueue(ctx, q.Name(), wanted); err != nil {
			return err
		}
	}
	removes := q.record.deadLetterQueue() != "" && wanted.deadLetterQueue() == ""
	if removes { // no later request would move its dead letters
		if _, err := s.moveSource(ctx, q.Name(), time.Time{}); err != nil {
			return err
		}
	}
	err = s.change(ctx, q, func(r *record) error {
		before := r.clone()
		setAttributes(r.Attributes, in.Attributes)
		if err := before.keepsVisibility(*r); err != nil {
			return err
		}
		r.Behind = true
		return r.checkThroughput()
	})
	if err == nil && removes {
		if has, _ := q.hasDead(ctx); has {
			s.logStay(q, errNoPolicy)
		}
	}
	return err
}

// change changes the attributes in the record of a queue, as a client asks for it. All requests that follow use the new
// record.
func (s *Server) change(ctx context.Context, q *queue, change func(r *record) error) error {
	after, err := s.changeRecord(ctx, q.Name(), func(r *record) error {
		r.Modified = max(seconds(s.options.Now()), r.Created)
		if err := change(r); err != nil {
			return err
		}
		return r.checkSize()
	})
	if err != nil {
		return err
	}
	s.outdate(q.Name())
	s.outdate(after.deadLetterQueue())
	if !after.Behind {
		return nil
	}
	return s.conform(ctx, q.Queue, after)
}

// checkTags checks the tags of a queue by AWS's rules.
func checkTags(tags map[string]string) error {
	if len(tags) > 50 {
		return invalid("Too many tags added for queue. Maximum allowed is 50.")
	}
	for name, value := range tags {
		if name == "" || utf8.RuneCountInString(name) > 128 || utf8.RuneCountInString(value) > 256 ||
			strings.HasPrefix(name, "aws:") {
			return invalid("The tag %q is not valid.", name)
		}
	}
	return nil
}

func (s *Server) tagQueue(ctx context.Context, c *call, in *tagQueueRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	if len(in.Tags) == 0 {
		return missing("Tags")
	}
	_, err = s.changeRecord(ctx, q.Name(), func(r *record) error {
		maps.Copy(r.Tags, in.Tags)
		if err := checkTags(r.Tags); err != nil {
			return err
		}
		return r.checkSize()
	})
	return err
}

func (s *Server) untagQueue(ctx context.Context, c *call, in *untagQueueRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	if len(in.TagKeys) == 0 {
		return missing("TagKeys")
	}
	_, err = s.changeRecord(ctx, q.Name(), func(r *record) error {
		maps.DeleteFunc(r.Tags, func(name, _ string) bool { return slices.Contains(in.TagKeys, name) })
		return nil
	})
	return err
}

func (s *Server) listQueueTags(ctx context.Context, c *call, in *queueRequest) (*listQueueTagsResult, error) {
	name, err := c.queueName(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	r, _, err := s.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if !r.live() {
		return nil, noQueue()
	}
	return &listQueueTagsResult{Tags: r.Tags}, nil
}

// tidy clears leftovers. It closes unused handles, runs the move tasks that no server runs, ends the purges that have
// not ended, drops the queues that are deleted, and clears the records of names that are free again. It waits for no
// drop or purge, because there may be many.
func (s *Server) tidy(ctx context.Context) error {
	s.closeIdle()
	failed := s.resumeTasks(ctx)
	return errors.Join(failed, s.eachRecord(ctx, func(name string, r record) error {
		switch {
		case r.Deleted != 0:
			return s.tidyName(ctx, name, r)
		case r.Purging:
			return s.tidyPurge(ctx, name, r)
		}
		return nil
	}))
}

// eachRecord calls do for the record of each queue, also of deleted ones. An error of do stops no other call.
func (s *Server) eachRecord(ctx context.Context, do func(name string, r record) error) error {
	var failed []error
	for after := ""; ; {
		names, records, err := s.names(ctx, after, "", 1000, "queue")
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for i, name := range names {
			failed = append(failed, do(name, records[i]))
			after = name
		}
		if len(names) < 1000 {
			return errors.Join(failed...)
		}
	}
}

// sweepEvery is how often the servers sweep a queue. Nothing else clears the old ids of duplicates, and only a receive
// removes a message past its retention.
const sweepEvery = time.Hour

// sweep sweeps the queues that no server has swept for a while. It does not count as a use of them.
func (s *Server) sweep(ctx context.Context) error {
	return s.eachRecord(ctx, func(name string, r record) error {
		if !r.live() || ctx.Err() != nil {
			return nil
		}
		return s.sweepQueue(ctx, name, sweepEvery)
	})
}

// sweepQueue sweeps a queue if no server has begun to do so within every. It does not count as a use of the queue.
func (s *Server) sweepQueue(ctx context.Context, name string, every time.Duration) error {
	q, err := layer.Open(ctx, s.db, s.options.Prefix, name, s.queueOptions())
	if err != nil {
		return ignoreNoQueue(err)
	}
	_, err = q.Admin().Sweep(ctx, layer.SweepOptions{Every: every})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(ignoreNoQueue(err), q.Close(ctx))
}

const (
	// countAgain is how often a queue is swept for its counts, at most.
	countAgain = time.Minute
	// countWait is how long a request for the counts waits for the end of such a sweep.
	countWait = time.Second
)

// stats returns the figures of a queue. The layer counts a message past its retention until something removes it. If
// the oldest message is past its retention, stats has the queue swept before it counts again.
func (s *Server) stats(ctx context.Context, q *queue) (layer.Stats, error) {
	stats, err := q.Stats(ctx, layer.StatsOptions{})
	if keep := q.Config().Retention; err != nil || keep == 0 || stats.OldestReady <= keep {
		return stats, err
	}
	name, swept := q.Name(), make(chan struct{})
	s.alone("sweep "+name, func() {
		defer close(swept)
		_ = s.sweepQueue(s.stopped, name, countAgain) // the hourly sweep logs its errors
	})
	select {
	case <-swept:
	case <-time.After(countWait):
	case <-s.stopped.Done():
	case <-ctx.Done():
	}
	return q.Stats(ctx, layer.StatsOptions{})
}

// tidyName drops a deleted queue if the server that had to do so has not done it for a while. Later it clears the
// record of the name, and the move tasks of the queue.
func (s *Server) tidyName(ctx context.Context, name string, r record) error {
	age := s.since(r.Deleted)
	if !r.Cleared {
		if age >= tidyEvery {
			s.dropLater(name, r)
		}
		return nil
	}
	if age < nameFreeAfter {
		return nil
	}
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "delete"}, func(tx kv.Tx, _ kv.Attempt) error {
		now, err := s.readRecord(ctx, tx, name)
		if err == nil && now.ID == r.ID && !now.live() {
			tx.Clear(s.recordKey(name))
			tx.ClearRange(kv.PrefixRange(s.key("task", name)))
		}
		return err
	})
	return err
}
