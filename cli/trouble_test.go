package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// behind is an engine whose transactions all fail with an error that is tried again (code), or never answer (0).
type behind struct {
	kv.DB
	code int
}

func (b behind) Close() error { return nil }

func (b behind) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := b.DB.Begin(o)
	return &behindTx{tx, b.code}, err
}

type behindTx struct {
	kv.ManagedTx
	code int
}

func (t *behindTx) Get([]byte) kv.Future[[]byte]            { return late[[]byte]{t.code} }
func (t *behindTx) GetKey(kv.KeySelector) kv.Future[[]byte] { return late[[]byte]{t.code} }
func (t *behindTx) GetRange(kv.Range, kv.RangeOptions) kv.Future[[]kv.KV] {
	return late[[]kv.KV]{t.code}
}
func (t *behindTx) Commit() kv.Future[struct{}] { return late[struct{}]{t.code} }
func (t *behindTx) Snapshot() kv.ReadTx         { return behindSnapshot{t.ManagedTx.Snapshot(), t} }

type behindSnapshot struct {
	kv.ReadTx
	tx *behindTx
}

func (s behindSnapshot) Get(k []byte) kv.Future[[]byte]            { return s.tx.Get(k) }
func (s behindSnapshot) GetKey(k kv.KeySelector) kv.Future[[]byte] { return s.tx.GetKey(k) }
func (s behindSnapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return s.tx.GetRange(r, o)
}

type late[T any] struct{ code int }

func (l late[T]) Wait(ctx context.Context) (none T, err error) {
	if l.code == 0 {
		<-ctx.Done()
		return none, context.Cause(ctx)
	}
	return none, &kv.Error{Code: l.code}
}
func (l late[T]) Ready() bool { return l.code != 0 }
func (l late[T]) Cancel()     {}

// TestCommandsSayTrouble: each command says on stderr that the database keeps it waiting: with which code, what to do,
// at most once in ten seconds. It ends within a second after Ctrl-C.
func TestCommandsSayTrouble(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"enqueue --body x", "receive", "receive --wait 1m", "groups", "stats", "queues", "drop default --yes",
		"blocked", "purge --all --yes",
		"work --exec true", "sweep", "check", "dead list", "pause --by me", "why --group g",
	} {
		for _, code := range []int{0, kv.CodeProcessBehind} {
			t.Run(line, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					db := embedded.OpenMemory(embedded.Options{})
					q, err := layer.Create(t.Context(), db, prefix(), "default", layer.Options{})
					require.NoError(t, err)
					require.NoError(t, q.Close(t.Context()))
					open := func(context.Context, EngineOptions) (kv.DB, error) { return behind{db, code}, nil }
					app := &App{Engines: map[string]OpenFunc{"disk": open}}
					ctx, interrupt := context.WithCancelCause(context.Background())
					stdout, stderr := newScreen("\x00"), newScreen("\x00")
					ended := make(chan error, 1)
					go func() { ended <- app.Run(ctx, strings.Fields(line), strings.NewReader(""), stdout, stderr) }()
					time.Sleep(35 * time.Second)
					interrupt(errors.New("ctrl-c"))
					begun := time.Now()
					require.Error(t, <-ended)
					require.LessOrEqual(t, time.Since(begun), 1100*time.Millisecond)
					said := strings.Count(stderr.String(), "for the database")
					require.Contains(t, []int{3, 4}, said, stderr.String())
					if code != 0 {
						require.Contains(t, stderr.String(), "process_behind (1037)")
					}
					time.Sleep(time.Minute)
					require.NoError(t, db.Close())
				})
			})
		}
	}
}
