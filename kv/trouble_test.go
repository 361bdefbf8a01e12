package kv_test

import (
	"context"
	"log"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// badHandler is a handler of a log that panics.
type badHandler struct {
	slog.Handler
	called *atomic.Int64
}

func (h badHandler) Handle(context.Context, slog.Record) error {
	h.called.Add(1)
	panic("handler")
}

// TestTroubleWithABadLog: an observer of trouble panics, and so does the handler of the log that is to tell of it. The
// transaction goes on, and the observer is told again.
func TestTroubleWithABadLog(t *testing.T) {
	var logged, told atomic.Int64
	defer slog.SetDefault(slog.Default())
	defer log.SetFlags(log.Flags()) // the first SetDefault changes the log of package log, too
	defer log.SetOutput(log.Writer())
	slog.SetDefault(slog.New(badHandler{slog.NewTextHandler(t.Output(), nil), &logged}))
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		heals := time.Now().Add(5 * time.Minute)
		o := kv.TxOptions{OnTrouble: func(kv.Trouble) { told.Add(1); panic("observer") }}
		_, err := kv.Run(t.Context(), db, o, func(kv.Tx, kv.Attempt) error {
			if time.Now().Before(heals) {
				return &kv.Error{Code: kv.CodeProcessBehind}
			}
			return nil
		})
		require.NoError(t, err)
		synctest.Wait()
	})
	require.Greater(t, told.Load(), int64(1))
	require.Equal(t, told.Load(), logged.Load())
}
