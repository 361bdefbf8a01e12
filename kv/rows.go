package kv

import (
	"bytes"
	"context"
	"iter"
)

// rowsPage bounds the pairs of one transaction of Rows.
const rowsPage = 1000

// Rows reads the pairs of r in the order of their keys, page by page, each in a transaction of its own: what it yields is
// of no single point in time. An error is yielded last, with an empty pair.
func Rows(ctx context.Context, db DB, r KeyRange) iter.Seq2[KV, error] {
	r = KeyRange{Begin: bytes.Clone(r.Begin), End: bytes.Clone(r.End)}
	return func(yield func(KV, error) bool) {
		for r := r; ; {
			var rows []KV
			_, err := Run(ctx, db, TxOptions{}, func(tx Tx, _ Attempt) (err error) {
				rows, err = tx.Snapshot().GetRange(r.Selectors(), RangeOptions{Limit: rowsPage}).Wait(ctx)
				return err
			})
			if err != nil {
				yield(KV{}, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if len(rows) < rowsPage {
				return
			}
			r.Begin = KeyAfter(rows[len(rows)-1].Key)
		}
	}
}
