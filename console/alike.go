package console

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fdbfifo/layer"
)

// alike is an error, and how many groups of a page wait for a retry after it.
type alike struct {
	Error string
	N     int
	R     remedy
}

// alikes returns the errors that more than one group of a page has failed with, the most frequent first.
func alikes(p layer.BlockedPage) (all []alike) {
	for _, g := range p.Groups {
		if g.Cause != layer.CauseDelayed || g.LastError == "" {
			continue
		}
		i := slices.IndexFunc(all, func(a alike) bool { return a.Error == g.LastError })
		if i < 0 {
			r := remedyWords["retry-alike"]
			r.Verb, r.Fields = "retry-alike", []field{{"alike", digest([]byte(g.LastError))}}
			all = append(all, alike{Error: g.LastError, R: r})
			i = len(all) - 1
		}
		all[i].N++
	}
	all = slices.DeleteFunc(all, func(a alike) bool { return a.N < 2 })
	slices.SortStableFunc(all, func(a, b alike) int { return b.N - a.N })
	return all
}

// maxAlike is how many groups an action retries, so that the action ends.
const maxAlike = 1000

// retryAlike ends the delays of groups that have failed with the same error, at most maxAlike. It skips a group that is
// not delayed any more, or has another head.
func (d *deed) retryAlike(ctx context.Context) (string, error) {
	want := d.in.Get("alike")
	if want == "" {
		return "", fmt.Errorf("%w: say which error", errAsk)
	}
	dry, err := d.flag("dry_run")
	if err != nil {
		return "", err
	}
	var done int64
	var found string
	o := layer.BlockedOptions{Causes: []layer.Cause{layer.CauseDelayed}, Limit: layer.MaxBlocked}
	for done < maxAlike {
		page, err := d.admin().Blocked(ctx, o)
		if err != nil {
			return "", partly(readyWords(done), done, repeat, err)
		}
		for _, g := range page.Groups {
			if digest([]byte(g.LastError)) != want || done == maxAlike {
				continue
			}
			found = g.LastError
			if !dry {
				err := d.admin().RetryNow(ctx, g.Group, layer.RetryOptions{Head: g.Head})
				if errors.Is(err, layer.ErrChanged) || errors.Is(err, layer.ErrNotDelayed) {
					continue
				}
				if err != nil {
					return "", partly(readyWords(done), done, repeat, err)
				}
			}
			done++
		}
		if o.After = page.Next; o.After == nil {
			break
		}
	}
	if done == 0 {
		return "", fmt.Errorf("%w: no group waits after that error any more", layer.ErrChanged)
	}
	first := ""
	if done == maxAlike {
		first = "the first "
	}
	if dry {
		return fmt.Sprintf("%s%s would be retried now, all after: %s", first, plural(done, "group"), found), nil
	}
	return first + readyWords(done), nil
}

func readyWords(n int64) string { return plural(n, "group") + " are ready" }
