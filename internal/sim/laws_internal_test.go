package sim

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// lawWorld is a world with nothing in it.
func lawWorld() *world {
	return &world{
		knobs: &knobs{}, sched: &scheduler{trace: new(trace)}, report: new(Report), marks: make(map[string]int),
		missed: make(map[string]int), handles: []*handle{{who: 1}},
	}
}

// TestLookLaw: an answer that fits a state within its call is right; one that fits a state before or after, or none, is
// a violation.
func TestLookLaw(t *testing.T) {
	for name, tt := range map[string]struct {
		begin, end int
		saw        string
		want       int
	}{
		"the state before":       {5, 8, "", 0},
		"the state amid it":      {9, 12, "a", 0},
		"the last state":         {25, 30, "b", 0},
		"a state of before":      {15, 18, "", 1},
		"a state of after":       {5, 8, "a", 1},
		"the last, of after":     {12, 18, "b", 1},
		"a state that never was": {5, 30, "c", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, state := lawWorld(), ""
			seen := func(*model) bool { return state == tt.saw }
			w.ops = []*op{{kind: "group-state", begin: tt.begin, end: tt.end, seen: seen}}
			m := &model{w: w, looking: newLooking(w)}
			m.look(&record{from: 10, to: 10})
			state = "a"
			m.look(&record{from: 20, to: 20})
			state = "b"
			m.look(nil)
			require.Len(t, w.violations, tt.want)
		})
	}
}

// TestRescheduleLaw: a call that returned that a message was rescheduled has done so, once, or both times were over.
func TestRescheduleLaw(t *testing.T) {
	id := layer.ID{Group: "g0", Index: 1}
	at := time.UnixMilli(5000)
	for name, tt := range map[string]struct {
		done []int   // steps of the records that did so
		due  int64   // when it was due before
		now  int64   // when the call ended
		told outcome // what the caller was told
		want int
	}{
		"done":                     {[]int{12}, 0, 1000, done, 0},
		"not done":                 {nil, 0, 1000, done, 1},
		"done twice":               {[]int{12, 14}, 0, 1000, done, 1},
		"both times are over":      {nil, 4000, 6000, done, 0},
		"the old time is not over": {nil, 9000, 6000, done, 1},
		"refused":                  {nil, 0, 1000, refused, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := lawWorld()
			o := &op{kind: "reschedule", who: 1, begin: 10, end: 20, endAt: time.UnixMilli(tt.now)}
			o.retimes, o.dueAt, o.outcome = id, at, tt.told
			w.ops = []*op{o}
			m := newModel(w)
			m.dueLog[id] = []retimed{{r: &record{from: 1, to: 1}, dueMS: tt.due}}
			for _, step := range tt.done {
				m.r = &record{step: step, from: step, to: step, nowMS: 1000}
				require.True(t, m.retime(id, stored{}, stored{envelope: envelope{dueMS: 5000}}))
			}
			m.compareReschedules()
			require.Len(t, w.violations, tt.want)
		})
	}
}

// TestRescheduleLawBesideRetry: two changes to now are no reschedule done twice if an operator may have made one.
func TestRescheduleLawBesideRetry(t *testing.T) {
	id := layer.ID{Group: "g0", Index: 1}
	for _, tt := range []struct{ begun, want int }{{11, 0}, {13, 0}, {15, 1}} {
		w := lawWorld()
		w.ops = []*op{
			{kind: "reschedule", who: 1, begin: 10, end: 20, retimes: id},
			{kind: "retry-now", who: 2, group: "g0", begin: tt.begun, end: 20},
		}
		m := newModel(w)
		for _, step := range []int{12, 14} {
			m.r = &record{step: step, from: step, to: step, nowMS: 1000}
			require.True(t, m.retime(id, stored{envelope: envelope{dueMS: 5000}}, stored{}))
		}
		m.compareReschedules()
		require.Len(t, w.violations, tt.want, "a retry begun at %d", tt.begun)
	}
}

// TestTotalLaw: more items than the rate of the queue lets start are a violation, over a short time and over a long
// one.
func TestTotalLaw(t *testing.T) {
	for name, tt := range map[string]struct {
		everyMS int64
		n, each int
		skew    time.Duration
		want    int
	}{
		"at the rate":          {500, 20, 1, 0, 0},
		"a burst":              {10, 4, 1, 0, 0},
		"too large a burst":    {10, 5, 1, 0, 1},
		"too much at once":     {10_000, 2, 5, 0, 1},
		"a little faster":      {400, 20, 1, 0, 1},
		"faster, clocks apart": {400, 6, 1, time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := lawWorld()
			w.handles = append(w.handles, &handle{who: 2, skew: tt.skew})
			w.knobs.config.MaxRateTotal = layer.Rate{Count: 2, Per: time.Second}
			m := newModel(w)
			for i := range int64(tt.n) {
				r := &record{who: 1, nowMS: 1000 + i*tt.everyMS, begunMS: 1000 + i*tt.everyMS}
				m.totals(r, map[string]int{"g0": tt.each})
			}
			m.compareTotal()
			require.Len(t, w.violations, tt.want)
		})
	}
}

// TestSubscriptionLaws: a gap, a repetition, a late call, and a place behind changes that were not handled are
// violations.
func TestSubscriptionLaws(t *testing.T) {
	second := func(n int) time.Time { return time.UnixMilli(int64(1000 * n)) }
	type call struct{ begin, end, from, till int } // changes from up to, without, till; a step is a second
	for name, tt := range map[string]struct {
		calls []call
		moves [][2]int // steps and places
		want  int
	}{
		"in order":            {[]call{{10, 11, 0, 2}, {20, 21, 2, 4}}, [][2]int{{5, 0}, {15, 2}, {25, 4}}, 0},
		"a gap":               {[]call{{10, 11, 0, 1}, {20, 21, 2, 4}}, [][2]int{{5, 0}, {15, 1}}, 1},
		"again":               {[]call{{10, 11, 0, 2}, {20, 21, 0, 2}}, [][2]int{{5, 0}}, 2},
		"from before":         {[]call{{10, 11, 0, 2}}, [][2]int{{1, 2}}, 1},
		"late":                {[]call{{10, 11, 0, 2}, {90, 91, 2, 4}}, [][2]int{{5, 0}, {15, 2}, {95, 4}}, 2},
		"two at once":         {[]call{{10, 31, 0, 2}, {20, 21, 2, 4}}, [][2]int{{5, 0}, {15, 2}}, 1},
		"before it was there": {[]call{{2, 3, 0, 2}}, [][2]int{{1, 0}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := lawWorld()
			s0 := &topic{name: "s0", parallel: 1}
			w.knobs.topics, w.knobs.calmly = []*topic{s0}, true
			m := newModel(w)
			for i := range 4 {
				id := layer.ID{Group: "g0", Index: int64(i)}
				row := &feedRow{r: &record{who: 1, from: 3, to: 3, nowMS: 3000}, key: []byte{byte(i)}}
				c := fed{kind: layer.ChangeEnqueued, id: id, group: "g0", n: 1, row: row}
				c.text = heardText(c.kind, id, 1)
				m.feed.at[c.text] = []int{i}
				m.feed.rows, m.feed.changes = append(m.feed.rows, row), append(m.feed.changes, c)
			}
			by := &op{begin: 5, who: 1}
			for _, c := range tt.calls {
				h := &hearing{topic: s0, by: by, begin: c.begin, end: c.end}
				h.beginAt, h.endAt = second(c.begin), second(c.end)
				for i := c.from; i < c.till; i++ {
					h.changes, h.groups = append(h.changes, m.feed.changes[i].text), append(h.groups, "g0")
				}
				w.hearings = append(w.hearings, h)
			}
			a := m.feed.audiences["s0"]
			for _, move := range tt.moves {
				a.places = append(a.places, heldAt{r: &record{from: move[0], to: move[0]}, place: move[1]})
			}
			m.compareHearings()
			require.Len(t, w.violations, tt.want, "%v", w.violations)
		})
	}
}

// TestBlameLaws (G7): an attempt that is counted without evidence is a violation.
func TestBlameLaws(t *testing.T) {
	x := layer.ID{Group: "g", Index: 1, Random: uuid.UUID{1}}
	y := layer.ID{Group: "g", Index: 2, Random: uuid.UUID{2}}
	expired := lapsePrefix + "handle 1"
	attempt := func(id layer.ID, n int64, text string) write {
		value := tuple.Tuple{n, int64(1), int64(1), text}.Pack()
		return write{kind: wrote, key: []byte(itemKeyFor("attempt", id)), value: value}
	}
	dead := write{kind: wrote, key: []byte(itemKeyFor("dead", x)), value: []byte("2 attempts failed: " + expired)}
	unproven := lockState{kind: "claim", token: 5, noted: 5, endMS: 10, out: []layer.ID{x}}
	proven, both, provenBoth := unproven, unproven, unproven
	proven.noted = 6
	both.out = []layer.ID{x, y}
	provenBoth.noted, provenBoth.out = 6, both.out
	for name, tt := range map[string]struct {
		lock   lockState
		before []write
		write  write
		want   int
	}{
		"the first lease":                     {both, nil, attempt(x, 1, expired), 0},
		"the second of the claim":             {both, nil, attempt(y, 1, expired), 1},
		"two at once":                         {both, nil, attempt(x, 2, expired), 1},
		"nothing counts of a suspect":         {unproven, []write{attempt(x, 1, expired)}, attempt(x, 1, expired), 0},
		"another lease of an unproven claim":  {unproven, []write{attempt(x, 1, expired)}, attempt(x, 2, expired), 1},
		"another lease of a proven claim":     {proven, []write{attempt(x, 1, expired)}, attempt(x, 2, expired), 0},
		"a nack of a suspect":                 {unproven, []write{attempt(x, 1, expired)}, attempt(x, 2, "boom"), 0},
		"a dead letter by an unproven claim":  {unproven, []write{attempt(x, 1, expired)}, dead, 1},
		"a dead letter by a claim of several": {provenBoth, []write{attempt(x, 1, expired)}, dead, 1},
		"a dead letter by a proven claim":     {proven, []write{attempt(x, 1, expired)}, dead, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := lawWorld()
			m := newModel(w)
			m.r = &record{who: 1, nowMS: 20}
			first := both
			m.group("g").lock = &first
			m.blames(&record{writes: tt.before})
			m.group("g").lock = &tt.lock
			m.blames(&record{writes: []write{tt.write}})
			require.Len(t, w.violations, tt.want)
		})
	}
}
