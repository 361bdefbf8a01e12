package embedded

import "fdbfifo/kv"

// Watch implements kv.Tx.
func (t *transaction) Watch(key []byte) kv.Future[struct{}] {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, err := t.startWatch(key)
	if err != nil {
		return kv.Done(struct{}{}, err)
	}
	t.watches = append(t.watches, w)
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
		return nil, codeError(kv.CodeKeyTooLarge)
	}
	// The read that takes the baseline is a serialisable one (FoundationDB issue 12596).
	poison := t.poison
	v, err := t.read(key, false)
	t.poison = poison // the commit does not wait for a watch's read, and so does not fail with it
	if err != nil {
		return nil, err
	}
	return t.db.watches.create(string(key), v)
}

// triggerWatches ends the watches in r whose baseline differs from what was just written there.
func (t *transaction) triggerWatches(r keyRange, v value, known bool) {
	t.watchesOn(r, func(w *watch) bool { return !known || w.baseline != v })
}

func (t *transaction) watchesOn(r keyRange, due func(*watch) bool) {
	if len(t.watches) == 0 {
		return
	}
	kept := t.watches[:0]
	for _, w := range t.watches {
		if r.begin <= w.key && w.key < r.end && due(w) {
			w.end(nil)
		} else {
			kept = append(kept, w)
		}
	}
	t.watches = kept
}
