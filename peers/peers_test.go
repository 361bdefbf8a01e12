package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var small = work{single: 40, batched: 200, groups: 10, callers: 4, rate: 50, period: time.Second, rounds: 1}

// TestPeers: every available peer handles each sent message once. A peer that promises order keeps it. So a fault in
// the table is a fault of the peer, not of the measurement.
func TestPeers(t *testing.T) {
	for _, o := range openers {
		t.Run(o.name, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "peer") // a socket's path must be short
			require.NoError(t, err)
			defer os.RemoveAll(folder)
			own := filepath.Join(folder, o.name)
			require.NoError(t, os.Mkdir(own, 0o755))
			p, err := o.open(t.Context(), own)
			if missing := (*missingError)(nil); errors.As(err, &missing) {
				t.Skip("SKIP: ", missing)
			}
			require.NoError(t, err)
			defer p.close()
			results, err := small.measure(t.Context(), []peer{p}, io.Discard)
			require.NoError(t, err)
			r := results[0]
			require.Zero(t, r.Missing)
			require.Zero(t, r.Doubled)
			require.Len(t, r.times, 50)
			if r.Ordered {
				require.Zero(t, r.OutOfOrder)
				require.Zero(t, r.Together)
			}
		})
	}
}

// lossy loses the third message, doubles the fourth, and gives the fifth and sixth the wrong way round.
type lossy struct{ sent []message }

func (*lossy) about() about { return about{Name: "lossy"} }
func (*lossy) close()       {}

func (p *lossy) send(_ context.Context, msgs []message) error {
	p.sent = append(p.sent, msgs...)
	return nil
}

func (p *lossy) work(ctx context.Context, _ int, handle func(message)) error {
	for _, i := range []int{0, 1, 3, 3, 5, 4} {
		handle(p.sent[i])
	}
	<-ctx.Done()
	return nil
}

// TestLedgerSees: what is lost, doubled, out of order, or in two hands is counted.
func TestLedgerSees(t *testing.T) {
	w, p, l, r := work{callers: 1, groups: 1}, &lossy{}, newLedger(1), &result{}
	_, err := w.send(t.Context(), p, l, 6, 1)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.NoError(t, p.work(ctx, 1, l.handle))
	l.begin(message{Seq: 1}, time.Now())
	l.begin(message{Seq: 1}, time.Now())
	l.addTo(r)
	require.Equal(t, []int{1, 3, 1, 1}, []int{r.Missing, r.Doubled, r.OutOfOrder, r.Together})
}

// TestInsert: insert replaces only the text between the two lines. It does not change a page without the lines.
func TestInsert(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("a\n<!-- figures -->\nold\n<!-- end -->\nb\n"), 0o644))
	require.NoError(t, insert(file, "new\n"))
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- figures -->\n\nnew\n\n<!-- end -->\nb\n", string(page))
	require.NoError(t, os.WriteFile(file, []byte("nothing"), 0o644))
	require.ErrorContains(t, insert(file, "new\n"), "lacks a line")
}

// slow takes a while for its first send, and delivers what has arrived in the order of arrival.
type slow struct {
	mu   sync.Mutex
	sent []message
}

func (*slow) about() about { return about{Name: "slow"} }
func (*slow) close()       {}

func (p *slow) send(_ context.Context, msgs []message) error {
	if msgs[0].Seq == 0 {
		time.Sleep(100 * time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, msgs...)
	return nil
}

func (p *slow) work(context.Context, int, func(message)) error { return nil }

// TestPaceKeepsOrder: a send that takes longer than the pace is not overtaken by the next one of its group.
func TestPaceKeepsOrder(t *testing.T) {
	w := work{groups: 1, rate: 100, period: 100 * time.Millisecond}
	p := new(slow)
	require.NoError(t, w.pace(t.Context(), p, newLedger(1)))
	require.Len(t, p.sent, 10)
	require.True(t, slices.IsSortedFunc(p.sent, func(a, b message) int { return a.Seq - b.Seq }))
}
