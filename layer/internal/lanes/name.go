package lanes

import (
	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// partByte begins the name of every lane that is not a whole group.
const partByte = 0xff

// Free is the packed template of unordered receives: the view 0, without values. The lane of this template in a group,
// the free lane, has the items that no hold has taken out. A claim of the whole group leaves its items there.
var Free = string(tuple.AppendInt(nil, 0))

// Name returns the name of the lane of a group that a packed template matches; where = "" is the whole group. The
// package comment in plan.go explains the names.
func Name(group, where string) string {
	if where == "" {
		return group
	}
	return string(append(tuple.AppendString([]byte{partByte}, group), where...))
}

// Split returns the group of a lane and the packed template; "" = the lane is the whole group.
func Split(lane string) (group, where string) {
	if !IsPart(lane) {
		return lane, ""
	}
	d := rec.Decode([]byte(lane[1:]))
	return d.Text(), string(d.Unread())
}

// GroupOf returns the group of a lane.
func GroupOf(lane string) string {
	group, _ := Split(lane)
	return group
}

// IsPart reports whether a lane is not a whole group.
func IsPart(lane string) bool { return len(lane) > 0 && lane[0] == partByte }

// SplitWhere returns the number of the view, and the values, of a packed template. Views count from 1. 0 = whole
// groups, the free lane or a hold: then the values say nothing.
func SplitWhere(where string) (view int, values []string) {
	if where == "" {
		return 0, nil
	}
	d := rec.Decode([]byte(where))
	view = int(d.Int())
	for d.More() {
		values = append(values, d.Text())
	}
	return view, values
}

// Item is the id of an item. It has the fields of layer.ID, so that one can be converted to the other.
type Item struct {
	Group  string
	Index  int64
	Random uuid.UUID
}

// Hold returns the name of a hold: the lane of a single item that a claim holds. The name is 0xff (group, 0, index,
// random).
func Hold(item Item) string {
	b := tuple.AppendUUID(tuple.AppendInt([]byte(Free), item.Index), item.Random)
	return Name(item.Group, string(b))
}

// HoldOf returns the item of a hold; false = the lane is not a hold.
func HoldOf(lane string) (Item, bool) {
	group, where := Split(lane)
	if len(where) <= len(Free) || where[:len(Free)] != Free {
		return Item{}, false
	}
	d := rec.Decode([]byte(where[len(Free):]))
	item := Item{Group: group, Index: d.Int(), Random: d.UUID()}
	return item, d.Err() == nil
}

// IsHold reports whether a lane is a hold: a single item.
func IsHold(lane string) bool {
	_, is := HoldOf(lane)
	return is
}
