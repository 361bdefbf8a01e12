package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// An error or a list prints a prefix after --prefix. Read back, that text is the same prefix.
func TestPrefixTextIsReadBack(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := [][]byte{nil, []byte("app/"), []byte("(x"), []byte("0x12"), []byte("it's"), tuple.Tuple{"a", 1}.Pack()}
	for range 1000 {
		key := make([]byte, random.IntN(12))
		for i := range key {
			key[i] = byte(random.Uint32())
		}
		keys = append(keys, key, tuple.Append(key, "name", random.Int64N(1000)))
	}
	for _, key := range keys {
		text := prefixText(key)
		back, err := parsePrefix(text)
		require.NoError(t, err, "%q", text)
		require.True(t, bytes.Equal(key, back), "%q: %x and %x", text, key, back)
	}
}

// Queues are found among a great many keys of others, with a bounded number of reads, and it is said that the look was
// not the whole.
func TestLookAmongManyKeys(t *testing.T) {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	for _, prefix := range [][]byte{tuple.Tuple{"users"}.Pack(), []byte("app/")} {
		q, err := layer.Create(ctx, db, prefix, "orders", layer.Options{})
		require.NoError(t, err)
		require.NoError(t, q.Close(ctx))
	}
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		for i := range 3000 {
			tx.Set(tuple.Tuple{fmt.Sprintf("table%04d", i), "row"}.Pack(), nil)
			tx.Set(tuple.Tuple{"users", int64(i), "name"}.Pack(), nil)
			tx.Set(tuple.Tuple{uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i))}.Pack(), nil)
			tx.Set(fmt.Appendf(nil, "app/%04d", i), nil)
		}
		return nil
	})
	require.NoError(t, err)
	found, err := lookElsewhere(ctx, db)
	require.NoError(t, err)
	require.True(t, found.cut)
	require.Equal(t, []foundPlace{
		{tuple.Tuple{"users"}.Pack(), []string{"orders"}}, {[]byte("app/"), []string{"orders"}},
	}, found.places)
}

// The command works on a folder that a program has open, and finds the program's queues under the program's prefix.
func TestFolderOfAProgram(t *testing.T) {
	ctx := context.Background()
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	q, err := layer.Create(ctx, db, tuple.Tuple{"shop"}.Pack(), "orders", layer.Options{})
	require.NoError(t, err)
	defer q.Close(ctx)
	sent, err := q.Enqueue(ctx, layer.Message{Group: "ann", Body: []byte("1")}, layer.Message{Group: "ann"})
	require.NoError(t, err)

	_, stderr, code := onDisk("stats", "--queue", "orders", "--engine", "disk:"+folder)
	require.Equal(t, ExitNoQueue, code)
	require.Contains(t, stderr, `--prefix '("shop")'  orders`)

	run := func(args ...string) string {
		args = append(args, "--queue", "orders", "--prefix", `("shop")`, "--engine", "disk:"+folder)
		stdout, stderr, code := onDisk(args...)
		require.Equal(t, ExitOK, code, "%s: %s", args, stderr)
		return stdout
	}
	require.Contains(t, run("stats"), "messages now       2")
	require.Contains(t, run("groups"), "ann")
	require.Contains(t, run("why", sent[1].ID.String()), "1 message of its group comes first")
	run("enqueue", "--group", "ann", "--body", "3")
	run("pause", "--group", "ann", "--reason", "test")
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Empty(t, claims, "the program's queue was paused")
	run("resume", "--group", "ann")
	claims, err = q.Receive(ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Len(t, claims[0].Items, 3)
	require.NoError(t, q.Ack(ctx, claims[0]))
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// A look that is interrupted is one.
func TestLookInterrupted(t *testing.T) {
	app, _ := onMemory(t, 0)
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	var stderr bytes.Buffer
	err := app.Run(ctx, []string{"queues", "--all"}, nil, io.Discard, &stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
}

// lookFails is a database whose reads fail in a look for queues under other prefixes.
type lookFails struct{ kv.DB }

func (db lookFails) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if o.Call == "look elsewhere" {
		return fault.Wrap(db.DB, &fault.Plan{Chances: map[fault.Kind]float64{fault.ProcessBehind: 1}}).Begin(o)
	}
	return db.DB.Begin(o)
}

// TestLookWithoutAnswer: a look for queues under other prefixes that the database has not answered in time finds
// nothing. The commands then name the error of the database. They do not say that there are no queues.
func TestLookWithoutAnswer(t *testing.T) {
	for name, code := range map[string]int{"queues --all": ExitFailed, "queues": ExitOK, "stats": ExitNoQueue} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := embedded.OpenMemory(embedded.Options{})
				defer db.Close()
				app := &App{Engines: map[string]OpenFunc{"disk": func(context.Context, EngineOptions) (kv.DB, error) {
					return lookFails{shared{db}}, nil
				}}}
				var stdout, stderr bytes.Buffer
				err := app.Run(t.Context(), strings.Fields(name), nil, &stdout, &stderr)
				require.Equal(t, code, ExitCode(err), &stderr)
				require.Empty(t, stdout.String())
				require.Contains(t, stderr.String(), "not all keys were read")
				require.Contains(t, stderr.String(), "1037")
				require.NotContains(t, stderr.String(), "no queues yet")
			})
		})
	}
}
