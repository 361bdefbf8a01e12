package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestTroubleIsSaid (contract): a handle says that the database keeps it waiting, with the call, the code, and since
// when. It says so after a second of errors or five without an answer, again once in ten seconds, and once more when
// the database answers. A conflict is an answer.
func TestTroubleIsSaid(t *testing.T) {
	t.Parallel()
	calls := map[string]func(ctx context.Context, q *layer.Queue) error{
		"enqueue": func(ctx context.Context, q *layer.Queue) error {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			return err
		},
		"receive": func(ctx context.Context, q *layer.Queue) error {
			_, err := q.Receive(ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
			return err
		},
		"read": func(ctx context.Context, q *layer.Queue) error {
			_, err := q.Stats(ctx, layer.StatsOptions{})
			return err
		},
		"heartbeat": func(ctx context.Context, q *layer.Queue) error {
			_, err := q.Receive(ctx, layer.ReceiveOptions{Heartbeat: true})
			return err
		},
	}
	for _, code := range codes[:len(codes)-3] { // those that are tried again, with an exception
		if code == kv.CodeClusterVersionChanged {
			continue
		}
		for name, call := range calls {
			t.Run(fmt.Sprintf("code %d, %s", code, name), func(t *testing.T) {
				t.Parallel()
				inBubble(t, layer.Config{}, func(b *bubble) {
					var mu sync.Mutex
					var said []kv.Trouble
					var log bytes.Buffer
					q, db := b.cutOffQueue(layer.Options{Hooks: []layer.Hook{
						{Trouble: func(queue string, t kv.Trouble) {
							require.Equal(b.t, testQueue, queue)
							mu.Lock()
							defer mu.Unlock()
							said = append(said, t)
						}},
						layer.LogHook(slog.New(slog.NewTextHandler(&log, nil))),
					}})
					require.Zero(b.t, q.Paths().Waiting)
					db.cut(code)
					begun := time.Now()
					ctx, stop := context.WithCancel(b.t.Context())
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						_ = call(ctx, q)
					}()
					time.Sleep(65*time.Second + 500*time.Millisecond) // between two reports
					mu.Lock()
					n, first := len(said), kv.Trouble{}
					if n > 0 {
						first = said[0]
					}
					mu.Unlock()
					waiting := q.Paths().Waiting
					db.heal()
					stop()
					<-ended
					time.Sleep(time.Minute)
					synctest.Wait()
					if code == kv.CodeNotCommitted {
						require.Zero(b.t, n)
						b.close(q, db)
						return
					}
					require.Contains(b.t, []int{6, 7}, n, "%v", said)
					require.Equal(b.t, name, first.Call)
					require.WithinDuration(b.t, begun, first.Since, time.Second)
					require.Equal(b.t, code, kv.Code(first.Err))
					require.GreaterOrEqual(b.t, waiting, time.Minute)
					require.Zero(b.t, q.Paths().Waiting)
					require.Len(b.t, said, n+1)
					require.True(b.t, said[n].Over)
					lines := strings.Split(log.String(), "\n")
					require.Contains(b.t, lines[0], "level=WARN")
					require.Contains(b.t, lines[0], `msg="queue: the database keeps a transaction waiting"`)
					require.Contains(b.t, lines[0], "call="+name)
					if code != 0 {
						require.Contains(b.t, lines[0], fmt.Sprint("(", code, ")"))
					}
					require.Contains(b.t, log.String(), "queue: the database answers again")
					b.close(q, db)
				})
			})
		}
	}
}

// TestTroubleDelaysNothing: a transaction does not wait for a hook that hangs, and a hook or an observer that panics or
// ends its goroutine ends nothing. The other observers are told.
func TestTroubleDelaysNothing(t *testing.T) {
	t.Parallel()
	t.Run("panic", func(t *testing.T) { failsInTrouble(t, func() { panic("observer") }) })
	t.Run("Goexit", func(t *testing.T) { failsInTrouble(t, runtime.Goexit) })
}

func failsInTrouble(t *testing.T, fail func()) {
	t.Helper()
	inBubble(t, layer.Config{}, func(b *bubble) {
		ctx := kv.WithTrouble(b.t.Context(), func(kv.Trouble) { fail() })
		gate, told := make(chan struct{}), make(chan kv.Trouble, 100)
		q, db := b.cutOffQueue(layer.Options{
			Tx: kv.TxOptions{OnTrouble: func(kv.Trouble) { fail() }},
			Hooks: []layer.Hook{
				{Trouble: func(string, kv.Trouble) { fail() }},
				{Trouble: func(_ string, t kv.Trouble) { told <- t }},
				{Trouble: func(string, kv.Trouble) { <-gate }},
			},
		})
		for range 2 {
			db.cut(kv.CodeProcessBehind)
			time.AfterFunc(30*time.Second, db.heal)
			begun := time.Now()
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(b.t, err)
			require.Less(b.t, time.Since(begun), 32*time.Second)
			require.False(b.t, (<-told).Over)
		}
		close(gate)
		b.close(q, db)
		require.True(b.t, (<-told).Over)
		require.Zero(b.t, q.Paths().Waiting)
	})
}

// TestHandlersAreNoTrouble: a transaction of the caller's may take long, because the caller does. That is no trouble of
// the database, and neither is the time before an attempt that fails.
func TestHandlersAreNoTrouble(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		var said atomic.Int64
		q, db := b.cutOffQueue(layer.Options{Hooks: []layer.Hook{{
			Trouble: func(string, kv.Trouble) { said.Add(1) },
		}}})
		ctx, cancel := context.WithCancel(b.t.Context())
		_ = q.Once(ctx, func(tx kv.Tx) error {
			time.Sleep(time.Minute)
			return nil
		})
		cancel()
		require.Zero(b.t, said.Load())
		b.close(q, db)
	})
}
