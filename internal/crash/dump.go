package crash

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// dump is what stands in the file, read without the layer's code.
type dump struct {
	items   map[int][]found // by the message's number; more than one = doubled
	effects map[int]bool
	states  map[string]string
	locks   map[string]int64 // token by group
	held    int64            // items under claims
	faults  []string
}

type found struct {
	at    place
	id    layer.ID
	value []byte // ends in the body
}

// sectionPlace is where an item is that has a row in a section.
var sectionPlace = map[string]place{"item": waiting, "dead": dead, "archive": finished}

func readAll(ctx context.Context, db kv.DB) (*dump, error) {
	d := &dump{
		items: make(map[int][]found), effects: make(map[int]bool), states: make(map[string]string),
		locks: make(map[string]int64),
	}
	parts := make(map[layer.ID][]byte)
	var items []found
	err := d.scan(ctx, db, kv.PrefixRange(prefix), len(prefix), func(t tuple.Tuple, value []byte) error {
		switch name, _ := element[string](t, 1); name {
		case "part":
			id, err := idOf(t)
			parts[id] = append(parts[id], value...) // in the order of their numbers
			return err
		case "item", "dead", "archive":
			id, err := idOf(t)
			items = append(items, found{sectionPlace[name], id, value})
			return err
		case "state":
			group, ok := element[string](t, 2)
			d.states[group] = string(value)
			return wellFormed(ok, t)
		case "lock":
			group, ok := element[string](t, 2)
			v, err := tuple.Unpack(value)
			token, _ := element[int64](v, 0)
			d.locks[group] = token
			for _, h := range v[min(2, len(v)):] {
				// (kind, token, owner, end, and index, random, parts of each item)
				if h, ok := h.(tuple.Tuple); ok && len(h) > 4 && h[0] == "claim" {
					d.held += int64(len(h)-4) / 3
				}
			}
			return firstOf(wellFormed(ok, t), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, f := range items {
		f.value = append(f.value, parts[f.id]...)
		delete(parts, f.id)
		n, ok := numberIn(f.value)
		if !ok {
			d.faults = append(d.faults, fmt.Sprintf("%s %s has no body of a message", f.at, f.id))
			continue
		}
		d.items[n] = append(d.items[n], f)
	}
	for id := range parts {
		d.faults = append(d.faults, fmt.Sprintf("parts of %s, which is not there", id))
	}
	return d, d.scan(ctx, db, kv.PrefixRange(tuple.Tuple{"effect"}.Pack()), 0, func(t tuple.Tuple, _ []byte) error {
		n, ok := element[int64](t, 1)
		d.effects[int(n)] = true
		return wellFormed(ok, t)
	})
}

// scan reads a range.
func (d *dump) scan(ctx context.Context, db kv.DB, r kv.KeyRange, skip int, each func(t tuple.Tuple, value []byte) error) error {
	for row, err := range kv.Rows(ctx, db, r) {
		if err != nil {
			return err
		}
		t, err := tuple.Unpack(row.Key[skip:])
		if err == nil {
			err = each(t, bytes.Clone(row.Value))
		}
		if err != nil {
			return fmt.Errorf("crash: row %s: %w", tuple.Printable(row.Key), err)
		}
	}
	return nil
}

// idOf reads the id in a key (queue, name, group, index, random, …).
func idOf(t tuple.Tuple) (layer.ID, error) {
	group, ok1 := element[string](t, 2)
	index, ok2 := element[int64](t, 3)
	random, ok3 := element[uuid.UUID](t, 4)
	return layer.ID{Group: group, Index: index, Random: random}, wellFormed(ok1 && ok2 && ok3, t)
}

func element[T any](t tuple.Tuple, i int) (v T, ok bool) {
	if i >= len(t) {
		return v, false
	}
	v, ok = t[i].(T)
	return v, ok
}

func wellFormed(ok bool, t tuple.Tuple) error {
	if !ok {
		return fmt.Errorf("not a key of a queue: %s", tuple.Format(t))
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
