package sqs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func (s *Server) deleteMessage(ctx context.Context, c *call, in *deleteMessageRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	h, err := q.receipt(ctx, in.ReceiptHandle)
	if err != nil {
		return err
	}
	return s.delete(ctx, q, h, *in.ReceiptHandle)
}

// delete deletes one message. It is no error if the message is already deleted.
func (s *Server) delete(ctx context.Context, q *queue, h receiptHandle, handle string) error {
	if q.fifo() && s.options.Now().After(h.until) {
		over, err := s.over(ctx, q, h)
		if err != nil {
			return err
		}
		if over {
			return expired(handle)
		}
	}
	err := q.AckItems(ctx, q.claim(h), []layer.ID{h.id})
	if !errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, layer.ErrNotInClaim) {
		return err
	}
	if !q.fifo() {
		return s.deleteAnyway(ctx, q, h)
	}
	place, err := s.place(ctx, q, h)
	if err != nil || place == layer.CauseGone {
		return err
	}
	return expired(handle) // also of a dead letter, which is about to come again
}

// deleteAnyway deletes a message of a standard queue. Since the receive that h is of, the message may have become
// visible, another client may have received it, or it may be a dead letter that waits for its move.
func (s *Server) deleteAnyway(ctx context.Context, q *queue, h receiptHandle) error {
	err := q.Once(ctx, func(tx kv.Tx) error {
		err := q.Admin().CancelTx(ctx, tx, h.id)
		if errors.Is(err, layer.ErrNoItem) {
			return q.Admin().DiscardTx(ctx, tx, h.id)
		}
		if !errors.Is(err, layer.ErrInFlight) {
			return err
		}
		if _, err := q.Admin().ForceReleaseTx(ctx, tx, h.id.Group, layer.ForceReleaseOptions{}); err != nil {
			return err
		}
		return q.Admin().CancelTx(ctx, tx, h.id)
	})
	if errors.Is(err, layer.ErrNotDead) {
		return nil // it is gone
	}
	return err
}

// over reports whether the lease of a receipt's claim has expired, also if no other claim has taken over. It looks at
// the stored claim, because a client may have extended the lease since it got the receipt. The clock of this server may
// be ahead, so the lease must have expired by the database's versions, too.
func (s *Server) over(ctx context.Context, q *queue, h receiptHandle) (bool, error) {
	why, err := q.Admin().Why(ctx, h.id, nil)
	if err != nil {
		return false, err
	}
	over := true
	for _, r := range why.Reasons {
		if r.Cause == layer.CauseGone || r.Cause == layer.CauseDead {
			return false, nil
		}
		if r.Cause == layer.CauseInFlight || r.Cause == layer.CauseGroupHeld {
			return r.Token != h.token, nil
		}
		if r.Cause == layer.CauseLeaseExpired { // if there are several, then the last is of the message's own claim
			over = r.Token != h.token || r.Age >= r.Lease
		}
	}
	return over, nil
}

// place says where a message is: CauseGone = it is not in the queue any more, CauseDead = it is a dead letter that
// waits for its move, any other cause = it is in the queue.
func (s *Server) place(ctx context.Context, q *queue, h receiptHandle) (layer.Cause, error) {
	why, err := q.Admin().Why(ctx, h.id, nil)
	if err != nil {
		return layer.CauseGone, err
	}
	return why.Reasons[len(why.Reasons)-1].Cause, nil
}

func (s *Server) deleteMessageBatch(
	ctx context.Context, c *call, in *deleteMessageBatchRequest,
) (*batchResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	ids := make([]string, len(in.Entries))
	handles := make([]*string, len(in.Entries))
	for i, e := range in.Entries {
		ids[i], handles[i] = e.Id, e.ReceiptHandle
	}
	if err := checkBatch("DeleteMessageBatchRequestEntry", ids); err != nil {
		return nil, err
	}
	errs := make([]error, len(ids))
	var claims claims
	for i := range ids {
		h, err := q.receipt(ctx, handles[i])
		if err != nil {
			errs[i] = err
			continue
		}
		key := claimKey{group: h.id.Group, token: h.token}
		if q.perItem() {
			key = claimKey{} // all in one transaction
		}
		claims.add(key, i, h)
	}
	claims.each(func(entries []int, receipts []receiptHandle) {
		if len(entries) > 1 && s.deleteTogether(ctx, q, receipts) == nil {
			return
		}
		for i, entry := range entries {
			errs[entry] = s.delete(ctx, q, receipts[i], *handles[entry])
		}
	})
	return results(ids, errs), nil
}

// errOneByOne: some of the messages may no longer be in flight, so the caller must delete them one by one.
var errOneByOne = errors.New("sqs: to be deleted one by one")

// deleteTogether deletes messages of one claim, or any messages that have claims of their own, in one transaction.
// After an error some of these may be deleted.
func (s *Server) deleteTogether(ctx context.Context, q *queue, receipts []receiptHandle) error {
	ids, claims := make([]layer.ID, len(receipts)), make([]*layer.Claim, len(receipts))
	for i, h := range receipts {
		if !s.options.Now().Before(h.until) {
			return errOneByOne
		}
		ids[i], claims[i] = h.id, q.claim(h)
	}
	if q.perItem() {
		all := make([]layer.Settlement, len(claims))
		for i, c := range claims {
			all[i] = layer.Settlement{Claim: c, Finish: ids[i : i+1]}
		}
		return q.Settle(ctx, all...)
	}
	return q.AckItems(ctx, claims[0], ids)
}

// claims are the entries of a batch by the claims that they are of.
type claims struct {
	keys     []claimKey
	entries  map[claimKey][]int
	receipts map[claimKey][]receiptHandle
}

// claimKey is a claim: of a group, or of one message.
type claimKey struct {
	group string
	token int64
	hold  layer.ID
}

func (c *claims) add(key claimKey, entry int, h receiptHandle) {
	if c.entries == nil {
		c.entries, c.receipts = make(map[claimKey][]int), make(map[claimKey][]receiptHandle)
	}
	if c.entries[key] == nil {
		c.keys = append(c.keys, key)
	}
	c.entries[key], c.receipts[key] = append(c.entries[key], entry), append(c.receipts[key], h)
}

// each calls do for all claims at the same time, so that their calls of the layer share transactions.
func (c *claims) each(do func(entries []int, receipts []receiptHandle)) {
	if len(c.keys) == 1 {
		do(c.entries[c.keys[0]], c.receipts[c.keys[0]])
		return
	}
	var group sync.WaitGroup
	for _, key := range c.keys {
		group.Go(func() { do(c.entries[key], c.receipts[key]) })
	}
	group.Wait()
}

// results returns the answer to a batch. errs has the error of each entry; nil = done.
func results(ids []string, errs []error) *batchResult {
	r := &batchResult{Successful: []batchResultEntry{}}
	for i, id := range ids {
		if errs[i] != nil {
			r.Failed = append(r.Failed, failed(id, errs[i]))
		} else {
			r.Successful = append(r.Successful, batchResultEntry{Id: id})
		}
	}
	return r
}

func (s *Server) changeMessageVisibility(ctx context.Context, c *call, in *changeMessageVisibilityRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	h, err := q.receipt(ctx, in.ReceiptHandle)
	if err != nil {
		return err
	}
	if err := s.checkTimeout(ctx, q, h, in.VisibilityTimeout); err != nil {
		return err
	}
	return s.setVisibility(ctx, q, h, *in.ReceiptHandle, *in.VisibilityTimeout)
}

// checkTimeout checks a new visibility timeout. It must end within twelve hours after the receive, by the clock of this
// server or by the database's versions: the clock may be ahead.
func (s *Server) checkTimeout(ctx context.Context, q *queue, h receiptHandle, timeout *int64) error {
	if timeout == nil {
		return missing(visibilityTimeout)
	}
	if err := checkVisibility(timeout); err != nil {
		return err
	}
	lasts, most := time.Duration(*timeout)*time.Second, (maxVisible+1)*time.Second
	if s.options.Now().Add(lasts).Sub(h.received) <= most {
		return nil
	}
	why, err := q.Admin().Why(ctx, h.id, nil)
	if err != nil {
		return err
	}
	for _, r := range why.Reasons {
		if r.Token == h.token && r.Lease > 0 && r.Age+lasts <= most {
			return nil
		}
	}
	return invalidValue(*timeout, visibilityTimeout,
		"Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")
}

// setVisibility returns a message to the queue, or moves the end of its claim. In a FIFO queue whose claims are of
// groups, it also returns the messages behind it in the group.
func (s *Server) setVisibility(ctx context.Context, q *queue, h receiptHandle, handle string, timeout int64) error {
	again := false
	lost := func(err error) error {
		if !errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, layer.ErrNotInClaim) {
			return err
		}
		place, err := s.place(ctx, q, h)
		if err != nil {
			return err
		}
		if again = !q.fifo() && place != layer.CauseGone && place != layer.CauseDead; again {
			return nil
		}
		return invalidValue(handle, "ReceiptHandle",
			"Message does not exist or is not available for visibility timeout change.")
	}
	if q.fifo() && s.options.Now().After(h.until) {
		over, err := s.over(ctx, q, h)
		if err == nil && over {
			err = lost(layer.ErrClaimLost)
		}
		if err != nil {
			return err
		}
	}
	err := lost(s.giveBack(ctx, q, h, timeout))
	if !again {
		return err
	}
	// In a standard queue any receipt handle of the message is valid. If the message is visible there is nothing to do.
	token, err := s.holder(ctx, q, h)
	if err != nil || token == 0 || token == h.token {
		return err
	}
	h.token = token
	return lost(s.giveBack(ctx, q, h, timeout))
}

// holder returns the token under which a message is in flight; 0 = it is not in flight.
func (s *Server) holder(ctx context.Context, q *queue, h receiptHandle) (int64, error) {
	why, err := q.Admin().Why(ctx, h.id, nil)
	if err != nil {
		return 0, err
	}
	for _, r := range why.Reasons {
		if r.Cause == layer.CauseInFlight {
			return r.Token, nil
		}
	}
	return 0, nil
}

// giveBack returns a message to the queue at once (timeout 0), or makes its claim last for timeout seconds from now on.
func (s *Server) giveBack(ctx context.Context, q *queue, h receiptHandle, timeout int64) error {
	if timeout > 0 {
		_, err := q.Extend(ctx, q.claim(h), time.Duration(timeout)*time.Second)
		return err
	}
	if q.perItem() {
		return q.Nack(ctx, q.claim(h), layer.NackOptions{AtOnce: true})
	}
	// If the message is the first of its group, the client has tried it, and the receive counts. A message behind
	// another was not tried.
	first, err := q.Peek(ctx, h.id.Group, 1, nil)
	if err != nil {
		return err
	}
	if len(first) > 0 && first[0].ID == h.id {
		return q.Nack(ctx, q.claim(h), layer.NackOptions{AtOnce: true})
	}
	return q.Nack(ctx, q.claim(h), layer.NackOptions{Release: true, From: &h.id})
}

func (s *Server) changeMessageVisibilityBatch(
	ctx context.Context, c *call, in *changeMessageVisibilityBatchRequest,
) (*batchResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	ids := make([]string, len(in.Entries))
	for i, e := range in.Entries {
		ids[i] = e.Id
	}
	if err := checkBatch("ChangeMessageVisibilityBatchRequestEntry", ids); err != nil {
		return nil, err
	}
	errs := make([]error, len(ids))
	var claims claims
	for i, e := range in.Entries {
		h, err := q.receipt(ctx, e.ReceiptHandle)
		if err == nil {
			err = s.checkTimeout(ctx, q, h, e.VisibilityTimeout)
		}
		if err != nil {
			errs[i] = err
			continue
		}
		key := claimKey{group: h.id.Group, token: h.token}
		if q.perItem() {
			key.hold = h.id
		}
		claims.add(key, i, h)
	}
	claims.each(func(entries []int, receipts []receiptHandle) {
		// A claim has one end, so it gets the latest of the requested ends. Messages to return come last, beginning
		// with the last one of the group: the return of a message also returns those behind it.
		timeout := func(i int) int64 { return *in.Entries[entries[i]].VisibilityTimeout }
		latest, order := int64(0), make([]int, len(entries))
		for i := range entries {
			latest, order[i] = max(latest, timeout(i)), i
		}
		slices.SortFunc(order, func(a, b int) int {
			x, y := receipts[a].id, receipts[b].id
			return cmp.Or(cmp.Compare(min(timeout(b), 1), min(timeout(a), 1)), cmp.Compare(y.Index, x.Index),
				bytes.Compare(y.Random[:], x.Random[:]))
		})
		for _, i := range order {
			entry, until := entries[i], timeout(i)
			if until > 0 {
				until = latest
			}
			errs[entry] = s.setVisibility(ctx, q, receipts[i], *in.Entries[entry].ReceiptHandle, until)
		}
	})
	return results(ids, errs), nil
}
