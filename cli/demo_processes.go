package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// demoLease is the lease of the demo's processes: what a killed one had in flight waits for so long.
const demoLease = 3 * time.Second

// demoProcess is one process of the demo.
type demoProcess struct {
	process
	flags  demoWorkerFlags
	stdout bytes.Buffer  // to be read once ended is closed
	ended  chan struct{} // closed when it has ended
	err    error         // how; set before ended is closed
	killed bool          // by kill
}

// crew is the processes of a demo.
type crew struct {
	s         *session
	q         *layer.Queue
	processes []*demoProcess
	cancel    context.CancelFunc // kills them all
}

// startCrew starts the processes.
func (s *session) startCrew(q *layer.Queue, f demoFlags, p *progress) (*crew, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crew{s: s, q: q, cancel: cancel}
	for n := range f.processes {
		// The first ones have one worker more if there is no other way.
		workers := (f.workers + f.processes - 1 - n) / f.processes
		one := &demoProcess{
			flags: demoWorkerFlags{number: n + 1, workers: workers, lease: f.lease}, ended: make(chan struct{}),
		}
		stderr := &lines{print: func(line []byte) {
			p.print(func() { fmt.Fprintf(s.stderr, "process %d: %s", one.flags.number, line) })
		}}
		var err error
		if one.process, err = s.app.spawn(ctx, one.flags.args(s.engine, s.queue), &one.stdout, stderr); err != nil {
			cancel()
			c.wait()
			return nil, fmt.Errorf("start process %d: %w", one.flags.number, err)
		}
		c.processes = append(c.processes, one)
		go func() {
			one.err = one.Wait()
			stderr.flush()
			close(one.ended)
		}()
	}
	return c, nil
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
			if p.err != nil && !p.killed {
				return fmt.Errorf("process %d ended: %w", p.flags.number, p.err)
			}
		default:
		}
	}
	return nil
}

// conflicts are those of all processes that could still tell.
func (c *crew) conflicts() (int64, error) {
	n := int64(0)
	for _, p := range c.processes {
		if p.killed {
			continue
		}
		var r demoWorkerResult
		if err := json.Unmarshal(p.stdout.Bytes(), &r); err != nil {
			return 0, fmt.Errorf("process %d: its summary: %w", p.flags.number, err)
		}
		n += r.Conflicts
	}
	return n, nil
}

// settle is how long what frozen processes had sent may take to land.
const settle = 100 * time.Millisecond

// kill ends the process that has the most groups in flight, and returns what those were; nobody, if none has any just
// now. To be sure of it, all are frozen while it looks.
func (c *crew) kill(ctx context.Context) (victim *demoProcess, held []heldClaim, err error) {
	for _, p := range c.processes {
		if err := p.Freeze(); err != nil {
			return nil, nil, fmt.Errorf("freeze process %d: %w", p.flags.number, err)
		}
		defer func() {
			if p.killed {
				return
			}
			if e := p.Thaw(); err == nil && e != nil {
				err = fmt.Errorf("thaw process %d: %w", p.flags.number, e)
			}
		}()
	}
	time.Sleep(settle)
	groups, err := allGroups(ctx, c.q, layer.GroupsOptions{MaxDepth: 1})
	if err != nil {
		return nil, nil, err
	}
	for _, p := range c.processes {
		if claims := p.claims(groups); len(claims) > len(held) {
			victim, held = p, claims
		}
	}
	if victim == nil {
		return nil, nil, nil
	}
	victim.killed = true
	if err := victim.Kill(); err != nil {
		return nil, nil, fmt.Errorf("kill process %d: %w", victim.flags.number, err)
	}
	<-victim.ended
	return victim, held, nil
}

// claims are those of groups that the process has in flight.
func (p *demoProcess) claims(groups []layer.GroupInfo) []heldClaim {
	var held []heldClaim
	for _, g := range groups {
		if g.Owner == p.flags.owner() {
			held = append(held, heldClaim{g.Group, g.Token})
		}
	}
	return held
}

// drainByProcesses empties the queue with processes and judges what they left in the database.
func (s *session) drainByProcesses(ctx context.Context, db kv.DB, q *layer.Queue, w *witness, f demoFlags) (
	r demoReport, err error,
) {
	p := s.newProgress("draining", "message", int64(len(w.flights)))
	defer p.close()
	c, err := s.startCrew(q, f, p)
	if err != nil {
		return r, err
	}
	begun := s.app.Now()
	watch := &crewWatch{crew: c, total: int64(len(w.flights)), kill: f.kill, progress: p}
	err = watch.run(ctx)
	if e := c.stop(); err == nil {
		err = e
	}
	if err != nil {
		return r, err
	}
	draining := s.app.Now().Sub(begun)
	p.close()

	j := newJudgement(w, watch.held)
	if err := newEffects(s.queue).read(ctx, db, j.see); err != nil {
		return r, err
	}
	r = w.report()
	r.Draining, r.MostGroupsInHand = draining, int(watch.most)
	r.TwoHands, r.InHand, r.TakenOver = j.overtaken, len(watch.held), j.takenOver()
	switch {
	case watch.victim != nil:
		r.Killed, r.Victim = 1, watch.victim.flags.number
	case f.kill:
		s.notice("no process was killed: the queue was empty before one was seen with a group in flight")
	}
	r.Conflicts, err = c.conflicts()
	return r, err
}

// crewWatch follows the processes until the queue is empty.
type crewWatch struct {
	*crew
	total    int64
	kill     bool
	progress *progress

	done   int64
	most   int64 // groups in flight at once
	victim *demoProcess
	held   []heldClaim // what the victim had in flight
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
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// look sees how far the processes are; half-way it kills one, if that is wanted.
func (w *crewWatch) look(ctx context.Context) (over bool, err error) {
	if err := w.failed(); err != nil {
		return false, err
	}
	st, err := w.q.Stats(ctx)
	if err != nil {
		return false, err
	}
	w.done = w.total - st.Depth
	w.most = max(w.most, st.BusyGroups)
	if w.kill && w.victim == nil && w.done >= w.total/2 {
		if err := w.killOne(ctx); err != nil {
			return false, err
		}
	}
	detail := plural(st.BusyGroups, "group") + " in flight"
	if w.victim != nil {
		detail += fmt.Sprintf(", process %d is dead", w.victim.flags.number)
	}
	w.progress.set(w.done, detail)
	if st.Depth > 0 {
		return false, nil
	}
	return empty(ctx, w.q)
}

// killOne kills a process, if one has groups in flight.
func (w *crewWatch) killOne(ctx context.Context) error {
	var err error
	if w.victim, w.held, err = w.crew.kill(ctx); err != nil || w.victim == nil {
		return err
	}
	w.progress.print(func() {
		w.s.notice("killed process %d after %s, with %s in flight", w.victim.flags.number, plural(w.done, "message"),
			plural(int64(len(w.held)), "group"))
	})
	return nil
}
