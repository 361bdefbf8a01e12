package fault

import (
	"context"

	"fdbfifo/kv"
)

// lateCommit is a transaction whose caller was told that it timed out, or that the cluster's version has changed, while its
// commit is still under way.
type lateCommit struct {
	tx      kv.ManagedTx
	commits int                 // how many other commits it lets pass
	sent    kv.Future[struct{}] // nil until it is sent
}

// maxPassed bounds how many later commits overtake a late one; of those that are retried, maxPassedRetried: with others
// at work their retries are to come before, between and behind.
const (
	maxPassed        = 4
	maxPassedRetried = 16
)

// postpone keeps tx until other commits have passed.
func (p *Plan) postpone(tx kv.ManagedTx, e event) {
	most := uint64(maxPassed)
	if e.kind == VersionChangedLate {
		most = maxPassedRetried
	}
	passed := int(mix(p.Seed+uint64(e.n)) % most)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = append(p.late, &lateCommit{tx: tx, commits: passed + 1})
}

// overtake lets one more commit pass the late ones and sends those whose turn it is.
func (p *Plan) overtake() {
	if p.KeepLate {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.late {
		if l.commits--; l.commits <= 0 && l.sent == nil {
			l.sent = l.tx.Commit()
		}
	}
}

// Land sends the late commits that are still held back, and waits until all of them have ended. A late commit can
// conflict like any other, so Land does not promise that each is applied. The error is ctx's.
//
// Without Land a late commit is sent before one of the next commits, or at Close.
func (p *Plan) Land(ctx context.Context) error {
	p.mu.Lock()
	late := p.late
	p.late = nil
	for _, l := range late {
		if l.sent == nil {
			l.sent = l.tx.Commit()
		}
	}
	p.mu.Unlock()
	for _, l := range late {
		if _, err := l.sent.Wait(ctx); err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
