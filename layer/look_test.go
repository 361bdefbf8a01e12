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
	"fdbfifo/kv/fault"
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
func TestLookThatCannotBegin(t *testing.T) {
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
	require.Eventually(t, func() bool { return q.Paths().Looks > 0 }, 10*time.Second, time.Millisecond)
	db.refusing.Store(true)
	<-db.refused
	db.refusing.Store(false)
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "g"})
	require.NoError(t, err)
	claims := <-got
	require.Len(t, claims, 1)
	require.NoError(t, q.Ack(t.Context(), claims[0]))
}

// TestAllThatWasPassedOverIsLookedAt: a receive leaves to another of the same handle what that one is about to take, and
// looks at it after all if there is nothing else; at all of it, not only at the first. If a group is ready, it gets one.
func TestAllThatWasPassedOverIsLookedAt(t *testing.T) {
	plan := &fault.Plan{}
	raw := embedded.OpenMemory(embedded.Options{})
	defer raw.Close()
	q, err := layer.Create(t.Context(), fault.Wrap(raw, plan), testPrefix, testQueue, layer.Options{NoCoalescing: true})
	require.NoError(t, err)
	defer q.Close(t.Context())
	other, err := layer.Open(t.Context(), raw, testPrefix, testQueue, layer.Options{})
	require.NoError(t, err)
	defer other.Close(t.Context())
	// inside runs in the middle of the next commit of q, which it may make fail.
	inside := func(fail fault.Kind, fn func()) {
		var begun atomic.Bool
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			if begun.Swap(true) {
				return fault.Chance
			}
			fn()
			return fail
		}
	}

	// Both find A empty and write a hint, for different messages. The claim clears one of them: the other one is stale.
	inside(fault.Chance, func() {
		_, err := other.Pause(t.Context(), layer.PauseOptions{}) // versions go on
		require.NoError(t, err)
		_, err = other.Resume(t.Context())
		require.NoError(t, err)
		_, err = other.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)
	})
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
	require.NoError(t, err)
	a := "A"
	held, err := other.Receive(t.Context(), layer.ReceiveOptions{Group: &a, Max: 1})
	require.NoError(t, err)
	require.Len(t, held, 1)
	_, err = other.Enqueue(t.Context(), layer.Message{Group: "B"})
	require.NoError(t, err)

	var claims []*layer.Claim
	one := layer.ReceiveOptions{MaxGroups: 1}
	inside(fault.TimedOutLost, func() {
		claims, err = q.Receive(t.Context(), one)
	})
	_, lost := q.Receive(t.Context(), one)
	require.Error(t, lost)
	require.NoError(t, err)
	require.Len(t, claims, 1, "B is ready, and nobody holds it")
	require.Equal(t, "B", claims[0].Group)
}
