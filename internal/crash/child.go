package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// orders is what the parent tells a child.
type orders struct {
	Folder  string
	Seed    uint64
	Life    int
	Ahead   time.Duration // of the child's clock before the machine's
	Archive bool
	Kill    kill
	Retry   [][]message // enqueues whose outcome is unknown
	Other   bool        // it works on a queue of its own, whose outcome is not checked
}

var (
	prefix    = tuple.Tuple{"crash"}.Pack()
	queueName = "work"
	// otherPrefix is where those work who are there to serve the child, and to be killed.
	otherPrefix = tuple.Tuple{"others"}.Pack()
)

// effectKey is the row that a worker writes of its own when it acks item n.
func (o *orders) effectKey(n int) []byte {
	if o.Other {
		return append(otherPrefix[:len(otherPrefix):len(otherPrefix)], tuple.Tuple{"effect", int64(n)}.Pack()...)
	}
	return tuple.Tuple{"effect", int64(n)}.Pack()
}

const attempts = 3 // until an item is a dead letter

func (o *orders) options(handle int) layer.Options {
	c := layer.Config{
		Lease: leaseBase, DedupWindow: 30 * 24 * time.Hour, MaxAttempts: attempts,
		Retry: layer.RetryPolicy{Kind: layer.RetryAtOnce},
	}
	if o.Archive {
		c.Archive = 10 * 365 * 24 * time.Hour
	}
	return layer.Options{
		Owner: fmt.Sprintf("life %d, handle %d", o.Life, handle), Config: c,
		Now:  func() time.Time { return time.Now().Add(o.Ahead) },
		Poll: 20 * time.Millisecond,
	}
}

// Child is the life of a child: it reads its orders from in, writes its journal to out, and works until it is killed.
// It returns only with an error.
func Child(in io.Reader, out io.Writer) error {
	var o orders
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("crash: orders: %w", err)
	}
	// Text on stderr is a failure, for example a race that the detector has found. But a handle on a busy machine warns
	// that its database keeps it waiting.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	ctx := context.Background()
	place, goroutines := prefix, workers
	if o.Other {
		place, goroutines = otherPrefix, 1
	}
	db, err := embedded.OpenDisk(o.Folder, embedded.Options{Hooks: o.Kill.hooks(o.Folder)})
	if err != nil {
		return fmt.Errorf("crash: open: %w", err)
	}
	counted := &versions{DB: db}
	q, err := layer.Create(ctx, counted, place, queueName, o.options(0))
	if errors.Is(err, layer.ErrQueueExists) {
		q, err = layer.Open(ctx, counted, place, queueName, o.options(0))
	}
	if err != nil {
		return fmt.Errorf("crash: queue: %w", err)
	}
	other, err := layer.Open(ctx, counted, place, queueName, o.options(1))
	if err != nil {
		return fmt.Errorf("crash: second handle: %w", err)
	}
	j := &journal{out: out, db: counted, own: db.Serves}
	j.done(event{Kind: kindReady})
	go func() {
		for !db.Serves() {
			time.Sleep(time.Millisecond)
		}
		j.done(event{Kind: kindServes})
	}()
	err = work(ctx, &o, []*layer.Queue{q, other}, j, goroutines)
	j.done(event{Kind: kindBroken, Text: err.Error()})
	return err
}
