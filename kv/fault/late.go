package fault

import (
	"context"
	"slices"

	"fdbfifo/kv"
)

// lateCommit is a transaction whose commit is still in flight. Its caller got the error that it timed out, or that the
// cluster's version has changed.
type lateCommit struct {
	tx      kv.ManagedTx
	commits int                 // how many other commits it lets pass
	sent    kv.Future[struct{}] // nil until it is sent
}

// maxPassed bounds how many later commits overtake a late one. maxPassedRetried bounds them for a late commit that is
// retried. It is larger, so that with other transactions at work the retry comes before, between and behind their
// commits.
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

// overtake counts one more commit that passes the late ones. It sends the late commits that enough others have passed.
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
// conflict like any other, so Land does not promise that each is applied. The error is ctx's. After an error a later
// Land, or Close, waits for the rest.
//
// Without Land a late commit is sent before one of the next commits, or at Close.
func (p *Plan) Land(ctx context.Context) error {
	p.mu.Lock()
	late := slices.Clone(p.late)
	for _, l := range late {
		if l.sent == nil {
			l.sent = l.tx.Commit()
		}
	}
	p.mu.Unlock()
	for _, l := range late {
		if err := l.await(ctx); err != nil {
			return err // what has not ended stays for the next Land, and for Close
		}
		p.mu.Lock()
		p.late = slices.DeleteFunc(p.late, func(o *lateCommit) bool { return o == l })
		p.mu.Unlock()
	}
	return nil
}

// await waits until a commit that was sent has ended. The error is ctx's. The end of ctx does not give the commit's
// future up, because a later await could not wait for the commit then.
func (l *lateCommit) await(ctx context.Context) error {
	if l.sent.Ready() {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.sent.Wait(context.WithoutCancel(ctx)) // Land does not say how it has ended
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
