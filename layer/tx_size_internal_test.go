package layer

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/rec"
)

// TestSizeIsCounted (trap 7): the size that a transaction of the queue counts is at least 95 % of the size that the
// database counts, and the size that is predicted for an enqueue, or for the end of a claim's items, is never less than
// the bytes that they add.
func TestSizeIsCounted(t *testing.T) {
	keep := Config{Archive: time.Hour, Changes: time.Hour, RetroactiveDelay: true}
	lanes, unordered, perItem, content := keep, keep, keep, keep
	lanes.Facets, lanes.Views = []string{"a", "b"}, "*; a; b; a,b"
	unordered.Unordered = true
	perItem.LeasePerItem = true
	content.DedupByContent = true
	for name, config := range map[string]Config{
		"plain": {}, "kept": keep, "facets": lanes, "unordered": unordered, "lease per item": perItem,
		"content": content,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
			q, err := Create(ctx, db, []byte("prefix"), "q", Options{Config: config})
			require.NoError(t, err)
			added := func(what string, do func(w *txn) error) int {
				t.Helper()
				n := 0
				_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					w := q.txn(ctx, tx)
					if err := do(w); err != nil {
						return err
					}
					before := w.used()
					if err := w.finish(); err != nil {
						return err
					}
					size, err := tx.ApproximateSize().Wait(ctx)
					require.NoError(t, err)
					require.GreaterOrEqual(t, w.used()*20, int(size)*19, what)
					n = before
					return nil
				})
				require.NoError(t, err)
				return n
			}
			value := strings.Repeat("\x00", MaxFacetSize)
			group := strings.Repeat("\x00", MaxGroupSize)
			var msgs []Message
			for i, body := range []int{0, 10, rec.MaxInline, 3 * rec.MaxInline} {
				msgs = append(msgs, Message{
					Group: group[i/2:], Body: make([]byte, body), DedupID: strings.Repeat("\x00", i+1),
					Headers: map[string]string{"a": value, "b": value, "\x00": "\x00"},
				})
			}
			msgs = append(msgs, Message{Alone: true, Tenant: "t", Delay: time.Second, Headers: msgs[0].Headers})
			for range 2 { // into groups that are empty, and into such that are not
				for i := range msgs {
					msgs[i].DedupID += "x"
				}
				if config.DedupByContent {
					msgs[0].Body = append(msgs[0].Body, 1)
				}
				e, err := q.enqueuing(msgs)
				require.NoError(t, err)
				require.LessOrEqual(t, added("enqueue", func(w *txn) error { return w.enqueue(e) }), e.size)
			}
			require.NoError(t, q.Admin().SetGroupState(ctx, group, []byte("state"), SetGroupStateOptions{}))
			var claims []*Claim
			r, err := q.reception(ReceiveOptions{Max: 100, MaxGroups: 100, MaxBytes: MaxBodySize})
			require.NoError(t, err)
			added("receive", func(w *txn) error {
				r.begin()
				c := w.newClaimer(r.where, []*reception{r})
				c.begin()
				return c.claim()
			})
			claims = r.claims
			require.NotEmpty(t, claims)
			for _, c := range claims {
				z, most := q.keys.sizesIn(c.Group, config.Changes), 0
				for _, item := range c.Items {
					most += z.finish(len(q.keys.plan.Pack(item.Headers)))
					if config.Archive > 0 {
						most += setSize(z.key, min(len(item.Body), rec.MaxInline)+200)
					}
				}
				s := &settlement{claim: c, all: true}
				require.NoError(t, s.checkClaim(q))
				// The claim itself: its lock and timer gone, the head's hint, and the entry of the archive.
				most += 8*clearSize(z.key) + setSize(z.key, MaxBatch*rec.ItemSize)
				require.LessOrEqual(t, added("ack", func(w *txn) error {
					s.begin(w)
					if err := s.apply(w); err != nil {
						return err
					}
					return s.finish(w)
				}), most)
			}
			report, err := q.Admin().Check(ctx, CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
			require.NoError(t, q.Close(ctx))
			require.NoError(t, db.Close())
		})
	}
}

// TestManyReceiptsAtClose: in an outage each commit that times out leaves a receipt. Close clears them all, also if
// they are more than fit into one transaction.
func TestManyReceiptsAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 4000
		ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
		q, err := Create(ctx, db, []byte(strings.Repeat("p", 1024)), "q", Options{})
		require.NoError(t, err)
		for range many {
			q.receipts.putBack(q.random.uuid())
		}
		q.receipts.mu.Lock()
		ids := slices.Clone(q.receipts.idle)
		q.receipts.mu.Unlock()
		for page := range slices.Chunk(ids, 500) {
			_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				for _, id := range page {
					tx.Set(q.keys.receipt(id), rec.PackReceipt(q.nowMS(), 0, 1))
				}
				return nil
			})
			require.NoError(t, err)
		}
		require.NoError(t, q.Close(ctx))
		for row, err := range kv.Rows(ctx, db, q.keys.section(nameReceipt)) {
			require.NoError(t, err)
			require.Fail(t, "a receipt is left", "%q", row.Key)
		}
	})
}
