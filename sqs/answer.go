package sqs

import (
	"bytes"
	"context"
	"iter"
	"net/http"
	"time"

	"fdbfifo/layer"
)

const (
	// answerMemory bounds the answers that are made and written together. Those to one remote address have half of it,
	// which is room to make the largest.
	answerMemory = 2 * making * receiveBytes // 64 MiB
	// making is the memory that an answer takes while it is made, for each byte of its bodies. The bytes are there
	// twice: as they were read, and as text.
	making = 2
	// leastAnswer bounds the bodies of a receive while there is little memory: the largest message.
	leastAnswer = 3 << 19 // bytes
	// waitBytes bounds the bodies that a waiting receive takes without memory. A larger first message comes alone.
	waitBytes = 64 << 10 // bytes
	// answerPart is how much of an answer the client must read within patience while others wait for memory.
	answerPart = 128 << 10 // bytes
)

// reserve takes memory for the answer of a request. It calls short, if that is not nil, before it waits for memory.
func (s *Server) reserve(ctx context.Context, c *call, size int64, short func()) (err error) {
	c.room, err = s.answers.take(ctx, &share{
		address: c.address, size: size, deadline: c.writable, whole: true, short: short,
	})
	return err
}

// receiveNow receives without a wait for messages. It takes memory before it reads them, and keeps as much as they
// need. short is as for reserve.
func (s *Server) receiveNow(
	ctx context.Context, c *call, q *queue, o layer.ReceiveOptions, short func(),
) ([]*layer.Claim, error) {
	o.Wait, o.MaxBytes = 0, min(o.Max*leastAnswer, receiveBytes)
	if s.answers.scarce() {
		o.MaxBytes = leastAnswer
	}
	if err := s.reserve(ctx, c, making*int64(o.MaxBytes), short); err != nil {
		return nil, err
	}
	claims, err := q.Receive(ctx, o)
	if len(claims) == 0 {
		c.room.release()
		c.room = nil
		return nil, err
	}
	c.room.resize(making * bodyBytes(claims))
	return claims, err
}

// receiveLater receives when a message comes. It has no memory while it waits, so it takes few bytes. If there is no
// memory for them then, it returns the messages to the queue. short is as for reserve.
func (s *Server) receiveLater(
	ctx context.Context, c *call, q *queue, o layer.ReceiveOptions, short func(),
) ([]*layer.Claim, error) {
	o.MaxBytes = waitBytes
	claims, err := q.Receive(ctx, o)
	if err != nil || len(claims) == 0 {
		return claims, err
	}
	if err = s.reserve(ctx, c, making*bodyBytes(claims), short); err == nil {
		return claims, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, claim := range claims {
		// No client has seen the messages, so this is no receive. After an error they come when the timeout ends.
		_ = q.Nack(ctx, claim, layer.NackOptions{Release: true})
	}
	return nil, err
}

// scarce reports whether a quarter of what one remote address may have is taken.
func (m *memory) scarce() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total > m.most/8
}

// bodyBytes returns the bytes of all messages.
func bodyBytes(claims []*layer.Claim) (n int64) {
	for _, claim := range claims {
		for _, item := range claim.Items {
			n += int64(len(item.Body))
		}
	}
	return n
}

// parts yields a receive's messages, each as an answer of its own, and any other answer as it is. After a message it
// forgets that message, so that a large answer and its text are not both there as a whole.
func parts(answer any) iter.Seq[any] {
	return func(yield func(any) bool) {
		r, ok := answer.(*receiveMessageResult)
		if !ok {
			yield(answer)
			return
		}
		for i := range r.Messages {
			if !yield(&receiveMessageResult{Messages: r.Messages[i : i+1]}) {
				return
			}
			r.Messages[i] = receivedMessage{}
		}
	}
}

// textBytes is about how long the text of an answer is. A buffer of this size is seldom copied to a larger one.
func textBytes(answer any) int {
	n := 1 << 10
	if r, ok := answer.(*receiveMessageResult); ok {
		for _, m := range r.Messages {
			n += len(m.Body) + len(m.Body)/8 + 1<<10
		}
	}
	return n
}

// inJSON returns the text of an answer.
func inJSON(answer any) []byte {
	if r, ok := answer.(*receiveMessageResult); !ok || len(r.Messages) < 2 {
		return marshal(answer)
	}
	b := make([]byte, 0, textBytes(answer))
	for part := range parts(answer) {
		text := marshal(part) // {"Messages":[…]}
		if len(b) > 0 {
			b = append(b[:len(b)-len("]}")], ',')
			text = text[bytes.IndexByte(text, '[')+1:]
		}
		b = append(b, text...)
	}
	return b
}

// writeDeadline returns a function that sets until when an answer can be written. Without a connection, as in a test,
// there is no deadline to set.
func writeDeadline(w http.ResponseWriter) func(t time.Time) {
	control := http.NewResponseController(w)
	return func(t time.Time) { _ = control.SetWriteDeadline(t) }
}

// reserveText takes memory for an answer that is ready to be written, or corrects the memory that the request has. If
// there is no memory, only a request that changes nothing fails. The client of another one would repeat it, and send
// messages twice. Its answer is the list of failures of a batch, and is written without memory.
func (s *Server) reserveText(ctx context.Context, c *call, body []byte) error {
	switch {
	case c.room != nil:
		c.room.resize(int64(cap(body)))
	case len(body) > freeBody:
		if err := s.reserve(ctx, c, int64(cap(body)), nil); changesNothing(c.action) {
			return err
		}
	}
	return nil
}

// write writes an answer. If the client reads it slowly while other answers wait for memory, the answer gives way.
func (c *call) write(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	for len(body) > 0 {
		part := body[:min(len(body), answerPart)]
		if c.room != nil && !c.room.writing() {
			c.writable(time.Unix(1, 0)) // ends the connection: the answer is not whole
			return
		}
		if _, err := w.Write(part); err != nil {
			return // the client has gone
		}
		body = body[len(part):]
	}
}
