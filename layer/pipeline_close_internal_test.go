package layer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// refusing is a database that begins no transaction.
type refusing struct {
	kv.DB
	err error
}

func (d *refusing) Begin(kv.TxOptions) (kv.ManagedTx, error) { return nil, d.err }

// askedError is an error that notices when mayRecover asks whether it is ErrNoQueue.
type askedError struct{ asked func() }

func (askedError) Error() string { return "no database" }

func (e askedError) Is(target error) bool {
	if target == ErrNoQueue {
		e.asked()
	}
	return false
}

// TestCloseWhileATurnEnds: a receive that waits ends with ErrClosed when the handle is closed while the pipeline decides
// what becomes of its turn, which has failed. The pipeline asks the error whether the wait may go on: then it is closed.
func TestCloseWhileATurnEnds(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	q, err := Create(t.Context(), db, nil, "q", Options{})
	require.NoError(t, err)
	q.db = &refusing{DB: db, err: askedError{asked: func() { q.closed.Store(true) }}}

	o := &operation{waits: true, receive: &reception{}, turn: &turn{}, ended: make(chan struct{})}
	q.pipeline.mu.Lock()
	b := q.newBatch([]*operation{o})
	q.pipeline.mu.Unlock()
	q.runShared(b)
	require.NoError(t, q.stopStaging(t.Context()), "the rest of Close")
	<-o.ended
	if !errors.Is(o.result(), ErrClosed) {
		t.Fatalf("the receive ended with %v, which is not ErrClosed", o.result())
	}
}
