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
