package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// trial is the proof: four stages as processes on one folder, and some of them killed.
type trial struct {
	flights, each int // each = requests of a flight
	kills         int
	lease, work   time.Duration
	folder        string
	log           io.Writer
	crew          []*member
	killed        []string
}

// result is what a trial has come to.
type result struct {
	proof
	Killed  []string `json:"killed"`
	Seconds float64  `json:"seconds"`
}

func runCommand(ctx context.Context, flags *flag.FlagSet, args []string, stdout, stderr io.Writer) error {
	t := trial{log: stderr}
	requests := flags.Int("requests", 1200, "seat requests")
	flags.IntVar(&t.flights, "flights", 30, "flights which they are for")
	flags.IntVar(&t.kills, "kills", 2, "processes to kill on the way, with SIGKILL")
	flags.DurationVar(&t.lease, "lease", 2*time.Second, "what a dead process had in hand waits for so long")
	flags.DurationVar(&t.work, "work", 2*time.Millisecond, "how long a request takes in a stage")
	asJSON := flags.Bool("json", false, "print the result as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if t.flights < 1 || *requests < t.flights {
		return fmt.Errorf("%d requests of %d flights: each flight wants one at least", *requests, t.flights)
	}
	t.each = *requests / t.flights
	r, err := t.run(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = fmt.Fprintf(stdout, "%s%.1f s, killed: %s\n", r.proof, r.Seconds, strings.Join(r.Killed, ", "))
	}
	return errors.Join(err, r.err())
}

// run runs the trial in a folder of its own.
func (t *trial) run(ctx context.Context) (r result, err error) {
	if t.folder, err = os.MkdirTemp("", "pipeline-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.folder)) }()
	begun := time.Now()
	if err := t.start(); err != nil {
		return r, errors.Join(err, t.stop())
	}
	db, err := embedded.OpenDisk(t.folder, embedded.Options{})
	if err != nil {
		return r, errors.Join(err, t.stop())
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	q, err := openQueue(ctx, db)
	if err == nil {
		defer func() { err = errors.Join(err, closeQueue(ctx, q)) }()
		err = t.drive(ctx, q)
	}
	if err = errors.Join(err, t.stop()); err != nil {
		return r, err
	}
	seconds := time.Since(begun).Seconds()
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return r, err
	}
	if len(report.Violations) > 0 {
		return r, fmt.Errorf("the queue breaks its rules: %v", report.Violations)
	}
	p, err := prove(ctx, db, t.names(), t.each)
	return result{proof: p, Killed: t.killed, Seconds: float64(int(seconds*10)) / 10}, err
}

func (t *trial) names() []string {
	names := make([]string, t.flights)
	for i := range names {
		names[i] = fmt.Sprintf("LH%d", 400+i)
	}
	return names
}

// drive sends the requests, kills processes on the way, and returns when all requests are handed over. If the requests
// cannot be sent, drive returns that error at once.
func (t *trial) drive(ctx context.Context, q *layer.Queue) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sent := make(chan error, 1)
	go func() {
		err := t.send(ctx, q)
		if err != nil {
			cancel(err)
		}
		sent <- err
	}()
	if err := t.follow(ctx, q); err != nil {
		cancel(err)
		<-sent
		return context.Cause(ctx) // the first of the two errors
	}
	return <-sent
}

// follow kills processes on the way, and waits until all requests are handed over.
func (t *trial) follow(ctx context.Context, q *layer.Queue) error {
	for n := range t.kills {
		// At 1/3 and 2/3 of the way, for example.
		if err := t.reach(ctx, q, (n+1)*t.flights*t.each/(t.kills+1)); err != nil {
			return err
		}
		if err := t.kill(n); err != nil {
			return err
		}
	}
	return t.reach(ctx, q, t.flights*t.each)
}

// send enqueues the requests: the first of each flight, the second of each flight, and so on. A call takes
// layer.MaxBatch of them at most.
func (t *trial) send(ctx context.Context, q *layer.Queue) error {
	for number := 1; number <= t.each; number++ {
		var all []layer.Message
		for _, flight := range t.names() {
			r := request{Flight: flight, Number: number, Seat: fmt.Sprintf("%d%c", (number-1)/6+1, 'A'+(number-1)%6)}
			m, err := r.message()
			if err != nil {
				return err
			}
			all = append(all, m)
		}
		for batch := range slices.Chunk(all, layer.MaxBatch) {
			if _, err := q.Enqueue(ctx, batch...); err != nil {
				return err
			}
		}
	}
	return nil
}

// reach waits until so many requests have gone through all stages.
func (t *trial) reach(ctx context.Context, q *layer.Queue, n int) error {
	for {
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		if err == nil && stats.Acked >= int64(n) {
			return nil
		}
		if err == nil && stats.Dead > 0 {
			err = fmt.Errorf("%d requests have failed for good", stats.Dead)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill kills the process of a stage and restarts it. Each time it takes another stage.
func (t *trial) kill(n int) error {
	m := t.crew[(1+2*n)%len(t.crew)]
	if err := m.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = m.cmd.Wait() // says that it was killed
	t.killed = append(t.killed, m.from)
	fmt.Fprintf(t.log, "pipeline: killed the process of stage %s\n", m.from)
	return m.start(t)
}

// member is the process of a stage.
type member struct {
	from   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *bytes.Buffer
}

func (t *trial) start() error {
	for _, from := range states {
		m := &member{from: from}
		if err := m.start(t); err != nil {
			return err
		}
		t.crew = append(t.crew, m)
	}
	return nil
}

// start starts the process, and returns when it works. It ends when its stdin does, also if this process dies.
func (m *member) start(t *trial) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m.cmd = exec.Command(self, "stage", "-state", m.from, "-folder", t.folder, "-lease", t.lease.String(),
		"-work", t.work.String())
	m.cmd.Env, m.stderr = append(os.Environ(), childMark+"=1"), new(bytes.Buffer)
	m.cmd.Stderr = m.stderr
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		err = errors.Join(err, m.stdin.Close(), m.cmd.Wait())
		return fmt.Errorf("stage %s has not begun: %w\n%s", m.from, err, m.stderr)
	}
	return nil
}

// stop lets the processes end; they have to do so in good order.
func (t *trial) stop() (err error) {
	for _, m := range t.crew {
		err = errors.Join(err, m.stdin.Close()) // all at once
	}
	for _, m := range t.crew {
		if e := m.cmd.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("stage %s: %w\n%s", m.from, e, m.stderr))
		}
	}
	return err
}

// childMark, in the environment of a test's binary, makes it the command.
const childMark = "PIPELINE_CHILD"
