package sqs

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// receiptHandle is the content of a receipt handle: the message, its claim, and the first end of the claim's lease.
type receiptHandle struct {
	queue           string
	id              layer.ID
	token           int64
	received, until time.Time // ms
}

// pack is the handle in bytes.
func (h receiptHandle) pack() []byte {
	b := append(binary.AppendUvarint(nil, uint64(len(h.queue))), h.queue...)
	b = append(b, h.id.Random[:]...)
	for _, n := range []int64{h.id.Index, h.token, h.received.UnixMilli(), h.until.UnixMilli()} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, h.id.Group...)
}

// unpackReceipt reads a handle of a queue that pack has made. ok is false if b is none.
func unpackReceipt(queue string, b []byte) (h receiptHandle, ok bool) {
	n, used := binary.Uvarint(b)
	b = b[max(used, 0):]
	if used <= 0 || n > uint64(len(b)) || string(b[:n]) != queue || len(b[n:]) < len(uuid.UUID{})+4*8 {
		return h, false
	}
	h.queue = queue
	b = b[n:]
	b = b[copy(h.id.Random[:], b):]
	var numbers [4]int64
	for i := range numbers {
		numbers[i], b = int64(binary.BigEndian.Uint64(b)), b[8:]
	}
	h.id.Index, h.token = numbers[0], numbers[1]
	h.received, h.until = time.UnixMilli(numbers[2]), time.UnixMilli(numbers[3])
	h.id.Group = string(b)
	_, err := layer.ParseID(h.id.String())
	return h, err == nil && h.id.Random != uuid.Nil
}

// receiptKey is the key that signs receipt handles. Without it a client cannot make the handle of a message that was
// not delivered to that client. The key is stored next to the records, so all servers of a database accept each other's
// handles. It changes only if it cannot be read: see Server.receiptKey.
type receiptKey struct {
	Key []byte `json:"key"`
	// Since is when the handles begin to be signed; 0 = at once. See plainFor.
	Since int64 `json:"since,omitempty"` // ms
}

// The first byte of a receipt handle says which kind it is.
const (
	plainReceipt  = 1
	signedReceipt = 2 // and then macSize bytes
)

const (
	receiptKeySize = 32 // bytes
	macSize        = 16 // bytes of HMAC-SHA256
	// plainFor is how long handles stay unsigned if the database had queues before it had a key. Servers of earlier
	// versions neither sign handles nor accept signed ones, and may run at the same time as this one for so long. The
	// server accepts plain handles for 12 more hours, the longest time that a message may be in flight.
	plainFor = 12 * time.Hour
)

// isAhead reports whether the clock was wrong of the server that has made the key.
func (k *receiptKey) isAhead(now time.Time) bool {
	return time.UnixMilli(k.Since).Sub(now) > plainFor+clockSlack
}

// receiptKey is the database's key of receipt handles. The first server makes one. If the stored key cannot be read,
// the server makes another one: the handles of before are refused, and their messages are delivered again after their
// timeouts. If the clock of the server that has made the key was wrong, handles are signed at once.
func (s *Server) receiptKey(ctx context.Context) (*receiptKey, error) {
	if k := s.signs.Load(); k != nil && !k.isAhead(s.options.Now()) {
		return k, nil
	}
	fresh := make([]byte, receiptKeySize)
	if _, err := rand.Read(fresh); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	var k receiptKey
	var broken bool
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "read the key of receipts"}, func(tx kv.Tx, _ kv.Attempt) error {
		at := s.key("receipts")
		value, err := tx.Get(at).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read the key of receipt handles: %w", err)
		}
		k = receiptKey{}
		broken = value != nil && (json.Unmarshal(value, &k) != nil || len(k.Key) != receiptKeySize)
		switch now := s.options.Now(); {
		case broken:
			k = receiptKey{Key: fresh}
		case value == nil:
			queues := kv.PrefixRange(s.key("queue")).Selectors()
			rows, err := tx.GetRange(queues, kv.RangeOptions{Limit: 1}).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read records: %w", err)
			}
			if k.Key = fresh; len(rows) > 0 {
				k.Since = now.Add(plainFor).UnixMilli()
			}
		case k.isAhead(now):
			k.Since = now.UnixMilli()
		default:
			return nil
		}
		tx.Set(at, marshal(k))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if broken {
		s.options.Logger.Warn("sqs: the key of receipt handles could not be read, and is replaced",
			"key", tuple.Printable(s.key("receipts")))
	}
	s.signs.Store(&k)
	return &k, nil
}

func (k *receiptKey) mac(packed []byte) []byte {
	h := hmac.New(sha256.New, k.Key)
	h.Write(packed) // never fails
	return h.Sum(nil)[:macSize]
}

// text is a receipt handle as a client gets it.
func (k *receiptKey) text(h receiptHandle, now time.Time) string {
	packed := h.pack()
	b := append([]byte{plainReceipt}, packed...)
	if now.UnixMilli() >= k.Since {
		b = slices.Concat([]byte{signedReceipt}, k.mac(packed), packed)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// read reads a receipt handle of a queue. It reports false if no server of the database has given it.
func (k *receiptKey) read(queue, text string, now time.Time) (receiptHandle, bool) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) == 0 {
		return receiptHandle{}, false
	}
	switch kind, packed := b[0], b[1:]; {
	case kind == plainReceipt && now.UnixMilli() < k.Since+maxVisible*1000:
		return unpackReceipt(queue, packed)
	case kind == signedReceipt && len(packed) >= macSize && hmac.Equal(packed[:macSize], k.mac(packed[macSize:])):
		return unpackReceipt(queue, packed[macSize:])
	}
	return receiptHandle{}, false
}

// receipt reads a receipt handle that a request has.
func (q *queue) receipt(ctx context.Context, text *string) (receiptHandle, error) {
	if text == nil {
		return receiptHandle{}, missing("ReceiptHandle")
	}
	k, err := q.server.receiptKey(ctx)
	if err != nil {
		return receiptHandle{}, err
	}
	h, ok := k.read(q.Name(), *text, q.server.options.Now())
	if !ok {
		return h, badHandle(*text)
	}
	return h, nil
}

// claim is the claim of one message, for the calls of the layer that settle it. The kind of the claim comes from the
// queue and not from the handle: a handle of an earlier queue of the name is for a message that is gone.
func (q *queue) claim(h receiptHandle) *layer.Claim {
	c := &layer.Claim{
		Queue: h.queue, Group: h.id.Group, Token: h.token, Items: []layer.Item{{ID: h.id}}, Until: h.until,
	}
	if q.perItem() {
		c.Hold = h.id
	}
	return c
}
