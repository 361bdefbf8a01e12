package layer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// refusingDB begins no transaction while it refuses.
type refusingDB struct {
	kv.DB
	refusing atomic.Bool
	once     sync.Once
	refused  chan struct{} // closed when it has refused
}

func (d *refusingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if d.refusing.Load() {
		d.once.Do(func() { close(d.refused) })
		return nil, errors.New("refused")
	}
	return d.DB.Begin(o)
}

// A handle whose receives wait survives a database that begins no transactions, as one that is closed, and goes on
// when it does again.
func TestWaitSurvivesADatabaseThatBeginsNothing(t *testing.T) {
	t.Parallel()
	db := &refusingDB{DB: embedded.OpenMemory(embedded.Options{}), refused: make(chan struct{})}
	defer db.Close()
	q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{Poll: time.Millisecond})
	require.NoError(t, err)
	defer q.Close(t.Context())
	got := make(chan []*layer.Claim, 1)
	go func() {
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Wait: layer.MaxWait})
		if err != nil {
			t.Errorf("receive: %v", err)
		}
		got <- claims
	}()
	require.Eventually(t, func() bool { return q.Paths().Looks > 0 }, time.Minute, time.Millisecond)
	db.refusing.Store(true)
	<-db.refused
	db.refusing.Store(false)
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "g"})
	require.NoError(t, err)
	claims := <-got
	require.Len(t, claims, 1)
	require.NoError(t, q.Ack(t.Context(), claims[0]))
}
