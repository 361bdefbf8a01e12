package embedded

// store keeps the committed data. Calls of snapshot, apply and close must not overlap. Many goroutines may read views
// at the same time as such a call.
type store interface {
	// snapshot returns the data as the last apply left it.
	snapshot() (view, error)
	// apply executes the batch in order, all or nothing, and returns when it is durable. After an error only close and
	// the views taken before may be used.
	apply(version int64, batch []mutation) error
	close() error
}

// view is an immutable snapshot. Several goroutines may read it at once. The caller must not call close while a read
// runs.
type view interface {
	get(key string) (value, error)
	// ascend calls fn for the pairs of r in order until it returns false; r.end "" = no end. With keysOnly the
	// values are left out.
	ascend(r keyRange, keysOnly bool, fn func(key, value string) bool) error
	descend(r keyRange, keysOnly bool, fn func(key, value string) bool) error
	close()
}

// writer is what executing a batch needs of a store.
type writer interface {
	get(key string) value
	set(key, value string) error
	clearRange(r keyRange) error
}

// execute runs a batch in order.
func execute(w writer, batch []mutation) error {
	for _, m := range batch {
		var err error
		switch m.kind {
		case opSet:
			err = w.set(m.key, m.value)
		case opClear:
			err = w.clearRange(keyRange{m.key, m.value})
		default:
			if v := fold(m.kind, w.get(m.key), m.value); v.present {
				err = w.set(m.key, v.data)
			} else {
				err = w.clearRange(keyRange{m.key, m.key + "\x00"})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
