package layer

import "slices"

// vainReceives is how many receives in a row that get nothing end a hand beyond the least number.
const vainReceives = 3

func checkConcurrency(least, most int) error {
	if least < 1 || least > maxConcurrency {
		return &LimitError{What: "concurrency", Unit: "goroutines", Got: int64(least), Min: 1, Max: maxConcurrency}
	}
	if most < least || most > maxConcurrency {
		return &LimitError{
			What: "max concurrency", Unit: "goroutines", Got: int64(most), Min: int64(least), Max: maxConcurrency,
		}
	}
	return nil
}

// SetConcurrency changes how many goroutines the worker has at least and at most, from now on: see WorkerOptions; most
// 0 = least. Before Start it changes with how many the worker starts. Goroutines beyond most end at once if they have
// no group in hand, and otherwise with the claim. After Stop it changes nothing.
//
// Errors: *LimitError unless 1 <= least <= most <= 10,000; nothing has changed then.
func (w *Worker) SetConcurrency(least, most int) error {
	if most == 0 {
		most = least
	}
	if err := checkConcurrency(least, most); err != nil {
		return wrap("set concurrency", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.least, w.most = least, most
	if !w.started || w.stopped {
		return nil
	}
	for w.staying() < w.least {
		w.hire()
	}
	for _, busy := range []bool{false, true} {
		for _, h := range w.hands {
			if w.staying() > w.most && h.busy == busy {
				h.dismiss()
			}
		}
	}
	w.grow()
	return nil
}

// Hands is how many goroutines a worker has.
type Hands struct {
	All  int // that have not ended
	Idle int // without a group in hand: they wait for one, for the limiter, or for the end of a receive or of an ack
}

// Hands returns how many goroutines the worker has this moment. If some are idle all the time while messages wait,
// there are fewer groups ready than hands: more hands are of no use. None before Start, and after Stop.
func (w *Worker) Hands() Hands {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := Hands{All: len(w.hands)}
	for _, h := range w.hands {
		if !h.busy {
			all.Idle++
		}
	}
	return all
}

// hire begins another hand. The mutex is held.
func (w *Worker) hire() {
	h := &hand{
		w: w, ctx: w.sources[0].q.named(w.ctx, "worker %d.%d", w.serial, w.begun), leaving: make(chan struct{}),
	}
	w.begun++
	w.hands = append(w.hands, h)
	w.wg.Go(h.loop)
}

// dismiss makes the hand end when it has nothing in hand. The mutex is held.
func (h *hand) dismiss() {
	if !h.ends {
		h.ends = true
		close(h.leaving)
	}
}

// ended takes a hand off the books.
func (w *Worker) ended(h *hand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hands = slices.DeleteFunc(w.hands, func(o *hand) bool { return o == h })
}

// staying returns how many hands are not to end. The mutex is held.
func (w *Worker) staying() (n int) {
	for _, h := range w.hands {
		if !h.ends {
			n++
		}
	}
	return n
}

// idle returns how many of the staying hands have nothing in hand. The mutex is held.
func (w *Worker) idle() (n int) {
	for _, h := range w.hands {
		if !h.ends && !h.busy {
			n++
		}
	}
	return n
}

// grow begins another hand if all are busy, so that somebody waits for what comes. The mutex is held.
func (w *Worker) grow() {
	if !w.stopped && w.idle() == 0 && w.staying() < w.most {
		w.hire()
	}
}

// begins notes that a hand has a claim.
func (w *Worker) begins(h *hand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.busy = true
	w.grow()
}

// rests notes that a hand has none any more.
func (w *Worker) rests(h *hand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.busy = false
}

// spare dismisses a hand which has received in vain so many times, if there are enough without it, and reports whether.
func (w *Worker) spare(h *hand, vain int) bool {
	if vain < vainReceives {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.staying() <= w.least || w.idle() < 2 || h.ends {
		return false
	}
	h.dismiss()
	return true
}
