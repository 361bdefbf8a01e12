package kv

import (
	"bytes"
	"context"
	"iter"
)

// rowsPage bounds the pairs of one transaction of Rows. After a failed attempt Rows reads half as many at a time,
// because a page of large values may take longer than the five seconds of a transaction.
const rowsPage = 1000

// Rows reads the pairs of r in the order of their keys, page by page, each in a transaction of its own: what it yields
// is of no single point in time. An error is yielded last, with an empty pair.
func Rows(ctx context.Context, db DB, r KeyRange) iter.Seq2[KV, error] {
	r = KeyRange{Begin: bytes.Clone(r.Begin), End: bytes.Clone(r.End)}
	return func(yield func(KV, error) bool) {
		page := rowsPage
		for r := r; ; {
			var rows []KV
			_, err := Run(ctx, db, TxOptions{}, func(tx Tx, a Attempt) (err error) {
				if a.N > 0 {
					page = max(1, page/2)
				}
				rows, err = tx.Snapshot().GetRange(r.Selectors(), RangeOptions{Limit: page}).Wait(ctx)
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
			if len(rows) < page {
				return
			}
			r.Begin = KeyAfter(rows[len(rows)-1].Key)
		}
	}
}
