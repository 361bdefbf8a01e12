package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// heatShards are the settings of "shards" that heat compares; heatAim is the one that its target is about.
var heatShards = []int{1, 4, 16, 64}

const (
	heatAim = 16
	// heatHandles share the work in turns, as processes do. Each writes the counters in a slot of its own choice, so
	// fewer would make the counters look hotter than they are.
	heatHandles = 64
	// heatSlack is what chance may add: groups fall into shards by their hash, never quite evenly.
	heatSlack = 1.2
)

// heat counts which share of a queue's mutations falls on the hottest place of each kind. A cluster splits a key range
// where it is hot, but no place here can be split: a place is a single key, or the end of a range that grows in the
// order of time, where every new key is a neighbour of the last. So the largest share bounds the queue: if one storage
// team bears M mutations a second, the whole queue has no more than M / share.
func heat(s Sizes) Benchmark {
	const name = "heat"
	means := fmt.Sprintf("%d × the share at %[1]d shards, over that at 1: the worst of timers, hints and counters",
		heatAim)
	return Benchmark{name, means, func(ctx context.Context, env Env) ([]Result, error) {
		var rows, headlines, costs []Result
		worst, worstOf := 0.0, ""
		share := make(map[string]float64) // of the rows, by name
		for _, items := range []int{batch, 1} {
			for i, shards := range heatShards {
				env.progress(fmt.Sprintf("counting claims of %d", items), i, len(heatShards))
				m, err := heatOf(ctx, env, shards, items, s.HeatGroups)
				if err != nil {
					return nil, err
				}
				for _, kind := range heatKinds {
					r := m.result(kind, shards, items)
					rows, share[r.Name] = append(rows, r), r.Value
				}
				rows = append(rows, m.readsPerClaim(shards, items))
				if items == 1 {
					look := fmt.Sprintf("reads_per_empty_look_%d", shards)
					rows = append(rows, Result{look, float64(m.emptyLook), "reads",
						"keys and ranges that a receive reads when nothing is ready", "", Target{}})
				}
				if shards == 1 {
					costs = append(costs, m.costs(items)...)
				}
			}
			for _, kind := range heatKinds {
				of := func(shards int) float64 { return share[heatName(kind, shards, items)] }
				even := of(1) / heatAim
				if r := of(heatAim) / even; r > worst {
					worst, worstOf = r, fmt.Sprintf("%s, claims of %d", kind.means, items)
				}
				if items == 1 { // such a claim writes as many hints and timers as one of ten, and fewer other keys
					headlines = append(headlines, Result{kind.figure, of(heatAim), "share",
						fmt.Sprintf("of all mutations on the hottest %s, %d shards, claims of 1", kind.place, heatAim),
						fmt.Sprintf("at 1 shard %.4g", of(1)), atMost(math.Ceil(even*heatSlack*1e4) / 1e4)})
				}
			}
		}
		requests, err := heatOfRequests(ctx, env, s)
		if err != nil {
			return nil, err
		}
		first := Result{name, worst, "ratio", means, "the worst: " + worstOf, atMost(heatSlack)}
		return slices.Concat([]Result{first}, headlines, rows, []Result{requests}, costs), nil
	}}
}

// heatKind is a kind of place that gets hot.
type heatKind struct {
	name   string // of the keys
	figure string
	means  string
	place  string
}

var heatKinds = []heatKind{
	{"timer", "timer_share", "timers", "growing end of the timers"},
	{"ready", "ready_share", "ready hints", "growing end of the ready hints"},
	{"count", "counter_share", "counters", "key of a counter"},
}

func heatName(kind heatKind, shards, items int) string {
	name := fmt.Sprintf("%s_%d", kind.figure, shards)
	if items == 1 {
		name += "_single"
	}
	return name
}

// heatOf counts what so many groups cost, each enqueued to, claimed and acked once, with so many items.
func heatOf(ctx context.Context, env Env, shards, items, groups int) (_ heatMap, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return heatMap{}, err
	}
	recording := record.Wrap(space.DB)
	space.DB = recording
	defer space.closing(&err)
	q, err := newShardedQueue(ctx, env, space, "heat", shards)
	if err != nil {
		return heatMap{}, err
	}
	c := &crew{q: q}
	for n := range heatHandles {
		// The same seeds at each setting: where a handle's counters are is the handle's choice, and chance otherwise.
		o := layer.Options{Test: &layer.TestOptions{Seed: uint64(n + 1)}}
		h, err := layer.Open(ctx, space.DB, space.Prefix, q.Name(), o)
		if err != nil {
			return heatMap{}, errors.Join(err, c.close(ctx))
		}
		c.handles = append(c.handles, h)
	}
	m := newHeatMap(space.Prefix)
	recording.Take()
	for n := range heatHandles + groups {
		done := func(operation string) {
			if log := recording.Take(); n >= heatHandles { // the first transaction of a handle has no receipt to clear
				m.add(operation, log)
			}
		}
		if err := oneLife(ctx, c, n, items, done); err != nil {
			return heatMap{}, errors.Join(err, c.close(ctx))
		}
	}
	m.lives = groups
	_, err = c.handles[0].Receive(ctx, layer.ReceiveOptions{Max: items})
	m.emptyLook = costOf(recording.Take()).reads
	if err := errors.Join(err, c.close(ctx)); err != nil {
		return heatMap{}, err
	}
	return m, q.verify(ctx)
}

func newShardedQueue(ctx context.Context, env Env, s Space, name string, shards int) (*queue, error) {
	q, err := layer.Create(ctx, s.DB, s.Prefix, name, layer.Options{Config: layer.Config{Shards: shards}})
	if err != nil {
		return nil, err
	}
	return &queue{Queue: q, env: env}, nil
}

// heatOperations are the three of a life, in their order.
var heatOperations = []string{"enqueue", "receive", "ack"}

// oneLife lets a handle enqueue items of the nth group, the next handle claim them, and the one after it ack them. It
// calls done after each of the three.
func oneLife(ctx context.Context, c *crew, n, items int, done func(operation string)) error {
	handle := func(i int) *layer.Queue { return c.handles[(n+i)%len(c.handles)] }
	if _, err := handle(0).Enqueue(ctx, messages(groupName(n), items)...); err != nil {
		return err
	}
	done(heatOperations[0])
	claims, err := handle(1).Receive(ctx, layer.ReceiveOptions{Max: items})
	if err != nil {
		return err
	}
	if len(claims) != 1 || len(claims[0].Items) != items {
		return fmt.Errorf("%w: %d claims of the items just enqueued", errWrong, len(claims))
	}
	done(heatOperations[1])
	err = handle(2).Ack(ctx, claims[0])
	done(heatOperations[2])
	return err
}

// heatOfRequests counts the mutations of a queue that is always empty: each item wakes one of the handles that wait,
// which is in line again as soon as it has acked.
func heatOfRequests(ctx context.Context, env Env, s Sizes) (_ Result, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return Result{}, err
	}
	recording := record.Wrap(space.DB)
	space.DB = recording
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, "requests")
	if err != nil {
		return Result{}, err
	}
	c, err := newCrew(ctx, q, space, wakeHandles, layer.Options{}, layer.ReceiveOptions{Max: 1, Wait: s.Patience})
	if err != nil {
		return Result{}, err
	}
	err = serveWaiting(ctx, c, s.Wakes)
	m := newHeatMap(space.Prefix)
	m.add("", recording.Take())
	if err := errors.Join(err, c.close(ctx)); err != nil {
		return Result{}, err
	}
	_, n := m.mutations.hottest("request")
	return Result{"request_share", portion(n, m.mutations.all), "share",
		"of all mutations on the growing end of the requests, items coming one by one to handles that wait",
		fmt.Sprintf("%d handles, %d items; requests are not sharded", wakeHandles, s.Wakes), Target{}}, q.verify(ctx)
}

// serveWaiting enqueues one item after the other, each once the crew has acked the last.
func serveWaiting(ctx context.Context, c *crew, items int) error {
	waiting, stop := context.WithCancelCause(ctx)
	acked := make(chan struct{})
	var wg sync.WaitGroup
	for _, one := range c.claimers {
		wg.Go(func() {
			for waiting.Err() == nil {
				claims, err := one.handle.Receive(waiting, one.o)
				if err == nil && len(claims) > 0 {
					err = one.handle.Ack(ctx, claims[0])
				}
				if err != nil {
					stop(err) // the first cause stays
					return
				}
				if len(claims) == 0 {
					continue
				}
				c.q.left.Add(-1)
				select {
				case acked <- struct{}{}:
				case <-waiting.Done():
				}
			}
		})
	}
	for n := range items {
		if err := c.q.enqueue(waiting, messages(groupName(n), 1)...); err != nil {
			stop(err)
		}
		select {
		case <-acked:
		case <-waiting.Done():
		}
	}
	stop(errAllDone)
	wg.Wait()
	if cause := context.Cause(waiting); !errors.Is(cause, errAllDone) {
		return cause
	}
	return nil
}

// heatMap is how often each place was written and read, and what each operation cost.
type heatMap struct {
	prefix           []byte
	mutations, reads placeCounts
	emptyLook        int64 // reads
	byOperation      map[string]heatCost
	lives            int
}

func newHeatMap(prefix []byte) heatMap {
	return heatMap{
		prefix: prefix, mutations: newPlaceCounts(), reads: newPlaceCounts(), byOperation: make(map[string]heatCost),
	}
}

// add counts the attempts in log, which the operation made. Of one that failed only the reads count: no cluster applies
// its mutations.
func (m *heatMap) add(operation string, log []record.Transaction) {
	m.byOperation[operation] = m.byOperation[operation].plus(costOf(log))
	for _, t := range log {
		for _, o := range t.Ops {
			switch key, kind := keyOf(o); {
			case kind == opRead:
				m.reads.add(m.place(key))
			case kind == opMutation && t.Err == nil:
				m.mutations.add(m.place(key))
			}
		}
	}
}

// opKind is what a call is to the cluster.
type opKind int

const (
	opOther opKind = iota
	opRead
	opMutation
)

// keyOf returns the key of a call, or the begin of its range.
func keyOf(o record.Op) ([]byte, opKind) {
	switch o.Kind {
	case record.Set, record.Clear, record.Atomic:
		return o.Key, opMutation
	case record.ClearRange:
		return o.Keys.Begin, opMutation
	case record.Get:
		return o.Key, opRead
	case record.GetKey:
		return o.Selector.Key, opRead
	case record.GetRange:
		return o.Range.Begin.Key, opRead
	case record.Watch, record.ReadConflict, record.WriteConflict:
	}
	return nil, opOther
}

// heatCost is what some transactions cost. bytes are the keys and values of the mutations, ranges those that a resolver
// has to compare or to keep.
type heatCost struct{ mutations, reads, bytes, ranges int64 }

func (c heatCost) plus(d heatCost) heatCost {
	return heatCost{c.mutations + d.mutations, c.reads + d.reads, c.bytes + d.bytes, c.ranges + d.ranges}
}

func costOf(log []record.Transaction) (c heatCost) {
	for _, t := range log {
		for _, o := range t.Ops {
			switch _, kind := keyOf(o); {
			case kind == opRead:
				c.reads++
			case kind == opMutation && t.Err == nil:
				c.mutations++
				c.bytes += int64(len(o.Key) + len(o.Value) + len(o.Keys.Begin) + len(o.Keys.End))
			}
		}
		c.ranges += int64(len(t.Reads) + len(t.Writes))
	}
	return c
}

// costs are the figures of the three operations. An engine that does not tell its conflict ranges has 0 of them.
func (m *heatMap) costs(items int) (results []Result) {
	suffix := ""
	if items == 1 {
		suffix = "_single"
	}
	for _, operation := range heatOperations {
		c := m.byOperation[operation]
		for _, f := range []struct {
			name  string
			n     int64
			unit  string
			means string
		}{
			{"mutations", c.mutations, "mutations", ""},
			{"reads", c.reads, "reads", "keys and ranges"},
			{"bytes", c.bytes, "bytes", fmt.Sprintf("keys and values of the mutations, bodies of %d bytes", bodySize)},
			{"ranges", c.ranges, "ranges", "conflict ranges, read and written"},
		} {
			means := fmt.Sprintf("a transaction that %ss %d", operation, items)
			name, value := operation+"_"+f.name+suffix, float64(f.n)/float64(m.lives)
			results = append(results, Result{name, value, f.unit, means, f.means, Target{}})
		}
	}
	return results
}

// readsPerClaim is what a receive reads that finds what is ready.
func (m *heatMap) readsPerClaim(shards, items int) Result {
	name := fmt.Sprintf("reads_per_claim_%d", shards)
	if items == 1 {
		name += "_single"
	}
	reads := float64(m.byOperation[heatOperations[1]].reads) / float64(m.lives)
	return Result{name, reads, "reads", fmt.Sprintf("keys and ranges of a receive that claims %d", items), "", Target{}}
}

func (m *heatMap) result(kind heatKind, shards, items int) Result {
	places, n := m.mutations.hottest(kind.name)
	_, read := m.reads.hottest(kind.name)
	return Result{heatName(kind, shards, items), portion(n, m.mutations.all), "share",
		fmt.Sprintf("of all mutations on the hottest %s, %d shards, claims of %d", kind.place, shards, items),
		fmt.Sprintf("the hottest of %d; of all reads %.3g", places, portion(read, m.reads.all)), Target{}}
}

func portion(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// placeCounts counts by kind of key, then by place.
type placeCounts struct {
	all    int64
	byKind map[string]map[string]int64
}

func newPlaceCounts() placeCounts { return placeCounts{byKind: make(map[string]map[string]int64)} }

func (c *placeCounts) add(kind, place string) {
	c.all++
	if c.byKind[kind] == nil {
		c.byKind[kind] = make(map[string]int64)
	}
	c.byKind[kind][place]++
}

// hottest returns how many places of the kind there are, and the largest count.
func (c *placeCounts) hottest(kind string) (places int, most int64) {
	for _, n := range c.byKind[kind] {
		most = max(most, n)
	}
	return len(c.byKind[kind]), most
}

// growing are the kinds of keys whose last integer grows with time: all keys with the same elements before it have one
// growing end. ("ready", 3, INDEX, "group-7") is at the end of ("ready", 3). All other keys are places of their own.
var growing = []string{"timer", "ready", "request", "item", "archive"}

// place returns the kind of a key of the queue, or of the begin of a range, and the place.
func (m *heatMap) place(key []byte) (kind, place string) {
	if len(key) < len(m.prefix) {
		return "", string(key)
	}
	key = key[len(m.prefix):]
	t, err := tuple.Unpack(key)
	if err != nil && len(key) > 0 { // the end of a range of tuples
		t, err = tuple.Unpack(key[:len(key)-1])
	}
	if err != nil || len(t) < 2 {
		return "", string(key)
	}
	kind, _ = t[1].(string)
	if slices.Contains(growing, kind) {
		for i := len(t) - 1; i > 1; i-- {
			if _, ok := t[i].(int64); ok {
				return kind, tuple.Format(t[:i])
			}
		}
	}
	if t[len(t)-1] == nil { // the begin of a range of tuples
		t = t[:len(t)-1]
	}
	return kind, tuple.Format(t)
}
