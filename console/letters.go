package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// A page of confirmation counts dead letters, and its form acts on these letters alone. The form carries a digest of
// them, and the time of the newest. Example: a page has counted 3 letters, and 5 more die before the click. The form
// chooses letters up to the time of the newest, so it acts on the 3. If one of the 3 is gone by then, the digest
// differs, and the form does nothing.

// letters are the dead letters that a filter chooses, without those that cannot be read.
type letters struct {
	ids    []layer.ID // not nil: as a filter, an empty list chooses none
	newest time.Time  // the time of the latest death; zero = there are none
	sum    [sha256.Size]byte
}

// digest stands for the ids and the times of death of the letters in a form.
func (l *letters) digest() string { return hex.EncodeToString(l.sum[:8]) }

// lettersOf reads the dead letters that f chooses, without their bodies.
func lettersOf(ctx context.Context, q *layer.Queue, f layer.DeadFilter) (letters, error) {
	all, sum := letters{ids: []layer.ID{}}, sha256.New()
	o := layer.DeadOptions{DeadFilter: f, Limit: layer.MaxBatch}
	for letter, err := range q.Admin().AllDeadLetters(ctx, o) {
		if err != nil {
			return all, err
		}
		if letter.Err != nil {
			continue
		}
		all.ids = append(all.ids, letter.ID)
		if letter.DeadLettered.After(all.newest) {
			all.newest = letter.DeadLettered
		}
		fmt.Fprintln(sum, letter.ID, letter.DeadLettered.UnixMilli()) // a letter may come back, and die again
	}
	sum.Sum(all.sum[:0])
	return all, nil
}

// fixLetters reads the letters that a page of confirmation is about. It bounds the page's filter, so that the filter
// chooses no letter that dies later.
func (d *deed) fixLetters(ctx context.Context) (letters, error) {
	f, err := d.chosen()
	if err != nil {
		return letters{}, err
	}
	all, err := lettersOf(ctx, d.q, f)
	if len(all.ids) > 0 {
		d.in.Set("before", all.newest.Add(time.Millisecond).UTC().Format(exactTime))
	}
	return all, err
}

// exactTime is a time in a field of a form that a page has made.
const exactTime = "2006-01-02T15:04:05.000Z07:00"

// confirmed returns the filter of the letters that a page of confirmation has counted. If they are not the same any
// more, the error is layer.ErrChanged. Without such a page, for example in a call of the API, f stays as it is.
func (d *deed) confirmed(ctx context.Context, f layer.DeadFilter) (layer.DeadFilter, error) {
	if !d.in.Has("seen") {
		return f, nil
	}
	now, err := lettersOf(ctx, d.q, f)
	if err == nil && now.digest() != d.in.Get("seen") {
		err = fmt.Errorf("%w: these are not the dead letters that you have seen: look again", layer.ErrChanged)
	}
	return layer.DeadFilter{IDs: now.ids}, err
}
