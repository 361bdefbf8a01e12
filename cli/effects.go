package cli

import (
	"context"
	"fmt"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// effects are the pairs that the demo's handlers leave in the database. The transaction that acks a message writes one
// pair. So there is one pair for each time that a message was handled, in the order of the commits.
//
//	key    ("fdbfifo-demo", queue, group, versionstamp)
//	value  tuple: line of the file, body, number of the process, token of the claim
//
// The stamp comes from the database, so the order does not depend on the queue. The write of an effect reads nothing,
// and conflicts with nothing.
type effects struct{ prefix []byte }

func newEffects(queue string) effects {
	return effects{tuple.Tuple{effectsName, queue}.Pack()}
}

const effectsName = "fdbfifo-demo"

// effect is one pair of effects.
type effect struct {
	group   string
	line    string
	body    []byte
	process int64
	token   int64
}

// newEffect returns the effect of a process that has handled d.
func newEffect(d *worker.Delivery, process int) effect {
	return effect{
		group: d.ID.Group, line: d.Headers[lineHeader], body: d.Body, process: int64(process), token: d.Token,
	}
}

// write adds an effect.
func (e effects) write(tx kv.Tx, one effect) error {
	key, err := tuple.PackWithVersionstamp(e.prefix, tuple.Tuple{one.group, tuple.IncompleteVersionstamp(0)})
	if err != nil {
		return fmt.Errorf("effect on group %q: %w", one.group, err)
	}
	value := tuple.Tuple{one.line, one.body, one.process, one.token}.Pack()
	tx.Atomic(kv.SetVersionstampedKey, key, value)
	return nil
}

// maxEffectBody keeps an effect below the largest value of FoundationDB, 100,000 bytes.
const maxEffectBody = 90_000 // bytes

// fitEffects returns an error if a departure is too long for an effect.
func fitEffects(flights []departure) error {
	for _, d := range flights {
		if len(d.body) > maxEffectBody {
			return &inputError{d.line, fmt.Errorf("%s; with --processes at most %s are allowed",
				plural(int64(len(d.body)), "byte"), commas(maxEffectBody))}
		}
	}
	return nil
}

// clear removes the effects of an earlier demo.
func (e effects) clear(ctx context.Context, db kv.DB) error {
	_, err := kv.Run(ctx, db, kv.TxOptions{Call: "clear effects"}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.ClearRange(kv.PrefixRange(e.prefix))
		return nil
	})
	if err != nil {
		return fmt.Errorf("clear effects: %w", err)
	}
	return nil
}

// read calls see with each effect: group by group, and within a group in the order of the commits.
func (e effects) read(ctx context.Context, db kv.DB, see func(effect)) error {
	return e.readUnder(ctx, db, e.prefix, see)
}

// count counts the effects that each of the claims has left so far.
func (e effects) count(ctx context.Context, db kv.DB, held map[heldClaim]int) error {
	for c := range held {
		n := 0
		err := e.readUnder(ctx, db, append(slices.Clip(e.prefix), tuple.Tuple{c.group}.Pack()...), func(one effect) {
			if one.token == c.token {
				n++
			}
		})
		if err != nil {
			return err
		}
		held[c] = n
	}
	return nil
}

func (e effects) readUnder(ctx context.Context, db kv.DB, prefix []byte, see func(effect)) error {
	for row, err := range kv.Rows(ctx, db, kv.PrefixRange(prefix)) {
		if err != nil {
			return fmt.Errorf("read effects: %w", err)
		}
		one, err := e.parse(row)
		if err != nil {
			return fmt.Errorf("effect %s: %w", tuple.Printable(row.Key), err)
		}
		see(one)
	}
	return nil
}

func (e effects) parse(row kv.KV) (effect, error) {
	key, err := tuple.Unpack(row.Key[len(e.prefix):])
	if err != nil {
		return effect{}, err
	}
	value, err := tuple.Unpack(row.Value)
	if err != nil {
		return effect{}, err
	}
	if len(key) != 2 || len(value) != 4 {
		return effect{}, fmt.Errorf("%v = %v", key, value)
	}
	var one effect
	var oks [5]bool
	one.group, oks[0] = key[0].(string)
	one.line, oks[1] = value[0].(string)
	one.body, oks[2] = value[1].([]byte)
	one.process, oks[3] = value[2].(int64)
	one.token, oks[4] = value[3].(int64)
	if oks != [5]bool{true, true, true, true, true} {
		return effect{}, fmt.Errorf("%v = %v", key, value)
	}
	return one, nil
}

// heldClaim is a claim that a process had when it was killed.
type heldClaim struct {
	group string
	token int64
}

// judgement compares the effects with the file. w sees each effect as a delivery.
type judgement struct {
	w         *witness
	last      map[string]int64 // by group: the newest token so far
	overtaken int64            // effects under a token older than one seen before
	held      map[heldClaim]int
	seen      map[heldClaim]int // the effects of those of held
}

// newJudgement returns a judgement. held are the claims of the killed processes, with the effects that each had left by
// then.
func newJudgement(w *witness, held map[heldClaim]int) *judgement {
	return &judgement{w: w, last: make(map[string]int64), held: held, seen: make(map[heldClaim]int)}
}

func (j *judgement) see(e effect) {
	if e.token < j.last[e.group] {
		j.overtaken++
	}
	j.last[e.group] = max(j.last[e.group], e.token)
	c := heldClaim{e.group, e.token}
	if _, held := j.held[c]; held {
		j.seen[c]++
	}
	item := layer.Item{ID: layer.ID{Group: e.group}, Body: e.body, Headers: map[string]string{lineHeader: e.line}}
	j.w.begin(item)
	j.w.end(item)
}

// takenOver returns how many of the claims held were finished under a later token. The commits of the others were in
// flight when their process was killed.
func (j *judgement) takenOver() int {
	n := 0
	for c, before := range j.held {
		if j.seen[c] == before && j.last[c.group] > c.token {
			n++
		}
	}
	return n
}

// describeEffect describes the key and the value of an effect. layer.Describe does the same for the keys of a queue.
func describeEffect(key, value []byte) (d layer.Description, ok bool) {
	parts, err := tuple.Unpack(key)
	if err != nil || len(parts) != 4 || parts[0] != effectsName {
		return d, false
	}
	queue, isQueue := parts[1].(string)
	group, isGroup := parts[2].(string)
	if !isQueue || !isGroup {
		return d, false
	}
	d = layer.Description{Queue: queue, Name: "effect", Key: fmt.Sprintf("effect on group %q", group)}
	if value == nil {
		return d, true
	}
	one, err := newEffects(queue).parse(kv.KV{Key: key, Value: value})
	if err != nil {
		d.Value = err.Error()
		return d, true
	}
	d.Value = fmt.Sprintf("line %s, by process %d under token %d: %q", one.line, one.process, one.token, one.body)
	return d, true
}
