package layer

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// A database whose rows are overwritten, cut, deleted and added while every verb runs. These laws hold:
//
//   - no call panics, and each ends within a bounded number of transactions;
//   - each error is one that the documentation names, and an unreadable row is named by its key;
//   - groups of which no row was touched are delivered whole and in order, once;
//   - after a purge by force and a sweep the queue works again, and nothing in it is unreadable.

// spoiltSeed is the seed of TestSpoiltRows; 0 = a number of them.
var spoiltSeed = flag.Uint64("layer.spoilt", 0, "seed of TestSpoiltRows; 0 = the first of them")

// spoiltSeeds is how many databases TestSpoiltRows spoils.
const spoiltSeeds = 300

// TestSpoiltRows (G1, G3): the laws of FuzzSpoiltRows for many databases.
func TestSpoiltRows(t *testing.T) {
	first, n := uint64(1), spoiltSeeds
	if *spoiltSeed != 0 {
		first, n = *spoiltSeed, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		picks := &choices{rest: rand.New(rand.NewPCG(seed, 7))}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { spoilAll(t, picks) }) {
			t.Logf("replay: go test ./layer -run '^TestSpoiltRows$' -layer.spoilt %d", seed)
		}
	}
}

// FuzzSpoiltRows: the bytes choose the queue, the rows that are spoilt and how, and the verbs that run.
func FuzzSpoiltRows(f *testing.F) {
	for kind := range byte(spoiltKinds) {
		f.Add([]byte{kind, 1, 2, 3})
	}
	f.Fuzz(func(t *testing.T, picks []byte) {
		h := fnv.New64a()
		_, _ = h.Write(picks)
		spoilAll(t, &choices{picks: picks, rest: rand.New(rand.NewPCG(h.Sum64(), 7))})
	})
}

// choices are made by bytes, and behind the last byte by a seed.
type choices struct {
	picks []byte
	rest  *rand.Rand
}

// n returns a number from 0 to below.
func (c *choices) n(below int) int {
	if len(c.picks) == 0 {
		return c.rest.IntN(below)
	}
	p := int(c.picks[0])
	if c.picks = c.picks[1:]; below > 256 && len(c.picks) > 0 {
		p, c.picks = p<<8|int(c.picks[0]), c.picks[1:]
	}
	return p % below
}

func (c *choices) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(c.n(256))
	}
	return b
}

// bounded is an engine that a call may ask for so many transactions, and no more.
type bounded struct {
	kv.DB
	left atomic.Int64
}

var errUnbounded = errors.New("too many transactions")

func (d *bounded) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if d.left.Add(-1) < 0 {
		return nil, errUnbounded
	}
	return d.DB.Begin(o)
}

// boundOfCall is how many transactions a call on a queue of some hundred rows may take.
const boundOfCall = 2000

// spoiling is a queue whose rows are spoilt.
type spoiling struct {
	*testing.T
	*choices
	db      *bounded
	q       *Queue
	config  Config
	waiting map[string][]string // the bodies which each group had before its rows were spoilt, in order
	ids     []ID                // of items, dead letters and archived items
	claims  []*Claim            // some that are held
	touched map[string]bool     // groups of which a row was spoilt
	keys    []string            // of the rows that were, for messages
}

const spoiltKinds = 4

func (s *spoiling) configure() Config {
	c := Config{
		Shards: 1 + s.n(3), Changes: time.Hour, Archive: time.Hour, Lease: 30 * time.Second,
		Retry: RetryPolicy{Base: time.Second},
	}
	switch s.n(spoiltKinds) {
	case 0:
		if s.n(2) == 0 {
			c.MaxRate = Rate{Count: 50, Per: time.Second}
		}
		c.DedupForPending = s.n(2) == 1
	case 1:
		c.Facets, c.Views = []string{"state"}, "*; state"
	case 2:
		c.Unordered = true
	case 3:
		c.LeasePerItem = true
	}
	if s.n(3) == 0 {
		c.Retention = 100 * time.Hour
	}
	return c
}

func spoilAll(t *testing.T, picks *choices) {
	synctest.Test(t, func(t *testing.T) {
		s := &spoiling{T: t, choices: picks, waiting: map[string][]string{}, touched: map[string]bool{}}
		s.db = &bounded{DB: embedded.OpenMemory(embedded.Options{})}
		s.db.left.Store(boundOfCall)
		s.config = s.configure()
		var err error
		s.q, err = Create(t.Context(), s.db, nil, "q", Options{
			Owner: "w", Config: s.config, Test: &TestOptions{Seed: 1 + picks.rest.Uint64()>>1},
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = s.q.Close(context.Background())
			_ = s.db.Close()
		})
		s.populate()
		s.spoil(1 + s.n(6))
		if s.n(2) == 0 {
			s.drain()
		} else {
			s.verbs(25)
			s.spoil(s.n(4))
			s.verbs(10)
		}
		s.repair()
		s.call("close", s.q.Close(t.Context()))
	})
}

// call holds the result of a call to the laws.
func (s *spoiling) call(name string, err error) {
	s.Helper()
	left := s.db.left.Swap(boundOfCall)
	require.GreaterOrEqual(s, left, int64(0), "%s: too many transactions\nspoilt: %s", name, s.spoilt())
	if err == nil {
		return
	}
	var engine *kv.Error
	require.False(s, errors.As(err, &engine), "%s: %v\nspoilt: %s", name, err, s.spoilt())
	if isCorrupt(err) {
		require.False(s, spoiltWhole[name], "%s: one row stops the others: %v\nspoilt: %s", name, err, s.spoilt())
		require.Contains(s, err.Error(), ": key ", "%s: the error names no row\nspoilt: %s", name, s.spoilt())
		return
	}
	for _, known := range []error{
		ErrClaimLost, ErrNotInClaim, ErrLimit, ErrOptions, ErrChanged, ErrNoItem, ErrNotDead, ErrInFlight, ErrNotHeld,
		ErrHeld, ErrNotPaused, ErrNoSubscription, ErrNotDelayed, ErrFull, ErrInvalidUTF8,
		ErrClock, // a receipt was spoilt: it says another time
	} {
		if errors.Is(err, known) {
			return
		}
	}
	require.NoError(s, err, "%s\nspoilt: %s", name, s.spoilt())
}

func (s *spoiling) spoilt() string { return "\n\t" + strings.Join(s.keys, "\n\t") }

func (s *spoiling) group() string { return fmt.Sprintf("g%d", s.n(spoiltGroups)) }

const spoiltGroups = 10

// populate makes rows of every kind.
func (s *spoiling) populate() {
	t, q, ctx := s.T, s.q, s.Context()
	s.say(q, "archived", 2)
	for _, c := range receive(t, q, ReceiveOptions{Group: OnlyGroup("archived")}) {
		require.NoError(t, q.Ack(ctx, c))
	}
	s.say(q, "letters", 2)
	for range 2 {
		c := receive(t, q, ReceiveOptions{Group: OnlyGroup("letters"), Max: 1})[0]
		require.NoError(t, q.Nack(ctx, c, NackOptions{Reject: "bad"}))
	}
	for g := range spoiltGroups {
		s.say(q, fmt.Sprintf("g%d", g), 1+s.n(3))
	}
	held := receive(t, q, ReceiveOptions{Group: OnlyGroup("g0"), Lease: 10 * time.Minute})
	receive(t, q, ReceiveOptions{Group: OnlyGroup("g1"), Lease: 2 * time.Second}) // lapses
	for _, c := range receive(t, q, ReceiveOptions{Group: OnlyGroup("g2"), Max: 1}) {
		require.NoError(t, q.Nack(ctx, c, NackOptions{Delay: 20 * time.Second, Err: errors.New("no")}))
	}
	for _, c := range receive(t, q, ReceiveOptions{Group: OnlyGroup("g3"), Max: 1}) {
		require.NoError(t, q.Nack(ctx, c, NackOptions{AtOnce: true}))
	}
	_, err := q.Admin().PauseGroup(ctx, "marked", PauseOptions{})
	require.NoError(t, err)
	s.say(q, "marked", 1)
	_, err = q.Enqueue(ctx, Message{
		Group: "late", Body: []byte("late/0"), Delay: time.Minute, Headers: map[string]string{"state": "NEW"},
	})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{
		Group: "parts", Body: bytes.Repeat([]byte("parts/0"), 20_000), Headers: map[string]string{"state": "NEW"},
	})
	require.NoError(t, err)
	require.NoError(t, q.Admin().SetGroupState(ctx, "g4", []byte("state"), SetGroupStateOptions{}))
	again := receive(t, q, ReceiveOptions{Group: OnlyGroup("g5"), ReceiveID: "id", Lease: 2 * time.Second})
	if s.config.Facets != nil {
		s.claims = append(s.claims, receive(t, q, ReceiveOptions{Where: Template{"state": "PAID"}, Max: 1})...)
	}
	s.others()
	s.claims = append(s.claims, append(held, again...)...)
	time.Sleep(3 * time.Second)
	for _, g := range []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9", "late", "parts"} {
		for item, err := range q.Admin().AllItems(ctx, g, nil) {
			require.NoError(t, err)
			s.waiting[g] = append(s.waiting[g], string(item.Body[:min(7, len(item.Body))]))
			s.ids = append(s.ids, item.ID)
		}
	}
	letters, err := q.Admin().DeadLetters(ctx, DeadOptions{})
	require.NoError(t, err)
	for _, l := range letters.Letters {
		s.ids = append(s.ids, l.ID)
	}
}

// others has other handles leave rows: one that dies with claims by heartbeat, one that dies while it waits, and a
// subscription.
func (s *spoiling) others() {
	t, ctx := s.T, s.Context()
	if s.config.Facets == nil && !s.config.Unordered && !s.config.LeasePerItem {
		dead, err := Open(ctx, s.db, nil, "q", Options{Owner: "dead", Test: &TestOptions{Seed: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = dead.Close(context.Background()) }) // the database is closed by then
		_, err = dead.Receive(ctx, ReceiveOptions{Group: OnlyGroup("g6"), Heartbeat: true})
		require.NoError(t, err)
		dies(dead)
	}
	subscribed, end := context.WithTimeout(ctx, time.Second)
	defer end()
	require.NoError(t, s.q.Subscribe(subscribed, "sub", func(context.Context, []Change) error { return nil },
		SubscribeOptions{FromOldest: s.n(2) == 0}))
	later := s.q.nowMS() + 60_000
	s.set(s.q.keys.request(1, uuid.UUID{1}), rec.Request{Owner: "gone", Wants: 3, DeadlineMS: later}.Pack())
	s.set(s.q.keys.named("g7", uuid.UUID{2}), rec.Request{Owner: "gone", Wants: 1, DeadlineMS: later}.Pack())
	s.set(s.q.keys.receipt(uuid.UUID{3}), rec.PackReceipt(s.q.nowMS(), 1, 0))
	s.set(s.q.keys.wake(uuid.UUID{4}), rec.PackCount(3))
}

// say enqueues messages whose bodies say their places.
func (s *spoiling) say(q *Queue, group string, n int) {
	for i := range n {
		m := Message{
			Group: group, Body: fmt.Appendf(nil, "%s/%d", group, i), DedupID: fmt.Sprintf("%s-%d", group, i),
			Headers: map[string]string{"state": []string{"NEW", "PAID"}[i%2]},
		}
		_, err := q.Enqueue(s.Context(), m)
		require.NoError(s, err)
	}
}

func (s *spoiling) set(key, value []byte) {
	_, err := kv.Run(s.Context(), s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, value)
		return nil
	})
	require.NoError(s, err)
}

// spoil spoils n rows.
func (s *spoiling) spoil(n int) {
	for range n {
		rows := s.rows()
		row := rows[s.n(len(rows))]
		if s.n(2) == 0 { // rows of every name are as likely
			names := KeyNames()
			name := names[s.n(len(names))]
			var of []kv.KV
			for _, r := range rows {
				if p, err := s.q.keys.parse(r.Key); err == nil && p.name == name {
					of = append(of, r)
				}
			}
			if len(of) > 0 {
				row = of[s.n(len(of))]
			}
		}
		s.spoilRow(row)
	}
	s.db.left.Store(boundOfCall)
}

// rows are the rows that may be spoilt: all but those without which there is no queue.
func (s *spoiling) rows() (rows []kv.KV) {
	keys := s.q.keys
	kept := [][]byte{keys.meta(metaFormat), keys.meta(metaOffset), keys.meta(metaConfig)}
	require.NoError(s, s.q.view(s.Context(), func(v *view) (err error) {
		rows, err = v.read.GetRange(keys.all().Selectors(), kv.RangeOptions{}).Wait(s.Context())
		return err
	}))
	return slices.DeleteFunc(rows, func(row kv.KV) bool {
		return slices.ContainsFunc(kept, func(k []byte) bool { return bytes.Equal(k, row.Key) })
	})
}

func (s *spoiling) spoilRow(row kv.KV) {
	p, err := s.q.keys.parse(row.Key)
	key, value, how := row.Key, bytes.Clone(row.Value), ""
	switch s.n(5) {
	case 0:
		value, how = s.bytes(s.n(12)), "overwritten"
	case 1:
		value, how = value[:s.n(len(value)+1)], "cut"
	case 2:
		value, how = append(value, s.bytes(1+s.n(3))...), "appended to"
	case 3:
		if len(value) == 0 {
			value = []byte{1}
		}
		value[s.n(len(value))] ^= byte(1 + s.n(255))
		how = "changed in a byte"
	case 4: // a key that has no valid form, in addition to the row
		key, how = append(bytes.Clone(key), s.bytes(1+s.n(4))...), "new"
		if q, wrong := s.q.keys.parse(key); wrong == nil {
			s.touch(q)
		}
	}
	s.keys = append(s.keys, fmt.Sprintf("%s: %s = %.99q (%.99q)", tuple.Printable(key), how, value, row.Value))
	if err == nil {
		s.touch(p)
	}
	s.set(key, value)
}

// touch notes which groups a row is of.
func (s *spoiling) touch(p parsedKey) {
	switch {
	case p.name == nameMeta && (p.field == metaPaused || p.field == metaDropped):
		for g := range s.waiting {
			s.touched[g] = true
		}
	case p.name == nameBeat, p.name == nameTimer && p.id != uuid.Nil, p.name == nameHeld:
		s.touched["g6"] = true
	}
	s.touched[p.group] = true
}

// drain receives and takes until nothing comes for a while, and holds what came to the law of order.
func (s *spoiling) drain() {
	got := map[string][]string{}
	for idle := 0; idle < 25; {
		items, err := s.drainOnce()
		s.call("receive", err)
		for _, i := range items {
			got[i.ID.Group] = append(got[i.ID.Group], string(i.Body[:min(7, len(i.Body))]))
		}
		if idle++; len(items) > 0 {
			idle = 0
		} else {
			time.Sleep(time.Minute)
		}
	}
	for g, want := range s.waiting {
		if !s.touched[g] {
			require.Equal(s, want, got[g], "group %s\nspoilt: %s", g, s.spoilt())
		}
	}
}

func (s *spoiling) drainOnce() (items []Item, err error) {
	ctx := s.Context()
	if s.n(4) == 0 {
		err = s.q.Once(ctx, func(tx kv.Tx) error {
			items, _, err = s.q.TakeTx(ctx, tx, 1+s.n(3), TakeOptions{})
			return err
		})
		return items, err
	}
	o := ReceiveOptions{
		Max: 1 + s.n(20), Strategy: Strategy(s.n(int(Heads) + 1)), Wait: time.Duration(s.n(2)) * time.Second,
	}
	claims, err := s.q.Receive(ctx, o)
	for _, c := range claims {
		ackErr := s.q.Ack(ctx, c)
		s.call("ack of "+c.Group, ackErr)
		if !s.touched[c.Group] {
			require.NoError(s, ackErr, "group %s\nspoilt: %s", c.Group, s.spoilt())
		}
		if ackErr == nil {
			items = append(items, c.Items...)
		}
	}
	return items, err
}

// verb is a call with choices of its own.
type verb struct {
	name string
	call func(s *spoiling, ctx context.Context, q *Queue) error
}

// id is the id of an item, dead letter or archived item.
func (s *spoiling) id() ID { return s.ids[s.n(len(s.ids))] }

// holds keeps claims for the verbs that settle.
func (s *spoiling) holds(claims []*Claim, err error) error {
	s.claims = append(s.claims, claims...)
	return err
}

// settles calls a verb with a claim, live or not.
func (s *spoiling) settles(settle func(c *Claim) error) error {
	if len(s.claims) == 0 {
		return nil
	}
	return settle(s.claims[s.n(len(s.claims))])
}

// template is a template if the queue has facets.
func (s *spoiling) template() Template {
	if s.config.Facets == nil || s.n(2) == 0 {
		return nil
	}
	return Template{"state": []string{"NEW", "PAID"}[s.n(2)]}
}

func (s *spoiling) received() ReceiveOptions {
	o := ReceiveOptions{Max: 1 + s.n(10), Lease: time.Duration(1+s.n(30)) * time.Second, Where: s.template()}
	switch s.n(7) {
	case 0:
		o.Group = OnlyGroup(s.group())
	case 1:
		o.Strategy = Strategy(s.n(int(Heads) + 1))
	case 2:
		o.Wait = time.Duration(1+s.n(90)) * time.Second
	case 3:
		o.ReceiveID = []string{"id", "id2"}[s.n(2)]
	case 4:
		if o.Where == nil && s.config.Facets == nil && !s.config.Unordered && !s.config.LeasePerItem {
			o.Lease, o.Heartbeat = 0, true
		}
	case 5:
		if o.Where == nil && s.config.Unordered {
			o.Unordered = true
		} else {
			o.State = o.Where == nil && !s.config.LeasePerItem
		}
	}
	return o
}

func (s *spoiling) message(group string) Message {
	return Message{
		Group: group, Body: []byte("new"), Delay: time.Duration(s.n(2)) * time.Second,
		DedupID: fmt.Sprintf("%s-%d", group, s.n(4)), Headers: map[string]string{"state": "NEW"},
	}
}

// spoiltVerbs has every verb of a handle.
var spoiltVerbs = []verb{
	{"enqueue", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Enqueue(ctx, s.message(s.group()), s.message(s.group()))
		return err
	}},
	{"receive", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.holds(q.Receive(ctx, s.received()))
	}},
	{"receive", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.holds(q.Receive(ctx, s.received()))
	}},
	{"take", func(s *spoiling, ctx context.Context, q *Queue) error {
		o := TakeOptions{Where: s.template()}
		if s.n(2) == 0 {
			o.Group = OnlyGroup(s.group())
		}
		o.Unordered = o.Where == nil && s.config.Unordered && s.n(2) == 0
		return q.Once(ctx, func(tx kv.Tx) error {
			_, _, err := q.TakeTx(ctx, tx, 1+s.n(3), o)
			return err
		})
	}},
	{"ack", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error { return q.Ack(ctx, c) })
	}},
	{"ack all", func(s *spoiling, ctx context.Context, q *Queue) error {
		var all []Settlement
		for _, c := range s.claims {
			all = append(all, Settlement{Claim: c, FinishAll: true})
		}
		return q.Settle(ctx, all...)
	}},
	{"nack", func(s *spoiling, ctx context.Context, q *Queue) error {
		delay := time.Duration(s.n(3)) * time.Second
		return s.settles(func(c *Claim) error { return q.Nack(ctx, c, NackOptions{Delay: delay}) })
	}},
	{"reject", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error { return q.Nack(ctx, c, NackOptions{Reject: "no"}) })
	}},
	{"release", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error { return q.Nack(ctx, c, NackOptions{Release: true}) })
	}},
	{"extend", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error { _, err := q.Extend(ctx, c, 5*time.Second); return err })
	}},
	{"ack and receive", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error {
			o := s.received()
			o.ReceiveID = ""
			return s.holds(q.SettleReceive(ctx, Settlement{Claim: c, FinishAll: true}, o))
		})
	}},
	{"advance", func(s *spoiling, ctx context.Context, q *Queue) error {
		return s.settles(func(c *Claim) error {
			return q.Settle(ctx, Settlement{Claim: c, AdvanceAll: true, Change: func(_ ID, m *Message) error {
				m.Headers = map[string]string{"state": "PAID"}
				return nil
			}})
		})
	}},
	{"set state", func(s *spoiling, ctx context.Context, q *Queue) error {
		state := []byte("s")
		return s.settles(func(c *Claim) error {
			return q.Settle(ctx, Settlement{Claim: c, State: &state, FinishAll: true})
		})
	}},
	{"group state", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.GroupState(ctx, s.group())
		return err
	}},
	{"set group state", func(s *spoiling, ctx context.Context, q *Queue) error {
		return q.Admin().SetGroupState(ctx, s.group(), s.bytes(s.n(2)), SetGroupStateOptions{})
	}},
	{"peek", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Peek(ctx, s.group(), 3, s.template())
		return err
	}},
	{"find", func(s *spoiling, ctx context.Context, q *Queue) error {
		g := s.group()
		_, err := q.Find(ctx, g, g+"-0")
		return err
	}},
	{"stats", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Stats(ctx, StatsOptions{Where: s.template()})
		return err
	}},
	{"group", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Group(ctx, s.group(), s.template())
		return err
	}},
	{"groups", func(s *spoiling, ctx context.Context, q *Queue) error {
		for _, err := range q.Admin().AllGroups(ctx, GroupsOptions{Marked: s.n(3) == 0}) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"blocked", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Blocked(ctx, BlockedOptions{})
		return err
	}},
	{"holders", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Holders(ctx)
		return err
	}},
	{"why", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Why(ctx, s.id(), s.template())
		return err
	}},
	{"why group", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().WhyGroup(ctx, s.group(), s.template())
		return err
	}},
	{"check", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Check(ctx, CheckOptions{})
		return err
	}},
	{"dead letters", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().DeadLetters(ctx, DeadOptions{Bodies: s.n(2) == 0})
		return err
	}},
	{"redrive", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Redrive(ctx, DeadFilter{All: true}, RedriveOptions{ToTail: s.n(2) == 0, Limit: 1})
		return err
	}},
	{"discard", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Discard(ctx, DeadFilter{All: true}, DiscardOptions{Limit: 1})
		return err
	}},
	{"archive", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Archive(ctx, ArchiveOptions{Bodies: s.n(2) == 0})
		return err
	}},
	{"replay", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Replay(ctx, ArchiveFilter{All: true}, ReplayOptions{})
		return err
	}},
	{"sweep", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Sweep(ctx, SweepOptions{})
		return err
	}},
	{"purge", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Purge(ctx, PurgeOptions{Group: OnlyGroup(s.group()), Force: s.n(2) == 0})
		return err
	}},
	{"pause group", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().PauseGroup(ctx, s.group(), PauseOptions{})
		return err
	}},
	{"resume group", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().ResumeGroup(ctx, s.group(), ResumeOptions{})
		return err
	}},
	{"pause", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Pause(ctx, PauseOptions{})
		return err
	}},
	{"resume", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Resume(ctx, ResumeOptions{})
		return err
	}},
	{"retry", func(s *spoiling, ctx context.Context, q *Queue) error {
		return q.Admin().RetryNow(ctx, s.group(), RetryOptions{})
	}},
	{"release by force", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().ForceRelease(ctx, s.group(), ForceReleaseOptions{})
		return err
	}},
	{"cancel", func(s *spoiling, ctx context.Context, q *Queue) error { return q.Admin().Cancel(ctx, s.id()) }},
	{"skip", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Skip(ctx, s.group(), SkipOptions{})
		return err
	}},
	{"reschedule", func(s *spoiling, ctx context.Context, q *Queue) error {
		return q.Reschedule(ctx, s.id(), time.Now().Add(time.Duration(s.n(100))*time.Second))
	}},
	{"edit", func(s *spoiling, ctx context.Context, q *Queue) error {
		return q.Admin().Edit(ctx, s.id(), func(m *Message) error { m.Body = []byte("edited"); return nil })
	}},
	{"configure", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, _, err := q.Admin().Configure(ctx, func(c *Config) { c.Delay = time.Duration(s.n(2)) * time.Second })
		return err
	}},
	{"raise", func(s *spoiling, ctx context.Context, q *Queue) error {
		_, _, err := q.Admin().Configure(ctx, func(c *Config) { c.Shards = max(c.Shards, 1+s.n(4)) })
		return err
	}},
	{"subscriptions", func(_ *spoiling, ctx context.Context, q *Queue) error {
		_, err := q.Admin().Subscriptions(ctx)
		return err
	}},
	{"subscribe", func(s *spoiling, ctx context.Context, q *Queue) error {
		ctx, end := context.WithTimeout(ctx, time.Duration(1+s.n(60))*time.Second)
		defer end()
		o := SubscribeOptions{OnError: func(err error) {
			if isCorrupt(err) {
				require.Contains(s, err.Error(), ": key ")
			}
		}}
		name := []string{"sub", "sub2"}[s.n(2)]
		return q.Subscribe(ctx, name, func(context.Context, []Change) error { return nil }, o)
	}},
	{"unsubscribe", func(_ *spoiling, ctx context.Context, q *Queue) error {
		return q.Admin().Unsubscribe(ctx, "sub")
	}},
	{"time", func(s *spoiling, _ context.Context, _ *Queue) error {
		time.Sleep(time.Duration(1+s.n(120)) * time.Second)
		return nil
	}},
}

// spoiltWhole are the verbs of the whole queue, which no row stops.
var spoiltWhole = map[string]bool{
	"stats": true, "groups": true, "blocked": true, "holders": true, "check": true, "dead letters": true,
	"redrive": true, "discard": true, "archive": true, "replay": true, "sweep": true, "purge": true, "pause": true,
	"resume": true, "configure": true, "raise": true, "subscriptions": true,
}

// verbs runs n verbs.
func (s *spoiling) verbs(n int) {
	for range n {
		v := spoiltVerbs[s.n(len(spoiltVerbs))]
		ctx, end := context.WithTimeout(s.Context(), 10*time.Minute)
		err := v.call(s, ctx, s.q)
		require.NoError(s, ctx.Err(), "%s did not end\nspoilt: %s", v.name, s.spoilt())
		end()
		s.call(v.name, err)
	}
}

// unreadableRules are the rules of Check which no queue breaks that was purged by force.
var unreadableRules = []Rule{ruleKey, ruleValue, ruleItem, ruleReachable}

// repair purges by force and sweeps, and then the queue works again, in every group, and nothing is unreadable.
func (s *spoiling) repair() {
	ctx, admin := s.Context(), s.q.Admin()
	_, err := admin.Purge(ctx, PurgeOptions{All: true, Force: true})
	require.NoError(s, err, "purge by force\nspoilt: %s", s.spoilt())
	_, err = admin.Sweep(ctx, SweepOptions{})
	if errors.Is(err, ErrClock) { // a receipt with a wrong time stops sweeps until its version is old
		time.Sleep(2 * witnessLife)
		_, err = admin.Sweep(ctx, SweepOptions{})
	}
	require.NoError(s, err, "sweep\nspoilt: %s", s.spoilt())
	_, _ = admin.Resume(ctx, ResumeOptions{})
	s.db.left.Store(boundOfCall)
	report, err := admin.Check(ctx, CheckOptions{})
	require.NoError(s, err)
	for _, v := range report.Violations {
		require.NotContains(s, unreadableRules, v.Rule, "%s\nspoilt: %s", v, s.spoilt())
	}
	var groups []string
	for _, g := range slices.Sorted(maps.Keys(s.waiting)) {
		_, _ = admin.ResumeGroup(ctx, g, ResumeOptions{})
		_, err := s.q.Enqueue(ctx, Message{Group: g, Body: []byte("after"), Headers: map[string]string{"state": "NEW"}})
		require.NoError(s, err, "enqueue to %s\nspoilt: %s", g, s.spoilt())
		groups = append(groups, g)
	}
	slices.Sort(groups)
	var got []string
	for range 30 {
		claims, err := s.q.Receive(ctx, ReceiveOptions{Max: 100})
		require.NoError(s, err, "receive\nspoilt: %s", s.spoilt())
		for _, c := range claims {
			require.NoError(s, s.q.Ack(ctx, c), "ack\nspoilt: %s", s.spoilt())
			got = append(got, c.Group)
		}
		time.Sleep(time.Minute)
	}
	slices.Sort(got)
	require.Equal(s, groups, slices.Compact(got), "spoilt: %s", s.spoilt())
}

// leadsOf has, for each kind of row that leads receives to groups, how a queue comes to have one for the group "bad".
var leadsOf = map[string]func(t *testing.T, q *Queue){
	nameReady: func(t *testing.T, q *Queue) { send(t, q, "bad") },
	nameTimer: func(t *testing.T, q *Queue) {
		send(t, q, "bad")
		claimOf(t, q, "bad", time.Second)
	},
}

// TestUnreadableLeadStopsNobody (G3): a hint or a due timer that cannot be read keeps no group from delivery, not even
// its own. The handle counts such rows, and Check names them.
func TestUnreadableLeadStopsNobody(t *testing.T) {
	for name, lead := range leadsOf {
		for how, spoil := range map[string]func(row kv.KV) kv.KV{
			"value": func(row kv.KV) kv.KV { return kv.KV{Key: row.Key, Value: []byte{0xff}} },
			"key":   func(row kv.KV) kv.KV { return kv.KV{Key: append(bytes.Clone(row.Key), 1), Value: row.Value} },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
					lead(t, q)
					var rows []kv.KV
					require.NoError(t, q.view(t.Context(), func(v *view) (err error) {
						rows, err = v.read.GetRange(v.keys.section(name).Selectors(), kv.RangeOptions{}).Wait(v.ctx)
						return err
					}))
					require.Len(t, rows, 1)
					bad := spoil(rows[0])
					_, err := kv.Run(t.Context(), r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
						tx.Set(bad.Key, bad.Value)
						return nil
					})
					require.NoError(t, err)
					send(t, q, "a", "b")
					time.Sleep(2 * time.Second)
					report, err := q.Admin().Check(t.Context(), CheckOptions{})
					require.NoError(t, err)
					require.Len(t, report.Violations, 1)
					require.Equal(t, tuple.Printable(bad.Key), report.Violations[0].Key)

					var groups []string
					for range 2 { // a message whose lease has expired comes alone
						for _, c := range receive(t, q, ReceiveOptions{}) {
							groups = append(groups, c.Group)
							require.NoError(t, q.Ack(t.Context(), c))
						}
					}
					require.ElementsMatch(t, []string{"a", "b", "bad"}, groups)
					require.NotZero(t, q.Paths().Unreadable)
					swept, err := q.Admin().Sweep(t.Context(), SweepOptions{})
					require.NoError(t, err)
					require.Equal(t, how == "key", swept.Unreadable > 0, "a claim has cleared the lead with a good key")
				})
			})
		}
	}
}

// TestUnreadableRequestStopsNobody (G3): the oldest request cannot be read. It counts as that of a dead handle:
// receives still wait and are served, and acks are done.
func TestUnreadableRequestStopsNobody(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		_, err := kv.Run(t.Context(), r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(q.keys.request(1, uuid.UUID{1}), []byte{0xff})
			return nil
		})
		require.NoError(t, err)
		send(t, q, "a", "a")
		for range 2 {
			claims := receive(t, q, ReceiveOptions{Max: 1, Wait: time.Second})
			require.Len(t, claims, 1)
			require.NoError(t, q.Ack(t.Context(), claims[0]))
		}
		require.Empty(t, receive(t, q, ReceiveOptions{Wait: time.Minute}))
		require.NotZero(t, q.Paths().Unreadable)
	})
}

// TestUnreadableRateStopsNobody (G3): the row that says how far the queue's rate is used up cannot be read. The queue
// still delivers, at its rate, and the row is readable again.
func TestUnreadableRateStopsNobody(t *testing.T) {
	config := Config{MaxRateTotal: Rate{Count: 1, Per: time.Second}}
	inABubble(t, config, func(t *testing.T, q *Queue, r *recording.Recorder) {
		_, err := kv.Run(t.Context(), r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(q.keys.meta(metaPace), []byte{0xff})
			return nil
		})
		require.NoError(t, err)
		send(t, q, "a", "b")
		for range 2 {
			claims := receive(t, q, ReceiveOptions{Wait: time.Minute})
			require.Len(t, claims, 1)
			require.NoError(t, q.Ack(t.Context(), claims[0]))
		}
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	})
}

// TestSweepOfUnreadableLead (G3): a sweep clears a timer that cannot be read, and the group is still delivered when its
// lease has expired. A purge by force does the same with another group's row.
func TestSweepOfUnreadableLead(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, "bad")
		claimOf(t, q, "bad", time.Minute)
		var rows []kv.KV
		require.NoError(t, q.view(t.Context(), func(v *view) (err error) {
			rows, err = v.read.GetRange(q.keys.section(nameTimer).Selectors(), kv.RangeOptions{}).Wait(t.Context())
			return err
		}))
		_, err := kv.Run(t.Context(), r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(rows[0].Key, []byte("no timer"))
			return nil
		})
		require.NoError(t, err)
		swept, err := q.Admin().Sweep(t.Context(), SweepOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, swept.Unreadable)
		require.Empty(t, receive(t, q, ReceiveOptions{}))
		time.Sleep(time.Minute)
		claims := receive(t, q, ReceiveOptions{})
		require.Len(t, claims, 1)
		require.Equal(t, 1, claims[0].Items[0].Attempts)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
	})
}

// TestSweepPassesUnreadableAttempt (contract): a sweep leaves alone a group past retention whose attempt record cannot
// be read. It removes what is due in the other groups, and in the archive.
func TestSweepPassesUnreadableAttempt(t *testing.T) {
	config := Config{Retention: time.Minute, DeadLetterExpired: true, Archive: time.Minute}
	inABubble(t, config, func(t *testing.T, q *Queue, r *recording.Recorder) {
		ctx := t.Context()
		send(t, q, "done")
		require.NoError(t, q.Ack(ctx, claimOf(t, q, "done", 0)))
		send(t, q, "bad", "good")
		claim := claimOf(t, q, "bad", 0)
		require.NoError(t, q.Nack(ctx, claim, NackOptions{Err: errors.New("failed"), AtOnce: true}))
		key := q.keys.attempt(claim.Items[0].ID)
		write := func(value []byte) {
			_, err := kv.Run(ctx, r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(key, value)
				return nil
			})
			require.NoError(t, err)
		}
		write([]byte("no record"))
		time.Sleep(48 * time.Hour)
		swept, err := q.Admin().Sweep(ctx, SweepOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, swept.PastRetention)
		require.EqualValues(t, 1, swept.Archived)
		write(rec.Attempt{Count: 1}.Pack())
		swept, err = q.Admin().Sweep(ctx, SweepOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, swept.PastRetention)
	})
}

// TestRules: every rule has a name of its own and a text.
func TestRules(t *testing.T) {
	texts := make(map[string]bool)
	for r, text := range ruleTexts {
		require.Regexp(t, `^[a-z]+(-[a-z]+)+$`, string(r))
		require.Equal(t, text, r.Text())
		require.NotEqual(t, string(r), text)
		texts[text] = true
	}
	require.Len(t, texts, len(ruleTexts))
	require.Equal(t, "other", Rule("other").Text())
}
