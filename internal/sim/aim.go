package sim

import (
	"bytes"
	"slices"
	"time"

	"fdbfifo/layer"
)

// An operator who aims looks at the store itself, past all faults, and acts where a rare thing is the case. So a run
// need not meet two rare things at once by chance.

// hint is what leads to a group.
type hint struct {
	group string
	index int64
}

// leftHint returns a dead letter whose old hint is still there, in a group which is empty now. A redrive of the letter
// to its place writes that very hint, which others are about to clear.
func (w *world) leftHint() (layer.ID, bool) {
	dead := make(map[hint]layer.ID)
	for _, row := range w.rows(section("dead"), 0) {
		_, rest := keyOf(bytes.Clone(row.Key))
		id := idOf(rest)
		dead[hint{id.Group, id.Index}] = id
	}
	if len(dead) == 0 {
		return layer.ID{}, false
	}
	full := make(map[string]bool)
	for _, row := range w.rows(section("item"), 0) {
		_, rest := keyOf(bytes.Clone(row.Key))
		group, _ := rest[0].(string)
		full[group] = true
	}
	for _, row := range w.rows(section("ready"), 0) {
		_, rest := keyOf(bytes.Clone(row.Key))
		index, _ := rest[1].(int64)
		group, _ := rest[2].(string)
		if id, ok := dead[hint{group, index}]; ok && !full[group] {
			w.mark("redriven beside its old hint")
			return id, true
		}
	}
	return layer.ID{}, false
}

// grantedGroup returns a group that is granted to a request and not accepted yet, with at most one item, and the item.
// An item whose id no actor was told does not count, because no actor could name it.
func (w *world) grantedGroup() (group string, items []layer.ID, ok bool) {
	for _, row := range w.rows(section("grant"), 0) {
		_, rest := keyOf(bytes.Clone(row.Key))
		group, _ = rest[1].(string)
		items = nil
		for _, row := range w.rows(section("item"), 0) {
			_, rest := keyOf(bytes.Clone(row.Key))
			if id := idOf(rest); id.Group == group {
				items = append(items, id)
			}
		}
		if len(items) == 0 || len(items) == 1 && slices.Contains(w.known, items[0]) {
			return group, items, true
		}
	}
	return "", nil, false
}

// awaitGrant waits until there is such a group, but not for long.
func (a *actor) awaitGrant() (group string, items []layer.ID, ok bool) {
	for range 50 {
		if group, items, ok = a.w.grantedGroup(); ok {
			break
		}
		a.sleep(20 * time.Millisecond)
	}
	return group, items, ok
}
