package sqs

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// receipt reads a receipt handle of a queue, which must be one, and returns its bytes, too.
func (e *env) receipt(queue, text string) (receiptHandle, []byte) {
	e.Helper()
	k, err := e.s.receiptKey(e.Context())
	require.NoError(e, err)
	h, ok := k.read(queue, text, time.Now())
	require.True(e, ok, text)
	b, err := base64.StdEncoding.DecodeString(text)
	require.NoError(e, err)
	return h, b
}

// notReceipt holds the server to refusing b as a receipt handle, whatever is asked with it.
func (e *env) notReceipt(queue string, b []byte, why string) {
	e.Helper()
	text := base64.StdEncoding.EncodeToString(b)
	code, _ := e.refused("DeleteMessage", object{"QueueUrl": queue, "ReceiptHandle": text})
	require.Equal(e, "ReceiptHandleIsInvalid", code, why)
	code, _ = e.refused("ChangeMessageVisibility",
		object{"QueueUrl": queue, "ReceiptHandle": text, "VisibilityTimeout": 0})
	require.Equal(e, "ReceiptHandleIsInvalid", code, why)
	entries := []object{{"Id": "1", "ReceiptHandle": text, "VisibilityTimeout": 0}}
	for _, action := range []string{"DeleteMessageBatch", "ChangeMessageVisibilityBatch"} {
		answer := e.call(action, object{"QueueUrl": queue, "Entries": entries})
		require.Equal(e, "ReceiptHandleIsInvalid", answer["Failed"].([]any)[0].(object)["Code"], why)
	}
}

// TestReceipts: a server reads its own receipt handles and refuses all others. It refuses a part of a handle, a handle
// of another queue or database, a handle with a changed byte, and a handle that was made without the key.
func TestReceipts(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url, other := e.create("orders.fifo"), e.create("others.fifo")
		e.send(url, strings.Repeat("~", 128), "b")
		text := e.receive(url)[0].ReceiptHandle
		require.Less(e, len(text), 1024)
		h, b := e.receipt("orders.fifo", text)
		k, err := e.s.receiptKey(e.Context())
		require.NoError(e, err)
		require.Equal(e, text, k.text(h, time.Now()))
		e.notReceipt(other, b, "of another queue")
		e.notReceipt(url, append(b[:len(b):len(b)], 'x'), "longer")
		for i := range b {
			_, ok := k.read("orders.fifo", base64.StdEncoding.EncodeToString(b[:i]), time.Now())
			require.False(e, ok, "cut at %d", i)
			changed := append([]byte(nil), b...)
			changed[i] ^= 1
			_, ok = k.read("orders.fifo", base64.StdEncoding.EncodeToString(changed), time.Now())
			require.False(e, ok, "changed at %d", i)
		}
		b[len(b)-1]++
		e.notReceipt(url, b, "changed")
		e.notReceipt(url, append([]byte{plainReceipt}, h.pack()...), "not signed")
		another := &receiptKey{Key: make([]byte, receiptKeySize)}
		foreign, err := base64.StdEncoding.DecodeString(another.text(h, time.Now()))
		require.NoError(e, err)
		e.notReceipt(url, foreign, "of another database")
		nobody := h
		nobody.id.Random = uuid.Nil
		signed, err := base64.StdEncoding.DecodeString(k.text(nobody, time.Now()))
		require.NoError(e, err)
		e.notReceipt(url, signed, "of no message")
		require.Equal(e, "0 visible, 1 in flight", e.numbers(url))
		e.delete(url, message{ReceiptHandle: text})
	})
}

// TestReceiptsOfEarlierVersions: in a database in which servers of an earlier version have queues, receipt handles are
// theirs for twelve hours, so that these servers take them, too. Then handles are signed, and the earlier ones are
// taken for as long as a message can be in flight.
func TestReceiptsOfEarlierVersions(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo", retentionPeriod, "1209600")
		_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Clear(e.s.key("receipts"))
			return nil
		})
		require.NoError(e, err)
		require.NoError(e, e.s.Close(e.Context()))
		e.s = NewServer(e.db, Options{})
		other := &env{T: e.T, db: e.db, s: NewServer(e.db, Options{})}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		for _, group := range []string{"a", "b", "c", "d"} {
			e.send(url, group, group)
		}
		begun := time.Now()
		got := e.receive(url, "VisibilityTimeout", 43_200)
		require.Equal(e, "a b c d", bodies(got))
		earlier := make([][]byte, len(got))
		for i, m := range got {
			h, b := e.receipt("orders.fifo", m.ReceiptHandle)
			require.Equal(e, append([]byte{plainReceipt}, h.pack()...), b, "as earlier versions have them")
			earlier[i] = b
		}
		other.delete(url, got[0])
		time.Sleep(plainFor - time.Minute)
		other.delete(url, got[1])
		require.Empty(e, e.receive(url))

		time.Sleep(2 * time.Minute) // handles are signed, and the timeouts have ended
		got = other.receive(url, "VisibilityTimeout", 43_200)
		require.Equal(e, "c d", bodies(got))
		_, b := e.receipt("orders.fifo", got[0].ReceiptHandle)
		require.EqualValues(e, signedReceipt, b[0])
		_, text := e.refused("DeleteMessage", object{
			"QueueUrl": url, "ReceiptHandle": base64.StdEncoding.EncodeToString(earlier[2]),
		})
		require.Contains(e, text, "The receipt handle has expired.", "it is one, and too late")
		e.delete(url, got[0])
		time.Sleep(plainFor + time.Second + time.Until(begun.Add(plainFor)))
		e.notReceipt(url, earlier[3], "of an earlier version")
		other.delete(url, got[1])
	})
}
