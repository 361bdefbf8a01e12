package embedded

import (
	"slices"

	"fdbfifo/kv"
)

// Watch implements kv.Tx.
func (t *transaction) Watch(key []byte) kv.Future[struct{}] {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, err := t.startWatch(key)
	if err != nil {
		return kv.Done(struct{}{}, err)
	}
	if t.deadline.IsZero() {
		return w
	}
	return &timedWatch{w, t, t.current}
}

func (t *transaction) startWatch(key []byte) (*watch, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	if len(key) > kv.MaxKeySize && string(key) < maxKey {
		return nil, kv.TooLarge(key, nil)
	}
	// The read that takes the baseline is a serialisable one (FoundationDB issue 12596).
	if string(key) >= maxKey {
		return nil, codeError(kv.CodeKeyOutsideLegalRange)
	}
	r := oneKey{key: singleKey(padded(key))}
	m := t.startRead()
	poison := t.poison
	err := r.run(&m)
	if err != errElsewhere {
		if err = t.endRead(&m, err); err == nil {
			r.depends(t, &t.own)
		}
		t.poison = poison // the commit does not wait for a watch's read, and so does not fail with it
		if err != nil {
			return nil, err
		}
	}
	w, full := t.db.slots.create(r.key.begin, r.value)
	if full != nil {
		return nil, full
	}
	t.watches = append(t.watches, w)
	if err == errElsewhere {
		w.unknown = true
		t.readBaseline(&m, w)
	}
	return w, nil
}

// readBaseline reads the value that a watch counts from in another process.
func (t *transaction) readBaseline(m *merged, w *watch) {
	r := &oneKey{key: singleKey(w.key + "\x00")}
	t.readFar(m, r.run, func(a *attempt, own *overlay, err error) {
		if a.err != nil {
			return // the watch has ended with the attempt
		}
		if err != nil {
			w.end(err)
			t.watches = slices.DeleteFunc(t.watches, func(o *watch) bool { return o == w })
			return
		}
		r.depends(t, own)
		w.unknown, w.baseline = false, r.value
		for _, wrote := range w.written {
			t.triggerWatches(r.key, wrote.value, wrote.known)
		}
		w.written = nil
	})
}

// triggerWatches ends the watches in r whose baseline differs from the value that was just written.
func (t *transaction) triggerWatches(r keyRange, v value, known bool) {
	if len(t.watches) == 0 {
		return
	}
	kept := t.watches[:0]
	for _, w := range t.watches {
		switch {
		case w.key < r.begin || w.key >= r.end:
			kept = append(kept, w)
		case w.unknown:
			w.written = append(w.written, write{v, known})
			kept = append(kept, w)
		case !known || w.baseline != v:
			w.end(nil)
		default:
			kept = append(kept, w)
		}
	}
	t.watches = kept
}
