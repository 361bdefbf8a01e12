package layer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	recording "fdbfifo/kv/record"
	"fdbfifo/layer/internal/rec"
)

// TestFailedOperationsKeepNoReceipts: a handle remembers no receipt of an operation that wrote none, so its memory does
// not grow with the number of failed operations, and receipts in the database are still found.
func TestFailedOperationsKeepNoReceipts(t *testing.T) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	q, err := Create(ctx, db, nil, "q", Options{Test: &TestOptions{Seed: 1}})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{Group: "A"})
	require.NoError(t, err)
	refused := errors.New("refused")
	for range 100 {
		require.ErrorIs(t, q.Once(ctx, func(kv.Tx) error { return refused }), refused)
		require.ErrorIs(t, q.Admin().Cancel(ctx, ID{Group: "A", Index: 1, Random: uuid.UUID{1}}), ErrNoItem)
		require.Panics(t, func() { _ = q.Once(ctx, func(kv.Tx) error { panic(refused) }) })
	}
	require.LessOrEqual(t, len(q.receipts.idle), 1)
	require.NoError(t, q.Close(ctx))
}

// TestOutageKeepsFewReceipts: in a long outage each operation may leave a receipt, and the handle does not remember
// them all. Those that it remembers are cleared when it closes; a sweep clears the others.
func TestOutageKeepsFewReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, plan := t.Context(), &fault.Plan{}
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := Create(ctx, db, nil, "q", Options{Test: &TestOptions{Seed: 1}, Tx: kv.TxOptions{Retries: 1}})
		require.NoError(t, err)
		for range mostReceipts + 500 {
			plan.ForceNext(fault.UnnamedApplied) // the outcome stays unknown
			err := q.Once(ctx, func(kv.Tx) error { return nil })
			require.True(t, kv.MaybeCommitted(err))
		}
		require.LessOrEqual(t, len(q.receipts.idle), mostReceipts)
		require.NoError(t, q.Close(ctx))
		time.Sleep(2 * receiptLife)
		q, err = Open(ctx, db, nil, "q", Options{})
		require.NoError(t, err)
		_, err = q.Admin().Sweep(ctx, SweepOptions{})
		require.NoError(t, err)
		report, err := q.Admin().Check(ctx, CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.LessOrEqual(t, report.Receipts, int64(2))
		require.NoError(t, q.Close(ctx))
	})
}

// panicking is a database whose commits panic while armed is set.
type panicking struct {
	kv.DB
	armed bool
}

func (db *panicking) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	return panickingTx{tx, db}, err
}

type panickingTx struct {
	kv.ManagedTx
	db *panicking
}

func (t panickingTx) Commit() kv.Future[struct{}] {
	if t.db.armed {
		panic("the engine")
	}
	return t.ManagedTx.Commit()
}

// TestPanicOfTheEngineEndsTheTrip: an engine panics at the commit of a receive that gives a suspect item. The handle
// goes on, and gives the item to the next receive.
func TestPanicOfTheEngineEndsTheTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), &panicking{DB: embedded.OpenMemory(embedded.Options{})}
		defer func() { require.NoError(t, db.Close()) }()
		dead, err := Create(ctx, db, nil, "q", Options{Config: Config{Lease: 10 * time.Second}})
		require.NoError(t, err)
		send(t, dead, "A")
		claims, err := dead.Receive(ctx, ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		time.Sleep(11 * time.Second)
		q, err := Open(ctx, db, nil, "q", Options{})
		require.NoError(t, err)
		db.armed = true
		require.Panics(t, func() { _, _ = q.Receive(ctx, ReceiveOptions{}) })
		db.armed = false
		claims, err = q.Receive(ctx, ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, q.Ack(ctx, claims[0]))
		requireSound(t, q)
		require.NoError(t, q.Close(ctx))
		require.NoError(t, dead.Close(ctx))
	})
}

// TestFarTimerOfAHoldThatIsGone: a look finds a timer, far ahead, of a hold that has ended. It clears the timer, and
// leaves only rows that can be read.
func TestFarTimerOfAHoldThatIsGone(t *testing.T) {
	inABubble(t, Config{Unordered: true}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		sent, err := q.Enqueue(t.Context(), Message{Group: "A"})
		require.NoError(t, err)
		lane := holdLane(sent[0].ID)
		dueMS := q.nowMS() + (365 * 24 * time.Hour).Milliseconds()
		far := farTimer{key: q.keys.timer(dueMS, lane), dueMS: dueMS, lane: lane, index: sent[0].ID.Index}
		err = q.onceTx(t.Context(), func(tx kv.Tx) error {
			tx.Set(far.key, rec.PackTimer(rec.KindClaim, far.index))
			return nil
		})
		require.NoError(t, err)
		err = q.onceTx(t.Context(), func(tx kv.Tx) error {
			return q.operate(t.Context(), tx, func(w *txn) error { return endFar(w, far) })
		})
		require.NoError(t, err)
		claims, err := q.Receive(t.Context(), ReceiveOptions{Unordered: true})
		require.NoError(t, err)
		require.Len(t, claims, 1)
	})
}
