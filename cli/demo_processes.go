package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"fdbfifo/layer"
)

// demoLease is the lease of the demo's processes: what a killed one had in flight waits for so long.
const demoLease = 3 * time.Second

// demoProcess is one process of the demo.
type demoProcess struct {
	process
	flags demoWorkerFlags
	ready chan struct{} // closed when it has opened the queue
	ended chan struct{} // closed when it has ended
	err   error         // how; set before ended is closed
	dead  bool          // by kill

	mu        sync.Mutex // guards what follows
	serves    bool       // the others use the database through it
	conflicts int64
}

// see reads a line that the process printed about itself.
func (p *demoProcess) see(line []byte) error {
	var told demoWorkerLine
	if err := json.Unmarshal(line, &told); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serves = p.serves || told.Serves
	p.conflicts += told.Conflicts
	if told.Ready {
		close(p.ready)
	}
	return nil
}

func (p *demoProcess) isServing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.serves
}

// crew is the processes of a demo.
type crew struct {
	s         *session
	processes []*demoProcess
	cancel    context.CancelFunc // kills them all
}

// startCrew starts the processes, and waits until all of them have opened the queue.
func (s *session) startCrew(ctx context.Context, f demoFlags, p *progress) (*crew, error) {
	live, cancel := context.WithCancel(context.Background())
	c := &crew{s: s, cancel: cancel}
	for n := range f.processes {
		// The first ones have one worker more if there is no other way.
		workers := (f.workers + f.processes - 1 - n) / f.processes
		flags := demoWorkerFlags{number: n + 1, workers: workers, lease: f.lease, log: s.acting.log}
		var err error
		if flags.metrics, err = s.beside.metricsOf(n + 1); err == nil {
			err = c.start(live, flags, p)
		}
		if err != nil {
			cancel()
			c.wait()
			return nil, err
		}
	}
	for _, one := range c.processes {
		select {
		case <-one.ready:
		case <-one.ended:
		case <-ctx.Done():
		}
	}
	err := c.failed()
	if err == nil && ctx.Err() != nil {
		err = errInterrupted
	}
	if err != nil {
		_ = c.stop() // the first error counts
		return nil, err
	}
	return c, nil
}

func (c *crew) start(ctx context.Context, f demoWorkerFlags, p *progress) error {
	one := &demoProcess{flags: f, ready: make(chan struct{}), ended: make(chan struct{})}
	stderr := &lines{print: func(line []byte) {
		p.print(func() { fmt.Fprintf(c.s.stderr, "process %d: %s", f.number, line) })
	}}
	var strange error
	stdout := &lines{print: func(text []byte) {
		for line := range bytes.Lines(text) {
			if err := one.see(line); err != nil && strange == nil {
				strange = fmt.Errorf("what it says of itself: %w", err)
			}
		}
	}}
	var err error
	if one.process, err = c.s.app.spawn(ctx, f.args(c.s.engine, c.s.queue), stdout, stderr); err != nil {
		return fmt.Errorf("start process %d: %w", f.number, err)
	}
	c.processes = append(c.processes, one)
	go func() {
		one.err = errors.Join(one.Wait(), strange)
		stderr.flush()
		close(one.ended)
	}()
	return nil
}

// servers is how many of the processes have served the database to the others so far.
func (c *crew) servers() (n int) {
	for _, p := range c.processes {
		if p.isServing() {
			n++
		}
	}
	return n
}

// stop lets the processes come to an end; a second Ctrl-C kills them.
func (c *crew) stop() error {
	defer c.cancel()
	for _, p := range c.processes {
		// One that has ended already has no stdin any more.
		_ = p.Stop()
	}
	for _, p := range c.processes {
		select {
		case <-p.ended:
		case <-c.s.app.Kill:
			c.cancel()
			c.wait()
			return errInterrupted
		}
	}
	return c.failed()
}

func (c *crew) wait() {
	for _, p := range c.processes {
		<-p.ended
	}
}

// failed is an error if a process has ended in another way than it should.
func (c *crew) failed() error {
	for _, p := range c.processes {
		select {
		case <-p.ended:
			if p.err != nil && !p.dead {
				return fmt.Errorf("process %d ended: %w", p.flags.number, p.err)
			}
		default:
		}
	}
	return nil
}

// conflicts are those of all processes that could still tell.
func (c *crew) conflicts() (n int64) {
	for _, p := range c.processes {
		n += p.conflicts
	}
	return n
}

// takeoverPatience is how long the demo waits until another process serves the folder, which takes some ten
// milliseconds where there is a processor for it.
const takeoverPatience = time.Minute

// settle is how long the last requests of frozen processes may take to arrive.
const settle = 100 * time.Millisecond

// killWorker kills one of the processes that do not serve the database: the one with the most groups in flight. It
// returns the process and those groups, or nil if no process has a group in flight. It freezes all these processes
// while it looks, so that their groups do not change.
func (c *crew) killWorker(ctx context.Context, e demoEngine) (v *victim, err error) {
	for _, p := range c.processes {
		if p.dead || p.isServing() {
			continue
		}
		if err := p.Freeze(); err != nil {
			return nil, fmt.Errorf("freeze process %d: %w", p.flags.number, err)
		}
		defer func() {
			if p.dead {
				return
			}
			if e := p.Thaw(); err == nil && e != nil {
				err = fmt.Errorf("thaw process %d: %w", p.flags.number, e)
			}
		}()
	}
	time.Sleep(settle)
	groups, err := allGroups(ctx, e.q, layer.GroupsOptions{MaxDepth: 1})
	if err != nil {
		return nil, err
	}
	for _, p := range c.processes {
		if p.dead || p.isServing() {
			continue
		}
		if held := p.claims(groups); v == nil && len(held) > 0 || v != nil && len(held) > len(v.held) {
			v = &victim{demoProcess: p, held: held}
		}
	}
	if v == nil {
		return nil, nil
	}
	if err := newEffects(c.s.queue).count(ctx, e, v.held); err != nil {
		return nil, err
	}
	return v, v.end()
}

// killServer kills the process that serves the database, and waits until another one serves. It returns nil if none of
// the processes serves. It also returns nil if that process has no group in flight, unless late is set.
func (c *crew) killServer(ctx context.Context, e demoEngine, late bool) (*victim, error) {
	i := slices.IndexFunc(c.processes, func(p *demoProcess) bool { return !p.dead && p.isServing() })
	if i < 0 {
		return nil, nil
	}
	v := &victim{demoProcess: c.processes[i], served: true}
	groups, err := allGroups(ctx, e.q, layer.GroupsOptions{MaxDepth: 1})
	if err != nil || len(v.claims(groups)) == 0 && !late {
		return nil, err
	}
	before := c.servers()
	if err := v.end(); err != nil {
		return nil, err
	}
	// The claims that the dead process has left are its groups in flight. This reads them through the next server.
	if groups, err = allGroups(ctx, e.q, layer.GroupsOptions{MaxDepth: 1}); err != nil {
		return nil, err
	}
	v.held = v.claims(groups)
	if err := newEffects(c.s.queue).count(ctx, e, v.held); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverPatience)
	defer cancel()
	for c.servers() == before && !e.serves() {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no process has taken over from process %d: %w", v.flags.number, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return v, nil
}

// victim is a process that the demo has killed.
type victim struct {
	*demoProcess
	served bool              // the database, to the others
	held   map[heldClaim]int // what it had in flight, and the effects that had left by then
}

func (v *victim) end() error {
	v.dead = true
	if err := v.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", v.flags.number, err)
	}
	<-v.ended
	return nil
}

func (v *victim) String() string {
	text := fmt.Sprintf("process %d", v.flags.number)
	if v.served {
		text += ", which served the folder"
	}
	return text
}

// claims are those of groups that the process has in flight.
func (p *demoProcess) claims(groups []layer.GroupInfo) map[heldClaim]int {
	held := make(map[heldClaim]int)
	for _, g := range groups {
		if g.Owner == p.flags.owner() {
			held[heldClaim{g.Group, g.Token}] = 0
		}
	}
	return held
}

// demoTogether is a demo whose workers are processes. The verdict comes from the effects that they left in the
// database.
func (s *session) demoTogether(ctx context.Context, w *witness, f demoFlags) (r demoReport, err error) {
	var loading time.Duration
	var conflicts int64
	err = s.withDemo(ctx, true, func(e demoEngine) (err error) {
		if err := newEffects(s.queue).clear(ctx, e); err != nil {
			return err
		}
		before := e.Counters()
		drains := fmt.Sprintf("%d processes with %s", f.processes, plural(int64(f.workers), "worker"))
		loading, err = s.loadDemo(ctx, e.q, w, drains)
		conflicts = e.Counters().Sub(before).Conflicts
		return err
	})
	if err != nil {
		return r, err
	}
	p := s.newProgress("draining", "message", int64(len(w.flights)))
	defer p.close()
	begun := s.app.Now()
	// This process comes last: one of the others serves the folder.
	c, err := s.startCrew(ctx, f, p)
	if err != nil {
		return r, err
	}
	stop := sync.OnceValue(c.stop)
	err = s.withDemo(ctx, false, func(e demoEngine) (err error) {
		stopBeside, err := s.beside.start(ctx, s, e.db, e.q)
		if err != nil {
			return err
		}
		defer stopBeside()
		before := e.Counters()
		watch := &crewWatch{crew: c, engine: e, total: int64(len(w.flights)), kill: f.kill, progress: p}
		err = watch.run(ctx)
		if e := stop(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
		draining := s.app.Now().Sub(begun)
		p.close()
		r, err = watch.judge(ctx, w)
		r.Loading, r.Draining = loading, draining
		r.Conflicts = conflicts + c.conflicts() + e.Counters().Sub(before).Conflicts
		return err
	})
	if e := stop(); err == nil {
		err = e
	}
	return r, err
}

// crewWatch follows the processes until the queue is empty.
type crewWatch struct {
	*crew
	engine   demoEngine
	total    int64
	kill     bool
	progress *progress

	done      int64
	most      int64 // groups in flight at once
	victims   []*victim
	takeovers int
}

// judge says what the processes have left.
func (w *crewWatch) judge(ctx context.Context, by *witness) (r demoReport, err error) {
	held := make(map[heldClaim]int)
	for _, v := range w.victims {
		maps.Copy(held, v.held)
	}
	j := newJudgement(by, held)
	if err := newEffects(w.s.queue).read(ctx, w.engine, j.see); err != nil {
		return r, err
	}
	r = by.report()
	r.MostGroupsInHand, r.TwoHands, r.InHand, r.TakenOver = int(w.most), j.overtaken, len(held), j.takenOver()
	r.Takeovers = w.takeovers
	for _, v := range w.victims {
		r.Killed = append(r.Killed, v.String())
	}
	if w.kill && len(w.victims) == 0 {
		w.s.notice("no process was killed: the queue was empty before one was seen with a group in flight")
	}
	r.Check, err = w.engine.q.Admin().Check(ctx, layer.CheckOptions{})
	return r, err
}

func (w *crewWatch) run(ctx context.Context) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		over, err := w.look(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%w after %s", errInterrupted, plural(w.done, "message"))
		}
		if over || err != nil {
			w.countTakeovers()
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// countTakeovers counts those so far. The processes' orderly end, which is none of a process that died, makes more.
func (w *crewWatch) countTakeovers() {
	servers := w.servers()
	if w.engine.serves() {
		servers++
	}
	w.takeovers = max(0, servers-1)
}

// look sees how far the processes are; on the way it kills some, if that is wanted.
func (w *crewWatch) look(ctx context.Context) (over bool, err error) {
	if err := w.failed(); err != nil {
		return false, err
	}
	st, err := w.engine.q.Stats(ctx, layer.StatsOptions{})
	if err != nil {
		return false, err
	}
	w.done = w.total - st.Depth
	w.most = max(w.most, st.BusyGroups)
	if w.kill && st.Depth > 0 {
		if err := w.killOne(ctx); err != nil {
			return false, err
		}
	}
	detail := plural(st.BusyGroups, "group") + " in flight"
	for _, v := range w.victims {
		detail += fmt.Sprintf(", process %d is dead", v.flags.number)
	}
	w.progress.set(w.done, detail)
	if st.Depth > 0 {
		return false, nil
	}
	return empty(ctx, w.engine.q)
}

// killOne kills the next process, if it is time: a worker when a third is done, if two are left then; and the process
// that serves the database when two thirds are. Where none serves it kills one half-way.
func (w *crewWatch) killOne(ctx context.Context) error {
	serves := slices.ContainsFunc(w.processes, func(p *demoProcess) bool { return !p.dead && p.isServing() })
	worker := len(w.victims) == 0 && (!serves || len(w.processes) > 2)
	server := serves && !worker && !slices.ContainsFunc(w.victims, func(v *victim) bool { return v.served })
	var v *victim
	var err error
	switch {
	case worker && !serves && w.done >= w.total/2, worker && serves && w.done >= w.total/3:
		v, err = w.killWorker(ctx, w.engine)
	case server && w.done >= w.total*2/3:
		v, err = w.killServer(ctx, w.engine, w.done >= w.total*9/10)
	}
	if err != nil || v == nil {
		return err
	}
	w.victims = append(w.victims, v)
	w.progress.print(func() {
		w.s.notice("killed %s, after %s, with %s in flight", v, plural(w.done, "message"),
			plural(int64(len(v.held)), "group"))
	})
	return nil
}
