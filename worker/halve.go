package worker

import "fdbfifo/layer"

// A call of HandleBatch that fails may name no message: it panics, it returns an error that is no BatchError, or its
// time is over. Then it is unknown which of several messages has failed. So the hand calls the handler again, at once
// and under the same claim, with the first half of the messages. The worker acks the messages of a call that succeeds.
// A call with a single message that fails names the message.

// halves reports whether a call that has ended with err is followed by one with half as many messages. The failure is
// reported, and counts nothing.
func (w *Worker) halves(c *call, err error) bool {
	in := c.in
	if !in.source.handler.batch || len(c.ds) < 2 || c.names(err) || c.cutOff(err) || w.ctx.Err() != nil {
		return false
	}
	if retry, ok := as[RetryError](err); ok && retry.Uncounted {
		return false
	}
	in.most, c.halved = len(c.ds)/2, true
	in.hand.aside(in, func() { w.failure(c, c.ds[0], err, layer.Settled{Follows: layer.FollowsRelease}) })
	return true
}

// names reports whether the error of a call says which of its messages has failed.
func (c *call) names(err error) bool {
	partly, ok := as[BatchError](err)
	return ok && partly.Done >= 0
}

// batch returns the messages of the next call of a HandleBatch.
func (h *inHand) batch() []layer.Item {
	items := h.unhandled()
	if h.most > 0 && len(items) > h.most {
		items = items[:h.most]
	}
	return items
}

// leaveHalved leaves a claim to its lease after a late failure that names none of several messages. After that each of
// them is delivered alone. The messages that were handled before are acked.
func (w *Worker) leaveHalved(c *call) {
	w.beginAck(c.in.hand.ctx, c.in)
	w.awaitAck(c.in.hand.ctx, c.in)
}
