package line

import (
	"container/list"
	"iter"
)

// arrivals has operations in the order of their arrival. An operation is in one list at a time, and knows its place
// there. So it leaves at once, also from among 100,000. The mutex of the list's owner guards the list and the places.
type arrivals[O Operation] struct{ all list.List }

// add puts operations at the end.
func (a *arrivals[O]) add(os ...O) {
	for _, o := range os {
		o.op().place = a.all.PushBack(o)
	}
}

// remove takes an operation out of the list, and reports whether it was in a list.
func (a *arrivals[O]) remove(o O) bool {
	place := o.op().place
	if place == nil {
		return false
	}
	a.all.Remove(place)
	o.op().place = nil
	return true
}

// each yields the operations. The caller may remove the operation that it has just got.
func (a *arrivals[O]) each() iter.Seq[O] {
	return func(yield func(O) bool) {
		for e := a.all.Front(); e != nil; {
			next := e.Next()
			if !yield(e.Value.(O)) {
				return
			}
			e = next
		}
	}
}

// some reports whether the function is returns true for an operation of the list.
func (a *arrivals[O]) some(is func(o O) bool) bool {
	for o := range a.each() {
		if is(o) {
			return true
		}
	}
	return false
}

// length returns the number of operations.
func (a *arrivals[O]) length() int { return a.all.Len() }
