package fdbkv

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// DB is a cluster, or a tenant of it, as a kv.DB. It is safe for concurrent use.
type DB struct {
	create func() (fdb.Transaction, error)
	closed atomic.Bool
}

var _ kv.DB = (*DB)(nil)

// From makes a DB of the caller's own handle. Its defaults for transactions (time-out, retry limit, size limit, longest
// delay) stay in force where TxOptions has no value: a time-out ends also a call without a deadline, with error 1031
// and an unknown outcome, and a retry limit fails a call with the last error (1020, for example). The handle must not
// have the option transaction_causal_read_risky: its reads may miss the newest commits. snapshot_ryw_disable has no
// effect.
func From(db fdb.Database) *DB { return &DB{create: db.CreateTransaction} }

// FromTenant makes a DB whose keys are the tenant's.
func FromTenant(tenant fdb.Tenant) *DB { return &DB{create: tenant.CreateTransaction} }

// Begin implements kv.DB. It does not talk to the cluster. The client checks values of options when they are first
// needed: a tag that is too long shows in the first read or in the commit.
func (db *DB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if db.closed.Load() {
		return nil, fmt.Errorf("fdbkv: %w", ErrClosed)
	}
	tr, err := db.create()
	if err != nil {
		return nil, fmt.Errorf("fdbkv: create transaction: %w", converted(err))
	}
	if err := setOptions(tr.Options(), o); err != nil {
		return nil, fmt.Errorf("fdbkv: set transaction options: %w", err)
	}
	return &managedTx{tx: newTx(tr), db: db, options: o}, nil
}

// Close keeps transactions from beginning, and open ones from committing: they end with error 1025, which wraps
// ErrClosed. Watches stay until they are cancelled. The binding's handle stays open: it is the caller's, or shared by
// all that open the same cluster file, and the client's network thread cannot be stopped.
func (db *DB) Close() error {
	db.closed.Store(true)
	return nil
}

// PingTimeout bounds Ping where the context has no deadline.
const PingTimeout = 5 * time.Second

// Ping asks the cluster for a read version. It returns ErrUnreachable, naming the cluster file and the coordinators,
// if no answer came before ctx's deadline, or within PingTimeout if it has none. A locked database answers with
// error 1038.
func (db *DB) Ping(ctx context.Context) error {
	limit := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		limit, cancel = context.WithTimeout(ctx, PingTimeout)
		defer cancel()
	}
	began := time.Now()
	tx, err := db.Begin(kv.TxOptions{})
	if err != nil {
		return err
	}
	defer tx.Cancel()
	_, err = tx.ReadVersion().Wait(limit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("fdbkv: %w: no answer within %v; %s (are its processes running, and the database configured?)",
			ErrUnreachable, time.Since(began).Round(time.Millisecond), db.place())
	default:
		return fmt.Errorf("fdbkv: ping: %w", err)
	}
}

// place names the cluster. It asks only the client library, so it needs no network.
func (db *DB) place() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	tr, err := db.create()
	if err != nil {
		return "cluster unknown"
	}
	known := newReader(tr)
	file, fileErr := known.Get([]byte("\xff\xff/cluster_file_path")).Wait(ctx)
	connection, err := known.Get([]byte("\xff\xff/connection_string")).Wait(ctx)
	if fileErr != nil || err != nil {
		return "cluster unknown"
	}
	return fmt.Sprintf("cluster file %s, connection string %s", file, connection)
}

// Status returns the cluster's status json, of the whole cluster also for a tenant's DB. It costs the cluster more than
// a transaction does, so the caller should ask at most every half minute. In the first seconds after a recovery the
// document lacks parts, such as cluster.qos. If the cluster is silent, Status waits until ctx ends.
//
// Errors: ErrClosed, ctx's, and the client's.
func (db *DB) Status(ctx context.Context) ([]byte, error) {
	if db.closed.Load() {
		return nil, fmt.Errorf("fdbkv: status: %w", ErrClosed)
	}
	tr, err := db.create()
	if err != nil {
		return nil, fmt.Errorf("fdbkv: status: %w", converted(err))
	}
	document, err := newReader(tr).Get([]byte("\xff\xff/status/json")).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("fdbkv: status: %w", err)
	}
	return document, nil
}
