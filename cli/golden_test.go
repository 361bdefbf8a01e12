package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestGolden replays testdata: each case is a command line and its input, then all that a user sees. The cases of a
// file share one in-memory database. Its clock moves only when a case says so.
//
//	run             the first line is the command line, the rest is stdin
//	clock D         moves the clock by a duration
//	file NAME       writes a file into the working directory
//	claim items=N   claims up to N items of a group, as a worker elsewhere would; with fail or reject it gives them back
//	pair            writes pairs, a key and a value on each line, as fdbcli prints them
//	clear           removes the key with these parts, which breaks the queue
//	set             writes an integer to the key with these parts
//	leave N         leaves N receipts, as killed processes do
//	names           from here on an id is written {BODY}, in command lines and in their output
//
// The test checks that a read-only command changes nothing: the whole database is the same before and after.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			h := newHarness(t)
			path, err := filepath.Abs(path)
			require.NoError(t, err)
			t.Chdir(t.TempDir())
			datadriven.RunTest(t, path, h.step)
		})
	}
}

// still is a clock that only moves when a test moves it.
type still struct{ now time.Time }

func (c *still) Now() time.Time { return c.now }

// engineClock is the clock of the engine. Each wait of the engine moves it ahead of the other clock, so that the pause
// after a conflict ends.
type engineClock struct {
	*still
	mu     sync.Mutex
	waited time.Duration // guarded by mu
}

func (c *engineClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.Add(c.waited)
}

func (c *engineClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	c.waited += max(d, 0)
	c.mu.Unlock()
	due := make(chan time.Time, 1)
	due <- c.Now()
	return due
}

// shared is a database that outlives the commands that close it.
type shared struct{ kv.DB }

func (shared) Close() error { return nil }

type harness struct {
	clock  *still
	db     kv.DB
	runs   uint64
	ids    map[string]string // by body; nil unless ids are written so
	bodies map[string]string // the first of each id
}

func newHarness(t *testing.T) *harness {
	clock := &still{now: time.Date(2001, 3, 31, 12, 0, 0, 0, time.UTC)}
	db := embedded.OpenMemory(embedded.Options{Clock: &engineClock{still: clock}, Seed: 1})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &harness{clock: clock, db: db}
}

func (h *harness) app() *App {
	open := func(context.Context, EngineOptions) (kv.DB, error) { return shared{h.db}, nil }
	h.runs++
	return &App{
		Engines: map[string]OpenFunc{"disk": open, "memory": open}, Now: h.clock.Now, Seed: h.runs, Owner: "tester",
	}
}

func (h *harness) step(t *testing.T, d *datadriven.TestData) string {
	ctx := context.Background()
	switch d.Cmd {
	case "run":
		line, stdin, _ := strings.Cut(d.Input, "\n")
		return h.run(t, splitArgs(t, line), stdin)
	case "clock":
		step, err := time.ParseDuration(d.CmdArgs[0].Key)
		require.NoError(t, err)
		h.clock.now = h.clock.now.Add(step)
		return ""
	case "file":
		require.NoError(t, os.WriteFile(d.CmdArgs[0].Key, []byte(d.Input+"\n"), 0o600))
		return ""
	case "claim":
		var n int
		d.ScanArgs(t, "items", &n)
		q, err := layer.Open(ctx, h.db, prefix(), "default", layer.Options{Now: h.clock.Now, Test: &layer.TestOptions{Seed: 99}, Owner: "elsewhere"})
		require.NoError(t, err)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: n, MaxGroups: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		if d.HasArg("reject") {
			require.NoError(t, q.Nack(ctx, claims[0], layer.NackOptions{Err: fmt.Errorf("exit status 3"), Reject: "no such flight"}))
		}
		if d.HasArg("fail") {
			require.NoError(t, q.Nack(ctx, claims[0], layer.NackOptions{Err: fmt.Errorf("exit status 3"), Delay: time.Minute}))
		}
		require.NoError(t, q.Close(ctx))
		return fmt.Sprintf("%d of %s\n", len(claims[0].Items), claims[0].Group)
	case "subscribe":
		q, err := layer.Open(ctx, h.db, prefix(), "default", layer.Options{Now: h.clock.Now, Owner: "elsewhere"})
		require.NoError(t, err)
		seen, cancel := context.WithCancel(ctx)
		kinds := []layer.ChangeKind{layer.ChangeEnqueued}
		require.NoError(t, q.Subscribe(seen, d.CmdArgs[0].Key, func(context.Context, []layer.Change) error {
			cancel()
			return nil
		}, layer.SubscribeOptions{FromOldest: true, Kinds: kinds}))
		require.NoError(t, q.Close(ctx))
		return ""
	case "set":
		i := strings.LastIndex(d.Input, " ")
		parts, err := tuple.Parse(d.Input[:i])
		require.NoError(t, err)
		n, err := strconv.ParseInt(d.Input[i+1:], 10, 64)
		require.NoError(t, err)
		_, err = kv.Run(ctx, h.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(parts.Pack(), tuple.Tuple{n}.Pack())
			return nil
		})
		require.NoError(t, err)
		return ""
	case "pair":
		_, err := kv.Run(ctx, h.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for line := range strings.Lines(d.Input) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				k, err := tuple.ParsePrintable(key)
				require.NoError(t, err)
				v, err := tuple.ParsePrintable(value)
				require.NoError(t, err)
				tx.Set(k, v)
			}
			return nil
		})
		require.NoError(t, err)
		return ""
	case "leave":
		n, err := strconv.Atoi(d.CmdArgs[0].Key)
		require.NoError(t, err)
		_, err = kv.Run(ctx, h.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for range n {
				tx.Set(append(prefix(), tuple.Tuple{"default", "receipt", uuid.New()}.Pack()...), tuple.Tuple{h.clock.now.UnixMilli()}.Pack())
			}
			return nil
		})
		require.NoError(t, err)
		return ""
	case "names":
		h.ids, h.bodies = make(map[string]string), make(map[string]string)
		return ""
	case "clear":
		parts, err := tuple.Parse(d.Input)
		require.NoError(t, err)
		_, err = kv.Run(ctx, h.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.ClearRange(kv.PrefixRange(parts.Pack()))
			return nil
		})
		require.NoError(t, err)
		return ""
	}
	d.Fatalf(t, "unknown directive %s", d.Cmd)
	return ""
}

func (h *harness) run(t *testing.T, args []string, stdin string) string {
	var stdout, stderr bytes.Buffer
	before := dump(t, h.db)
	h.name(t)
	for i := range args {
		for body, id := range h.ids {
			args[i] = strings.ReplaceAll(args[i], "{"+body+"}", id)
		}
	}
	err := h.app().Run(context.Background(), args, strings.NewReader(stdin), &stdout, &stderr)
	switch args[0] {
	case "config":
		if !slices.Contains(args, "--set") {
			require.Equal(t, before, dump(t, h.db), "a read-only command has changed the database")
		}
	case "dead", "archive":
		if len(args) > 1 && args[1] == "list" {
			require.Equal(t, before, dump(t, h.db), "a read-only command has changed the database")
		}
	case "state":
		if len(args) < 4 || args[3] == "--json" {
			require.Equal(t, before, dump(t, h.db), "a read-only command has changed the database")
		}
	case "peek", "groups", "blocked", "queues", "why", "stats", "check", "decode", "key", "subscriptions", "find":
		require.Equal(t, before, dump(t, h.db), "a read-only command has changed the database")
	}
	var s strings.Builder
	s.WriteString(stdout.String())
	for line := range strings.Lines(stderr.String()) {
		s.WriteString("stderr: " + line)
	}
	fmt.Fprintf(&s, "exit %d\n", ExitCode(err))
	out := s.String()
	h.name(t)
	for id, body := range h.bodies {
		out = strings.ReplaceAll(out, id, "{"+body+"}")
	}
	return out
}

// name learns the ids of the messages that there are.
func (h *harness) name(t *testing.T) {
	if h.ids == nil {
		return
	}
	ctx := context.Background()
	queues, err := layer.Queues(ctx, h.db, prefix())
	require.NoError(t, err)
	for _, name := range queues {
		q, err := layer.Open(ctx, h.db, prefix(), name, layer.Options{Now: h.clock.Now})
		require.NoError(t, err)
		page, err := q.Admin().Groups(ctx, layer.GroupsOptions{})
		require.NoError(t, err)
		for _, g := range page.Groups {
			items, err := q.Peek(ctx, g.Group, layer.MaxBatch, nil)
			require.NoError(t, err)
			for _, item := range items {
				id := item.ID.String()
				if h.ids[string(item.Body)] = id; h.bodies[id] == "" {
					h.bodies[id] = string(item.Body)
				}
			}
		}
		require.NoError(t, q.Close(ctx))
	}
}

// splitArgs splits a command line at blanks outside single quotes.
func splitArgs(t *testing.T, line string) []string {
	var args []string
	for i, piece := range strings.Split(line, "'") {
		if i%2 == 0 {
			args = append(args, strings.Fields(piece)...)
		} else {
			args = append(args, piece)
		}
	}
	require.NotEmpty(t, args)
	return args
}

// dump returns every pair of the database.
func dump(t *testing.T, db kv.DB) []string {
	var all []string
	_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		rows, err := tx.Snapshot().GetRange(kv.KeyRange{End: []byte{0xff}}.Selectors(), kv.RangeOptions{}).Wait(context.Background())
		all = make([]string, len(rows))
		for i, row := range rows {
			all[i] = tuple.Printable(row.Key) + " = " + tuple.Printable(row.Value)
		}
		return err
	})
	require.NoError(t, err)
	return all
}
