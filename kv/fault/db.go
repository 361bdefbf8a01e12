package fault

import (
	"context"

	"fdbfifo/kv"
)

// Wrap returns db with the faults of p. Its transactions are kv.ConflictReporters if those of db are.
func Wrap(db kv.DB, p *Plan) kv.DB { return &faultyDB{db, p} }

type faultyDB struct {
	kv.DB
	plan *Plan
}

func (d *faultyDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	inner, err := d.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	t := &faultyTx{db: d, options: o, inner: inner}
	if _, ok := inner.(kv.ConflictReporter); ok {
		return reportingTx{t}, nil
	}
	return t, nil
}

// Close lands the late commits of the plan before it closes the engine.
func (d *faultyDB) Close() error {
	if err := d.plan.Land(context.Background()); err != nil {
		return err
	}
	return d.DB.Close()
}
