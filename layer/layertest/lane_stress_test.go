package layer_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/spec"
	"fdbfifo/layer"
)

// TestLanesAtOnce: producers, two workers for each stage of a pipeline, and one worker of whole groups run at the same
// time and under faults. No two hold lanes with a common item. Each stage gets the messages of a group in their order,
// and all messages arrive.
func TestLanesAtOnce(t *testing.T) {
	t.Parallel()
	for _, views := range []string{"state", "*; state", "*; region; state,region; state"} {
		t.Run(views, func(t *testing.T) {
			onEngines(t, func(e *env) { newPipelineRun(e, views).run() })
		})
	}
}

// pipelineRun is one run of TestLanesAtOnce.
type pipelineRun struct {
	*env
	views    string
	handles  []*layer.Queue
	finished atomic.Int64

	mu   sync.Mutex
	held map[*layer.Claim]bool // guarded by mu
	seen map[string]layer.ID   // guarded by mu; the last message of a group that a stage got
	err  error                 // guarded by mu
}

const (
	pipelineGroups   = 3
	pipelineMessages = 12 // of each group
)

var pipelineStages = []string{"NEW", "PAID", "DONE"}

func newPipelineRun(e *env, views string) *pipelineRun {
	return &pipelineRun{
		env: e, views: views, handles: e.laned("pipeline", views, nil, 8),
		held: make(map[*layer.Claim]bool), seen: make(map[string]layer.ID),
	}
}

func (r *pipelineRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *pipelineRun) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil || r.finished.Load() == pipelineGroups*pipelineMessages
}

func (r *pipelineRun) run() {
	var all sync.WaitGroup
	for g := range pipelineGroups {
		all.Go(func() { r.produce(fmt.Sprint(g)) })
	}
	for i, stage := range pipelineStages {
		for n := range 2 {
			all.Go(func() { r.work(r.handles[1+2*i+n], layer.Template{"state": stage}, i) })
		}
	}
	if r.views != "state" {
		all.Go(func() { r.workWhole(r.handles[7]) })
	}
	all.Wait()
	require.NoError(r.t, r.err)
}

func (r *pipelineRun) produce(group string) {
	for n := range pipelineMessages {
		region := []string{"EU", "US"}[n%2]
		_, err := r.handles[0].Enqueue(r.ctx, layer.Message{Group: group, Headers: facetsOf("NEW", region)})
		if err != nil {
			r.fail(err)
			return
		}
	}
}

// hold notes claims, and that none has an item in common with another.
func (r *pipelineRun) hold(claims []*layer.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		for other := range r.held {
			if other.Group == c.Group && spec.Agree(other.Where, c.Where) {
				r.err = fmt.Errorf("group %s where %s, and where %s", c.Group, c.Where, other.Where)
			}
		}
		r.held[c] = true
	}
}

func (r *pipelineRun) release(c *layer.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, c)
}

// inOrder notes what a stage got.
func (r *pipelineRun) inOrder(stage string, items []layer.Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		key := stage + " of " + item.ID.Group
		if last := r.seen[key]; item.ID.Index <= last.Index {
			r.err = fmt.Errorf("%s: %s behind %s", key, item.ID, last)
		}
		r.seen[key] = item.ID
	}
}

func (r *pipelineRun) work(q *layer.Queue, where layer.Template, stage int) {
	for !r.over() {
		claims, err := q.Receive(r.ctx, layer.ReceiveOptions{Where: where, Max: 3})
		if err != nil {
			r.fail(err)
			return
		}
		r.hold(claims)
		for _, c := range claims {
			if !r.handle(q, c, stage) {
				return
			}
		}
		runtime.Gosched()
	}
}

// handle moves the items of a claim on, or finishes them at the last stage.
func (r *pipelineRun) handle(q *layer.Queue, c *layer.Claim, stage int) bool {
	r.inOrder(pipelineStages[stage], c.Items)
	r.release(c) // before the claim ends, because then others may have it
	var err error
	if stage == len(pipelineStages)-1 {
		if err = q.Ack(r.ctx, c); err == nil {
			r.finished.Add(int64(len(c.Items)))
		}
	} else {
		err = q.Settle(r.ctx, advanceBy(c, func(m *layer.Message) error {
			m.Headers["state"] = pipelineStages[stage+1]
			return nil
		}))
	}
	if err != nil {
		r.fail(fmt.Errorf("stage %s: %w", pipelineStages[stage], err))
	}
	return err == nil
}

// workWhole takes whole groups, and gives them back.
func (r *pipelineRun) workWhole(q *layer.Queue) {
	for !r.over() {
		claims, err := q.Receive(r.ctx, layer.ReceiveOptions{Max: 5, MaxGroups: 1})
		if err != nil {
			r.fail(err)
			return
		}
		r.hold(claims)
		for _, c := range claims {
			r.release(c)
			if err := q.Nack(r.ctx, c, layer.NackOptions{Release: true}); err != nil {
				r.fail(err)
				return
			}
		}
		runtime.Gosched()
	}
}
