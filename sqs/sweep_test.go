package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// TestNothingStaysForEver: the ids of sends and receives do not stay in the database for longer than they are needed,
// and a message does not stay beyond its retention, also if no client uses the queue any more.
func TestNothingStaysForEver(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo", retentionPeriod, "60")
		for i := range 20 {
			e.send(url, "a", fmt.Sprint(i))
			e.delete(url, e.receive(url, "ReceiveRequestAttemptId", fmt.Sprint("r", i))...)
		}
		e.send(url, "b", "b1")
		time.Sleep(3 * time.Hour)
		rows, err := e.s.rows(e.Context(), "test", kv.PrefixRange(tuple.Tuple{"orders.fifo"}.Pack()), 1000)
		require.NoError(e, err)
		for _, row := range rows {
			key, err := tuple.Unpack(row.Key)
			require.NoError(e, err)
			require.NotContains(e, []any{"dedup", "repeat", "item"}, key[1])
		}
		require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessages"])
	})
}

// TestExpiredIsNotCounted: the counts of a queue leave out messages past their retention, also those that a client has
// received and not deleted, though no receive and no hourly sweep has removed them yet.
func TestExpiredIsNotCounted(t *testing.T) {
	for _, suffix := range []string{"", fifoSuffix} {
		inBothKinds(t, func(e *env) {
			url := e.create("jobs"+suffix, retentionPeriod, "60", visibilityTimeout, "10")
			group := func(name string) string {
				if suffix == "" {
					return ""
				}
				return name
			}
			time.Sleep(time.Second)
			e.send(url, group("a"), "a1", "a2", "a3")
			e.send(url, group("b"), "b1")
			require.Len(e, e.receive(url, "MaxNumberOfMessages", 2), 2)
			time.Sleep(50 * time.Second)
			require.Equal(e, "4 visible, 0 in flight", e.numbers(url))
			time.Sleep(20 * time.Second)
			require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
			e.send(url, group("a"), "a4")
			require.Equal(e, "1 visible, 0 in flight", e.numbers(url))
			e.receive(url)
			time.Sleep(3 * time.Minute)
			require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
		})
	}
}
